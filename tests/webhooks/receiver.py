"""A receiver of webhooks, and how it checks what it gets."""

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from tests.eventually import eventually


@dataclass
class Receiver:
    """A web server that answers as it is told, and keeps what it got."""

    port: int
    answers: list[bytes | None] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=secret"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await self._answer(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1

    async def _answer(self, stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some(65536)
            if not chunk:
                return
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }
        while len(body) < int(headers["content-length"]):
            body += await stream.receive_some(65536)
        self.got.append(({":request": lines[0], **headers}, body))
        answer = self.answers.pop(0) if self.answers else b"204 No Content"
        if answer is None:
            await trio.sleep_forever()
        assert answer is not None
        await stream.send_all(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")

    async def wait_for(self, count: int) -> None:
        """Return when so many posts have come."""
        await eventually(
            lambda: len(self.got), f"{count} posts come", until=lambda have: have >= count
        )

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@asynccontextmanager
async def receiving(*answers: bytes | None) -> AsyncIterator[Receiver]:
    """Run a receiver for the block."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        receiver = Receiver(listener.socket.getsockname()[1], list(answers))
        nursery.start_soon(trio.serve_listeners, receiver.serve, [listener])
        yield receiver
        nursery.cancel_scope.cancel()


def verify(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Verify a post as the documents of Standard Webhooks say, in a receiver's own words."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    given = [part.split(",", 1) for part in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and value == wanted for version, value in given)
