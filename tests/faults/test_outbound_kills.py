"""kill -9 at each step of claim, delivery and finalise: nothing lost, a second copy only where
the fault fell between the dot and the commit of its outcome, and then counted."""

from __future__ import annotations

import operator
import os
import signal
from collections import Counter
from functools import partial

import pytest
import trio

from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import enqueue
from tests.eventually import eventually
from tests.faults.outbound import (
    LEASE,
    PATIENT,
    Way,
    database_proxy,
    dead,
    dies,
    disconnected,
    finished,
    leases_run_out,
    lost,
    relay_process,
    second_copies,
    started,
    ways_out,
)
from tests.outbound.node import lose, put, status
from tests.outbound.running import running_outbound
from tests.outbound.sink import HangUp, Session, running_sink
from tests.relay_process import RelayProcess

STATEMENTS = {"claim": b"relay.outbound_claim(", "finalise": b"relay.outbound_finalise("}
ADDRESSES = {"mark@a.example", "b@b.example", "c@c.example"}


WAYS = pytest.mark.parametrize("way", ["upstream", "mx"])
DOMAINS = ["a.example", "b.example", "c.example"]


async def inherited(pool: Pool, way: Way) -> None:
    """Let another relay do what a dead one left, and see that nothing is missing afterwards."""
    sink = way.sink
    await disconnected(pool, "victim")
    await leases_run_out(pool)
    async with running_outbound(pool, way.upstream, retry_unit=0.1, **way.settings) as heir:
        heir.wake()
        await finished(pool, len(ADDRESSES))
    assert set(sink.recipients) == ADDRESSES
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_due") == 0
    # Every second copy is one of a lease that was recorded as lost, and says who it is.
    assert second_copies(sink) <= await lost(pool)
    ids = {message.recipient: message.message_id for message in sink.received}
    assert all(ids[message.recipient] == message.message_id for message in sink.received)


@WAYS
@pytest.mark.parametrize("step", ["connect", "MAIL", "RCPT", "DATA", "body", "dot", "answered"])
async def test_killed_in_a_conversation(pool, database_url, tmp_path, step, way):
    """At each step: another relay delivers; twice only if the dot was sent."""
    victim: RelayProcess | None = None

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if victim is not None and victim.process is not None and victim.process.poll() is None:
            about = line if verb == "RCPT" else " ".join(session.recipients) or session.sender
            if verb == step and (verb in {"connect", "MAIL"} or "mark" in about):
                victim.kill()
            if step == "answered" and verb == "dot" and "mark" in about:
                await session.stream.send_all(b"250 2.0.0 taken\r\n")
                victim.kill()
                raise HangUp
        return None

    async with ways_out(way, script, DOMAINS) as out:
        await put(pool, "b@b.example", "c@c.example")
        # Larger than what the kernel takes at once: without its dot while the sink reads.
        text = "a line\n" * (1_000_000 if step == "body" else 1)
        await enqueue(
            pool, [Message(Address("a@x.org"), [Address("mark@a.example")], "s", text=text)]
        )
        dsn = f"{database_url} application_name=victim"
        victim = relay_process(tmp_path / "victim", dsn, out.upstream, **PATIENT, **out.env)
        await dies(victim)
        await inherited(pool, out)
    if step in {"connect", "MAIL", "RCPT", "DATA", "body"}:
        assert Counter(out.sink.recipients)["mark@a.example"] == 1


