"""Leases: renewed while needed; when lost, broken off, and void whatever their holder says."""

from __future__ import annotations

import os
import signal
from typing import Any
from uuid import UUID

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from actors.messages import Credit
from relay.db.pool import Pool
from relay.metrics import registry
from tests.actors.running import at_rest
from tests.eventually import eventually
from tests.faults.conftest import forward
from tests.faults.outbound import (
    LEASE,
    database_proxy,
    finished,
    leases_run_out,
    lost,
    relay_process,
    second_copies,
    sent,
    started,
)
from tests.outbound.node import put
from tests.outbound.running import running_outbound
from tests.outbound.sink import HangUp, Session, running_sink


def counted(name: str) -> float:
    """A counter's value now."""
    return registry.get_sample_value(f"{name}_total") or 0.0


async def steal(pool: Pool, message_id: UUID) -> tuple[object, ...]:
    """Claim a message as another node would, long before its lease ends; the row afterwards."""
    row = await pool.fetch_row(
        """
        UPDATE relay.outbound_due
        SET token = token + 1, attempt = attempt + 1, node = gen_random_uuid(),
            run_at = now() + interval '1 hour'
        WHERE id = %s
        RETURNING *
        """,
        (message_id,),
    )
    assert row is not None
    return tuple(row)


async def due(pool: Pool, message_id: UUID) -> tuple[object, ...]:
    """The row of an unfinished message."""
    row = await pool.fetch_row("SELECT * FROM relay.outbound_due WHERE id = %s", (message_id,))
    assert row is not None
    return tuple(row)


async def test_leases_are_renewed_while_mail_waits_and_while_it_is_slow(
    virtual: MockClock, clocked: Pool
):
    """Deliveries of over half a lease, and others waiting behind them for as long: each is claimed
    once, although another node asks for more all the while.

    One goes first, so that the rest are known to be slow and not taken for hanging, which would
    give those that wait to the other node.
    """
    lease = 16.0

    async def slowly(session: Session, verb: str, line: str) -> bytes | None:
        await trio.sleep({"RCPT": 0.15, "dot": 0.4}.get(verb, 0.0) * lease)
        return None

    first, *wanted = [f"u{number}@a{number % 2}.example" for number in range(6)]
    options: dict[str, Any] = {"lease_timeout": lease, "within": 1e6, "concurrency": 4}
    async with (
        running_sink(slowly) as sink,
        running_sink() as vulture,
        running_outbound(clocked, sink.url, **options) as outbound,
    ):
        await put(clocked, first)
        outbound.wake()

        async def one_is_sent() -> bool:
            await forward(clocked, virtual, 0.5)
            return await sent(clocked) == 1

        await eventually(one_is_sent, "the first is sent", every=0.02)
        await put(clocked, *wanted)  # two of them wait at first
        outbound.wake()
        held = "SELECT count(*) FROM relay.outbound_due WHERE node IS NOT NULL"
        await eventually(
            lambda: clocked.fetch_value(held), "all are held", until=lambda n: n == len(wanted)
        )
        async with running_outbound(clocked, vulture.url, **options) as other:
            began_at = trio.current_time()

            async def all_are_sent() -> bool:
                await forward(clocked, virtual, 0.25)
                other.wake()
                return await sent(clocked) == 1 + len(wanted)

            # So slowly that a busy machine does in time what has a deadline.
            await eventually(all_are_sent, "the rest is sent", within=60.0, every=0.05)
            assert trio.current_time() > began_at + 1.1 * lease
    assert sorted(sink.recipients) == [first, *wanted]
    assert not vulture.received
    # Risen once by the claim and once by the finalise.
    assert await clocked.fetch("SELECT DISTINCT token FROM relay.outbound_log") == [(2,)]


