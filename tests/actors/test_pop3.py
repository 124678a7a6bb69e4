"""The POP3 port: who may read what, what they get of it, and what is deleted."""

from __future__ import annotations

import contextlib
import poplib
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest
import structlog
import trio

from actors import pop3
from relay.access.keys import Keys
from relay.access.owners import ADMINISTRATOR_ID
from relay.access.password_checks import PasswordChecks, PasswordLimits
from relay.crypto import hash_token
from relay.db.pool import Pool
from relay.mailboxes.records import Created
from relay.mailboxes.store import Store
from relay.pop3.limits import Pop3Limits
from relay.ports.certificate import Certificate
from supervisor import Supervisor
from tests.actors.running import logged, running
from tests.actors.test_submission import TLS, elsewhere, made_way
from tests.certificates import write
from tests.eventually import eventually

T = TypeVar("T")

TOKEN = "ra_administrator"
MAIL = b"From: a@shop.example\r\nSubject: s\r\n\r\n.dots\r\n..two\r\n.\r\n\xff\r\n"


class Port:
    """A POP3 port on a database, and the mailboxes behind it."""

    def __init__(self, pool: Pool, address: tuple[str, int], supervisor: Supervisor) -> None:
        self.pool = pool
        self.address = address
        self.supervisor = supervisor
        self.store = Store(pool, ["relay.localhost"])
        self.keys = Keys(pool)

    async def mailbox(self, *mail: bytes, owner: UUID | None = None) -> Created:
        """Make a mailbox with these messages in it, in their order."""
        made = await self.store.create(owner_id=owner)
        for raw in mail:
            await self.put(made, raw)
        return made

    async def put(self, made: Created, raw: bytes) -> UUID:
        """Put one more into a mailbox."""
        found: UUID = await self.pool.fetch_value(
            "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, %s) RETURNING id",
            (made.mailbox.id, raw),
        )
        return found

    async def left(self, made: Created) -> list[bytes]:
        """The messages that are in a mailbox."""
        rows = await self.pool.fetch(
            "SELECT raw_email FROM relay.messages WHERE mailbox_id = %s ORDER BY received_at, id",
            (made.mailbox.id,),
        )
        return [bytes(row[0]) for row in rows]

    async def talk(self, talk: Callable[[poplib.POP3], T], user: str = "", password: str = "") -> T:
        """Sign in, if there is a user, and say things, in a thread."""

        def session() -> T:
            with talking(self.address) as client:
                if user:
                    client.user(user)
                    client.pass_(password)
                return talk(client)

        return await trio.to_thread.run_sync(session)

    async def read(self, made: Created, talk: Callable[[poplib.POP3], T]) -> T:
        """Say things as the holder of a mailbox's session token."""
        assert made.session_token is not None
        return await self.talk(talk, made.mailbox.address, made.session_token)


