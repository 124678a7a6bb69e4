"""A real ingest and writer under a real supervisor, and a client that speaks raw bytes."""

from __future__ import annotations

import functools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any
from unittest.mock import patch

import structlog
import trio

from actors import filter as filter_actor
from actors import ingest, ingest_process, writer
from actors.messages import Accept, Consult, Report
from relay.accepted import Accepted, Origin, Why
from relay.db.pool import Pool
from relay.errors import ConfigError
from relay.futures import Future
from relay.load import Senders
from relay.mailboxes.capture import Capture
from relay.ports.certificate import Certificate
from relay.ports.proxy import networks
from relay.settings import CONNECTIONS_A_PROCESS
from relay.smtp.channel import Setup
from relay.smtp.chaos import Chaos
from relay.smtp.filtering import FilterClass
from relay.smtp.front import Front
from relay.smtp.limits import SmtpLimits, part_of
from relay.smtp.server import Scheduling
from relay.storage import AMPLE, Space
from supervisor import Backoff, ChildSpec, Context, Mailbox, Supervisor, SupervisorSpec
from tests import loaded
from tests.eventually import eventually


class Client:
    """One SMTP connection; `sent` bytes go out as they are, replies come back as they are."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._input = b""

    async def start_tls(self, context: ssl.SSLContext, *, behind: bytes = b"") -> ssl.SSLObject:
        """Say STARTTLS, with `behind` in the same segment, and shake hands."""
        await self.send(b"STARTTLS\r\n" + behind)
        assert (await self.reply())[:3] == "220"
        assert self._input == b""
        self.stream = tls = trio.SSLStream(
            self.stream, context, server_hostname="localhost", https_compatible=True
        )
        await tls.do_handshake()
        found: ssl.SSLObject = tls._ssl_object
        return found

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send_all(data)

    async def line(self) -> str:
        """Read one line; empty at the end of the stream."""
        while b"\r\n" not in self._input:
            chunk = await self.stream.receive_some(65536)
            if not chunk:
                left, self._input = self._input, b""
                return left.decode()
            self._input += chunk
        line, _, self._input = self._input.partition(b"\r\n")
        return line.decode()

    async def reply(self) -> str:
        """Read one reply, all its lines joined with newlines; empty at the end of the stream."""
        lines = [await self.line()]
        while lines[-1][3:4] == "-":
            lines.append(await self.line())
        return "\n".join(lines)

    async def ask(self, command: str | bytes) -> str:
        """Send one command and read its reply."""
        data = command if isinstance(command, bytes) else command.encode()
        await self.send(data + b"\r\n")
        return await self.reply()

    async def replies(self) -> list[str]:
        """Read replies until the stream ends."""
        found = []
        try:
            while reply := await self.reply():
                found.append(reply)
        except trio.BrokenResourceError:
            found.append("reset")
        return found

    async def silent(self, seconds: float = 0.1) -> bool:
        """Whether nothing comes for so long."""
        with trio.move_on_after(seconds):
            self._input += await self.stream.receive_some(65536)
            return False
        return True

    async def begin(self, *recipients: str, sender: str = "a@b.example") -> None:
        """Open a transaction up to DATA's 354."""
        assert (await self.ask(f"MAIL FROM:<{sender}>"))[:3] == "250"
        for recipient in recipients:
            assert (await self.ask(f"RCPT TO:<{recipient}>"))[:3] == "250"
        assert (await self.ask("DATA"))[:3] == "354"

    async def deliver(self, raw: bytes, *recipients: str, sender: str = "a@b.example") -> str:
        """Send one message (its text dot-stuffed here), and return the reply to its dot."""
        await self.begin(*recipients, sender=sender)
        stuffed = (b"\r\n" + raw).replace(b"\r\n.", b"\r\n..")[2:]
        return await self.ask(stuffed + b".")


class Nobody:
    """Mailboxes of which there are none, and which answer at once."""

    def find(self, address: str) -> Future[Why | None]:
        """Nobody lives here."""
        answer: Future[Why | None] = Future()
        answer.settle("unknown")
        return answer

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        """Nothing is stored."""
        answer: Future[Accepted] = Future()
        answer.settle(Accepted({}))
        return answer


class Service:
    """A running ingest: where it listens, and what became of the mail."""

    def __init__(
        self,
        pool: Pool,
        supervisor: Supervisor,
        listener: socket.socket,
        certificate: Certificate | None,
    ) -> None:
        self.pool = pool
        self.supervisor = supervisor
        self.listener = listener
        self.certificate = certificate
        self.port: int = listener.getsockname()[1]

    async def mailbox(self, address: str = "bob@relay.localhost", seconds: float = 3600.0) -> str:
        """Make a mailbox that expires in so many seconds."""
        await self.pool.execute(
            "INSERT INTO relay.mailboxes (address, expires_at) "
            "VALUES (%s, clock_timestamp() + make_interval(secs => %s))",
            (address, seconds),
        )
        return address

    async def stored(self) -> list[tuple[str, str, bytes]]:
        """(recipient, reverse-path, raw) of every message stored, oldest first."""
        rows = await self.pool.fetch(
            "SELECT m.address, i.reverse_path, i.raw_email FROM relay.messages i "
            "JOIN relay.mailboxes m ON m.id = i.mailbox_id ORDER BY i.id"
        )
        return [(address, sender, bytes(raw)) for address, sender, raw in rows]

    @asynccontextmanager
    async def raw_client(self) -> AsyncIterator[Client]:
        """Connect, and read nothing yet."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Connect and say EHLO."""
        async with self.raw_client() as client:
            assert (await client.reply())[:3] == "220"
            assert (await client.ask("EHLO client.example"))[:3] == "250"
            yield client


