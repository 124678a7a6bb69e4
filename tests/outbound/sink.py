"""A scripted SMTP server: keeps what it is given, and misbehaves as it is told.

`Sink.script(session, verb, line)` is asked at each step (`connect`, then the verb of each command,
`body` when something of a message has come, `dot` at its end) and returns the answer's bytes, None
for the usual answer, or raises `HangUp`.  It may wait, and it may do anything else, such as killing
the client.
"""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from tests.eventually import eventually


class HangUp(Exception):
    """Close the connection now, after saying `last`; with no word at the dot, the mail is taken."""

    def __init__(self, last: bytes = b"") -> None:
        super().__init__()
        self.last = last


@dataclass
class Received:
    """A message that the sink took (it answered the dot with 2yz, or was about to)."""

    sender: str
    recipients: tuple[str, ...]
    data: bytes
    secured: bool = False
    """Whether it came by TLS."""

    @property
    def recipient(self) -> str:
        """The one recipient."""
        (only,) = self.recipients
        return only

    @property
    def message_id(self) -> str:
        """The Message-ID header."""
        found = re.search(rb"^Message-ID: <(.*?)>", self.data, re.MULTILINE)
        assert found is not None
        return found[1].decode()


@dataclass
class Session:
    """One connection as the sink sees it."""

    stream: trio.abc.Stream
    number: int
    sender: str = ""
    recipients: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    """The verbs, in order."""
    lines: list[str] = field(default_factory=list)
    """The commands, in order."""
    secured: bool = False
    """Whether it is inside TLS."""


Script = Callable[[Session, str, str], Awaitable[bytes | None]]


async def well_behaved(session: Session, verb: str, line: str) -> bytes | None:
    """The usual answer to everything."""
    return None


class Sink:
    """The server; `received` is what it took, in order."""

    def __init__(self, script: Script = well_behaved, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: what STARTTLS is offered with."""
        self.script = script
        self.tls = tls
        self.received: list[Received] = []
        self.sessions: list[Session] = []
        self.port = 0
        self.pipelining = True
        self.extensions: tuple[str, ...] = ()
        """What EHLO offers besides."""

    @property
    def url(self) -> str:
        """The upstream that leads here."""
        return f"smtp://127.0.0.1:{self.port}"

    @property
    def recipients(self) -> list[str]:
        """Who got a message, in order."""
        return [message.recipient for message in self.received]

    async def gets(self, count: int) -> None:
        """Wait until so many messages were taken."""
        await eventually(
            lambda: len(self.received),
            f"the sink gets {count} messages",
            until=lambda have: have >= count,
            within=40.0,
        )

    async def serve(self, stream: trio.SocketStream) -> None:
        """One session."""
        session = Session(stream, len(self.sessions))
        self.sessions.append(session)
        try:
            await self._converse(session)
        except HangUp as end:
            if end.last:
                with contextlib.suppress(trio.BrokenResourceError):
                    await session.stream.send_all(end.last)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client has gone
        finally:
            await trio.aclose_forcefully(stream)  # under TLS, too

    async def _converse(self, session: Session) -> None:
        await self._answer(session, "connect", "", b"220 sink ESMTP\r\n")
        buffer = b""
        while True:
            line, found, rest = buffer.partition(b"\r\n")
            if not found:
                chunk = await session.stream.receive_some(65536)
                if not chunk:
                    return
                buffer += chunk
                continue
            buffer = rest
            text = line.decode("utf-8", "replace")
            verb = text.partition(" ")[0].upper()
            session.said.append(verb)
            session.lines.append(text)
            usual = b"250 2.0.0 Ok\r\n"
            if verb == "EHLO":
                pipelining = b"250-PIPELINING\r\n" if self.pipelining else b""
                starttls = b"250-STARTTLS\r\n" if self.tls and not session.secured else b""
                more = "".join(f"250-{each}\r\n" for each in self.extensions).encode()
                offers = pipelining + starttls + more
                usual = b"250-sink\r\n" + offers + b"250-8BITMIME\r\n250 SIZE 10000000\r\n"
            elif verb == "STARTTLS":
                usual = b"220 2.0.0 go on\r\n"
            elif verb == "MAIL":
                session.sender, session.recipients = _path(text), []
            elif verb == "DATA":
                usual = b"354 go on\r\n" if session.recipients else b"554 5.5.1 nobody\r\n"
            elif verb == "QUIT":
                usual = b"221 2.0.0 bye\r\n"
            answer = await self._answer(session, verb, text, usual)
            if verb == "QUIT":
                return
            if verb == "STARTTLS" and answer[:1] == b"2" and self.tls is not None:
                inside = trio.SSLStream(session.stream, self.tls, server_side=True)
                session.stream = inside
                await inside.do_handshake()
                session.secured = True
            if verb == "RCPT" and answer[:1] == b"2":
                session.recipients.append(_path(text))
            if verb == "DATA" and answer[:1] == b"3":
                buffer = await self._data(session, buffer)

    async def _data(self, session: Session, buffer: bytes) -> bytes:
        buffer = b"\r\n" + buffer
        begun = False
        searched = 0
        while (end := buffer.find(b"\r\n.\r\n", searched)) < 0:
            searched = max(len(buffer) - 4, 0)
            chunk = await session.stream.receive_some(65536)
            if not chunk:
                raise HangUp
            buffer += chunk
            if not begun:
                begun = True
                await self._answer(session, "body", "", b"")
        data, rest = buffer[2 : max(end, 2)], buffer[end + 5 :]
        data = data.replace(b"\r\n..", b"\r\n.") + b"\r\n"
        message = Received(session.sender, tuple(session.recipients), data, session.secured)
        await self._answer(session, "dot", "", b"250 2.0.0 taken\r\n", message)
        return rest

    async def _answer(
        self,
        session: Session,
        verb: str,
        line: str,
        usual: bytes,
        message: Received | None = None,
    ) -> bytes:
        try:
            answer = await self.script(session, verb, line)
        except HangUp as end:
            if message is not None and not end.last:
                await self._take(message)
            raise
        if answer is None:
            answer = usual
        if message is not None and answer[:1] == b"2":
            await self._take(message)
        if answer:
            await session.stream.send_all(answer)
        return answer

    async def _take(self, message: Received) -> None:
        self.received.append(message)


def _path(line: str) -> str:
    found = re.search("<(.*?)>", line)
    return found[1] if found else ""


@asynccontextmanager
async def running_sink(
    script: Script = well_behaved,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Sink]:
    """A sink on a free port, until the block ends."""
    sink = Sink(script, tls)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host=host)
        sink.port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, sink.serve, listeners)
        yield sink
        nursery.cancel_scope.cancel()