@contextmanager
def talking(address: tuple[str, int]) -> Iterator[poplib.POP3]:
    """A client that is closed at the end, without QUIT."""
    client = poplib.POP3(*address, timeout=20)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def serving(pool: Pool, /, host: str = "127.0.0.1", **wiring: Any) -> AsyncIterator[Port]:
    """Run the actor on a port of its own."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        listener.listen(1024)
        wired = {
            "sockets": [listener],
            "pool": pool,
            "store": Store(pool, ["relay.localhost"]),
            "admin_token_hash": hash_token(TOKEN),
            "password_checks": PasswordChecks(PasswordLimits(wrong_delay=0.0)),
        }
        async with running(pop3.run, **wired | wiring) as (supervisor, _):
            yield Port(pool, listener.getsockname(), supervisor)


@pytest.fixture
async def port(pool: Pool) -> AsyncIterator[Port]:
    """A port that answers wrong passwords at once."""
    async with serving(pool) as one:
        yield one


def refused(call: Callable[..., object], *arguments: Any) -> str:
    """The reply that refuses a command."""
    with pytest.raises(poplib.error_proto) as error:
        call(*arguments)
    (said,) = error.value.args
    return said.decode() if isinstance(said, bytes) else str(said)


def retrieved(client: poplib.POP3, number: int) -> bytes:
    """A message, byte for byte."""
    _, lines, _ = client.retr(number)
    return b"".join(line + b"\r\n" for line in lines)


async def test_a_mailbox_is_read_byte_for_byte(any_pool: Pool):
    """The oldest first, with the octets that it has; the ids are those of the HTTP interface."""
    async with serving(any_pool) as port:
        large = b"Subject: large\r\n\r\n" + b".x\r\n" * 100_000 + b"end\r\n"
        made = await port.mailbox(MAIL, large)
        newest = await port.put(made, b"\r\n")

        def talk(client: poplib.POP3) -> None:
            assert client.stat() == (3, len(MAIL) + len(large) + 2)
            assert client.list()[1] == [b"1 %d" % len(MAIL), b"2 %d" % len(large), b"3 2"]
            assert client.uidl(3) == b"+OK 3 %b" % str(newest).encode()
            assert retrieved(client, 1) == MAIL
            assert client.retr(1)[2] == len(MAIL), "octets"
            assert retrieved(client, 2) == large
            assert retrieved(client, 3) == b"\r\n"
            assert client.top(1, 1)[1] == [*MAIL.split(b"\r\n")[:3], b".dots"]
            assert client.capa()["UIDL"] == []
            client.noop()
            assert client.quit().startswith(b"+OK")

        await port.read(made, talk)
        assert await port.left(made) == [MAIL, large, b"\r\n"]


async def test_an_empty_mailbox(port: Port):
    """Has no messages, and no faults."""
    made = await port.mailbox()
    assert await port.read(made, lambda client: (client.stat(), client.list()[1])) == ((0, 0), [])


async def test_what_is_marked_is_deleted_by_quit_alone(port: Port):
    """Not when the session ends otherwise, and not what was taken back."""
    made = await port.mailbox(*(b"%d\r\n" % number for number in range(5)))

    def broken(client: poplib.POP3) -> None:
        client.dele(1)

    def whole(client: poplib.POP3) -> bytes:
        client.dele(1)
        client.rset()
        client.dele(2)
        client.dele(4)
        assert refused(client.retr, 2).startswith("-ERR")
        assert client.stat() == (3, 9)
        return client.quit()

    await port.read(made, broken)
    assert len(await port.left(made)) == 5
    assert (await port.read(made, whole)).startswith(b"+OK Deleted")
    assert await port.left(made) == [b"0\r\n", b"2\r\n", b"4\r\n"]


async def test_thousands_are_deleted(port: Port):
    """In several statements."""
    made = await port.mailbox()
    await port.pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email)"
        " SELECT %s, 'x' FROM generate_series(1, 1201)",
        (made.mailbox.id,),
    )

    def talk(client: poplib.POP3) -> None:
        client.sock.sendall(b"".join(b"DELE %d\r\n" % number for number in range(1, 1201)))
        for _ in range(1200):
            assert client.file.readline().startswith(b"+OK")
        client.quit()

    await port.read(made, talk)
    assert len(await port.left(made)) == 1


async def test_what_others_do_meanwhile_changes_no_number(port: Port):
    """New mail waits for the next session; what is deleted elsewhere is -ERR."""
    made = await port.mailbox(b"one\r\n", b"two\r\n")

    def talk(client: poplib.POP3) -> None:
        trio.from_thread.run(port.put, made, b"three\r\n")
        assert client.stat() == (2, 10)
        trio.from_thread.run(
            port.pool.execute, "DELETE FROM relay.messages WHERE raw_email = %s", (b"one\r\n",)
        )
        assert "No such message" in refused(client.retr, 1)
        assert "No such message" in refused(client.top, 1, 0)
        assert retrieved(client, 2) == b"two\r\n"
        client.dele(1)
        client.dele(2)
        assert client.quit().startswith(b"+OK")

    await port.read(made, talk)
    assert await port.left(made) == [b"three\r\n"]


async def test_who_may_read_what(port: Port):
    """The mailbox's own token, its owner's key with the scope, the administrator; nobody else."""
    owner, token = await port.keys.create("shop", ["read"])
    _, other = await port.keys.create("other", ["read", "send"])
    _, sends = await port.keys.create("shop", ["send"])
    owned = await port.mailbox(MAIL, owner=owner.id)
    anonymous = await port.mailbox(MAIL)
    sender, may_send = await port.keys.create("shop", ["send"])
    of_sender = await port.mailbox(MAIL, owner=sender.id)

    def stat(client: poplib.POP3) -> tuple[int, int]:
        return client.stat()

    async def opens(made: Created, password: str | None) -> bool:
        try:
            assert await port.talk(stat, made.mailbox.address, password or "") == (1, len(MAIL))
        except poplib.error_proto as error:
            assert error.args[0] == b"-ERR [AUTH] Wrong user name or password"
            return False
        return True

    assert await opens(owned, token)
    assert await opens(owned, TOKEN)
    assert await opens(anonymous, anonymous.session_token)
    assert await opens(anonymous, TOKEN)
    for made, password in (
        (owned, other),
        (owned, sends),
        (owned, anonymous.session_token),
        (anonymous, token),
        (anonymous, "x" * 900),
        (of_sender, may_send),
    ):
        assert not await opens(made, password)
    await port.pool.execute(
        "UPDATE relay.mailboxes SET expires_at = now() WHERE id = %s", (anonymous.mailbox.id,)
    )
    assert not await opens(anonymous, anonymous.session_token), "it is over"
    for user in ("nobody@relay.localhost", "no address", "ü@relay.localhost"):
        with pytest.raises(poplib.error_proto, match="AUTH"):
            await port.talk(stat, user, TOKEN)


async def test_a_key_deletes_with_the_scope_alone(port: Port):
    """As over HTTP: read reads, send deletes."""
    reader, reads = await port.keys.create("shop", ["read"])
    both, deletes = await port.keys.create("shop", ["read", "send"])
    kept = await port.mailbox(MAIL, owner=reader.id)
    gone = await port.mailbox(MAIL, owner=both.id)
    by_all = await port.mailbox(MAIL, owner=ADMINISTRATOR_ID)

    def delete(client: poplib.POP3) -> str:
        try:
            client.dele(1)
        except poplib.error_proto as error:
            return str(error.args[0])
        client.quit()
        return ""

    assert "may not delete" in await port.talk(delete, kept.mailbox.address, reads)
    assert not await port.talk(delete, gone.mailbox.address, deletes)
    assert not await port.talk(delete, by_all.mailbox.address, TOKEN)
    assert [len(await port.left(made)) for made in (kept, gone, by_all)] == [1, 0, 0]


async def test_a_revoked_key_opens_nothing_any_more(pool: Pool):
    """At the next command that shows or deletes something."""
    async with serving(pool, limits=Pop3Limits(trust=0.0)) as port:
        key, token = await port.keys.create("shop", ["read", "send"])
        made = await port.mailbox(MAIL, owner=key.id)

        def talk(client: poplib.POP3) -> str:
            assert retrieved(client, 1) == MAIL
            client.dele(1)
            trio.from_thread.run(port.keys.revoke, key.id)
            return refused(client.quit)

        assert "opens nothing any more" in await port.talk(talk, made.mailbox.address, token)
        assert await port.left(made) == [MAIL]


async def test_a_mailbox_that_is_over_shows_no_message(port: Port):
    """From that instant, in sessions that are open as well; and nothing of it is deleted."""
    made = await port.mailbox(MAIL)

    def talk(client: poplib.POP3) -> None:
        client.dele(1)
        client.rset()
        trio.from_thread.run(
            port.pool.execute, "UPDATE relay.mailboxes SET expires_at = clock_timestamp()"
        )
        assert "No such message" in refused(client.retr, 1)
        client.dele(1)
        assert "is over" in refused(client.quit)

    await port.read(made, talk)
    assert await port.left(made) == [MAIL]


async def test_the_third_wrong_password_ends_the_session_late(pool: Pool):
    """Each of them, and the one that ends it, is answered late."""
    checks = PasswordChecks(PasswordLimits(wrong_delay=0.1))
    async with serving(pool, password_checks=checks) as port:
        made = await port.mailbox(MAIL)

        def guess(client: poplib.POP3) -> None:
            for said in ("[AUTH] Wrong", "[AUTH] Wrong", "[AUTH] Too many wrong passwords"):
                client.user(made.mailbox.address)
                began = time.monotonic()
                assert said in refused(client.pass_, "guess")
                assert time.monotonic() - began >= 0.1
            assert client.file.read() == b""

        await port.talk(guess)


async def test_who_hangs_up_saves_no_guess_and_keeps_no_place(pool: Pool):
    """A password is charged before it is checked, and the session ends at once: what it would have
    been answered late is nobody's wait.  Whether it has sent more than is read, or not."""
    limits = PasswordLimits(wrong_delay=600.0, local_credit=5, local_every=600.0, patience=0.2)
    async with serving(pool, password_checks=PasswordChecks(limits)) as port:
        made = await port.mailbox(MAIL)
        await port.read(made, lambda client: client.noop())

        def guess(rest: bytes) -> None:
            with talking(port.address) as client:
                client.user(made.mailbox.address)
                client.sock.sendall(b"PASS guess\r\n" + rest)

        with structlog.testing.capture_logs() as lines:
            for rest in (b"", b"STAT\r\n") * 5:
                await trio.to_thread.run_sync(guess, rest)
            await eventually(
                lambda: [line for line in lines if line.get("reason") == "broken"],
                "all have ended",
                until=lambda ended: len(ended) == 10,
            )
        assert sum(line.get("wrong_passwords", 0) for line in lines) == 5, (
            "the others were not checked"
        )
        assert await port.read(made, lambda client: client.stat()[0]) == 1, "as it was known"
        other = await port.mailbox(MAIL)
        with pytest.raises(poplib.error_proto, match="Too many wrong passwords, try again later"):
            await port.read(other, lambda client: client.stat())


