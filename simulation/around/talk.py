"""How those around speak: line by line, and HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import trio

from simulation.around import Around
from simulation.history import Answer
from simulation.places import ADMIN_TOKEN, HTTP
from simulation.world import EPOCH

PATIENCE = 60.0
"""Seconds for which an answer is waited for."""
BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
"""What it is to be cut off."""


class Talk:
    """A connection that is read line by line."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.last = ""
        """The last line of the last reply."""

    async def line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line.rstrip(b"\r")

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def rest(self) -> bytes:
        while data := await self._stream.receive_some(65536):
            self._buffer += data
        return bytes(self._buffer)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Read the head of an HTTP response: its status, and its fields by their names."""
        status, fields = int((await self.line()).split()[1]), {}
        while line := await self.line():
            name, _, value = line.decode(errors="replace").partition(":")
            fields[name.lower()] = value.strip()
        return status, fields

    async def reply(self) -> int:
        """Read one SMTP reply and return its code."""
        while True:
            line = await self.line()
            if line[3:4] != b"-":
                self.last = line.decode(errors="replace")
                return int(line[:3])

    async def say(self, data: bytes) -> None:
        await self._stream.send_all(data)


class HttpFailed(Exception):
    """No answer came."""


async def call(
    around: Around,
    host: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str = ADMIN_TOKEN,
    key: str = "",
) -> tuple[int, Any]:
    """Make a call, with an `Idempotency-Key` if one is given; `HttpFailed` when no whole answer
    came."""
    status, _, answer = await fetch(around, host, method, path, body, token=token, key=key)
    return status, answer


async def fetch(
    around: Around,
    host: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    token: str = ADMIN_TOKEN,
    key: str = "",
) -> tuple[int, dict[str, str], Any]:
    """Do as `call`, and return the fields of the answer's head, too, by their names in lower
    case.  Of a stream of events nothing is read but its head."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    with_key = f"Idempotency-Key: {key}\r\n" if key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: relay.example\r\nConnection: close\r\n"
        + (f"Authorization: Bearer {token}\r\n" if token else "")
        + f"Content-Type: {kind}\r\nContent-Length: {len(raw)}\r\n{with_key}\r\n"
    )
    try:
        with trio.fail_after(PATIENCE):
            async with await around.network.open_tcp_stream(host, HTTP) as stream:
                talk = Talk(stream)
                await talk.say(head.encode() + raw)
                status, fields = await talk.head()
                if fields.get("content-type", "").startswith("text/event-stream"):
                    return status, fields, None
                rest = await talk.rest()
                if len(rest) < int(fields.get("content-length", "0")):
                    raise HttpFailed("cut short")
    except (*BROKEN, ValueError, IndexError) as error:
        raise HttpFailed(type(error).__name__) from error
    try:
        return status, fields, json.loads(rest) if rest else None
    except ValueError:
        return status, fields, rest


async def ask(
    around: Around, host: str, path: str, body: Any, good: int, marker: str = ""
) -> Answer:
    try:
        status, made = await call(around, host, "POST", path, body)
    except HttpFailed:
        return Answer.DOUBT
    if status == good:
        if marker and isinstance(made, dict):
            ids = [one["id"] for one in (made, *made.get("messages", ())) if "id" in one]
            around.history.ids.setdefault(marker, []).extend(map(str, ids))
        return Answer.KEPT
    # "Unavailable" may have been said of a commit whose answer was lost.
    return Answer.DOUBT if status >= 500 else Answer.REFUSED


def instant(at: float) -> str:
    """Return a virtual second as the relay is told instants."""
    return datetime.fromtimestamp(EPOCH + at, UTC).isoformat()


def virtual(text: str) -> float:
    """Virtual seconds of an instant that the relay has said."""
    return datetime.fromisoformat(text).timestamp() - EPOCH
