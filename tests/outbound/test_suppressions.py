"""Whom a reply puts on the list, whatever the route that it came by."""

from __future__ import annotations

from uuid import UUID

import pytest

from relay.db.pool import Pool
from tests.eventually import eventually
from tests.outbound.node import put
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
