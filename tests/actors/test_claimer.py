"""The claimer: claims what there is room for, when there is a reason, and no more."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock

from actors import claimer
from actors.messages import Claiming, Credit, Deliver, Due, NothingHigh, SweepNow, Wake
from relay.access.owners import ADMINISTRATOR_ID
from relay.db.connection import connect
from relay.db.listen import Notification, notifications
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.pacing.gates import GateKey, Gates
from relay.outbound.pacing.shared_rates import SharedRates
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.enqueue import announce, enqueue
from relay.outbound.queue.lanes import DueLane, lane_of
from relay.outbound.queue.store import Queue
from supervisor import ChildSpec, Context, Mailbox, Supervisor, SupervisorSpec
from tests.actors.running import at_rest, becomes, kept, logged
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.outbound.node import Node, put, status

QUIET = 3600.0  # s; no sweep comes within a test
LEASE = 30.0  # s
STATUS = "SELECT status::text FROM relay.outbound_messages WHERE id = %s"


class Claims:
    """A running claimer, and an actor in the sender's place that keeps what it is handed."""

    def __init__(self, pool: Pool, gates: Gates | None = None) -> None:
        self.pool = pool
        self.box: Mailbox[Any] = Mailbox("claimer")
        self.sender: Mailbox[Any] = Mailbox("sender")
        self.gates = gates or Gates(8, 1.0, random.Random(1))
        self.batches: list[list[Claimed]] = []
        self.taken_back = 0
        self.hellos = 0
        self.nothing_high = 0
        self.supervisor = Supervisor()

    async def collect(self, ctx: Context) -> None:
        """The sender's place."""
        ctx.ready()
        async for message in ctx.inbox:
            if isinstance(message, Claiming):
                self.hellos += 1
            elif isinstance(message, NothingHigh):
                self.nothing_high += 1
            elif isinstance(message, Deliver):
                message.reply.settle(True)
                if message.reply.result():
                    self.batches.append(message.batch.messages)
                else:
                    self.taken_back += 1

    @property
    def claimed(self) -> list[Claimed]:
        """Everything that was handed over."""
        return [message for batch in self.batches for message in batch]

    async def get(self, count: int) -> None:
        """Wait until so many were handed over."""
        await eventually(
            lambda: len(self.claimed), f"{count} are handed over", until=lambda have: have >= count
        )

    async def rest(self, clock: MockClock | None = None) -> None:
        """Wait until it has done what it has reasons for, by this clock's next second too."""
        await eventually(
            lambda: self.box.statistics().depth, "its messages are read", until=lambda n: n == 0
        )
        await at_rest(self.pool)
        if clock is not None:
            clock.jump(1.0)  # between two surveys it rests, far shorter than that
            await at_rest(self.pool)


