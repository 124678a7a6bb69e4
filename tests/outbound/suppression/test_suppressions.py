"""Whom a reply puts on the list, whatever the route that it came by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import trio

from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.outbound.active_queue.jobs import Job
from relay.outbound.admin import QueueAdmin
from relay.outbound.bounces.returned import Returned
from relay.outbound.shaping.keeper import ShapingKeeper
from relay.outbound.shaping.store import ShapingStore
from relay.outbound.shaping.traffic import Learned, Receiver, Traffic
from relay.outbound.suppression.suppressions import Full, Suppressions
from relay.returns.law import FULL_MOST, FULL_WITHIN, Finding, Kind
from tests.eventually import eventually
from tests.outbound.claims import claimed
from tests.outbound.node import Node, put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import Script, Session, running_sink

OWNER = UUID(int=77)
GONE = b"550 5.1.1 no such user here\r\n"


def answers(replies: dict[str, bytes], verb: str = "RCPT") -> Script:
    """An upstream that answers so for recipients that begin so."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said != verb:
            return None
        return next((reply for name, reply in replies.items() if f"<{name}" in line.lower()), None)

    return script


async def bounces(outbound: Outbound, *addresses: str, owner: UUID = OWNER) -> None:
    """Mail to each, one after the other, is refused."""
    for address in addresses:
        (queued,) = await put(outbound.pool, address, owner=owner)
        outbound.wake()
        await outbound.becomes(queued.id, "bounced")


async def listed(pool: Pool) -> list[tuple[object, ...]]:
    """Who is on the list, for whom, why."""
    return await pool.fetch(
        "SELECT address, owner, cause, reason FROM relay.suppressions ORDER BY address"
    )


async def test_who_is_gone_by_an_upstream_is_suppressed(pool: Pool):
    """For the owner, with the reply; not who is refused for policy, or without a reason."""
    script = answers(
        {
            "gone@": GONE,
            "moved@": b"551-5.1.6 they have moved\r\n551 5.1.6 away\r\n",
            "policy@": b"550 5.7.1 no such user here\r\n",
            "words@": b'550 5.1.1 rejected "listed by a block list"\r\n',
            "linked@": b"550 5.1.1 <linked@one.example> access denied, see <https://b.example>\r\n",
            "passing@": b"554 5.1.2 temporary DNS failure\r\n",
            "plain@": b"550 no such user here\r\n",
            "sender@": b"550 5.1.8 bad sender\r\n",
            "full@": b"552 5.2.2 mailbox full\r\n",
        }
    )
    names = ("policy", "words", "linked", "passing", "plain", "sender", "full", "moved", "gone")
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        await bounces(outbound, *(f"{name}@one.example" for name in names))
        found = await eventually(
            lambda: listed(pool), "they are suppressed", until=lambda rows: len(rows) == 2
        )
    assert found == [
        ("gone@one.example", OWNER, "bounced", "550 5.1.1 no such user here"),
        ("moved@one.example", OWNER, "bounced", "551 5.1.6 they have moved away"),
    ]


@pytest.mark.parametrize("verb", ["MAIL", "connect"])
async def test_what_is_refused_of_the_sender_suppresses_nobody(pool: Pool, verb: str):
    """Whatever code it has."""
    refuse = {"now": True}

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said == verb and refuse["now"]:
            return GONE
        return GONE if said == "RCPT" and "other" in line else None

    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        (queued,) = await put(pool, "a@one.example", owner=OWNER)
        outbound.wake()
        await eventually(
            lambda: outbound.row(queued.id), "it was tried", until=lambda row: row[3] is not None
        )
        refuse["now"] = False
        outbound.flush()
        (other,) = await put(pool, "other@one.example", owner=OWNER)
        outbound.wake()
        await outbound.becomes(other.id, "bounced")
        found = await eventually(lambda: listed(pool), "the other is suppressed", until=bool)
    assert [row[0] for row in found] == ["other@one.example"]


async def test_an_own_mailbox_that_is_gone_suppresses_nobody(pool: Pool):
    """It may be made in a moment."""
    async with running_outbound(pool, "loop:") as outbound:
        await bounces(outbound, "a@relay.localhost", "b@relay.localhost")
        await outbound.at_rest()
    assert await listed(pool) == []


FULL = b"552 5.2.2 mailbox full\r\n"


async def counted(pool: Pool, address: str, times: int) -> None:
    """Wait until a mailbox was full so often."""
    await eventually(
        lambda: pool.fetch_value(
            "SELECT count(*) FROM relay.outbound_reports WHERE is_full AND address = %s", (address,)
        ),
        f"it was full {times} times",
        until=lambda count: count == times,
    )


async def test_a_mailbox_that_stays_full_is_suppressed_when_that_is_heard_at_once(pool: Pool):
    """The third time within 30 days, for the owner who wrote; reports of it count, too."""
    async with (
        running_sink(answers({"full@": FULL})) as sink,
        running_outbound(pool, sink.url) as outbound,
    ):
        await bounces(outbound, "Full@one.example")
        await bounces(outbound, "full@one.example", owner=UUID(int=78))
        await counted(pool, "full@one.example", 2)
        await bounces(outbound, "full@one.example")
        await counted(pool, "full@one.example", 3)
        assert await listed(pool) == []
        await bounces(outbound, "full@one.example")
        found = await eventually(lambda: listed(pool), "it is suppressed", until=bool)
    assert found == [("full@one.example", OWNER, "bounced", "552 5.2.2 mailbox full")]