async def test_where_too_many_guess_a_password_is_not_checked(pool: Pool):
    """-ERR [SYS/TEMP]: it may be said again, and the session goes on; it keeps its place then."""
    limits = PasswordLimits(wrong_delay=0.0, local_credit=1, local_every=0.5, patience=0.1)
    checks, alone = PasswordChecks(limits), Pop3Limits(max_connections_per_peer=1)
    async with serving(pool, password_checks=checks, limits=alone) as port:
        made = await port.mailbox(MAIL)

        def talk(client: poplib.POP3) -> tuple[int, int]:
            client.user(made.mailbox.address)
            assert "[AUTH]" in refused(client.pass_, "guess")
            while True:
                client.user(made.mailbox.address)
                try:
                    client.pass_(made.session_token or "")
                except poplib.error_proto as error:
                    assert b"[SYS/TEMP] Too many wrong passwords" in error.args[0]
                    assert b"Too many connections" in exchange(port.address, b"")
                else:
                    return client.stat()

        assert await port.talk(talk) == (1, len(MAIL))


async def test_in_clear_no_password_is_taken_from_elsewhere(pool: Pool, tmp_path: Path):
    """USER is refused and not offered; after STLS it is both."""
    certificate = Certificate.load(*write(tmp_path))
    async with serving(pool, host=elsewhere(), certificate=certificate) as port:
        made = await port.mailbox(MAIL)

        def talk(client: poplib.POP3) -> bytes:
            assert "USER" not in client.capa()
            assert "Not in clear" in refused(client.user, made.mailbox.address)
            assert "Not in clear" in refused(client.pass_, made.session_token)
            client.stls(TLS)
            assert "USER" in client.capa()
            assert "STLS" not in client.capa()
            client.user(made.mailbox.address)
            client.pass_(made.session_token or "")
            return retrieved(client, 1)

        assert await port.talk(talk) == MAIL
        async with serving(pool, host=elsewhere()) as bare:
            await bare.talk(lambda client: refused(client.stls, TLS))