@asynccontextmanager
async def claiming(
    pool: Pool,
    *,
    sweep_every: float = QUIET,
    rates: SharedRates | None = None,
    gates: Gates | None = None,
) -> AsyncIterator[Claims]:
    """Run a claimer until the block ends."""
    claims = Claims(pool, gates)
    run = partial(
        claimer.run,
        queue=Queue(pool, uuid4(), lease_timeout=LEASE),
        sender=claims.sender,
        gates=claims.gates,
        rates=rates,
        announce=partial(announce, pool),
        sweep_every=sweep_every,
    )
    children = (
        ChildSpec("sender", claims.collect, mailbox=claims.sender),
        ChildSpec("claimer", run, mailbox=claims.box),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(claims.supervisor.run, SupervisorSpec("root", children))
        with trio.fail_after(20):
            await eventually(lambda: claims.hellos, "the claimer says that it is there")
            yield claims
            claims.supervisor.shutdown()


async def planned(pool: Pool) -> None:
    """Wait until the claimer has had a connection plan what claims and finalises."""

    async def found() -> bool:
        # A connection knows its own statements only, so as many are asked at once as there may be.
        # Not in its own text: it is prepared, too, when it has been asked a few times.
        known: list[int] = []

        async def ask() -> None:
            query = """
                WITH meanwhile AS MATERIALIZED (SELECT pg_sleep(0.05))
                SELECT count(*)
                FROM meanwhile, pg_prepared_statements
                WHERE statement LIKE %s"""
            known.append(await pool.fetch_value(query, ("%outbound_finalise%",)))

        async with trio.open_nursery() as nursery:
            for _ in range(pool.size):
                nursery.start_soon(ask)
        return any(known)

    await eventually(found, "the statement that finalises is prepared")


async def test_nothing_is_claimed_without_room(pool, virtual):
    """Demand flows backwards: no room, no lease; so much room, so many leases."""
    await put(pool, *(f"u{number}@a.example" for number in range(10)))
    async with claiming(pool) as claims:
        claims.box.send_nowait(Wake())
        await claims.rest(virtual)
        assert not claims.batches
        claims.box.send_nowait(Credit(3))
        await claims.get(3)
        claims.box.send_nowait(Credit(2))
        await claims.get(5)
        await claims.rest(virtual)
        assert len(claims.claimed) == 5
        claims.box.send_nowait(Credit(1, fresh=True))
        await claims.get(6)
    assert len({message.id for message in claims.claimed}) == 6


async def test_what_the_first_message_needs_is_planned_before_it_comes(pool, virtual):
    """Soon after its start, with nothing to do, the claimer has a connection plan it."""
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(1))
        await claims.rest(virtual)
        await planned(pool)


async def test_room_kept_for_high_mail_is_there_when_it_comes(pool, virtual):
    """Bulk has taken all the other room; the code is claimed at once all the same."""
    await put(pool, *(f"u@a{number}.example" for number in range(20)), priority="bulk")
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(11, kept=4))
        await claims.get(5)
        await claims.rest(virtual)
        assert len(claims.claimed) == 5
        await put(pool, "code@b.example", priority="high")
        claims.box.send_nowait(Wake(reason="high"))
        await claims.get(6)
        await claims.rest(virtual)
    assert claims.claimed[5].recipient == "code@b.example"
    assert len(claims.claimed) == 6


async def test_a_burst_to_one_destination_leaves_room_for_the_next(pool, virtual):
    """None of it has ended, and what comes for another is claimed at once; once some has ended, as
    much of it follows."""
    await put(pool, *(f"u{number}@a.example" for number in range(20)))
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(18, kept=4))
        await claims.get(8)
        await claims.rest(virtual)
        assert len(claims.claimed) == 8
        await put(pool, "u@b.example")
        claims.box.send_nowait(Wake())
        await claims.get(9)
        await claims.rest(virtual)
        assert [message.domain for message in claims.claimed] == ["a.example"] * 8 + ["b.example"]
        lane = claims.claimed[0].lane
        claims.box.send_nowait(Credit(4, left=((lane, 3), (claims.claimed[8].lane, 1))))
        await claims.get(12)
        await claims.rest(virtual)
        assert [message.domain for message in claims.claimed[9:]] == ["a.example"] * 3
        # A sender that starts anew holds what it says.
        claims.box.send_nowait(Credit(10, fresh=True, kept=4, held=((lane, ADMINISTRATOR_ID, 2),)))
        await claims.get(14)
        await claims.rest(virtual)
        assert len(claims.claimed) == 14


async def test_who_waits_for_high_mail_hears_that_there_is_none(pool):
    """Another node has taken it, or its destination is in trouble."""
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        claims.box.send_nowait(Wake(reason="high"))
        await eventually(lambda: claims.nothing_high, "it hears that there is none")
        assert not claims.claimed


