"""The messages of all mailboxes that a caller may see: listed, searched, waited for, changed.

Promises
- Only mailboxes that are live (`visibility.py`) and within the `Reach` count, in each statement
  that reads or changes.
- Paging is by keyset: rows that arrive meanwhile neither repeat nor hide others.
- Those who wait see each message once, in the order in which messages became readable over all
  mailboxes (`relay.settled_seq`), also when one that came earlier took longer to parse.
- What a bulk call changes was there when it began, and matches when it is changed.
- A bulk call over very much ends with `CutShort` in good time, and says how far it came: what it
  did is durable, and who calls again goes on.
- No search, no look of a wait and none for news reads messages for much more than a second
  (`walks.py`): it says where to go on.

A list goes by the ids, which are made as mail comes, since no index has the times of all mailboxes;
so over several nodes it is as exact as their clocks agree.  Within a page it is by time.

Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid` for a cursor that was not made
here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, Invalid, TemporaryFailure
from relay.ids import parse_uuid
from relay.mailboxes import common_search, search
from relay.mailboxes.arrivals import cursor_after, seq_of
from relay.mailboxes.changes import TAGS, Change, NotParsed
from relay.mailboxes.cursors import decode_cursor, encode_cursor
from relay.mailboxes.edits import Edits, edits
from relay.mailboxes.matching import Condition, condition
from relay.mailboxes.query import Term
from relay.mailboxes.records import (
    ENTRY_COLUMNS,
    MESSAGE_COLUMNS,
    PLACED_COLUMNS,
    Entry,
    News,
    Page,
    Placed,
    ReceivedMessage,
    entry_of,
    whole_of,
)
from relay.mailboxes.tags import tags_of
from relay.mailboxes.visibility import LIVE, Reach
from relay.mailboxes.walks import SECONDS, Walk

BULK_SECONDS = 20.0
"""How long a bulk call goes on beginning steps: well within the time that a call of it has."""
_BULK = 500  # messages that one statement of a bulk call changes
_COUNTED = 10_000  # messages that one statement counts
_STEP = 4096
# OFFSET 0: these messages and no others, whatever the statistics say.
_NEXT = """
    (
        SELECT *
        FROM relay.summaries
        WHERE seq > %(above)s
          AND seq <= %(settled)s
        ORDER BY seq
        OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m
    CROSS JOIN LATERAL (SELECT * FROM relay.mailboxes WHERE id = m.mailbox_id OFFSET 0) b"""
_FROM = """
    FROM relay.messages m
    JOIN relay.mailboxes b ON b.id = m.mailbox_id
    LEFT JOIN relay.summaries s ON s.message_id = m.id"""

# Rows are locked in one order, a message before its summary, so that two calls that change the same
# mail wait for each other and not both for ever.
_CHANGE = f"""
    WITH found AS MATERIALIZED (
        SELECT m.id, m.is_read, s.message_id IS NULL AS unparsed
        {{found}}
        ORDER BY m.id
        FOR NO KEY UPDATE OF m
    ), marked AS (
        UPDATE relay.messages
        SET is_read = %(is_read)s
        WHERE id IN (SELECT id FROM found WHERE is_read <> %(is_read)s::boolean)
        RETURNING id
    ), tagged AS (
        UPDATE relay.summaries s
        SET tags = {TAGS}
        WHERE %(tagging)s
          AND message_id IN (SELECT id FROM found)
          AND tags IS DISTINCT FROM {TAGS}
        RETURNING message_id
    )
    SELECT (
               SELECT count(*)
               FROM (SELECT id FROM marked UNION SELECT message_id FROM tagged) changed
           ),
           (SELECT count(*) FROM found WHERE unparsed AND %(tagging)s)"""  # noqa: S608 - likewise


@dataclass(frozen=True)
class Match:
    """What a waiter found: the oldest match if any, else what it need not look at again.

    `more`, `expires_in`: as `News` has them.  `cut`: not all was looked at yet, what is there
    already is beyond `above`.
    """

    message: tuple[ReceivedMessage, Placed] | None
    above: int
    more: bool
    expires_in: float | None
    cut: bool = False


class CutShort(TemporaryFailure):
    """A bulk call ended before it had been through all; `count` became others by then, or were
    deleted, durably, and perhaps some more where the database fell silent."""

    def __init__(self, count: int, why: str) -> None:
        super().__init__(why)
        self.count = count


class AllMessages:
    """The messages of all of one relay's mailboxes.

    `seconds`: how long one search, or one look of a wait, goes on; `step`: messages that one
    statement of a wait reads, out of chunks; `bulk_seconds`: how long a bulk call goes on.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        seconds: float = SECONDS,
        step: int = _STEP,
        bulk_seconds: float = BULK_SECONDS,
    ) -> None:
        self._pool = pool
        self._step = step
        self._seconds = seconds
        self._bulk_seconds = bulk_seconds

    async def page(
        self,
        reach: Reach,
        terms: Sequence[Term] = (),
        *,
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[tuple[Entry, Placed]]:
        """The messages that fulfil all terms, newest first.

        A page of a long search may hold less than its limit, or nothing, and have a next one.
        `Invalid` for a cursor that was not made here.
        """
        below = None
        if (after := decode_cursor(cursor, 1)) is not None:
            below = parse_uuid(after[0])
            if below is None:
                raise Invalid("the cursor is not one of ours")
        found = await Walk(self._pool, reach, terms, seconds=self._seconds).find(
            below=below, limit=limit + 1
        )
        shown = found.ids[:limit]
        rows = await self._pool.fetch(
            f"""
            SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
            {_FROM}
            WHERE m.id = ANY (%(ids)s)
              AND {LIVE}
              AND {reach.sql}
            ORDER BY m.received_at DESC, m.id DESC
            """,
            {"ids": shown, **reach.values()},
        )
        below = shown[-1] if len(found.ids) > limit else found.below
        return Page(
            [entry_of(row) for row in rows], None if below is None else encode_cursor(str(below))
        )

    async def tags(self, reach: Reach) -> list[str]:
        """The tags of these messages, by the alphabet; as far as `relay.mailboxes.tags` looks."""
        return await tags_of(self._pool, reach)

    async def count(self, reach: Reach, terms: Sequence[Term] = ()) -> tuple[int, bool]:
        """How many fulfil all terms, and whether there may be more: one search's time is counted.

        Of a long list that is a part.
        """
        count, below = 0, None
        until = trio.current_time() + self._seconds
        while True:
            stretch = await Walk(self._pool, reach, terms, seconds=self._seconds).find(
                below=below, limit=_COUNTED
            )
            if stretch.ids:
                count += await self._pool.fetch_value(
                    f"""
                    SELECT count(*)
                    {_FROM}
                    WHERE m.id = ANY (%(ids)s)
                      AND {LIVE}
                      AND {reach.sql}
                    """,
                    {"ids": stretch.ids, **reach.values()},
                )
            if (below := stretch.below) is None:
                return count, False
            if trio.current_time() >= until:
                return count, True

    async def delete(self, reach: Reach, terms: Sequence[Term]) -> int:
        """Delete all matches for good; return how many there were.

        In short statements, each durable when the next begins.  `CutShort` when there is more than
        the time of one call is enough for.
        """

        async def apply(found: str, values: dict[str, Any]) -> int:
            return await self._pool.execute_durable(
                # Locked in the order of `_CHANGE`: a plan may go through the table as it lies.
                f"""
                DELETE FROM relay.messages
                WHERE id = ANY (ARRAY(SELECT m.id {found} ORDER BY m.id FOR UPDATE OF m))
                """,  # noqa: S608 - constants of ours only
                values,
            )

        return await self._in_steps(reach, terms, apply)

    async def change(self, reach: Reach, terms: Sequence[Term], change: Change) -> int:
        """Say of all matches whether they were read and how they are tagged; return how many
        became others by it.

        In short statements, each durable when the next begins.  `CutShort` as for `delete`;
        `NotParsed` when there are such among them that are to be tagged and were not parsed yet;
        all others are changed by then.
        """
        terms = (*terms, *change.narrowed())
        unparsed, ready = 0, await change.values(self._pool)

        async def apply(found: str, values: dict[str, Any]) -> int:
            nonlocal unparsed
            statement = _CHANGE.format(found=found)
            values |= ready
            rows = await self._pool.fetch(statement, values)
            if not rows[0][0]:
                # That there was nothing to change may be promised, too.
                rows = await self._pool.fetch_durable(statement, values)
            unparsed += rows[0][1]
            return cast(int, rows[0][0])

        count = await self._in_steps(reach, terms, apply)
        if unparsed:
            raise NotParsed(f"some of the messages ({unparsed}) are being parsed")
        return count

    async def delete_these(self, reach: Reach, ids: Sequence[UUID]) -> int:
        """Delete messages by their ids for good, those within reach; return how many there were.

        In short statements, as `delete`; `CutShort` when the database falls silent.
        """
        statement = f"""
            DELETE FROM relay.messages
            WHERE id = ANY (ARRAY(SELECT m.id {_these(reach)} ORDER BY m.id FOR UPDATE OF m))
            """  # noqa: S608 - constants of ours only
        count = 0
        for at in range(0, len(ids), _BULK):
            values = {"ids": list(ids[at : at + _BULK]), **reach.values()}
            try:
                count += await self._pool.execute_durable(statement, values)
            except DatabaseUnavailable as error:
                raise CutShort(count, str(error)) from error
        return count

    async def change_these(self, reach: Reach, ids: Sequence[UUID], change: Change) -> int:
        """As `change`, of messages by their ids, those within reach."""
        statement = _CHANGE.format(found=_these(reach))
        values = {"ids": list(ids), **reach.values(), **await change.values(self._pool)}
        ((count, unparsed),) = await self._pool.fetch_durable(statement, values)
        if unparsed:
            raise NotParsed(f"some of the messages ({unparsed}) are being parsed")
        return cast(int, count)

    async def _in_steps(
        self,
        reach: Reach,
        terms: Sequence[Term],
        apply: Callable[[str, dict[str, Any]], Awaitable[int]],
    ) -> int:
        """Have `apply` change matches, some at a time; return how many it says it changed.

        It is given what stands behind SELECT to find them as `m`, `s` and `b`, and its values.
        """
        wanted = condition(terms)
        found = f"""
            {_FROM}
            WHERE m.id = ANY (%(ids)s)
              AND {LIVE}
              AND {reach.sql}
              AND {wanted.sql}
            """
        count, below = 0, None
        until = trio.current_time() + self._bulk_seconds
        while True:
            try:
                stretch = await Walk(self._pool, reach, terms, seconds=self._seconds).find(
                    below=below, limit=_BULK
                )
                if stretch.ids:
                    values = {"ids": stretch.ids, **reach.values(), **wanted.values}
                    count += await apply(found, values)
            except DatabaseUnavailable as error:
                raise CutShort(count, str(error)) from error
            if (below := stretch.below) is None:
                return count
            if trio.current_time() >= until:
                raise CutShort(count, f"not done in {self._bulk_seconds:g} s")

    async def next_match(
        self,
        reach: Reach,
        terms: Sequence[Term] = (),
        *,
        after: UUID | datetime | None = None,
        above: int = 0,
    ) -> Match | None:
        """The oldest parsed message that fulfils all terms; None if the one mailbox is over.

        `after` (see `arrivals.parse_after`) is exclusive: with the id of the message before, every
        message comes once.  `above`: what the `Match` before said.
        """
        state = await self._state(reach)
        if state is None:
            return None
        settled, newest, expires_in = state
        if isinstance(after, UUID) and (seq := await seq_of(self._pool, reach, after)) is not None:
            above, after = max(above, seq), None
        wanted = condition(terms)
        asked = search.asked(terms)
        values = {
            "above": above,
            "settled": settled,
            "at": after if isinstance(after, datetime) else None,
            "id": after if isinstance(after, UUID) else None,
            **reach.values(),
            **wanted.values,
        }
        since = (Term("before", after, negated=True),) if isinstance(after, datetime) else ()
        narrowed = common_search.narrow((*terms, *since))
        by_chunks = asked or narrowed is not None
        mark = min(settled, await common_search.mark(self._pool)) if by_chunks else 0

        async def look(behind: common_search.Chunk | None, most: int) -> list[common_search.Chunk]:
            beyond = values["above"] if behind is None else behind.last_seq
            return await common_search.forwards(
                self._pool, asked, narrowed, above=beyond, most=most
            )

        where, bounds = common_search.in_chunks(terms), common_search.bounds
        ahead = search.Ahead(look)
        batch = search.FIRST_CHUNKS
        until = trio.current_time() + self._seconds
        while mark > values["above"]:
            began = trio.current_time()
            chunks = await ahead.take(batch)
            if not chunks:
                values["above"] = mark
                break
            chunks, rows = await ahead.read(
                chunks,
                lambda those: self._oldest(reach, wanted, where, values | bounds(those)),
            )
            if rows:
                return _match(rows[0], expires_in)
            values["above"] = chunks[-1].last_seq
            now = trio.current_time()
            batch = search.next_batch(len(chunks), now - began, found=0, missing=1)
            if now > until:
                return Match(None, values["above"], True, expires_in, cut=True)
        while values["above"] < settled:
            values["settled"] = await self._end_of_step(values["above"], settled)
            rows = await self._oldest(reach, wanted, _NEXT, values)
            if rows:
                return _match(rows[0], expires_in)
            values["above"] = values["settled"]
            if values["above"] < settled and trio.current_time() > until:
                return Match(None, values["above"], True, expires_in, cut=True)
        return Match(None, max(above, settled), newest > settled, expires_in)

    async def _end_of_step(self, above: int, settled: int) -> int:
        """The `seq` up to which one statement may look."""
        if settled - above <= self._step:
            return settled
        found: int | None = await self._pool.fetch_value(
            """
            SELECT seq
            FROM relay.summaries
            WHERE seq > %s
              AND seq <= %s
            ORDER BY seq
            OFFSET %s
            LIMIT 1
            """,
            (above, settled, self._step - 1),
        )
        return settled if found is None else found

    async def _oldest(
        self, reach: Reach, wanted: Condition, where: str, values: dict[str, Any]
    ) -> list[tuple[Any, ...]]:
        """The oldest match above a `seq`, in some chunks or anywhere."""
        return await self._pool.fetch(
            # relay.summaries_seq gives the order.  An `after` whose message is gone or not parsed
            # yet falls back to the ids' own order, which is that of arrival.
            f"""
            SELECT {MESSAGE_COLUMNS}, {PLACED_COLUMNS}
            FROM {where}
            WHERE s.seq > %(above)s
              AND s.seq <= %(settled)s
              AND {LIVE}
              AND {reach.sql}
              AND (%(at)s::timestamptz IS NULL OR m.received_at > %(at)s)
              AND (%(id)s::uuid IS NULL OR m.id > %(id)s)
              AND {wanted.sql}
            ORDER BY s.seq
            LIMIT 1
            """,  # noqa: S608 - constants of ours only
            values,
        )

    async def news(
        self, reach: Reach, cursor: int | None = None, *, limit: int = 100
    ) -> News[tuple[Entry, Placed]] | None:
        """What became readable after `cursor`, in that order; None if the one mailbox is over.

        `cursor` None starts at the present: nothing found, and the cursor to go on from.  A full
        answer (`limit` entries) means: ask again at once.  Of much mail that is not within reach it
        may have looked at a part.
        """
        state = await self._state(reach)
        if state is None:
            return None
        settled, newest, expires_in = state
        if cursor is None:
            return News([], settled, expires_in, newest > settled)
        found: list[tuple[Entry, Placed]] = []
        until = trio.current_time() + self._seconds
        while cursor < settled:
            end = await self._end_of_step(cursor, settled)
            rows = await self._pool.fetch(
                f"""
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM {_NEXT}
                WHERE {LIVE}
                  AND {reach.sql}
                ORDER BY s.seq
                LIMIT %(limit)s
                """,  # noqa: S608 - constants of ours only
                {"above": cursor, "settled": end, "limit": limit - len(found), **reach.values()},
            )
            found += [entry_of(row) for row in rows]
            if len(found) == limit:
                return News(found, cast(int, found[-1][0].seq), expires_in)
            cursor = end
            if cursor < settled and trio.current_time() > until:
                return News(found, cursor, expires_in, more=True)
        return News(found, cursor, expires_in, newest > settled)

    async def edits(self, reach: Reach, keys: Collection[str] | None) -> Edits | None:
        """What became of the messages that these keys of `relay.db.channels.CHANGES` name."""
        return await edits(self._pool, reach, keys)

    async def cursor_after(self, reach: Reach, message_id: str | UUID) -> int:
        """The cursor of `news` that goes on behind a message, which may be deleted by now.

        An id that is none starts at the beginning.
        """
        return await cursor_after(self._pool, reach, message_id)

    async def _state(self, reach: Reach) -> tuple[int, int, float | None] | None:
        """Up to where everything is settled, the newest `seq` there is, and the seconds that the
        one mailbox has; None if it is over.

        In a statement of its own: what it promises holds for those that begin later.
        """
        row = await self._pool.fetch_row(
            f"""
            SELECT relay.settled_seq(),
                   (SELECT coalesce(max(seq), 0) FROM relay.summaries),
                   (SELECT extract(epoch FROM b.expires_at - now())::float8
                    FROM relay.mailboxes b
                    WHERE b.id = %(mailbox)s::uuid AND {LIVE})
            """,  # noqa: S608 - constants of ours only
            {"mailbox": reach.mailbox_id},
        )
        assert row is not None
        if reach.mailbox_id is not None and row[2] is None:
            return None
        return row[0], row[1], row[2]


def _these(reach: Reach) -> str:
    """What stands behind SELECT to find the messages `ids`, as far as they are within reach."""
    return f"""
        {_FROM}
        WHERE m.id = ANY (%(ids)s)
          AND {LIVE}
          AND {reach.sql}
        """


def _match(row: tuple[Any, ...], expires_in: float | None) -> Match:
    message, placed = whole_of(row)
    return Match((message, placed), cast(int, message.seq), False, expires_in)