async def test_tls_from_the_first_byte(pool: Pool, tmp_path: Path):
    """On a port of its own; a large message comes whole, and a peer in clear gets nothing."""
    certificate = Certificate.load(*write(tmp_path))
    large = b"\r\n" + b"x" * 99 + b"\r\n" + b".y\r\n" * 200_000
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = listener.getsockname()
        async with serving(pool, tls_sockets=[listener], certificate=certificate) as port:
            made = await port.mailbox(large)

            def talk() -> bytes:
                client = poplib.POP3_SSL(address[0], address[1], context=TLS, timeout=20)
                try:
                    client.user(made.mailbox.address)
                    client.pass_(made.session_token or "")
                    return retrieved(client, 1)
                finally:
                    client.close()

            def in_clear() -> bytes:
                with socket.create_connection(address, 20) as sock:
                    sock.sendall(b"CAPA\r\n" * 3)
                    with contextlib.suppress(ConnectionResetError):
                        return sock.makefile("rb").read()
                return b""

            assert await trio.to_thread.run_sync(talk) == large
            assert b"+OK" not in await trio.to_thread.run_sync(in_clear)


async def test_what_is_said_in_clear_behind_stls_is_never_obeyed(pool: Pool, tmp_path: Path):
    """In one segment with it, or as if it were the handshake (RFC 2595, 4)."""
    certificate = Certificate.load(*write(tmp_path))
    async with serving(pool, certificate=certificate) as port:
        made = await port.mailbox(MAIL)

        def inject() -> bytes:
            sock = socket.create_connection(port.address, 20)
            file = sock.makefile("rb")
            assert file.readline().startswith(b"+OK")
            user = made.mailbox.address.encode()
            sock.sendall(b"USER %b\r\nSTLS\r\nPASS %b\r\nDELE 1\r\nQUIT\r\n" % (
                user, (made.session_token or "").encode(),
            ))  # fmt: skip
            assert file.readline() == b"+OK\r\n"
            assert file.readline() == b"+OK Begin\r\n"
            with TLS.wrap_socket(sock) as encrypted:
                encrypted.sendall(b"STAT\r\n")
                return encrypted.recv(1000)

        assert await trio.to_thread.run_sync(inject) == b"-ERR Not in this state\r\n", (
            "the answer to STAT, and to nothing before"
        )
        assert await port.left(made) == [MAIL]


