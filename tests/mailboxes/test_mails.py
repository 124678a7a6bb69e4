"""Mail as it was sent: what a mail left in several mailboxes, taken as one."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from relay.db.pool import Pool
from relay.ids import new_id, new_ids
from relay.mailboxes.accept import insert_one
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.changes import Change
from relay.mailboxes.mails import _APART, COUNTED, Criteria, Mail, Mails
from relay.mailboxes.query import Term
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Reach

ALL, MINE = Reach(), new_id()
_FILL = """
    WITH message AS (
        INSERT INTO relay.messages (mailbox_id, reverse_path, raw_email)
        SELECT b.id, 'a@x.example', 'x'
        FROM relay.mailboxes b, generate_series(1, 2000)
        WHERE b.address = %s
        RETURNING id, mailbox_id
    )
    INSERT INTO relay.summaries (message_id, mailbox_id, tags)
    SELECT id, mailbox_id, ARRAY(SELECT 'T' || n || id FROM generate_series(1, 19) n) || '{All}'
    FROM message"""

RAW = b"Subject: hello\r\n\r\ntext\r\n"


class World:
    """Mailboxes a, b and c, the last one another owner's, and what comes to them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.mails = Mails(pool, AllMessages(pool))

    async def begin(self) -> None:
        """Make the mailboxes."""
        for name, owner in (("a", new_id()), ("b", new_id()), ("c", MINE)):
            await self.pool.execute(
                "INSERT INTO relay.mailboxes (address, owner_id, expires_at)"
                " VALUES (%s, %s, now() + interval '1 hour')",
                (f"{name}@x.example", owner),
            )

    async def send(
        self, to: str, raw: bytes = RAW, *, parse: bool = True, tags: Sequence[str] | None = None
    ) -> list[UUID]:
        """Have one mail come to mailboxes, by their letters; the ids of its messages."""
        ids = new_ids(len(to))
        while ids[-1].int - ids[0].int >= _APART:  # the machine gave its time to others meanwhile
            ids = new_ids(len(to))
        named = [(one, f"{name}@x.example") for one, name in zip(ids, to, strict=True)]
        await insert_one(self.pool, "from@x.example", named, raw)
        if parse:
            details = json.dumps({"headers": [["To", "a@x.example"]], "attachments": []})
            await self.pool.execute(
                "INSERT INTO relay.summaries (message_id, mailbox_id, subject, details, tags)"
                " SELECT id, mailbox_id, 'hello', %s, %s FROM relay.messages WHERE id = ANY (%s)",
                (details, tags and list(tags), ids),
            )
        return ids

    async def left(self, reach: Reach = ALL) -> list[list[UUID]]:
        """The messages of each mail that there is, newest first."""
        return [mail.ids for mail in (await self.mails.search(reach)).mails]


@pytest.fixture
async def world(any_pool: Pool) -> World:
    """Three mailboxes without mail."""
    world = World(any_pool)
    await world.begin()
    return world


async def test_a_mail_is_one_whatever_its_recipients(world: World) -> None:
    """By any of its messages, with all its recipients, and under the id of its first."""
    one, two = await world.send("abc"), await world.send("b")
    found = await world.mails.search(ALL)
    assert [mail.ids for mail in found.mails] == [two, one]
    assert (found.count, found.unread) == (2, 2)
    assert found.mails[1].recipients == ["a@x.example", "b@x.example", "c@x.example"]
    assert found.mails[1].value("to") == "a@x.example"
    for message in one:
        mail = await world.mails.find(ALL, str(message))
        assert mail is not None
        assert (mail.id, mail.ids) == (one[0], one)
    to_b = Criteria(((Term("to", "b@x"),),))
    assert [mail.ids for mail in (await world.mails.search(ALL, to_b)).mails] == [two, one]
    page = await world.mails.search(ALL, start=1, limit=5)
    assert ([mail.id for mail in page.mails], page.count) == ([one[0]], 2)


async def test_what_is_not_one_mail_is_not_taken_for_one(world: World) -> None:
    """The same mail to the same mailbox, another of the same length, and one that came later."""
    again = [await world.send("a"), await world.send("a")]
    other = await world.send("b", RAW.replace(b"text", b"TEXT"))
    await world.pool.execute(
        "UPDATE relay.summaries SET details = '{}' WHERE message_id = %s", (other[0],)
    )
    assert await world.left() == [other, *again[::-1]]


