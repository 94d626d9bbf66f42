"""Headers for classes, at vLLM's door: ``--middleware dataplane.middleware.ClassHeaders``.

Runs in each API-server process, in front of everything of vLLM's, and imports little: no
vLLM, no gRPC. What it has no business with, it hands through as it is.
"""

import json
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

from dataplane.clock import Clock
from dataplane.config import DataplaneConfig, load_config
from dataplane.errors import RequestRefused
from dataplane.headers import claim_in, claims_of, with_claims
from dataplane.labels import CLAIM, named_by
from dataplane.refusals import NoticeBoard

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

PATHS = frozenset({"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""Where a body may carry ``vllm_xargs``."""

_ABOUT_THE_BODY = (b"content-length", b"transfer-encoding")


class ClassHeaders:
    """Sets ``vllm_xargs`` from X-Task-Class and X-Tenant, and refuses what an engine refuses.

    The body is read when a header is there, or when an engine refuses some class: which
    class is asked for may then stand in the body only.

    Args:
        app: what comes after.
        config: None: from the environment.
        clock: None: real time.

    Raises:
        ConfigError: the environment holds a value that cannot be used.
    """

    def __init__(
        self, app: App, *, config: DataplaneConfig | None = None, clock: Clock | None = None
    ) -> None:
        config = config or load_config()
        self._app = app
        self._clock = clock or Clock()
        self._max_body_bytes = config.max_body_bytes
        directory = config.notices_dir
        self._board = None if directory is None else NoticeBoard(directory)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if _concerns_us(scope):
            try:
                scope, receive = await self._admit(scope, receive)
            except RequestRefused as refusal:
                await _answer(refusal, send)
                return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
        """The request as vLLM is to see it.

        Raises:
            RequestRefused: vLLM is not to see it.
        """
        claims = claims_of(scope["headers"])
        refused = self._refused_classes()
        _require_admitted(claims.get(CLAIM), refused)
        if not claims and not refused:
            return scope, receive
        messages = await _read(receive, self._max_body_bytes)
        body = b"".join(message.get("body", b"") for message in messages)
        too_large = len(body) > self._max_body_bytes
        if too_large and claims:
            raise _too_large(self._max_body_bytes)
        if too_large or messages[-1]["type"] == "http.disconnect":
            return scope, _replay(messages, receive)
        if CLAIM not in claims and refused:
            _require_admitted(claim_in(body), refused)
        claimed = with_claims(body, claims) if claims else None
        if claimed is None:
            return scope, _replay(messages, receive)
        whole = {"type": "http.request", "body": claimed, "more_body": False}
        return _with_length(scope, len(claimed)), _replay([whole], receive)

    def _refused_classes(self) -> Mapping[str, float]:
        if self._board is None:
            return {}
        return self._board.refused(self._clock.monotonic_s(), self._clock.wall_s())


def _concerns_us(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "POST":
        return False
    return scope["path"].removeprefix(scope.get("root_path", "")) in PATHS


def _require_admitted(claim: object, refused: Mapping[str, float]) -> None:
    task_class = named_by(claim)
    if task_class is None or task_class not in refused:
        return
    retry_after_s = max(1, math.ceil(refused[task_class]))
    raise RequestRefused(
        503,
        "ServiceUnavailableError",
        f"class {task_class} is not admitted while the engine recovers from overload; "
        f"try again in {retry_after_s} s",
        retry_after_s=retry_after_s,
    )


def _too_large(max_body_bytes: int) -> RequestRefused:
    return RequestRefused(
        413,
        "ContentTooLargeError",
        f"with X-Task-Class or X-Tenant a body may have {max_body_bytes} bytes "
        "(TRIMTAB_MAX_BODY_BYTES); name the class in the body's vllm_xargs instead",
    )


async def _read(receive: Receive, max_bytes: int) -> list[Message]:
    """All up to the end of the body, to a disconnect, or to the message that is too much."""
    messages: list[Message] = []
    size_bytes = 0
    while True:
        message = await receive()
        messages.append(message)
        size_bytes += len(message.get("body", b""))
        if size_bytes > max_bytes or not message.get("more_body", False):
            return messages


def _replay(messages: Iterable[Message], receive: Receive) -> Receive:
    """Give these messages first, then what else comes: a disconnect is to be seen."""
    pending = deque(messages)

    async def replayed() -> Message:
        return pending.popleft() if pending else await receive()

    return replayed


def _with_length(scope: Scope, length_bytes: int) -> Scope:
    headers = [pair for pair in scope["headers"] if pair[0].lower() not in _ABOUT_THE_BODY]
    return {**scope, "headers": [*headers, (b"content-length", b"%d" % length_bytes)]}


async def _answer(refusal: RequestRefused, send: Send) -> None:
    """Answer as vLLM's own errors look."""
    error = {
        "message": str(refusal),
        "type": refusal.kind,
        "param": refusal.param,
        "code": refusal.status,
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
