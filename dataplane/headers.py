"""What headers say about a request, and its way into the body, where vLLM takes it from.

A gateway sets headers, a client writes the body: so a header wins over the body.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dataplane.errors import RequestRefused
from dataplane.labels import CLAIM, CLASS_NAME, TENANT

XARGS = "vllm_xargs"
"""The field of a request's body that vLLM hands through to its scheduler."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header that is understood.

    Attributes:
        name: as people write it.
        key: what it sets in ``vllm_xargs``.
        pattern: what a value looks like.
        wording: the pattern, for people.
    """

    name: str
    key: str
    pattern: re.Pattern[str]
    wording: str

    def value(self, sent: Iterable[bytes]) -> str:
        """The one value that all of ``sent`` agree on.

        Raises:
            RequestRefused: they differ, or the value breaks the pattern.
        """
        # One character per byte: so what is not ASCII stays visible to the pattern.
        values = {raw.decode("latin-1").strip(" \t") for raw in sent}
        if len(values) > 1:
            raise self._refusal(f"came {len(values)} times with different values")
        (value,) = values
        if self.pattern.fullmatch(value) is None:
            raise self._refusal(f"must be {self.wording}")
        return value

    def _refusal(self, complaint: str) -> RequestRefused:
        return RequestRefused(
            400, "BadRequestError", f"header {self.name} {complaint}", param=self.name
        )


HEADERS = (
    Header("X-Task-Class", CLAIM, CLASS_NAME, "1 to 64 of A-Z a-z 0-9 _ . -"),
    Header(
        "X-Tenant",
        TENANT,
        re.compile(r"[A-Za-z0-9_.:@/+-]{1,128}"),
        "1 to 128 of A-Z a-z 0-9 _ . : @ / + -",
    ),
)


def claims_of(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """What the headers set in ``vllm_xargs``.

    Args:
        headers: pairs of name and value as ASGI has them.

    Raises:
        RequestRefused: a value is malformed.
    """
    received = [(name.lower(), value) for name, value in headers]
    claims = {}
    for header in HEADERS:
        sent = [value for name, value in received if name == header.name.lower().encode()]
        if sent:
            claims[header.key] = header.value(sent)
    return claims


def with_claims(body: bytes, claims: Mapping[str, str]) -> bytes | None:
    """The body with the claims in it, all else as it was; None: it has no place for them."""
    try:
        document = _document(body)
        if document is None:
            return None
        claimed = {**document, XARGS: {**(document.get(XARGS) or {}), **claims}}
        return json.dumps(claimed).encode()
    except (ValueError, RecursionError):  # what is no JSON, or too deep to be walked through
        return None


def claim_in(body: bytes) -> object:
    """The class that the body claims, of whatever type; None: it claims none."""
    try:
        document = _document(body)
    except (ValueError, RecursionError):
        return None
    return None if document is None else (document.get(XARGS) or {}).get(CLAIM)


def _document(body: bytes) -> dict[str, Any] | None:
    document = json.loads(body)
    if not isinstance(document, dict):
        return None
    has_place = document.get(XARGS) is None or isinstance(document[XARGS], dict)
    return document if has_place else None