async def test_only_what_is_within_reach_is_shown_or_changed(world: World) -> None:
    """Of a mail to mailboxes of several owners each has their own part."""
    ids = await world.send("abc")
    mine = Reach(owner_id=MINE)
    assert await world.left(mine) == [[ids[2]]]
    assert await world.mails.find(mine, str(ids[0])) is None
    assert await world.mails.delete(mine, [str(ids[0])]) == 0
    assert await world.mails.change(mine, [str(ids[0])], Change(is_read=True)) == 0
    assert await world.mails.delete(mine, map(str, ids)) == 1
    assert await world.left() == [ids[:2]]


async def test_what_is_looked_at_is_looked_at_in_steps_beside_the_loop(world: World) -> None:
    """Each mail once, however its messages fall into steps; when the time is over, with what was
    found: whoever searches holds up nobody."""
    # Of other lengths: what is alike and came within a millisecond might be taken for one mail.
    sent = [(await world.send("abc", RAW + b"x" * number))[0] for number in range(40)]
    threads: set[int] = set()

    def keep(mail: Mail) -> bool:
        threads.add(threading.get_ident())
        return mail.id != sent[7]

    found = await world.mails.search(ALL, Criteria(keep=keep), start=1, limit=35)
    wanted = [one for one in reversed(sent) if one != sent[7]]
    assert [mail.id for mail in found.mails] == wanted[1:36]
    assert (found.count, found.unread) == (39, 39)
    assert threads
    assert threading.get_ident() not in threads
    hurried = Mails(world.pool, AllMessages(world.pool), seconds=0.0)
    found = await hurried.search(ALL, Criteria(keep=keep))
    assert [mail.id for mail in found.mails] == wanted[: found.count]
    assert 0 < found.count < 20


async def test_what_is_not_parsed_is_not_shown_nor_counted(world: World) -> None:
    """It is whole when it is there; deleted by its id it is gone all the same."""
    ids = await world.send("a", parse=False)
    found = await world.mails.search(ALL)
    assert (found.mails, found.count, found.unread) == ([], 0, 0)
    assert await world.mails.delete(ALL, map(str, ids)) == 1


async def test_a_change_is_of_the_whole_mail(world: World) -> None:
    """Marked, tagged and deleted by one of its messages, or by what finds one of them."""
    ids, other = await world.send("ab"), await world.send("c")
    assert await world.mails.change(ALL, [str(ids[1])], Change(is_read=True)) == 2
    assert (await world.mails.search(ALL)).unread == 1
    to_b = Criteria(((Term("to", "b@x"),),))
    assert await world.mails.change_found(ALL, to_b, Change(tags=["Shop"])) == 2
    assert await world.mails.tags(ALL) == {"Shop": 2}
    assert await world.mails.delete_found(ALL, to_b) == 2
    assert await world.left() == [other]
    kept = Criteria(keep=lambda mail: mail.id != other[0])
    assert await world.mails.delete_found(ALL, kept) == 0
    assert await world.mails.delete(ALL, ["no id", str(new_id())]) == 0


async def test_tags_are_those_of_mail_within_reach(world: World) -> None:
    """As they are written, each with its messages."""
    await world.send("a", tags=["Shop", "Two words"])
    await world.send("ac", tags=["Shop", "Mine"])
    assert await world.mails.tags(ALL) == {"Mine": 2, "Shop": 3, "Two words": 1}
    assert await world.mails.tags(Reach(owner_id=MINE)) == {"Mine": 1, "Shop": 1}


class Explaining:
    """A pool that says how many rows all the nodes of a statement's plan have handed on."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.rows = 0

    async def fetch(self, sql: str, parameters: dict[str, Any]) -> list[Any]:
        """Run and count it; what it finds stays in the database."""
        ((found,),) = await self._pool.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
        left = [found[0]["Plan"]]
        while left:
            node = left.pop()
            self.rows += node["Actual Rows"] * node["Actual Loops"]
            left += node.get("Plans", [])
        return []


async def test_each_tag_of_a_message_is_read_once(pool: Pool, store: Store) -> None:
    """With many on each message, of which most are its own: X-Tags is the sender's to write."""
    made = await store.create()
    for _ in range(20):
        await store.create()
    await pool.execute(_FILL, (made.mailbox.address,))
    await pool.execute("ANALYZE")
    found = await Mails(pool, AllMessages(pool)).tags(Reach())
    assert (len(found), found["All"]) == (COUNTED, 2000)
    explaining = Explaining(pool)
    await Mails(cast("Pool", explaining), AllMessages(pool)).tags(Reach())
    assert 40_000 < explaining.rows < 10 * 40_000
    explaining.rows = 0
    await Mails(cast("Pool", explaining), AllMessages(pool)).tags(Reach(owner_id=MINE))
    assert explaining.rows < 100  # who has none reads none
