"""LMTP: a mail server in front delivers over a Unix socket, and is told of each recipient."""

from __future__ import annotations

import contextlib
import functools
import smtplib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from actors import lmtp, writer
from actors.messages import Accept
from relay.db.pool import Pool
from relay.mailboxes.capture import Capture
from relay.smtp.limits import SmtpLimits
from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec

T = TypeVar("T")

MAIL = b"Subject: s\r\n\r\n.dots\r\n"
BOB, EVE, NOBODY = "bob@relay.localhost", "eve@relay.localhost", "nobody@relay.localhost"


class Service:
    """A running socket, and what became of the mail."""

    def __init__(self, pool: Pool, path: str) -> None:
        self.pool = pool
        self.path = path

    async def mailbox(self, address: str, plan: str = "free") -> None:
        """Make a mailbox."""
        await self.pool.execute(
            "INSERT INTO relay.mailboxes (address, plan, expires_at)"
            " VALUES (%s, %s, now() + interval '1 hour')",
            (address, plan),
        )

    async def stored(self) -> list[tuple[str, bytes]]:
        """Recipient and bytes of each message."""
        rows = await self.pool.fetch(
            "SELECT b.address, m.raw_email FROM relay.messages m"
            " JOIN relay.mailboxes b ON b.id = m.mailbox_id ORDER BY m.id"
        )
        return [(address, bytes(raw)) for address, raw in rows]

    async def talk(self, talk: Callable[[smtplib.LMTP], T]) -> T:
        """Connect, and say things, in a thread."""

        def session() -> T:
            client = smtplib.LMTP(self.path)
            try:
                return talk(client)
            finally:
                client.close()

        return await trio.to_thread.run_sync(session)

    async def say(self, said: bytes) -> list[str]:
        """Say these bytes and QUIT; return the replies behind the greeting."""

        def session() -> list[str]:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(20)
                sock.connect(self.path)
                sock.sendall(said + b"QUIT\r\n")
                with contextlib.suppress(ConnectionResetError):
                    return sock.makefile("rb").read().decode().splitlines()
            return []

        greeting, *replies = await trio.to_thread.run_sync(session)
        assert greeting == "220 relay.localhost LMTP Relay"
        return replies


@asynccontextmanager
async def serving(pool: Pool, folder: Path, **wiring: Any) -> AsyncIterator[Service]:
    """Run writer and lmtp on a socket until the block ends."""
    messages: Mailbox[Accept] = Mailbox("writer", on_dead=writer.dead)
    path = str(folder / "lmtp")
    capture = wiring.get("capture")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        served = functools.partial(
            lmtp.run, sockets=[listener], pool=pool, writer=messages, **wiring
        )
        kept = functools.partial(writer.run, pool=pool, capture=capture)
        tree = SupervisorSpec(
            "relay", (ChildSpec("writer", kept, mailbox=messages), ChildSpec("lmtp", served))
        )
        boss = Supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(boss.run, tree)
            with trio.fail_after(60):
                yield Service(pool, path)
                boss.shutdown()


@pytest.fixture
async def service(pool: Pool, tmp_path: Path) -> AsyncIterator[Service]:
    """A socket with the usual limits, and two mailboxes."""
    async with serving(pool, tmp_path) as one:
        await one.mailbox(BOB)
        await one.mailbox(EVE)
        yield one


def message(*recipients: str) -> bytes:
    """A transaction, in one segment."""
    named = "".join(f"RCPT TO:<{each}>\r\n" for each in recipients)
    return f"LHLO mx.example\r\nMAIL FROM:<a@b.example>\r\n{named}DATA\r\n".encode()


async def test_each_recipient_has_a_copy_and_a_reply(service: Service):
    """The standard library's client; nothing is added to the bytes."""

    def talk(client: smtplib.LMTP) -> dict[str, tuple[int, bytes]]:
        return client.sendmail("a@b.example", [BOB, NOBODY, EVE], MAIL)

    assert list(await service.talk(talk)) == [NOBODY]
    assert sorted(await service.stored()) == [(BOB, MAIL), (EVE, MAIL)]


async def test_replies_come_in_the_order_of_the_recipients(service: Service):
    """One for each that was welcome, also where one was named twice."""
    replies = await service.say(message(EVE, NOBODY, "nobody", BOB, EVE) + MAIL + b".\r\n")
    codes = [reply[:9] for reply in replies if reply[3] == " "]
    rcpts = ["250 2.1.5", "550 5.1.1", "501 5.1.3", "250 2.1.5", "250 2.1.5"]
    assert codes == [
        "250 HELP", "250 2.1.0", *rcpts, "354 End d", *(["250 2.6.0"] * 3), "221 2.0.0",
    ]  # fmt: skip
    stored = [reply for reply in replies if reply.startswith("250 2.6.0")]
    assert stored[0] == stored[2] != stored[1]
    assert len(await service.stored()) == 2