async def test_high_mail_that_is_due_in_a_moment_is_not_said_to_be_missing(pool):
    """What was just queued is due now, by a clock that is known to within a round trip only."""
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.rest()
        now: datetime = await pool.fetch_value("SELECT clock_timestamp()")
        soon = now + timedelta(seconds=0.1)
        (code,) = await put(pool, "code@b.example", priority="high", send_at=soon)
        lane = await pool.fetch_value("SELECT lane FROM relay.outbound_due")
        claims.box.send_nowait(Due((DueLane(lane, 0, soon, "b.example", ADMINISTRATOR_ID),)))
        await claims.get(1)
    assert claims.claimed[0].id == code.id
    assert not claims.nothing_high


async def test_a_full_batch_is_followed_by_the_next_at_once(pool):
    """What one claim cannot hold is claimed by the next, without another reason."""
    await put(pool, *(f"u{number}@a.example" for number in range(1200)))
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(2000))
        await claims.get(1200)
    assert len(claims.batches) >= 3


@pytest.mark.parametrize("hint", ["wake", "due", "look", "sweep"])
async def test_hints_are_reasons_to_look(pool, hint, virtual):
    """A notification, and what this node queued itself, are claimed at once."""
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.rest(virtual)
        message = Message(Address("a@x.example"), [Address("a@a.example")], "s", text="t")
        enqueued = await enqueue(pool, [message])
        (queued,) = enqueued.messages
        assert enqueued.due_at is not None
        due_lane = DueLane(
            *(queued.lane, queued.priority, enqueued.due_at, queued.domain, queued.owner)
        )
        hints = {"wake": Wake(), "due": Due((due_lane,)), "look": Due(()), "sweep": SweepNow()}
        claims.box.send_nowait(hints[hint])
        await claims.get(1)


async def test_the_next_due_time_is_a_reason(pool):
    """Mail for later is claimed when it is due, neither before nor at the next sweep."""
    send_at = datetime.now(UTC) + timedelta(seconds=0.6)
    await put(pool, "a@a.example", send_at=send_at)
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.get(1)
        late = await pool.fetch_value("SELECT clock_timestamp() - %s", (send_at,))
    assert late >= timedelta(0)


@pytest.mark.parametrize("too_early", [0.3, 60.0], ids=["read in time", "read when it is past"])
async def test_a_due_time_announced_too_early_is_no_reason_to_forget(pool, too_early):
    """Clocks differ: what is not due yet when it is looked for is claimed when it is."""
    send_at = datetime.now(UTC) + timedelta(seconds=0.6)
    (queued,) = await put(pool, "a@a.example", send_at=send_at)
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.rest()
        early = send_at - timedelta(seconds=too_early)
        claims.box.send_nowait(Due((DueLane(queued.lane, 1, early, queued.domain, queued.owner),)))
        await claims.get(1)


async def test_the_sweep_finds_what_nobody_announced(pool, virtual):
    """A lost notification costs a few seconds."""
    async with claiming(pool, sweep_every=0.2) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.rest(virtual)
        await put(pool, "a@a.example")
        await claims.get(1)


@pytest.mark.parametrize("priority", [0, 1])
async def test_what_was_queued_here_is_announced_to_other_nodes(pool, priority, virtual):
    """Many messages are one notification, soon afterwards; one of high mail says so."""
    heard = []
    due_lane = DueLane(1, priority, datetime.now(UTC), "a.example", ADMINISTRATOR_ID)
    async with await connect(pool.dsn) as conn:
        await conn.execute("LISTEN relay_outbound")
        async with claiming(pool) as claims:
            for _ in range(20):
                claims.box.send_nowait(Due((due_lane,), announce=True))
            await claims.rest(virtual)
        await pool.execute("SELECT pg_notify('relay_outbound', 'last')")
        async with aclosing(conn.notifies()) as notifications:
            async for notification in notifications:
                heard.append((notification.channel, notification.payload))
                if notification.payload == "last":
                    break
    assert heard == [("relay_outbound", "" if priority else "high"), ("relay_outbound", "last")]