@pytest.mark.parametrize("verb", ["RCPT", "dot"])
async def test_a_mailbox_that_is_full_when_its_mail_is_given_up_counts(pool: Pool, verb: str):
    """Once for each message, with the last of its attempts; not while there is another to come."""
    full = {"now": b"452 4.2.2 mailbox full\r\n"}

    async def script(session: Session, said: str, line: str) -> bytes | None:
        return full["now"] if said == verb else None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, max_attempts=2, retry_unit=0.02) as outbound,
    ):
        for times in (1, 2, 3):
            assert await listed(pool) == []
            (queued,) = await put(pool, "full@one.example", owner=OWNER)
            outbound.wake()
            await outbound.becomes(queued.id, "failed", 2)
            await counted(pool, "full@one.example", times)
        found = await eventually(lambda: listed(pool), "it is suppressed", until=bool)
        # What fails for another reason in the end counts nothing.
        full["now"] = b"452 4.2.1 not now\r\n"
        (queued,) = await put(pool, "other@one.example", owner=OWNER)
        outbound.wake()
        await outbound.becomes(queued.id, "failed", 2)
        await outbound.at_rest()
    assert found == [("full@one.example", OWNER, "bounced", "452 4.2.2 mailbox full")]
    await counted(pool, "other@one.example", 0)


async def test_a_mailbox_that_is_full_until_its_mail_expires_counts(pool: Pool):
    """By what its last attempt met, whether a claim finds that or a sweep of a paused queue."""
    now = datetime.now(UTC)
    script = answers({"full@": b"452 4.2.2 mailbox full\r\n", "busy@": b"451 4.7.1 later\r\n"})
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        for address in ("full@one.example", "busy@one.example", "full@two.example"):
            (queued,) = await put(pool, address, owner=OWNER, not_after=now + timedelta(hours=1))
            outbound.wake()
            await outbound.becomes(queued.id, "queued", 1)
            if address == "full@two.example":
                await QueueAdmin(pool).hold(queued.id)
        await pool.execute(
            "UPDATE relay.outbound_due SET not_after = now(), run_at = least(run_at, now())"
            " WHERE isfinite(run_at)"
        )
        outbound.flush()
        await counted(pool, "full@one.example", 1)
        await pool.execute("UPDATE relay.outbound_due SET not_after = now()")
        await counted(pool, "full@two.example", 1)
    await counted(pool, "busy@one.example", 0)


async def test_a_final_refusal_at_the_dot_is_as_good_as_one_of_the_recipient(pool: Pool):
    """A message has one recipient."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        return FULL if said == "dot" else None

    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        (queued,) = await put(pool, "full@one.example", owner=OWNER)
        outbound.wake()
        await outbound.becomes(queued.id, "failed")
        await counted(pool, "full@one.example", 1)


async def ended(node: Node, address: str) -> UUID:
    """A message to an address has ended."""
    (queued,) = await put(node.pool, address, owner=OWNER)
    await node.finish(await node.claim())
    return queued.id


async def test_full_mailboxes_count_with_reports_each_attempt_once_and_for_a_while(node: Node):
    """However often one is told."""
    suppressions = Suppressions(node.pool)
    first = Full(await ended(node, "full@one.example"), 1, "5.2.2", "552 5.2.2 full")
    for _ in range(FULL_MOST):
        assert await suppressions.count_full([first]) == 0
    await node.pool.execute(
        "UPDATE relay.outbound_reports SET created_at = now() - make_interval(days => %s)",
        (FULL_WITHIN + 1,),
    )
    later = await ended(node, "full@one.example")
    returned = Returned(node.pool, b"key")
    about = await returned.about(later)
    assert about is not None
    await returned.apply(about, Finding(Kind.BOUNCED, "5.2.2", "full", is_full=True))
    more = [first._replace(message_id=await ended(node, "full@one.example")) for _ in range(2)]
    assert await suppressions.count_full(more[:1]) == 0  # the first was too long ago
    assert await suppressions.count_full(more) == 1
    assert [row[:3] for row in await listed(node.pool)] == [("full@one.example", OWNER, "bounced")]
    # Several that are told together are as many.
    others = [first._replace(message_id=await ended(node, "b@one.example")) for _ in range(3)]
    assert await suppressions.count_full(others) == 1
    assert await suppressions.count_full([]) == 0


async def test_a_letter_to_a_full_mailbox_counts_nothing(pool: Pool):
    """Others said that address."""
    keeper = ShapingKeeper(ShapingStore(pool), Suppressions(pool), Traffic())
    hub = Hub()
    (queued, own) = [(await put(pool, "full@one.example"))[0] for _ in range(2)]
    async with trio.open_nursery() as nursery:
        for id, letter_of in ((queued.id, 7), (own.id, None)):
            message = claimed(id=id, attempt=1, letter_of=letter_of)
            keeper.full(Job(message, 300.0, 0.0), "5.2.2", "552 5.2.2 full")
        nursery.start_soon(keeper.run, hub, Nobody())
        await counted(pool, "full@one.example", 1)
        nursery.cancel_scope.cancel()
    rows = await pool.fetch("SELECT message_id FROM relay.outbound_reports")
    assert rows == [(own.id,)]


class Nobody:
    """Nobody is held back."""

    def suspend(self, learned: Learned, now: float) -> None:
        raise AssertionError

    def lift(self, receiver: Receiver) -> None:
        raise AssertionError