async def test_there_is_neither_helo_nor_ehlo_nor_starttls_nor_auth(service: Service):
    """RFC 2033, 4.1; what is offered are the extensions that are served."""
    replies = await service.say(
        b"EHLO x\r\nHELO x\r\nMAIL FROM:<a@b.example>\r\nSTARTTLS\r\nAUTH PLAIN x\r\n"
        b"LHLO\r\nLHLO x\r\n"
    )
    assert [reply[:3] for reply in replies[:6]] == ["500", "500", "503", "500", "500", "501"]
    assert [reply[4:] for reply in replies[6:-1]] == [
        "relay.localhost", "PIPELINING", "SIZE 26214400", "8BITMIME", "CHUNKING", "SMTPUTF8",
        "ENHANCEDSTATUSCODES", "HELP",
    ]  # fmt: skip


async def test_without_a_recipient_there_is_one_reply_to_data(service: Service):
    """RFC 2033, 4.2: 503, and no message comes."""
    replies = await service.say(message(NOBODY))
    assert [reply[:3] for reply in replies[-3:]] == ["550", "503", "221"]


@pytest.mark.parametrize("raw", [b"bare\nline\r\n", b"x" * 3000 + b"\r\n"])
async def test_what_is_refused_is_refused_to_each(pool: Pool, tmp_path: Path, raw: bytes):
    """A bare line end, or too large; and the session goes on where it should."""
    async with serving(pool, tmp_path, limits=SmtpLimits(max_message_bytes=2000)) as service:
        await service.mailbox(BOB)
        await service.mailbox(EVE)
        replies = await service.say(message(BOB, EVE) + raw + b".\r\n")
        ends = [reply[:9] for reply in replies if reply.startswith("55")]
        assert len(ends) == 2
        assert ends[0] == ends[1]
        assert await service.stored() == []


async def test_chunks_are_answered_to_each_behind_the_last(service: Service):
    """BDAT once, BDAT LAST for each recipient."""
    begin = message(BOB, EVE).removesuffix(b"DATA\r\n")
    replies = await service.say(begin + b"BDAT 4\r\n\r\n\r\nBDAT 3 LAST\r\na\r\n")
    assert [reply[:9] for reply in replies[-4:-1]] == ["250 2.0.0", "250 2.6.0", "250 2.6.0"]
    assert sorted(await service.stored()) == [(BOB, b"\r\n\r\na\r\n"), (EVE, b"\r\n\r\na\r\n")]


async def test_a_mailbox_that_ends_before_the_dot_is_550_for_itself_alone(service: Service):
    """The other has its copy."""

    def talk(client: smtplib.LMTP) -> list[int]:
        client.ehlo()
        client.mail("a@b.example")
        client.rcpt(BOB)
        client.rcpt(EVE)
        trio.from_thread.run(
            service.pool.execute,
            "UPDATE relay.mailboxes SET expires_at = now() WHERE address = %s", (BOB,),
        )  # fmt: skip
        client.putcmd("DATA")
        client.getreply()
        client.send(MAIL.replace(b"\r\n.", b"\r\n..") + b".\r\n")
        return [client.getreply()[0] for _ in range(2)]

    assert await service.talk(talk) == [550, 250]
    assert await service.stored() == [(EVE, MAIL)]


async def test_mail_for_others_domains_is_captured(pool: Pool, tmp_path: Path):
    """Where capture is on; each has a reply that says so."""
    capture = Capture.beside(("relay.localhost",), 60.0, 10)
    async with serving(pool, tmp_path, capture=capture) as service:
        replies = await service.say(message("a@shop.example", "b@shop.example") + MAIL + b".\r\n")
        captured = [reply for reply in replies if reply.startswith("250 2.0.0 captured as")]
        assert len(captured) == 2
        assert len(await service.stored()) == 2


async def test_without_a_writer_nothing_is_said_to_be_stored(service: Service):
    """451 to each, once the look-ups have found them."""
    await service.pool.execute("ALTER TABLE relay.messages RENAME TO away")
    replies = await service.say(message(BOB, EVE) + MAIL + b".\r\n")
    assert [reply[:9] for reply in replies[-3:-1]] == ["451 4.3.0", "451 4.3.0"]


async def test_two_messages_in_a_session_do_not_mix(service: Service):
    """Who was named before RSET, or for the first, has no reply to the second."""
    said = message(BOB, EVE) + MAIL + b".\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<%b>\r\nRSET\r\n"
    said = said % EVE.encode() + message(BOB).partition(b"\r\n")[2] + MAIL + b".\r\n"
    replies = await service.say(said)
    assert sum(reply.startswith("250 2.6.0") for reply in replies) == 3
    assert replies[-2].startswith("250 2.6.0")
    assert replies[-3].startswith("354")
