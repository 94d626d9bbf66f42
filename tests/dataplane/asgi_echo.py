"""A real ASGI application that says what reached it, and a way to call one directly."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dataplane.middleware import App, Message, Receive, Scope, Send

COMPLETIONS = "/v1/completions"


@dataclass
class Echo:
    """Keeps what it was sent, and answers 200 with the body."""

    bodies: list[bytes] = field(default_factory=list)
    scopes: list[Scope] = field(default_factory=list)
    disconnects: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    def headers(self) -> dict[bytes, bytes]:
        """Of the last request."""
        return dict(self.scopes[-1]["headers"])


@dataclass
class Answer:
    """What a client got."""

    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.messages[1]["body"])["error"]
        return error


def parts(*chunks: bytes) -> list[Message]:
    """A body that comes in these chunks."""
    last = len(chunks) - 1
    return [
        {"type": "http.request", "body": chunk, "more_body": number < last}
        for number, chunk in enumerate(chunks)
    ]


async def call(
    app: App,
    messages: Iterable[Message],
    headers: Iterable[tuple[bytes, bytes]] = (),
    **scope: object,
) -> Answer:
    """Send one request to an application; after the messages the client is gone."""
    incoming, answer = iter(messages), Answer()

    async def receive() -> Message:
        return next(incoming, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        answer.messages.append(message)

    request = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": list(headers)}
    await app({**request, **scope}, receive, send)
    return answer
