from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.labels import CLASS_NAME, DEFAULT_CLASS, OTHER_CLASS, ClassLabels
from dataplane.rules import ClassRule, RequestTraits
from dataplane.weights import ClassPolicy, Discipline, Slo, WeightTable

TABLE = WeightTable(
    epoch=1,
    version=1,
    ttl_s=10.0,
    mode="rule",
    discipline=Discipline.APQ,
    policies={name: ClassPolicy(name, 1.0, 1.0, Slo(1.0)) for name in ("vip", "long", "short")},
    rules=(ClassRule("long", min_prompt_tokens=1000), ClassRule("short", max_prompt_tokens=10)),
)


def ruleless(*task_classes: str) -> WeightTable:
    policies = {name: ClassPolicy(name, 1.0, 1.0, Slo(1.0)) for name in task_classes}
    return replace(TABLE, policies=policies, rules=())


hostile = (
    st.none()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.lists(st.integers())
    | st.dictionaries(st.text(), st.integers())
    | st.just("x" * 10_000_000)
)


def test_a_claim_wins_over_the_rules() -> None:
    assert ClassLabels(max_names=4).resolve("vip", RequestTraits(5000), TABLE) == "vip"


def test_without_a_claim_the_first_matching_rule_decides() -> None:
    labels = ClassLabels(max_names=4)
    assert labels.resolve(None, RequestTraits(5000), TABLE) == "long"
    assert labels.resolve(None, RequestTraits(10), TABLE) == "short"
    assert labels.resolve(None, RequestTraits(500), TABLE) == DEFAULT_CLASS


@pytest.mark.parametrize("claim", ["", "a b", "x" * 65, "naïve", "vip\n", 7, 1.5, [], {}, b"vip"])
def test_what_is_no_class_name_is_other(claim: object) -> None:
    assert ClassLabels(max_names=4).resolve(claim, RequestTraits(1), TABLE) == OTHER_CLASS


def test_names_beyond_the_cap_are_other_and_those_of_the_snapshot_are_not() -> None:
    labels = ClassLabels(max_names=2)
    claims = ["a", "b", "c", "a", "vip"]
    assert [labels.resolve(claim, RequestTraits(1), TABLE) for claim in claims] == [
        *("a", "b", OTHER_CLASS, "a", "vip")
    ]


def test_default_and_other_need_no_room() -> None:
    labels = ClassLabels(max_names=0)
    claims = (DEFAULT_CLASS, OTHER_CLASS, "a")
    assert [labels.resolve(claim, RequestTraits(1), TABLE) for claim in claims] == [
        *(DEFAULT_CLASS, OTHER_CLASS, OTHER_CLASS)
    ]


def test_before_the_first_snapshot_all_built_in_rules_apply() -> None:
    labels, table = ClassLabels(max_names=0), WeightTable.initial()
    traits = (RequestTraits(5), RequestTraits(9000), RequestTraits(500, streaming=True))
    found = [labels.resolve(None, each, table) for each in (*traits, RequestTraits(500))]
    assert found == ["short", "long", "streaming", "batch"]


def test_a_snapshot_without_rules_has_the_built_in_ones_of_its_classes() -> None:
    labels, table = ClassLabels(max_names=0), ruleless("long", "streaming", "vip")
    traits = (RequestTraits(9000), RequestTraits(5, streaming=True), RequestTraits(5))
    found = [labels.resolve(None, each, table) for each in traits]
    assert found == ["long", "streaming", DEFAULT_CLASS]


def test_rules_of_the_snapshot_replace_the_built_in_ones() -> None:
    table = replace(ruleless("short", "vip"), rules=(ClassRule("vip", tenant="acme"),))
    assert ClassLabels(max_names=0).resolve(None, RequestTraits(5), table) == DEFAULT_CLASS


@given(st.lists(hostile, max_size=50), st.integers(0, 10**9))
def test_any_claims_give_few_well_formed_names(claims: list[object], prompt_tokens: int) -> None:
    labels = ClassLabels(max_names=3)
    names = {labels.resolve(claim, RequestTraits(prompt_tokens), TABLE) for claim in claims}
    assert all(CLASS_NAME.fullmatch(name) for name in names)
    assert len(names - set(TABLE.policies) - {DEFAULT_CLASS, OTHER_CLASS}) <= 3
