"""Outbound mail through faults: nothing lost, no second copy unless one fell after the dot."""

from __future__ import annotations

import re
import signal
from collections import Counter
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
import trio.testing

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.metrics import registry
from relay.outbound.admin import QueueAdmin
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import announce, enqueue
from tests.actors.running import logged
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.faults.outbound import LEASE, finished, relay_process, started
from tests.outbound.node import put
from tests.outbound.running import running_outbound
from tests.outbound.sink import HangUp, Script, Session, running_sink
from tests.relay_process import RelayProcess


async def test_a_restart_of_the_database_loses_nothing():
    """Crashed and started again in the middle of it: each message arrives once."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    wanted = [f"u{number}@d{number % 5}.example" for number in range(400)]

    async def slowly(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            await trio.sleep(0.01)
        return None

    try:
        cluster.start()
        dsn = cluster.dsn()
        await migrate(dsn)
        pool = Pool(dsn)
        async with (
            running_sink(slowly) as sink,
            running_outbound(pool, sink.url, lease_timeout=LEASE, retry_unit=0.1, within=60),
        ):
            await put(pool, *wanted)
            for count in (50, 200):
                await sink.gets(count)
                with structlog.testing.capture_logs() as lines:
                    await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
                    await logged(lines, "claimer.waits_for_database")
                await trio.to_thread.run_sync(cluster.start)
            await sink.gets(400)
            await finished(pool, 400)
        await pool.close()
    finally:
        await trio.to_thread.run_sync(cluster.remove)
    assert sorted(sink.recipients) == sorted(wanted)


@pytest.mark.parametrize("count", [2, 3])
async def test_relays_share_a_database(pool, database_url, count):
    """Each message goes out once, every node has a part in it, and nobody is starved: not the bulk
    behind a flood of urgent mail, not another destination's few."""
    urgent = [f"u{number}@flood.example" for number in range(600)]
    bulk = [f"b{number}@bulk.example" for number in range(60)]
    others = [f"o{number}@d{number}.example" for number in range(20)]
    order: list[str] = []

    async def slowly(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            order.extend(session.recipients)
            await trio.sleep(0.03)  # so that the flood outlasts `RightOfWay.MOST`
        return None

    async with AsyncExitStack() as stack:
        sinks = [await stack.enter_async_context(running_sink(slowly)) for _ in range(count)]
        await put(pool, *urgent, priority="high")
        await put(pool, *bulk, priority="bulk")
        await put(pool, *others)
        pools = [Pool(database_url) for _ in sinks]
        for own, sink in zip(pools, sinks, strict=True):
            stack.push_async_callback(own.close)
            await stack.enter_async_context(running_outbound(own, sink.url, concurrency=4))
        await finished(pool, 680)
    assert sorted(order) == sorted(urgent + bulk + others)
    assert min(len(sink.received) for sink in sinks) > 600 / count / 5
    flood = order[: max(place for place, recipient in enumerate(order) if recipient in urgent)]
    meanwhile = Counter(recipient[0] for recipient in flood)
    assert meanwhile["b"] >= len(urgent) // 20 // 2  # one in twenty, the last claim apart
    assert meanwhile["o"] >= len(others) // 2


async def test_ones_failure_sends_nothing_again_to_another(pool):
    """One call to six people, each with another fate, twice over; whoever got it gets it once, and
    what became of each is seen in its row, the figures and the counters."""
    fates = {
        "RCPT": {"never": b"550 5.1.1 no\r\n", "later": b"451 4.2.1 later\r\n"},
        "DATA": {"refused": b"554 5.6.0 no\r\n"},
        "dot": {"full": b"452 4.3.1 full\r\n", "doubt": b"", "hold": b""},
    }
    met: Counter[str] = Counter()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        about = line if verb == "RCPT" else "".join(session.recipients[-1:])
        for name, answer in fates.get(verb, {}).items():
            if f"{name}@" in about:
                met[name] += 1
                if not answer:
                    if name == "hold" or met[name] == 1:
                        raise HangUp
                    return None
                return answer if met[name] == 1 or name == "never" else None
        return None

    unknown = registry.get_sample_value("relay_outbound_unknown_total") or 0.0
    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, retry_unit=0.05, concurrency=2) as outbound,
    ):
        # Of one destination, so they share lane, connections and what is announced ahead.
        names = ["fine", "never", "later", "refused", "full", "doubt", "well"]
        queued = await put(pool, *(f"{name}@a.example" for name in names))
        queued += await put(pool, "hold@a.example", hold_unknown=True)
        outbound.wake()
        ends = {"never": "bounced", "refused": "failed", "hold": "held"}
        for message in queued:
            name = message.recipient.partition("@")[0]
            await outbound.becomes(message.id, ends.get(name, "sent"))
        stats = (await QueueAdmin(pool).stats()).as_json()
        held = await QueueAdmin(pool).show(queued[-1].id)
    copies = Counter(recipient.partition("@")[0] for recipient in sink.recipients)
    assert copies == Counter(
        {"fine": 1, "later": 1, "full": 1, "doubt": 2, "well": 1, "hold": 1}  # one doubtful, twice
    )
    assert registry.get_sample_value("relay_outbound_unknown_total") == unknown + 2
    assert (stats["held"], stats["queued"], stats["processing"]) == (1, 0, 0)
    assert stats["last_hour"] == {"sent": 5, "bounced": 1, "failed": 1}
    assert held is not None
    assert held["error_log"] == "the peer closed the connection"