@WAYS
@pytest.mark.parametrize("when", ["asked", "running", "answered", "heard"])
@pytest.mark.parametrize("statement", STATEMENTS)
async def test_killed_around_a_statement(pool, database_url, tmp_path, statement, when, way):
    """Before claim or finalise reach the database, while it works, after its commit but before
    the answer, and right after the answer: what is committed counts, what is not is done again."""
    victim: RelayProcess | None = None

    async def moment(name: str, at: str) -> bool:
        if (name, at) != (statement, when) or victim is None:
            return True
        victim.kill()
        # What the dead one had sent by `running` is the server's; it must not be cut off.
        return at == "running"

    async with (
        ways_out(way, domains=DOMAINS) as out,
        database_proxy(database_url, STATEMENTS, moment) as proxy,
    ):
        await put(pool, *ADDRESSES)
        victim = relay_process(
            tmp_path / "victim",
            proxy.dsn("victim"),
            out.upstream,
            RELAY_DATABASE__PREPARE="false",
            **PATIENT,
            **out.env,
        )
        await dies(victim)
        await disconnected(pool, "victim")
        leased = await pool.fetch_value(
            "SELECT count(*) FROM relay.outbound_due WHERE node IS NOT NULL"
        )
        recorded = {
            row[0]
            for row in await pool.fetch(
                "SELECT recipient FROM relay.outbound_messages WHERE status = 'sent'"
            )
        }
        await inherited(pool, out)
    copies = Counter(out.sink.recipients)
    assert all(copies[address] == 1 for address in recorded)
    match statement, when:
        case "claim", "asked":
            assert leased == 0
        case "claim", "answered" | "heard":
            assert leased > 0
        case "finalise", "asked":
            assert not recorded
            assert second_copies(out.sink) > 0
        case "finalise", "answered" | "heard":
            assert recorded
    if statement == "claim" and when != "heard":
        assert second_copies(out.sink) == 0


async def test_killed_in_the_dark_a_message_that_says_so_is_held(pool, database_url, tmp_path):
    """Its dot was sent and nobody knows the answer: held for a person, not sent a second time."""
    victim: RelayProcess | None = None

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot" and session.recipients == ["a@a.example"]:
            assert victim is not None
            victim.kill()
            raise HangUp
        return None

    async with running_sink(script) as sink:
        (message,) = await put(pool, "a@a.example", hold_unknown=True)
        victim = relay_process(tmp_path / "victim", database_url, sink.url)
        await dies(victim)
        await lose(pool, message.id)
        async with running_outbound(pool, sink.url, lease_timeout=LEASE) as heir:
            heir.wake()
            assert (await heir.queue.reap()).unknown == [message.id]
            heir.wake()
            (other,) = await put(pool, "b@a.example")
            await heir.becomes(other.id, "sent")
        assert await status(pool, message.id) == "held"
    assert sorted(sink.recipients) == ["a@a.example", "b@a.example"]
    assert await lost(pool) == 1


async def test_restarted_by_hand_sender_and_claimer_repeat_nothing(pool):
    """In the middle of four hundred deliveries, again and again: each goes out once."""

    async def slowly(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            await trio.sleep(0.01)
        return None

    wanted = [f"u{number}@d{number % 5}.example" for number in range(400)]
    async with running_sink(slowly) as sink, running_outbound(pool, sink.url) as outbound:
        await put(pool, *wanted)
        outbound.wake()
        for round_ in range(8):
            await sink.gets(round_ * 40 + 20)
            await outbound.supervisor.restart(("sender", "claimer")[round_ % 2])
        await finished(pool, len(wanted))
    assert sorted(sink.recipients) == sorted(wanted)
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_tries") == 0


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_stop_leaves_no_lease_behind(pool, database_url, tmp_path, signals):
    """One signal: what is on the wire is finished.  Two: it is broken off, and recorded as such, so
    that nobody has to wait for a lease of a minute."""
    reached, end = trio.Event(), trio.Event()

    async def stall(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            reached.set()
            await end.wait()
        return None

    relay = relay_process(tmp_path / "relay", database_url, "", RELAY_OUTBOUND__LEASE_TIMEOUT="60")
    async with running_sink(stall) as sink:
        relay.env["RELAY_OUTBOUND__UPSTREAM"] = sink.url
        (message,) = await put(pool, "a@a.example")
        async with started(relay):
            await reached.wait()
            for count in range(signals):
                os.kill(relay.pid, signal.SIGTERM)
                await eventually(
                    lambda: relay.log_file.read_text().count('"relay.stopping"'),
                    "the signal is heard",
                    until=partial(operator.eq, count + 1),
                )
            if signals == 1:
                end.set()
            assert await dead(relay) == 0
        end.set()
    assert await status(pool, message.id) == ("sent" if signals == 1 else "queued")
    assert await pool.fetch_value("SELECT count(node) FROM relay.outbound_due") == 0
    assert await lost(pool) == 0
    assert await pool.fetch("SELECT outcome, phase, code FROM relay.outbound_tries") == (
        [] if signals == 1 else [("queued", "dot", None)]
    )
