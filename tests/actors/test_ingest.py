"""Ingest as an actor: pause, drain, restart, a database that is away."""

from __future__ import annotations

import errno
import socket
from collections.abc import MutableMapping
from typing import Any

import structlog
import trio

from actors.messages import Report
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.load import Senders
from relay.metrics import registry
from relay.smtp.limits import SmtpLimits
from tests.actors.running import blocked, logged
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.smtp.service import serving


async def test_paused_it_refuses_new_sessions_and_finishes_open_ones(pool):
    """New: 421 4.3.2; open: as ever; resumed: as before, on the same port."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            service.supervisor.pause("ingest")
            async with service.raw_client() as refused:
                assert [reply[:9] for reply in await refused.replies()] == ["421 4.3.2"]
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        service.supervisor.resume("ingest")
        async with service.client() as client:
            assert (await client.deliver(b"y\r\n", bob))[:3] == "250"


async def test_it_reports_how_many_sessions_are_open(pool):
    """When an operator asks, in the log; and goes on."""
    async with serving(pool) as service, service.client():
        with structlog.testing.capture_logs() as lines:
            service.supervisor.tell("ingest", Report())
            await logged(lines, "actor.report")
        (line,) = [line for line in lines if line["event"] == "actor.report"]
        assert line["sessions"] >= 1, "the client's; the one before it may be on its way out"
        assert line["buffered_bytes"] == 0


async def test_the_end_of_a_session_names_what_it_brought(pool):
    """The ids of the first messages, as the writer has them: a search for one finds the peer."""
    async with serving(pool) as service:
        ann, bob = await service.mailbox("ann@relay.localhost"), await service.mailbox()
        with structlog.testing.capture_logs() as lines:

            def ends() -> list[MutableMapping[str, Any]]:
                return [line for line in lines if line["event"] == "smtp.session_ended"]

            async with service.client() as client:
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            (one,) = await eventually(ends, "its end is told")
            async with service.client() as client:
                for _ in range(5):
                    assert (await client.deliver(b"x\r\n", ann, bob))[:3] == "250"
            _, many = await eventually(ends, "its end, too", until=lambda seen: len(seen) > 1)
        stored = [line for line in lines if line["event"] == "writer.stored"]
        assert one["id"] == stored[0]["id"]
        brought = [id_ for line in stored[1:] for id_ in sorted(line["ids"])]
        assert len(brought) == 10
        assert len(many["ids"]) == 8
        assert set(many["ids"]) == set(brought[:8])


async def test_it_tells_those_who_ask_how_many_are_connected(pool):
    """Two of two that are connected have mail that waits: they are held up."""
    senders = Senders(lambda: 2)
    async with serving(pool, senders=senders) as service, service.client(), service.client():
        await eventually(senders.wait, "those who send wait")


async def test_draining_ends_the_idle_and_lets_the_busy_finish(pool):
    """A DATA that is arriving may finish and is answered; all others hear 421 4.3.2 at once: who
    said nothing yet, who began a mail, who named a recipient, who is in the middle of a command."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with (
            service.client() as idle,
            service.client() as begun,
            service.client() as named,
            service.client() as typing,
            service.client() as busy,
        ):
            await busy.begin(bob)
            await busy.send(b"one\r\n")
            for client in (begun, named):
                assert (await client.ask("MAIL FROM:<c@d.example>"))[:3] == "250"
            assert (await named.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
            await typing.send(b"MAIL FROM:<c@d.exam")
            service.supervisor.shutdown()
            for client in (idle, begun, named, typing):
                assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]
            assert (await busy.ask(b"two\r\n."))[:3] == "250"
            assert [reply[:9] for reply in await busy.replies()] == ["421 4.3.2"]
        assert [raw for _, _, raw in await service.stored()] == [b"one\r\ntwo\r\n"]


async def test_a_drain_that_takes_too_long_says_so(pool):
    """A session that does not finish hears 421 4.3.2 when its time is over."""
    async with serving(pool, drain_timeout=0.3) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            await client.begin(bob)
            service.supervisor.shutdown()
            assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]