async def test_a_peer_that_takes_only_small_mail_is_told_nothing_and_the_owner_why(pool):
    """SIZE says no: failed at once, with both figures in the error, and mail that fits goes."""
    text = "a line\n" * 1_500_000
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        message = Message(Address("a@x.org"), [Address("big@a.example")], "s", text=text)
        (big,) = (await enqueue(pool, [message])).messages
        (small,) = await put(pool, "small@a.example")
        outbound.wake()
        _, attempts, _, error = await outbound.becomes(big.id, "failed")
        await outbound.becomes(small.id, "sent")
    assert attempts == 1
    assert error.endswith("the peer takes at most 10,000,000")
    assert sink.recipients == ["small@a.example"]


def peak(process: RelayProcess) -> int:
    """The most memory that a process has had, in bytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1]) * 1024


async def test_a_line_of_a_gigabyte_costs_no_memory(pool, database_url, tmp_path):
    """A peer that answers with a gigabyte in one line, or in endless lines, is left in time; its
    mail is deferred, that of others goes out, and the process stays as small as it was."""
    told: Counter[str] = Counter()
    chunks = {"one.example": b"x" * 65536, "many.example": b"250-and so on\r\n" * 4096}

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        domain = line.partition("@")[2].partition(">")[0]
        if verb == "RCPT" and domain in chunks:
            await session.stream.send_all(b"250 ")
            while told[domain] < 2**30:
                await session.stream.send_all(chunks[domain])
                told[domain] += len(chunks[domain])
        return None

    relay = relay_process(tmp_path / "relay", database_url, "")
    async with running_sink(script) as sink:
        relay.env["RELAY_OUTBOUND__UPSTREAM"] = sink.url
        async with started(relay):
            await put(pool, "a@good.example")
            await announce(pool)
            await finished(pool, 1)
            before = peak(relay)
            bad = await put(pool, *(f"a@{domain}" for domain in chunks))
            await announce(pool)
            # Twice, as they are tried again.
            tries = "SELECT count(*) FROM relay.outbound_tries WHERE message_id = %s"
            for message in bad:
                await eventually(
                    partial(pool.fetch_value, tries, (message.id,)),
                    "it is tried again",
                    until=lambda times: times >= 2,
                )
            await put(pool, "b@good.example")
            await announce(pool)
            await finished(pool, 2)
            assert peak(relay) - before < 8 * 2**20
    # What the kernel's buffers took is told, too.
    assert all(0 < count < 200 * 2**20 for count in told.values()), told
    assert sink.recipients == ["a@good.example", "b@good.example"]


async def _drip(session: Session, answer: bytes) -> None:
    for byte in answer:
        await session.stream.send_all(bytes([byte]))
        await trio.sleep(0.2)


def misbehaving(how: str, step: str, begun: trio.Event) -> Script:
    """A script that does something unspeakable at one step of the delivery to `bad.example`.

    `begun`: set then.
    """

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        about = line if verb == "RCPT" else " ".join(session.recipients)
        if verb != step or "bad.example" not in about:
            return None
        begun.set()
        match how:
            case "stall":
                await trio.sleep_forever()
            case "drip":
                await _drip(session, b"250 2.0.0 at last," + b" after a very long time" * 20)
            case "garbage":
                return b"\x16\x03\x01 what?\r\n"
            case "invalid UTF-8":
                return b"451 4.0.0 \xff\xfe\xc3\r\n"
            case "endless lines":
                while True:
                    await session.stream.send_all(b"250-more\r\n" * 1000)
            case "endless line":
                while True:
                    await session.stream.send_all(b"250 " + b"x" * 65536)
        raise HangUp

    return script


@pytest.mark.parametrize("step", ["RCPT", "dot"])
@pytest.mark.parametrize(
    "how",
    ["hang up", "stall", "drip", "garbage", "invalid UTF-8", "endless lines", "endless line"],
)
async def test_a_peer_that_misbehaves_defers_its_own_mail_only(pool, virtual, how, step):
    """Whatever a peer does at RCPT or after the dot, that mail is deferred and other mail goes.

    But for an endless 250 to the dot, which is one: that mail is sent, once.
    """
    taken = step == "dot" and how.startswith("endless")
    begun = trio.Event()
    async with (
        running_sink(misbehaving(how, step, begun)) as sink,
        running_outbound(pool, sink.url, lease_timeout=30.0, retry_unit=60.0) as outbound,
    ):
        (bad,) = await put(pool, "a@bad.example")
        good = await put(pool, *(f"u{number}@good.example" for number in range(10)))
        outbound.wake()
        for message in good:
            assert (await outbound.becomes(message.id, "sent"))[1] == 1
        await begun.wait()
        if how in {"stall", "drip"}:
            for _ in range(20):  # past half of the lease, a byte a second where it drips
                await trio.testing.wait_all_tasks_blocked()
                virtual.jump(1.0)
        status = "sent" if taken else "queued"
        _, _, wait, error = await outbound.becomes(bad.id, status, 1)
    if not taken:
        assert 40 < wait <= 72
        assert error
    assert Counter(sink.recipients).most_common(1)[0][1] == 1


async def test_a_finalise_that_is_repeated_changes_nothing(pool):
    """The answer to a commit is lost, and the outcomes are recorded once all the same."""
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        queue: Any = outbound.queue
        finalise, failures = queue.finalise, iter([True, True])

        async def losing_the_answer(outcomes: Any, **options: Any) -> Any:
            recorded = await finalise(outcomes, **options)
            if outcomes and next(failures, None):
                raise DatabaseUnavailable("the answer was lost")
            return recorded

        queue.finalise = losing_the_answer
        await put(pool, *(f"u{number}@a.example" for number in range(20)))
        outbound.wake()
        await finished(pool, 20)
    assert len(sink.received) == len(set(sink.recipients)) == 20
    assert next(failures, None) is None
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_tries") == 0
