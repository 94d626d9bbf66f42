import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.errors import RequestRefused
from dataplane.headers import claim_in, claims_of, with_claims

CLAIMS = {"task_class": "vip", "tenant": "acme"}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
bodies = st.dictionaries(st.text() | st.sampled_from(["prompt", "vllm_xargs"]), json_values)


def test_both_headers_become_claims_whatever_their_case() -> None:
    headers = [(b"X-Task-Class", b"vip"), (b"x-TENANT", b"acme/eu:7@x+y"), (b"accept", b"*/*")]
    assert claims_of(headers) == {"task_class": "vip", "tenant": "acme/eu:7@x+y"}


def test_without_headers_there_are_no_claims() -> None:
    assert claims_of([(b"x-task", b"vip"), (b"content-type", b"application/json")]) == {}


def test_a_header_that_is_repeated_with_one_value_is_one_claim() -> None:
    assert claims_of([(b"x-tenant", b"acme"), (b"X-Tenant", b" acme\t")]) == {"tenant": "acme"}


@pytest.mark.parametrize(
    "value", [b"", b"a b", b"x" * 65, "naïve".encode(), b'v"ip', b"vip\n", b"\x00", b"a,b", b"\xff"]
)
def test_a_malformed_class_is_refused_with_the_header_and_the_rule(value: bytes) -> None:
    with pytest.raises(
        RequestRefused, match=re.escape("X-Task-Class must be 1 to 64 of")
    ) as refusal:
        claims_of([(b"x-task-class", value)])
    assert (refusal.value.status, refusal.value.param) == (400, "X-Task-Class")


@pytest.mark.parametrize("value", [b"", b"x" * 129, "ünï".encode(), b"a'b", b"a\r\nb"])
def test_a_malformed_tenant_is_refused_with_the_header_and_the_rule(value: bytes) -> None:
    with pytest.raises(RequestRefused, match="X-Tenant must be 1 to 128 of") as refusal:
        claims_of([(b"x-task-class", b"vip"), (b"x-tenant", value)])
    assert (refusal.value.status, refusal.value.param) == (400, "X-Tenant")


def test_a_header_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(RequestRefused, match="X-Task-Class came 2 times with different values"):
        claims_of([(b"x-task-class", b"vip"), (b"x-task-class", b"free")])


@pytest.mark.parametrize("xargs", [None, {}, {"task_class": "free"}])
def test_claims_are_set_over_those_of_the_body(xargs: object) -> None:
    claimed = with_claims(json.dumps({"prompt": "a", "vllm_xargs": xargs}).encode(), CLAIMS)
    assert claimed is not None
    assert json.loads(claimed) == {"prompt": "a", "vllm_xargs": CLAIMS}


def test_what_else_the_body_asks_the_scheduler_for_stays() -> None:
    body = b'{"vllm_xargs": {"tenant": "acme", "seed": 7}}'
    claimed = with_claims(body, {"task_class": "vip"})
    assert claimed is not None
    assert json.loads(claimed) == {"vllm_xargs": {"tenant": "acme", "seed": 7, "task_class": "vip"}}


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b'"text"', b"7", b"{", b"\xff\xfe", b"{'a': 1}", b"[" * 100_000),
        *(b'{"vllm_xargs": []}', b'{"vllm_xargs": "vip"}', b'{"a": ' * 100_000),
        b'{"a": ' + b"9" * 5000 + b"}",
    ],
)
def test_a_body_without_a_place_for_claims_is_left_to_vllm(body: bytes) -> None:
    assert with_claims(body, CLAIMS) is None
    assert claim_in(body) is None


@pytest.mark.parametrize("depth", range(100, 1000, 50))
def test_no_depth_of_a_body_is_a_fault(depth: int) -> None:
    body = b'{"a": ' * depth + b"1" + b"}" * depth
    claimed = with_claims(body, CLAIMS)
    assert claimed is None or json.loads(claimed)["vllm_xargs"] == CLAIMS


@given(bodies, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_all_else_in_a_body_means_what_it_meant(document: dict[str, object], encoding: str) -> None:
    xargs = document.get("vllm_xargs")
    claimed = with_claims(json.dumps(document, ensure_ascii=False).encode(encoding), CLAIMS)
    if xargs is not None and not isinstance(xargs, dict):
        assert claimed is None
        return
    assert claimed is not None
    assert json.loads(claimed) == {**document, "vllm_xargs": {**(xargs or {}), **CLAIMS}}


def test_numbers_keep_their_digits() -> None:
    body = b'{"temperature": 0.1, "seed": 123456789012345678901234567890, "p": 1e-7, "x": NaN}'
    claimed = with_claims(body, CLAIMS)
    assert claimed is not None
    assert b'"temperature": 0.1, "seed": 123456789012345678901234567890, "p": 1e-07' in claimed


@given(st.binary())
def test_no_body_is_a_fault(body: bytes) -> None:
    with_claims(body, CLAIMS)
    claim_in(body)


@pytest.mark.parametrize("claim", ["vip", 7, ["vip"], None, ""])
def test_a_body_names_its_class_in_whatever_type(claim: object) -> None:
    assert claim_in(json.dumps({"vllm_xargs": {"task_class": claim}}).encode()) == claim