async def test_a_restart_keeps_the_port_and_the_queue_of_connections(pool):
    """Who connects meanwhile waits and is served by the next incarnation."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        await service.supervisor.restart("ingest")
        async with service.client() as client:
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        assert service.listener.fileno() >= 0


async def test_without_file_descriptors_it_waits(pool, monkeypatch):
    """EMFILE on accept is a pause, not a crash: who connects is served a little later."""
    failures = [OSError(errno.EMFILE, "Too many open files")] * 3 + [
        OSError(errno.ECONNABORTED, "gone")
    ]
    accept = socket.socket.accept

    def scarce(listener: socket.socket) -> Any:
        if failures:
            raise failures.pop(0)
        return accept(listener)

    async with serving(pool) as service:
        monkeypatch.setattr(socket.socket, "accept", scarce)
        async with service.client() as client:
            assert (await client.ask("NOOP"))[:3] == "250"
        assert failures == []


async def test_a_database_that_is_away_is_451_and_comes_back():
    """RCPT and the dot answer 451 4.3.0 without a word of the cause; then all is well again, on
    the same session."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        await migrate(cluster.dsn())
        pool = Pool(cluster.dsn())
        async with serving(pool) as service:
            bob = await service.mailbox()
            async with service.client() as client, service.client() as other:
                await client.begin(bob)
                await trio.to_thread.run_sync(cluster.stop)
                assert await client.ask(b"x\r\n.") == "451 4.3.0 Try again later"
                assert (await other.ask("MAIL FROM:<a@b>"))[:3] == "250"
                assert await other.ask(f"RCPT TO:<{bob}>") == "451 4.3.0 Try again later"
                await trio.to_thread.run_sync(cluster.start)
                while (await other.ask(f"RCPT TO:<{bob}>"))[:3] != "250":
                    pass
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            assert len(await service.stored()) == 1
        await pool.close()
    finally:
        cluster.remove()


async def test_a_full_mailbox_is_452_and_takes_mail_again_when_something_went(pool):
    """452 4.2.2 at RCPT, and at the dot of a large message whose mailboxes filled up meanwhile."""
    await pool.execute("UPDATE relay.plans SET max_messages = 2 WHERE name = 'free'")
    async with serving(pool) as service:
        bob, eve = await service.mailbox(), await service.mailbox("eve@relay.localhost")
        async with service.client() as client, service.client() as other:
            await other.begin(bob)
            for _ in range(2):
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
            assert (await client.ask(f"RCPT TO:<{bob}>"))[:9] == "452 4.2.2"
            assert (await client.ask(f"RCPT TO:<{eve}>"))[:3] == "250"
            assert (await other.ask(b"let in before\r\n."))[:3] == "250"
            await other.begin(eve)  # another transaction of the same mailboxes …
            assert (await client.ask(f"RCPT TO:<{bob}>"))[:9] == "452 4.2.2"
            await pool.execute("DELETE FROM relay.messages")
            assert (await client.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
            for _ in range(2):
                await service.pool.execute(
                    "INSERT INTO relay.messages (mailbox_id, raw_email)"
                    " SELECT id, 'x' FROM relay.mailboxes"
                )
            # … which is full by now: a large message is asked for at the last moment,
            lines = b"x" * 998 + b"\r\n"
            assert (await other.ask(lines * 300 + b"."))[:9] == "452 4.2.2"
            # a small one that was let in is stored.
            assert (await client.ask("DATA"))[:3] == "354"
            assert (await client.ask(b"small\r\n."))[:3] == "250"


async def test_a_peer_that_leaves_before_its_reply_has_left_its_message(pool):
    """The commit is not the session's: what was complete is stored, reply or no reply."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with pool.transaction() as blocker:
            # The INSERT's foreign key waits for this lock.
            await blocker.execute("SELECT FROM relay.mailboxes FOR UPDATE")
            async with service.client() as client:
                await client.begin(bob)
                await client.send(b"x\r\n.\r\n")
                await blocked(pool)
        await eventually(service.stored, "it is stored all the same")


async def test_a_store_that_takes_too_long_is_4xx(pool):
    """The session does not wait for ever for its commit."""
    async with serving(pool, limits=SmtpLimits(store_timeout=0.2, command_timeout=1.0)) as service:
        bob = await service.mailbox()
        async with pool.transaction() as blocker:
            await blocker.execute("SELECT FROM relay.mailboxes FOR UPDATE")
            async with service.client() as client:
                await client.begin(bob)
                await client.send(b"x\r\n.\r\n")
                assert (await client.replies())[0].startswith("421 4.")
            # The writer holds the message still, so its room is not for others yet.
            assert registry.get_sample_value("relay_smtp_buffered_bytes")
        await eventually(
            lambda: registry.get_sample_value("relay_smtp_buffered_bytes"),
            "its room is given back",
            until=lambda held: held == 0,
        )