@asynccontextmanager
async def serving(
    pool: Pool,
    *,
    limits: SmtpLimits | None = None,
    filter_: FilterClass | None = None,
    filter_timeout: float = 5.0,
    filter_stuck: int = filter_actor.STUCK,
    writer_pool: Pool | None = None,
    drain_timeout: float = 15.0,
    scheduling: Scheduling | None = None,
    senders: Senders | None = None,
    capture: Capture | None = None,
    certificate: tuple[str, str] | None = None,
    proxies: Sequence[str] = (),
    chaos: Chaos | None = None,
    **supervisor: Any,
) -> AsyncIterator[Service]:
    """Run writer and ingest on a free port until the block ends."""
    shown = None if certificate is None else Certificate.load(*certificate)
    messages: Mailbox[Accept] = Mailbox("writer", on_dead=writer.dead)
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    questions: Mailbox[Consult] = Mailbox("filter", attempts=1, on_dead=filter_actor.dead)
    children: list[ChildSpec] = []
    if filter_ is not None:
        run = functools.partial(
            filter_actor.run,
            filter_=filter_,
            hostname="relay.localhost",
            max_message_bytes=(limits or SmtpLimits()).max_message_bytes,
            timeout=filter_timeout,
            stuck=filter_stuck,
        )
        children.append(ChildSpec(name="filter", run=run, mailbox=questions, fatal=(ConfigError,)))
    boss = Supervisor(**supervisor)
    tree = SupervisorSpec(
        name="relay",
        children=(
            ChildSpec(
                name="writer",
                run=functools.partial(writer.run, pool=writer_pool or pool, capture=capture),
                mailbox=messages,
            ),
            *children,
            ChildSpec(
                name="ingest",
                run=functools.partial(
                    ingest.run,
                    sockets=[listener],
                    pool=pool,
                    writer=messages,
                    limits=limits,
                    filter_=questions if filter_ else None,
                    filter_hooks=filter_.hooks if filter_ else frozenset(),
                    scheduling=scheduling,
                    senders=senders,
                    capture=capture,
                    certificate=shown,
                    proxies=networks(proxies),
                    chaos=chaos,
                ),
                hears=(Report,),
                drain_timeout=drain_timeout,
            ),
        ),
    )
    async with trio.open_nursery() as nursery:
        if shown is not None:
            nursery.start_soon(shown.watch, 0.1)
        async with _run(pool, boss, tree, listener, shown) as service:
            yield service
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving_by_processes(
    pool: Pool,
    *,
    count: int = 2,
    limits: SmtpLimits | None = None,
    drain_timeout: float = 15.0,
    wake_summariser: Callable[[], None] = lambda: None,
    space: Space = AMPLE,
    patience: float = ingest_process.PATIENCE,
    dsn: str | None = None,
    certificate: tuple[str, str] | None = None,
    proxies: Sequence[str] = (),
    start: Callable[[int, int], Awaitable[Any]] = ingest_process._start,
) -> AsyncIterator[Service]:
    """Run ingest on a free port until the block ends, its sessions in so many processes.

    `dsn`: of another database for these than that of `pool`; `start` starts a process.
    """
    limits = limits or SmtpLimits()
    shown = None if certificate is None else Certificate(*certificate)
    front = Front(limits, count, networks(proxies))
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    processes = tuple(
        ChildSpec(
            name=f"ingest-{place + 1}",
            run=functools.partial(
                ingest_process.run,
                front=front,
                setup=Setup(
                    place=place,
                    level="info",
                    dsn=dsn or pool.dsn,
                    connections=CONNECTIONS_A_PROCESS,
                    prepare=True,
                    call_timeout=pool.call_timeout,
                    domains=("relay.localhost",),
                    limits=part_of(limits, count),
                    certificate=certificate,
                ),
                hosts=pool.hosts,
                space=space,
                wake_summariser=wake_summariser,
                certificate=shown,
                patience=patience,
            ),
            hears=(Report,),
            drain_timeout=drain_timeout,
            backoff=Backoff(base=0.01),
        )
        for place in range(count)
    )
    tree = SupervisorSpec(
        name="relay",
        children=(
            *processes,
            ChildSpec(
                name="ingest",
                run=functools.partial(ingest.hand_on, sockets=[listener], front=front),
                hears=(Report,),
                drain_timeout=drain_timeout,
            ),
        ),
        max_restarts=100,
    )
    with patch.object(ingest_process, "_start", start):
        async with _run(pool, Supervisor(wrap=_named), tree, listener, shown) as service:
            await eventually(lambda: front.gate.open, "nobody is there", until=lambda n: not n)
            yield service


def serving_by_loaded_processes(pool: Pool, **options: Any) -> AbstractAsyncContextManager[Service]:
    """The same with processes that are forked: for tests of sessions, not of how one starts."""
    return serving_by_processes(pool, start=loaded.start_smtp, **options)


async def _named(context: Context, actor: Callable[[], Awaitable[None]]) -> None:
    structlog.contextvars.bind_contextvars(actor=context.name)
    await actor()


@asynccontextmanager
async def _run(
    pool: Pool,
    boss: Supervisor,
    tree: SupervisorSpec,
    listener: socket.socket,
    certificate: Certificate | None,
) -> AsyncIterator[Service]:
    with listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(boss.run, tree)
            service = Service(pool, boss, listener, certificate)
            async with service.raw_client() as first:  # the queue of connections exists already
                assert (await first.reply())[:3] in ("220", "421")
            try:
                yield service
            finally:
                boss.shutdown()