def exchange(address: tuple[str, int], said: bytes) -> bytes:
    """All that is answered to these bytes, to the end."""
    with socket.create_connection(address, 20) as sock:
        sock.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            return sock.makefile("rb").read()
    return b""


async def test_pipelined_commands_are_obeyed_in_order(port: Port):
    """All in one segment, the password too (RFC 2449, 6.8)."""
    made = await port.mailbox(MAIL)
    said = f"USER {made.mailbox.address}\r\nPASS {made.session_token}\nSTAT\r\n"
    said += "RETR 1\r\nDELE 1\r\nQUIT\r\nSTAT\r\n"
    answered = await trio.to_thread.run_sync(exchange, port.address, said.encode())
    stuffed = MAIL.replace(b"\r\n.", b"\r\n..")
    size = len(MAIL)
    assert answered == (
        b"+OK Relay POP3 ready\r\n+OK\r\n+OK 1 messages, %d octets\r\n+OK 1 %d\r\n"
        b"+OK %d octets\r\n%b.\r\n+OK Marked\r\n+OK Deleted; bye\r\n" % (size, size, size, stuffed)
    )
    assert await port.left(made) == []


@pytest.mark.parametrize(
    ("said", "last"),
    [
        (b"USER " + b"x" * 5000, b"-ERR Line too long; good-bye\r\n"),
        (b"USER " + b"x" * 5000 + b"\r\nQUIT\r\n", b"-ERR Line too long; good-bye\r\n"),
        (b"GET / HTTP/1.1\r\n" * 60, b"-ERR Too many commands that lead nowhere; good-bye\r\n"),
        (b"\0" * 1000 + b"\nQUIT\n", b"+OK Bye\r\n"),
    ],
)
async def test_hostile_lines(port: Port, said: bytes, last: bytes):
    """Are refused, and held in a bounded memory."""
    answered = await trio.to_thread.run_sync(exchange, port.address, said)
    assert answered.endswith(last)


