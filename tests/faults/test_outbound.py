"""Outbound mail through faults: nothing lost, no second copy unless one fell after the dot."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest
import trio

from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from tests.db.cluster import Cluster, binaries
from tests.faults.outbound import LEASE, finished, sent
from tests.outbound.node import put
from tests.outbound.running import running_outbound
from tests.outbound.sink import HangUp, Script, Session, running_sink


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
                await trio.to_thread.run_sync(cluster.stop, signal.SIGQUIT)
                await trio.sleep(0.3)
                await trio.to_thread.run_sync(cluster.start)
            await sink.gets(400)
            while await sent(pool) < 400:
                await trio.sleep(0.02)
        await pool.close()
    finally:
        await trio.to_thread.run_sync(cluster.remove)
    assert sorted(sink.recipients) == sorted(wanted)


async def test_two_relays_share_a_database(pool, database_url):
    """Each message goes out once, and both nodes have a part in it."""
    wanted = [f"u{number}@d{number % 5}.example" for number in range(600)]
    other = Pool(database_url)

    async def slowly(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            await trio.sleep(0.005)
        return None

    async with running_sink(slowly) as one, running_sink(slowly) as two:
        await put(pool, *wanted)
        async with (
            running_outbound(pool, one.url, concurrency=4),
            running_outbound(other, two.url, concurrency=4),
        ):
            await finished(pool, 600)
    await other.close()
    assert sorted(one.recipients + two.recipients) == sorted(wanted)
    assert min(len(one.received), len(two.received)) > 60


async def _drip(session: Session, answer: bytes) -> None:
    for byte in answer:
        await session.stream.send_all(bytes([byte]))
        await trio.sleep(0.2)


def misbehaving(how: str, step: str) -> Script:
    """A script that does something unspeakable at one step of the delivery to `bad.example`."""

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        about = line if verb == "RCPT" else " ".join(session.recipients)
        if verb != step or "bad.example" not in about:
            return None
        match how:
            case "stall":
                await trio.sleep_forever()
            case "drip":
                await _drip(session, b"250 2.0.0 at last, after a very long time\r\n")
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
async def test_a_peer_that_misbehaves_defers_its_own_mail_only(pool, how, step):
    """Whatever a peer does at RCPT or after the dot, that mail is deferred and other mail goes."""
    async with (
        running_sink(misbehaving(how, step)) as sink,
        running_outbound(pool, sink.url, lease_timeout=LEASE, retry_unit=60.0) as outbound,
    ):
        (bad,) = await put(pool, "a@bad.example")
        good = await put(pool, *(f"u{number}@good.example" for number in range(10)))
        outbound.wake()
        for message in good:
            assert (await outbound.becomes(message.id, "sent"))[1] == 1
        _, _, wait, error = await outbound.becomes(bad.id, "queued", 1)
    assert 40 < wait <= 72
    assert error
    assert Counter(sink.recipients).most_common(1)[0][1] == 1


async def test_a_finalise_that_is_repeated_changes_nothing(pool):
    """The answer to a commit is lost, and the outcomes are recorded once all the same."""
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        queue: Any = outbound.queue
        finalise, failures = queue.finalise, iter([True, True])

        async def losing_the_answer(outcomes: Any) -> Any:
            recorded = await finalise(outcomes)
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