async def test_normal_mail_is_not_announced_as_the_high_mail_of_another_node(pool, virtual):
    """What somebody else has announced is no part of what this node announces."""
    async with aclosing(notifications(pool.dsn, ["relay_outbound"])) as heard:
        await anext(heard)  # LISTEN is in effect
        async with claiming(pool) as claims:
            claims.box.send_nowait(Wake(reason="high"))
            due_lane = DueLane(1, 1, datetime.now(UTC), "a.example", ADMINISTRATOR_ID)
            claims.box.send_nowait(Due((due_lane,), announce=True))
            await claims.rest(virtual)
            assert await anext(heard) == Notification("relay_outbound", "")


async def test_a_lane_before_a_shut_gate_is_left_alone(pool):
    """Its backlog is not claimed, and other lanes go on; when the gate opens, one probes."""
    await put(pool, *(f"u{number}@slow.example" for number in range(20)))
    await put(pool, *(f"u{number}@fast.example" for number in range(20)))
    async with claiming(pool) as claims:
        gate = claims.gates.make(GateKey("slow"))
        gate.bad(trio.current_time(), plain=True)
        gate.opens_at = trio.current_time() + 0.6
        claims.gates.before(lane_of(ADMINISTRATOR_ID, "slow.example"), gate)
        claims.box.send_nowait(Credit(100))
        await claims.get(20)
        assert {message.domain for message in claims.claimed} == {"fast.example"}
        gate.busy = 0
        await claims.get(21)
        gate.busy = 1  # as the sender counts it
        assert claims.claimed[20].domain == "slow.example"


@pytest.mark.parametrize("what", ["gate", "mail"])
async def test_what_falls_due_while_the_claimer_looks_is_a_reason(pool, what):
    """A gate that opens, mail that falls due: between its look and its plan for the next one."""

    class Busy(Gates):
        def allowance(self, lane: int, now: float) -> int | None:
            allowed = super().allowance(lane, now)
            if opens_at is not None and now < opens_at:
                time.sleep(opens_at + 0.1 - now)  # the machine gives its time to others
            return allowed

    opens_at: float | None = None
    (behind,) = await put(pool, "a@slow.example")
    gates = Busy(8, 1.0, random.Random(1))
    gate = gates.make(GateKey("slow"))
    gate.window = 1.0
    gate.opens_at = trio.current_time() + QUIET
    gates.before(behind.lane, gate)
    async with claiming(pool, gates=gates) as claims:
        claims.box.send_nowait(Credit(8))
        await planned(pool)  # nothing else is a reason for a turn then
        await claims.rest()
        send_at = datetime.now(UTC) + timedelta(seconds=0.5)
        (later,) = await put(pool, "b@fast.example", send_at=send_at)
        opens_at = trio.current_time() + 0.6
        if what == "gate":
            gate.opens_at = opens_at
        claims.box.send_nowait(Due((DueLane(later.lane, 1, send_at, later.domain, later.owner),)))
        with trio.fail_after(5):
            await claims.get(2 if what == "gate" else 1)


async def test_lanes_before_a_shut_gate_hide_no_other_from_the_rates(pool):
    """However many they are and whatever their place, what comes after them is claimed."""
    await put(pool, *(f"u@d{number}.example" for number in range(300)))
    due_lanes, _ = await Queue(pool, uuid4()).survey()
    async with claiming(pool, rates=SharedRates(pool, domain=100.0)) as claims:
        gate = claims.gates.make(GateKey("slow"))
        gate.opens_at = trio.current_time() + QUIET
        gate.window = 1.0
        for due_lane in due_lanes[:-1]:
            claims.gates.before(due_lane.lane, gate)
        claims.box.send_nowait(Credit(100))
        await claims.get(1)
        assert [message.domain for message in claims.claimed] == [due_lanes[-1].domain]