async def test_no_refusal_ends_the_session_of_a_reader(port: Port):
    """With a key that only reads, five hundred messages are not deleted, with as many words."""
    owner, reads = await port.keys.create("shop", ["read"])
    made = await port.mailbox(owner=owner.id)
    await port.pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email)"
        " SELECT %s, 'x' FROM generate_series(1, 500)",
        (made.mailbox.id,),
    )

    def talk(client: poplib.POP3) -> None:
        client.sock.sendall(b"".join(b"DELE %d\r\n" % number for number in range(1, 501)))
        for _ in range(500):
            assert b"may not delete" in client.file.readline()
        for _ in range(100):
            assert "No such message" in refused(client.retr, 501)
        assert client.stat() == (500, 500)
        for _ in range(50):
            client.sock.sendall(b"XTND\r\n")
            assert b"Unknown" in client.file.readline()
        assert client.stat() == (500, 500), "which counts them anew"
        for _ in range(50):
            assert "Malformed" in refused(client.dele, "one")
        client.sock.sendall(b"STAT now\r\n")
        assert b"lead nowhere" in client.file.readline()

    await port.talk(talk, made.mailbox.address, reads)
    assert len(await port.left(made)) == 500


async def test_who_does_not_sign_in_is_sent_away(port: Port):
    """Though what it says is refused to nobody: it may not keep its place by that."""
    answered = await trio.to_thread.run_sync(exchange, port.address, b"USER a\r\nCAPA\r\n" * 26)
    assert answered.endswith(b"lead nowhere; good-bye\r\n")
    assert answered.count(b"+OK") == 1 + 50


async def test_two_sessions_on_one_mailbox_cannot_hurt_each_other(port: Port):
    """Both delete what they say, the same message and others; neither what came meanwhile, and no
    number of either changes."""
    made = await port.mailbox(*(b"%d\r\n" % number for number in range(5)))

    def talk(one: poplib.POP3) -> None:
        with talking(port.address) as other:
            other.user(made.mailbox.address)
            other.pass_(made.session_token or "")
            trio.from_thread.run(port.put, made, b"new\r\n")
            for number in (1, 2):
                one.dele(number)
            for number in (2, 3):
                other.dele(number)
            assert one.stat() == other.stat() == (3, 9)
            assert one.quit() == b"+OK Deleted; bye"
            assert retrieved(other, 4) == b"3\r\n"
            assert "No such message any more" in refused(other.retr, 1)
            other.rset()
            assert "No such message any more" in refused(other.retr, 2)
            assert other.uidl(5).startswith(b"+OK 5 ")
            for number in (1, 2, 3):
                other.dele(number)
            assert other.quit() == b"+OK Deleted; bye", "what was deleted is what was asked for"

    await port.read(made, talk)
    assert await port.left(made) == [b"3\r\n", b"4\r\n", b"new\r\n"]