@pytest.mark.parametrize("in_the_box", [False, True])
@pytest.mark.parametrize("paused", [["sender"], ["sender", "claimer"]])
async def test_a_pause_of_many_leases_holds_and_loses_nothing(
    virtual: MockClock, clocked: Pool, paused: list[str], in_the_box: bool
):
    """Mail that was queued before the pause or in it goes out once after the resume, and its
    first attempt is that one; also what was claimed and lay unread."""
    lease = 16.0
    wanted = [f"u{number}@a.example" for number in range(5)]
    options: dict[str, Any] = {"lease_timeout": lease, "within": 1e6}
    async with (
        running_sink() as sink,
        running_outbound(clocked, sink.url, **options) as outbound,
    ):
        await at_rest(clocked)
        if in_the_box:
            outbound.supervisor.pause("sender")
            await at_rest(clocked)
            await put(clocked, *wanted, priority="high")
            outbound.claimer.send_nowait(Credit(12, fresh=True))  # as if said before the pause
            outbound.wake()
            held = "SELECT count(*) FROM relay.outbound_due WHERE node IS NOT NULL"
            await eventually(
                lambda: clocked.fetch_value(held), "they are claimed", until=lambda n: n == 5
            )
        for name in paused:
            outbound.supervisor.pause(name)
        await at_rest(clocked)
        if not in_the_box:
            await put(clocked, *wanted, priority="high")
        for _ in range(40):
            outbound.wake()
            await forward(clocked, virtual, lease / 8)
            await at_rest(clocked)
        assert not sink.received
        rows = await clocked.fetch("SELECT DISTINCT status::text FROM relay.outbound_messages")
        assert rows == [("queued",)]
        assert await lost(clocked) == 0
        for name in paused:
            outbound.supervisor.resume(name)
        await sink.gets(5)
        for _ in range(5):
            await forward(clocked, virtual, 0.5)
            await at_rest(clocked)
        await finished(clocked, 5)
    assert sorted(sink.recipients) == wanted
    assert await clocked.fetch("SELECT DISTINCT attempts FROM relay.outbound_messages") == [(1,)]


async def test_what_cannot_be_renewed_is_broken_off_before_its_data(pool):
    """Claimed by somebody else meanwhile: the conversation ends, no message goes out, the other's
    claim stands, and the destination is not blamed."""
    reached, ended = trio.Event(), trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "MAIL" and session.number == 0:
            reached.set()
            await trio.sleep(LEASE / 4)  # each reply has its own deadline: this leaves more of it
        if verb == "RCPT" and session.number == 0:
            assert await session.stream.receive_some(1) == b""
            ended.set()
            raise HangUp
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, lease_timeout=LEASE) as outbound,
    ):
        (one,) = await put(pool, "a@a.example")
        outbound.wake()
        await reached.wait()
        after = await steal(pool, one.id)
        await ended.wait()  # it is noticed after a third of the lease, when it is to be renewed
        (two,) = await put(pool, "b@a.example")
        outbound.wake()
        assert (await outbound.becomes(two.id, "sent"))[1] == 1
    assert await due(pool, one.id) == after
    assert sink.recipients == ["b@a.example"]
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_tries") == 0


async def test_a_lease_lost_in_the_middle_of_data_is_left_to_whoever_has_it(pool):
    """The message is on the wire, so its answer is awaited; its outcome changes nothing, and is
    counted."""
    reached, stolen = trio.Event(), trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            reached.set()
            await stolen.wait()
        return None

    before = counted("relay_outbound_fenced")
    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, lease_timeout=LEASE) as outbound,
    ):
        (one,) = await put(pool, "a@a.example")
        outbound.wake()
        await reached.wait()
        after = await steal(pool, one.id)
        stolen.set()
        await eventually(
            lambda: counted("relay_outbound_fenced"), "it is counted", until=lambda n: n > before
        )
    assert await due(pool, one.id) == after
    assert sink.recipients == ["a@a.example"]


@pytest.mark.parametrize("step", ["MAIL", "dot"])
async def test_a_stopped_relay_that_wakes_up_changes_nothing(pool, database_url, tmp_path, step):
    """Stopped past its lease: another node delivers.  Woken up, the first records nothing, and
    delivers only what it had sent already: a second copy, which was counted as a lost lease."""
    stopped = trio.Event()
    first = relay_process(tmp_path / "first", database_url, "")

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == step and not stopped.is_set():
            os.kill(first.pid, signal.SIGSTOP)
            stopped.set()
        return None

    async with running_sink(script) as sink:
        first.env["RELAY_OUTBOUND__UPSTREAM"] = sink.url
        (message,) = await put(pool, "a@a.example")
        async with started(first):
            try:
                await stopped.wait()
                if step == "dot":
                    await leases_run_out(pool)  # else it has to be over for the first one too
                losses = counted("relay_outbound_lost_leases")
                async with running_outbound(pool, sink.url, lease_timeout=LEASE) as heir:
                    heir.wake()
                    await finished(pool, 1)
                assert counted("relay_outbound_lost_leases") == losses + 1
                before = await pool.fetch("SELECT * FROM relay.outbound_log")
                os.kill(first.pid, signal.SIGCONT)
                # It finds its deadlines long over, or an answer, and what it would record is
                # fenced; or its renewal comes first, and it breaks off what it has not sent.
                ends = {
                    "MAIL": ("outbound.fenced", "sender.lease_lost"),
                    "dot": ("outbound.fenced",),
                }
                await eventually(
                    first.log_tail,
                    "it is fenced",
                    until=lambda log: any(end in log for end in ends[step]),
                )
            finally:
                os.kill(first.pid, signal.SIGCONT)
        assert await pool.fetch("SELECT * FROM relay.outbound_log") == before
    assert second_copies(sink) == (step == "dot")
    assert await pool.fetch("SELECT message_id, outcome FROM relay.outbound_tries") == [
        (message.id, "lost")
    ]