@pytest.mark.parametrize("paused", [["sender"], ["sender", "claimer"]])
async def test_what_the_sender_does_not_read_is_taken_back(pool, virtual, paused):
    """After a third of its lease, uncounted, be the claimer paused too; and all room with it."""
    ids = [queued.id for queued in await put(pool, *(f"u{n}@a.example" for n in range(3)))]
    async with claiming(pool) as claims:
        claims.supervisor.pause("sender")
        claims.box.send_nowait(Credit(8))
        for each in ids:
            await becomes(pool, STATUS, "processing", each)
        for name in paused:
            claims.supervisor.pause(name)
        virtual.jump(LEASE / 3 - 5)
        await at_rest(pool)
        assert await status(pool, ids[0]) == "processing"
        virtual.jump(5.0)
        for each in ids:
            await becomes(pool, STATUS, "queued", each)
        for name in ("claimer", "sender"):
            claims.supervisor.resume(name)
        await eventually(lambda: claims.taken_back, "the sender finds it withdrawn")
        claims.box.send_nowait(Wake())
        await claims.rest(virtual)
        assert not claims.batches
        claims.box.send_nowait(Credit(8, fresh=True))
        await claims.get(3)
    assert {(each.attempt, each.lost) for each in claims.claimed} == {(1, False)}
    assert sorted(each.id for each in claims.claimed) == sorted(ids)


async def test_what_nobody_has_read_when_the_claimer_ends_is_given_back(pool):
    """Nobody else would, before the lease is lost."""
    (one,) = await put(pool, "a@a.example")
    async with claiming(pool) as claims:
        claims.supervisor.pause("sender")
        claims.box.send_nowait(Credit(8))
        await becomes(pool, STATUS, "processing", one.id)
    assert await status(pool, one.id) == "queued"
    assert await pool.fetch_value("SELECT attempt FROM relay.outbound_due") == 0


async def test_an_outage_is_waited_out(pool):
    """With the database away the claimer goes on asking, and finds what is there afterwards."""
    (queued,) = await put(pool, "a@a.example")
    async with claiming(pool) as claims:
        await pool.execute("ALTER FUNCTION relay.outbound_survey() RENAME TO outbound_survey_away")
        await pool.execute(
            """
            SELECT pg_terminate_backend(pid)
            FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()
            """
        )
        await pool.execute("ALTER FUNCTION relay.outbound_survey_away() RENAME TO outbound_survey")
        claims.box.send_nowait(Credit(8))
        await claims.get(1)
    assert claims.claimed[0].id == queued.id


async def test_leases_that_run_out_one_after_the_other_are_taken_so(pool):
    """As those of a worker that vanished do: the next is not left until the next sweep."""
    gone = Node(pool)
    await put(pool, *(f"u{n}@a.example" for n in range(4)))
    ids = [message.id for message in await gone.claim()]
    await pool.execute(
        """
        UPDATE relay.outbound_due d
        SET run_at = now() + make_interval(secs => 0.2 * place)
        FROM unnest(%s::uuid[]) WITH ORDINALITY AS u (id, place)
        WHERE d.id = u.id
        """,
        (ids,),
    )
    async with claiming(pool) as claims:
        claims.box.send_nowait(Credit(8))
        await claims.get(4)
    assert [each.id for each in claims.claimed] == ids


async def test_leases_that_ran_out_in_an_outage_are_left_to_who_has_them():
    """Who finds the database back takes nothing at once that another may have sent: that one, who
    may look later, tells what became of it."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    with kept() as lines, ExitStack() as stack:
        stack.callback(cluster.remove)
        cluster.start()
        pool = Pool(cluster.dsn())
        await migrate(cluster.dsn())
        other = Node(pool, lease_timeout=0.5)
        (one,) = await put(pool, "a@a.example")
        (taken,) = await other.claim()
        async with claiming(pool) as claims:
            await claims.rest()
            await trio.to_thread.run_sync(cluster.stop)
            claims.box.send_nowait(Wake())
            claims.box.send_nowait(Credit(8))
            await logged(lines, "claimer.waits_for_database")
            await trio.sleep(0.5)
            await trio.to_thread.run_sync(cluster.start)
            await logged(lines, "claimer.database_back")
            await at_rest(pool)
            assert await other.finish([taken]) == {one.id}
            assert claims.claimed == []
        await pool.close()