async def test_sessions_that_delete_the_same_at_once(port: Port):
    """Four of them, a thousand messages: all have them deleted, and none waits for the others."""
    made = await port.mailbox()
    await port.pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email)"
        " SELECT %s, 'x' FROM generate_series(1, 1000)",
        (made.mailbox.id,),
    )
    ready = threading.Barrier(4)

    def talk(client: poplib.POP3) -> bytes:
        client.sock.sendall(b"".join(b"DELE %d\r\n" % number for number in range(1, 1001)))
        for _ in range(1000):
            assert client.file.readline().startswith(b"+OK")
        ready.wait(20)
        return client.quit()

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(port.read, made, talk)
    assert await port.left(made) == []


async def test_a_silent_peer_is_sent_away_and_deletes_nothing(pool: Pool):
    """Before it has signed in sooner than afterwards; neither is an UPDATE (RFC 1939, 3)."""
    limits = Pop3Limits(sign_in_timeout=0.2, idle_timeout=0.3)
    async with serving(pool, limits=limits) as port:
        made = await port.mailbox(MAIL)
        answered = await trio.to_thread.run_sync(exchange, port.address, b"USER a")
        assert answered.endswith(b"Timed out; good-bye\r\n")

        def talk(client: poplib.POP3) -> bytes:
            client.dele(1)
            return client.file.read()

        assert b"Timed out" in await port.read(made, talk)
        assert await port.left(made) == [MAIL]


async def test_who_reads_nothing_is_sent_away_and_keeps_no_memory(pool: Pool):
    """Amid a message: what it holds of the budget is there for others then."""
    limits = Pop3Limits(reply_timeout=0.3, max_buffered_bytes=150_000)
    async with serving(pool, limits=limits) as port:
        made = await port.mailbox(b"x\r\n" * 8_000_000)
        said = f"USER {made.mailbox.address}\r\nPASS {made.session_token}\r\nRETR 1\r\n".encode()
        with (
            structlog.testing.capture_logs() as lines,
            socket.create_connection(port.address, 20) as sock,
        ):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(said)
            await logged(lines, "pop3.session_ended")
        (ended,) = [line for line in lines if line["event"] == "pop3.session_ended"]
        assert ended["reason"] == "unread"
        other = await port.mailbox(MAIL)
        assert await port.read(other, lambda client: retrieved(client, 1)) == MAIL


async def test_without_room_a_message_waits_for_another_time(pool: Pool):
    """As do too many messages: -ERR [SYS/TEMP], and the session goes on."""
    async with serving(pool, limits=Pop3Limits(max_buffered_bytes=1000)) as port:
        made = await port.mailbox(MAIL)

        def talk(client: poplib.POP3) -> None:
            assert "[SYS/TEMP] Too much mail" in refused(client.retr, 1)
            assert client.stat()[0] == 1

        await port.read(made, talk)
        await port.pool.execute(
            "INSERT INTO relay.messages (mailbox_id, raw_email)"
            " SELECT %s, 'x' FROM generate_series(1, 60)",
            (made.mailbox.id,),
        )
        with pytest.raises(poplib.error_proto, match="Too much mail"):
            await port.read(made, lambda client: client.stat())


async def test_the_newest_are_shown_of_a_mailbox_that_holds_too_many(pool: Pool):
    """The oldest of them first all the same."""
    async with serving(pool, limits=Pop3Limits(max_messages=2)) as port:
        made = await port.mailbox(b"1\r\n", b"22\r\n", b"333\r\n")
        assert await port.read(made, lambda client: client.list()[1]) == [b"1 4", b"2 5"]


async def test_a_thousand_silent_connections_keep_nobody_out(pool: Pool):
    """They give way to whoever comes; no more are served at once than may be."""
    limits = Pop3Limits(max_connections=20, max_connections_per_peer=20, idle_patience=0.0)
    async with serving(pool, limits=limits) as port:
        made = await port.mailbox(MAIL)
        with contextlib.ExitStack() as stack:

            def crowd() -> None:
                for _ in range(1000):
                    sock = stack.enter_context(socket.create_connection(port.address, 20))
                    sock.settimeout(20)
                    assert sock.recv(100)

            await trio.to_thread.run_sync(crowd)
            assert await port.read(made, lambda client: retrieved(client, 1)) == MAIL