@pytest.mark.parametrize("known", [True, False], ids=["delivered", "being delivered"])
async def test_an_outage_longer_than_the_lease_makes_no_second_copy_here(pool, database_url, known):
    """The database comes back after the lease has run out and the claimer is first to ask: what
    this node has delivered, or is delivering, is not begun again; the new lease records it."""
    reclaimed, reached, refused = trio.Event(), trio.Event(), trio.Event()
    claims = 0
    losses = counted("relay_outbound_lost_leases")

    async def moment(statement: str, when: str) -> bool:
        nonlocal claims
        if statement == "claim" and when == "heard":
            claims += 1
            if claims == 2:
                reclaimed.set()
        if statement == "finalise" and not reclaimed.is_set():
            refused.set()
        return statement == "claim" or reclaimed.is_set()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            reached.set()
            if not known:
                await reclaimed.wait()
                await eventually(
                    lambda: counted("relay_outbound_lost_leases"),
                    "the new claim is noticed",
                    until=lambda n: n > losses,
                )
                await trio.testing.wait_all_tasks_blocked()  # and handed to the sender
        return None

    statements = {
        "claim": b"relay.outbound_claim(",
        "finalise": b"relay.outbound_finalise(",
        "renew": b"SET run_at = CASE WHEN d.held_until IS NULL",
    }
    async with (
        running_sink(script) as sink,
        database_proxy(database_url, statements, moment) as proxy,
    ):
        through = Pool(proxy.dsn("relay"), prepare=False)
        async with running_outbound(through, sink.url) as outbound:
            (one,) = await put(pool, "a@a.example")
            outbound.wake()
            await reached.wait()
            if known:
                await sink.gets(1)
                await refused.wait()
            await leases_run_out(pool)
            outbound.wake()
            await eventually(
                lambda: pool.fetch_value("SELECT count(*) FROM relay.outbound_log"),
                "it is recorded",
            )
            assert (await outbound.becomes(one.id, "sent"))[1] == 2
        await through.close()
    assert len(sink.received) == 1
    assert await lost(pool) == 1


async def test_a_claim_whose_answer_is_lost_is_given_back_at_once(pool, database_url):
    """The database has leased, and its word never arrives: nobody waits for the end of a lease of
    five minutes, nothing counts as lost, and what is in hand stays there."""
    claims = 0
    first_held, others_sent = trio.Event(), trio.Event()

    async def moment(statement: str, when: str) -> bool:
        nonlocal claims
        if when == "answered":
            claims += 1
        return claims != 2 or when != "answered"

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot" and session.recipients == ["first@a.example"]:
            first_held.set()
            await others_sent.wait()
        return None

    others = ["b@b.example", "c@c.example"]
    async with (
        running_sink(script) as sink,
        database_proxy(database_url, {"claim": b"relay.outbound_claim("}, moment) as proxy,
    ):
        through = Pool(proxy.dsn("relay"), prepare=False)
        async with running_outbound(through, sink.url, lease_timeout=300.0) as outbound:
            await put(pool, "first@a.example")
            outbound.wake()
            await first_held.wait()
            await put(pool, *others)
            outbound.wake()
            await finished(pool, 2, within=10)
            others_sent.set()
            await finished(pool, 3)
        await through.close()
    assert claims > 2
    assert sorted(sink.recipients) == [*others, "first@a.example"]
    assert await lost(pool) == 0
    rows = await pool.fetch("SELECT DISTINCT attempts FROM relay.outbound_messages")
    assert rows == [(1,)]