async def test_who_stalls_in_the_handshake_is_sent_away_and_keeps_nobody_out(
    pool: Pool, tmp_path: Path
):
    """Behind STLS and where TLS is first; without a word in clear."""
    certificate = Certificate.load(*write(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as encrypted:
        host, number = encrypted.getsockname()

        def crowded() -> bytes:
            with contextlib.ExitStack() as stack:
                for _ in range(20):
                    stack.enter_context(socket.create_connection((host, number), 20)).sendall(
                        b"\x16"
                    )
                client = made_way(lambda: poplib.POP3_SSL(host, number, context=TLS))
                with contextlib.closing(client):
                    return bytes(client.welcome)

        wired: dict[str, Any] = {"tls_sockets": [encrypted], "certificate": certificate}
        async with serving(pool, limits=Pop3Limits(handshake_timeout=0.2), **wired) as port:
            for door, said in (((host, number), b""), (port.address, b"STLS\r\n")):
                heard = await trio.to_thread.run_sync(exchange, door, said + b"\x16\x03\x01")
                assert heard.splitlines()[2:] == [], heard
        limits = Pop3Limits(max_connections=4, max_connections_per_peer=4, idle_patience=0.0)
        async with serving(pool, limits=limits, **wired):
            assert (await trio.to_thread.run_sync(crowded))[:3] == b"+OK"


async def test_a_connection_too_many_is_told_so(pool: Pool):
    """Where nobody may give way yet."""
    limits = Pop3Limits(max_connections_per_peer=1)
    async with serving(pool, limits=limits) as port:

        def talk(client: poplib.POP3) -> bytes:
            return exchange(port.address, b"")

        assert b"Too many connections from your address" in await port.talk(talk)


async def test_draining_finishes_the_command_in_hand(port: Port):
    """The message that is on its way comes whole; who has said nothing is told good-bye."""
    raw = b"x\r\n" * 5_000_000  # more than the kernel takes, so we wait for its reader
    made = await port.mailbox(raw)
    begun, waits, reading = trio.Event(), trio.Event(), threading.Event()
    results: dict[str, bytes] = {}

    def fetch(client: poplib.POP3) -> None:
        client.sock.sendall(b"RETR 1\r\n")
        client.file.readline()
        trio.from_thread.run_sync(begun.set)
        assert reading.wait(20)
        results["whole"] = client.file.read()

    def wait(client: poplib.POP3) -> None:
        trio.from_thread.run_sync(waits.set)
        results["idle"] = client.file.read()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.read, made, fetch)
        nursery.start_soon(port.read, made, wait)
        await begun.wait()
        await waits.wait()
        port.supervisor.shutdown()
        await eventually(lambda: "idle" in results, "who has nothing in hand is sent away")
        reading.set()
    assert results["idle"] == b"-ERR [SYS/TEMP] Shutting down\r\n"
    assert results["whole"] == raw + b".\r\n-ERR [SYS/TEMP] Shutting down\r\n"


async def test_paused_nobody_is_let_in(pool: Pool):
    """And told to come again; who is there goes on."""
    async with serving(pool) as port:
        made = await port.mailbox(MAIL)

        def talk(client: poplib.POP3) -> bytes:
            trio.from_thread.run_sync(port.supervisor.pause, "actor")
            assert b"Paused" in exchange(port.address, b"")
            trio.from_thread.run_sync(port.supervisor.resume, "actor")
            return retrieved(client, 1)

        assert await port.read(made, talk) == MAIL


async def test_without_a_database_the_session_goes_on():
    """-ERR [SYS/TEMP] to the password: it may be said again."""
    async with serving(Pool("host=/nowhere dbname=relay")) as port:

        def talk(client: poplib.POP3) -> None:
            for _ in range(5):
                client.user("a@relay.localhost")
                assert "[SYS/TEMP] Try again later" in refused(client.pass_, TOKEN)
            client.quit()

        await port.talk(talk)
