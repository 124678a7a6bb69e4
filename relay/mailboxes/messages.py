"""The messages of a mailbox: listed and searched, read, fetched byte for byte, deleted.

Promises
- Each call answers None (or False) from the instant at which the mailbox is over (`visibility.py`).
- Paging is by keyset: rows that arrive meanwhile neither repeat nor hide others.
- A page of whole messages has so many bytes at most, but for its first message, and goes on where
  it was cut; what it has is marked read, as by `get`, and nothing else.
- What is long is not marked by being read but by `mark_read`: whoever shows it may have no room.
- A search reads what its chunks (`search.py`) say may match, and finds what a scan of all would.
- A list by anything goes through the mailbox, or what its chunks leave of it, for a second at most,
  and then says where to go on; a page may so hold less than its limit and have a next one.

Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid` for a cursor that was not made
here, `TooDeep` for an offset that skips more matches than are found in five seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.errors import Invalid, TemporaryFailure
from relay.ids import parse_uuid
from relay.mailboxes import search
from relay.mailboxes.changes import TAGS, Change, NotParsed
from relay.mailboxes.cursors import decode_cursor, encode_cursor
from relay.mailboxes.matching import Condition, condition, first_texts
from relay.mailboxes.query import Term
from relay.mailboxes.records import (
    ENTRY_COLUMNS,
    MESSAGE_COLUMNS,
    PLACED_COLUMNS,
    Arrived,
    Entry,
    Page,
    Placed,
    ReceivedMessage,
    entry_of,
    message_of,
    whole_of,
)
from relay.mailboxes.visibility import LIVE
from relay.mailboxes.walks import HIGHEST, LONGEST, SECONDS, next_step
from relay.times import parse_instant

_OFFSET_SECONDS = 5.0  # for which a search looks on for what an offset skips
_TAIL_STEP = 256  # messages of the first step through what is in no chunk
_Place = tuple[datetime, UUID]
_BESIDE = 2048  # bytes of JSON of a message that are not counted in what was found in it
_NONE = (None,)  # of a mailbox that is live
_RAW_TIMEOUT = 60.0  # s; the largest message over a slow network

_DELETED_AT_ONCE = 500  # messages

PAGE_BYTES = 2**20
"""What was found in the messages of a page of whole ones, as JSON, at most; one alone may have
more."""
AT_ONCE = 48 * 1024
"""Bytes of JSON that are marked read by the statement that reads them."""

# What was found in a message: as it is stored, for which no text is read, and as JSON, in which a
# byte may be six.
_DETAILS_BYTES = """
    coalesce(octet_length(s.details), octet_length(concat(s.headers, s.attachments, s.links)))"""
_STORED_BYTES = f"""
    coalesce(octet_length(s.body_text), 0) + coalesce(octet_length(s.body_html), 0)
    + {_DETAILS_BYTES}"""
_JSON_BYTES = f"""
    coalesce(octet_length(to_json(s.body_text)::text), 0)
    + coalesce(octet_length(to_json(s.body_html)::text), 0) + {_DETAILS_BYTES}"""

_BEHIND = """(%(at)s::timestamptz IS NULL
    OR (m.received_at, m.id) < (%(at)s::timestamptz, %(id)s::uuid))"""

# Ids and times: of all messages of a mailbox, and of those that are in no chunk yet.
_ALL = "SELECT id, received_at FROM relay.messages WHERE mailbox_id = %(mailbox)s"
_TAIL = """
    SELECT m.id, m.received_at
    FROM (
        SELECT message_id FROM relay.summaries WHERE mailbox_id = %(mailbox)s AND seq > %(mark)s
        UNION
        SELECT message_id FROM relay.unsummarised WHERE mailbox_id = %(mailbox)s
    ) tail
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = tail.message_id OFFSET 0) m"""

# The primary key's one row.  Where nothing of `s` is asked for, it is not looked for either.
_ONE = f"""
    FROM relay.mailboxes b
    JOIN relay.messages m ON m.mailbox_id = b.id
    LEFT JOIN relay.summaries s ON s.message_id = m.id
    WHERE b.id = %(mailbox)s
      AND m.id = %(message)s
      AND {LIVE}"""


# The ids of a page of mailbox `b`, newest first.
_PAGE = """SELECT id
        FROM relay.messages
        WHERE mailbox_id = b.id
          AND (%(at)s::timestamptz IS NULL
               OR (received_at, id) < (%(at)s::timestamptz, %(id)s::uuid))
        ORDER BY received_at DESC, id DESC
        LIMIT %(limit)s
        OFFSET %(offset)s"""

# The ids of a page of a live mailbox: from relay.messages_mailbox alone; and those given.
_NEWEST = f"""
    SELECT newest.id
    FROM relay.mailboxes b
    CROSS JOIN LATERAL (
        {_PAGE}
    ) newest
    WHERE b.id = %(mailbox)s
      AND {LIVE}"""  # noqa: S608 - constants of this module only
_THESE = f"""
    SELECT m.id
    FROM relay.mailboxes b
    JOIN relay.messages m ON m.mailbox_id = b.id
    WHERE b.id = %(mailbox)s
      AND m.id = ANY (%(ids)s)
      AND {LIVE}"""  # noqa: S608 - constants of this module only
_COUNTED = 5  # columns that a page of whole messages has before the record's


class TooDeep(TemporaryFailure):
    """What an offset skips takes too long to look for."""


class Messages:
    """The messages of one relay's mailboxes.

    `seconds`: how long a list goes on; `longest`: the messages that one
    statement of it looks at, at most.
    """

    def __init__(self, pool: Pool, *, seconds: float = SECONDS, longest: int = LONGEST) -> None:
        self._pool = pool
        self._seconds = seconds
        self._longest = longest

    async def page(
        self,
        mailbox_id: UUID,
        *,
        limit: int = 50,
        offset: int = 0,
        cursor: str | None = None,
        terms: Sequence[Term] = (),
    ) -> Page[tuple[Entry, Placed]] | None:
        """The messages of a mailbox that fulfil all terms, newest first; None if it is no longer
        live.

        `offset` skips rows after the cursor.  `Invalid` for a cursor that was not made here.
        """
        values = _asked(mailbox_id, limit, offset, cursor)
        reached: _Place | None = None
        if not terms:
            rows = await self._unfiltered(values)
        else:
            wanted = condition(terms)
            values |= wanted.values
            asked = search.asked(terms)
            if asked and (mark := await search.mark(self._pool, mailbox_id)):
                rows, reached = await self._search(values, wanted, asked, mark)
            else:
                rows, reached = await self._scan(values, wanted)
        if not rows:
            return None
        items = [entry_of(row) for row in rows[:limit] if row[0] is not None]
        more = len(rows) > limit
        last = items[-1][0] if items else None
        if not more and reached is not None:
            return Page(items, _cursor(*reached))
        if not more or last is None:
            return Page(items, None)
        return Page(items, _cursor(last.received_at, last.id))

    async def whole_page(
        self,
        mailbox_id: UUID,
        *,
        limit: int = 50,
        offset: int = 0,
        cursor: str | None = None,
        terms: Sequence[Term] = (),
        most: int = PAGE_BYTES,
        at_once: int = AT_ONCE,
    ) -> Page[tuple[ReceivedMessage, Placed]] | None:
        """The same messages as by `page`, each with everything that was parsed, and marked read.

        What was found in them has `most` bytes as JSON in all, or is one message's.  Where that is
        more than `at_once` nothing is marked; they say so, and `mark_read` is the caller's.
        """
        behind: str | None = None
        if terms:
            page = await self.page(
                mailbox_id, limit=limit, offset=offset, cursor=cursor, terms=terms
            )
            if page is None:
                return None
            if not page.items:
                return Page([], page.cursor)
            behind = page.cursor
            source = _THESE
            values = {"mailbox": mailbox_id, "ids": [entry.id for entry, _ in page.items]}
        else:
            source, values = _NEWEST, _asked(mailbox_id, limit, offset, cursor)
        rows = await self._pool.fetch(
            # The UPDATE runs though nobody reads from it, as that of `get`.
            f"""
            WITH page AS MATERIALIZED (
                {source}
            ), sized AS MATERIALIZED (
                SELECT m.id, row_number() OVER newest AS number, count(*) OVER () AS of_all,
                       sum({_STORED_BYTES}) OVER newest AS stored
                FROM page
                JOIN relay.messages m ON m.id = page.id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WINDOW newest AS (ORDER BY m.received_at DESC, m.id DESC)
            ), found AS MATERIALIZED (
                SELECT m.id AS given_id, m.is_read AS was_read, number, of_all,
                       sum({_JSON_BYTES}) OVER (ORDER BY number) AS bytes,
                       {MESSAGE_COLUMNS}, {PLACED_COLUMNS}
                FROM sized
                JOIN relay.messages m ON m.id = sized.id
                JOIN relay.mailboxes b ON b.id = m.mailbox_id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE number <= %(rows)s
                  AND (stored <= %(most)s OR number = 1)
            ), given AS MATERIALIZED (
                SELECT *, max(bytes + {_BESIDE} * number) OVER () <= %(at_once)s AS marks
                FROM found
                WHERE bytes <= %(most)s OR number = 1
            ), marked AS (
                UPDATE relay.messages
                SET is_read = true
                WHERE id = ANY (ARRAY(
                    SELECT id
                    FROM relay.messages
                    WHERE id IN (SELECT given_id FROM given WHERE marks AND NOT was_read)
                    ORDER BY id  -- as bulk calls lock them
                    FOR NO KEY UPDATE))
            )
            SELECT given.*
            FROM relay.mailboxes b
            LEFT JOIN given ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            ORDER BY given.number
            """,  # noqa: S608 - constants of this module only
            {**values, "rows": limit, "most": most, "at_once": at_once},
        )
        if not rows:
            return None
        items = []
        for given_id, _, _, _, _, *columns, marked in rows:
            if given_id is not None:
                items.append(whole_of(_as_read(columns) if marked else tuple(columns)))
                await trio.lowlevel.checkpoint()  # its headers and links may be long
        if items and len(items) < rows[0][3]:
            last = items[-1][0]
            return Page(items, _cursor(last.received_at, last.id))
        return Page(items, behind)

    # Of the three, a live mailbox without matches gives one row of NULLs, one that is gone none.

    async def _unfiltered(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Messages from beyond a cursor and an offset, newest first."""
        return await self._pool.fetch(
            # The ids first, from relay.messages_mailbox alone: what an offset skips is not read.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM (
                    {_PAGE}
                ) page
                JOIN relay.messages m ON m.id = page.id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                ORDER BY m.received_at DESC, m.id DESC
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )

    async def _scan(
        self, values: dict[str, Any], wanted: Condition
    ) -> tuple[list[tuple[Any, ...]], _Place | None]:
        """The messages that match among all, newest first, and how far it came (None: to the end).

        Step by step; what an offset skips is looked for to its end.
        """
        offset = values["offset"]
        step = 2 * (values["limit"] + offset)
        found, reached = await self._walk(
            _ALL, values, wanted, step, trio.current_time() + self._seconds
        )
        return (found and (found[offset:] or [_NONE])), reached

    async def _walk(
        self, source: str, values: dict[str, Any], wanted: Condition, step: int, until: float
    ) -> tuple[list[tuple[Any, ...]], _Place | None]:
        """The messages that match among those of a `source`, with what an offset skips."""
        found: list[tuple[Any, ...]] = []
        at, place, offset = values["at"], values["id"], values["offset"]
        needed = values["limit"] + offset
        step = min(step, self._longest)
        while True:
            began = trio.current_time()
            rows = await self._pool.fetch(
                # Of all, relay.messages_mailbox gives the order.
                # OFFSET 0: these messages and no others, whatever the statistics say.
                f"""
                WITH first AS MATERIALIZED (
                    SELECT id, received_at
                    FROM ({source}) source
                    {"" if at is None else "WHERE (received_at, id) < (%(at)s, %(id)s)"}
                    ORDER BY received_at DESC, id DESC
                    LIMIT %(step)s
                ), step AS MATERIALIZED (
                    {first_texts(wanted, "received_at DESC, id DESC")}
                )
                SELECT (SELECT count(*) FROM first) < %(step)s
                       AND (SELECT count(*) FROM first) = (SELECT count(*) FROM step),
                       (SELECT received_at FROM step ORDER BY received_at, id LIMIT 1),
                       (SELECT id FROM step ORDER BY received_at, id LIMIT 1),
                       e.*
                FROM relay.mailboxes b
                LEFT JOIN LATERAL (
                    SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                    FROM step
                    CROSS JOIN LATERAL (
                        SELECT * FROM relay.messages WHERE id = step.id OFFSET 0
                    ) m
                    LEFT JOIN LATERAL (
                        SELECT * FROM relay.summaries WHERE message_id = m.id OFFSET 0
                    ) s ON true
                    WHERE {wanted.sql}
                    ORDER BY m.received_at DESC, m.id DESC
                    LIMIT %(needed)s
                ) e ON true
                WHERE b.id = %(mailbox)s
                  AND {LIVE}
                """,  # noqa: S608 - constants of this module only
                values | {"at": at, "id": place, "step": step, "needed": needed - len(found)},
            )
            if not rows:
                return [], None
            found += [row[3:] for row in rows if row[3] is not None]
            ended, lowest_at, lowest = rows[0][:3]
            if len(found) == needed or ended:
                return found or [_NONE], None
            at, place = lowest_at, lowest
            now = trio.current_time()
            if now > until and not offset:
                return found or [_NONE], (at, place)
            if now > until + _OFFSET_SECONDS:
                raise TooDeep
            step = next_step(step, now - began, self._longest)

    async def _search(
        self, values: dict[str, Any], wanted: Condition, asked: list[int], mark: int
    ) -> tuple[list[tuple[Any, ...]], _Place | None]:
        """What `_scan` gives, for a mailbox all of which up to `mark` is in chunks."""
        mailbox_id, offset = values["mailbox"], values["offset"]
        needed = values["limit"] + offset
        values = values | {"needed": needed, "mark": mark}
        until = trio.current_time() + self._seconds
        rows, floor = await self._walk(_TAIL, values, wanted, max(2 * needed, _TAIL_STEP), until)
        if not rows:
            return [], None
        found = {row[0]: row for row in rows if row[0] is not None}

        async def look(behind: search.Chunk | None, most: int) -> list[search.Chunk]:
            return await search.backwards(
                self._pool, mailbox_id, asked, behind=behind, before=values["at"], most=most
            )

        statement = f"""
            SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
            FROM relay.mailboxes b
            {search.IN_CHUNKS}
            WHERE b.id = %(mailbox)s
              AND {LIVE}
              AND {_BEHIND}
              AND {wanted.sql}
            ORDER BY m.received_at DESC, m.id DESC
            LIMIT %(needed)s
            """  # noqa: S608 - constants of this module only
        ahead = search.Ahead(look)
        batch = search.FIRST_CHUNKS
        while True:
            began = trio.current_time()
            chunks = await ahead.take(batch)
            # What was not read to its end says nothing of what is older.
            best = [row for row in found.values() if floor is None or (row[3], row[0]) >= floor]
            best = sorted(best, key=_newest_first)[:needed]
            # No chunk that is left has anything as new as the last of what is asked for.
            ended = not chunks or (floor is not None and chunks[0].newest_at < floor[0])
            if ended or (len(best) == needed and best[-1][3] > chunks[0].newest_at):
                return best[offset:] or [_NONE], floor
            chunks, rows = await ahead.read(
                chunks, lambda those: self._pool.fetch(statement, values | search.bounds(those))
            )
            found |= {row[0]: row for row in rows}
            now, at = trio.current_time(), chunks[-1].newest_at
            if now > until + _OFFSET_SECONDS and offset:
                raise TooDeep
            if now > until and not offset and (values["at"] is None or at < values["at"]):
                floor = max(floor or (at, HIGHEST), (at, HIGHEST))
            batch = search.next_batch(
                len(chunks), now - began, found=len(rows), missing=needed - len(found)
            )

    async def get(
        self,
        mailbox_id: UUID,
        message_id: str | UUID,
        *,
        mark_read: bool = True,
        at_once: int = 2**62,
    ) -> ReceivedMessage | None:
        """One message of a live mailbox, marked read; None if either is not there.

        Where what was found in it has more than `at_once` bytes as JSON, it is not marked, and says
        so; `mark_read` is the caller's.
        """
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        row = await self._pool.fetch_row(
            # The UPDATE runs though nobody reads from it; a message read before is not written
            # again.  The answer shows the flag as it is after this call.
            f"""
            WITH found AS MATERIALIZED (
                SELECT {MESSAGE_COLUMNS},
                       %(mark)s AND CASE WHEN {_STORED_BYTES} <= %(at_once)s
                                         THEN {_JSON_BYTES} <= %(at_once)s
                                         ELSE false END AS marks
                {_ONE}
            ), marked AS (
                UPDATE relay.messages
                SET is_read = true
                WHERE id IN (SELECT id FROM found WHERE marks AND NOT is_read)
            )
            SELECT * FROM found
            """,  # noqa: S608 - constants of this module only
            {"mailbox": mailbox_id, "message": wanted, "mark": mark_read, "at_once": at_once},
        )
        if row is None:
            return None
        *columns, marked = row
        return message_of(_as_read(columns) if marked else tuple(columns))

    async def mark_read(self, mailbox_id: UUID, message_ids: Sequence[UUID]) -> None:
        """Mark these messages of a mailbox read, those that are there still."""
        await self._pool.execute(
            """
            UPDATE relay.messages
            SET is_read = true
            WHERE id = ANY (ARRAY(
                SELECT id
                FROM relay.messages
                WHERE mailbox_id = %s
                  AND id = ANY (%s)
                  AND NOT is_read
                ORDER BY id  -- as bulk calls lock them
                FOR NO KEY UPDATE))
            """,
            (mailbox_id, list(message_ids)),
        )

    async def raw(self, mailbox_id: UUID, message_id: str | UUID) -> bytes | None:
        """The message byte for byte as it was accepted; None if it or its mailbox is not there."""
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        sql = f"""
            SELECT m.raw_email
            {_ONE}
            """
        async with self._pool.connection(patience=_RAW_TIMEOUT) as conn:
            # Binary: as text every byte travels as two hexadecimal digits.
            cursor = await conn.execute(
                sql, {"mailbox": mailbox_id, "message": wanted}, binary=True
            )
            row = await cursor.fetchone()
            return bytes(row[0]) if row else None

    async def envelope(self, mailbox_id: UUID, message_id: str | UUID) -> tuple[str, int] | None:
        """Reverse-path (empty: the null one) and size of a message; None as in `raw`."""
        row = await self._pool.fetch_row(
            f"""
            SELECT m.reverse_path, m.size
            {_ONE}
            """,
            {"mailbox": mailbox_id, "message": parse_uuid(message_id)},
        )
        return None if row is None else (row[0], row[1])

    async def arrived(self, mailbox_id: UUID, message_id: str | UUID) -> Arrived | None:
        """How a message arrived; None if it or its mailbox is not there."""
        row = await self._pool.fetch_row(
            f"""
            SELECT m.size, m.reverse_path, extract(epoch FROM m.received_at)::double precision,
                   host(m.client), coalesce(m.helo, '')
            FROM relay.mailboxes b
            JOIN relay.messages m ON m.mailbox_id = b.id
            WHERE b.id = %s
              AND m.id = %s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id, parse_uuid(message_id)),
        )
        return None if row is None else Arrived(*row)

    async def raw_size(self, mailbox_id: UUID, message_id: str | UUID) -> int | None:
        """Bytes that `raw` gives, without reading them; None if it or its mailbox is not there."""
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        row = await self._pool.fetch_row(
            f"""
            SELECT m.size
            {_ONE}
            """,
            {"mailbox": mailbox_id, "message": wanted},
        )
        return row[0] if row else None

    async def raw_piece(
        self, mailbox_id: UUID, message_id: str | UUID, at: int, count: int
    ) -> bytes | None:
        """`count` bytes of a message from byte `at` on; None if it is no more.

        It is stored as it came, so a piece costs no more than its own pages.  Whoever began to read
        may go on when the mailbox is over, until its mail is deleted.
        """
        async with self._pool.connection() as conn:
            cursor = await conn.execute(
                """
                SELECT substring(raw_email FROM %s FOR %s)
                FROM relay.messages
                WHERE mailbox_id = %s
                  AND id = %s
                """,
                (at + 1, count, mailbox_id, parse_uuid(message_id)),
                binary=True,
            )
            row = await cursor.fetchone()
            return bytes(row[0]) if row else None

    async def snapshot(self, mailbox_id: UUID, most: int) -> bytes | None:
        """The ids and sizes of a mailbox's newest `most` messages, the oldest first; None if it is
        no longer live.

        Twenty bytes a message: 16 of its id, and its size as a number of 32 bits, big-endian.
        """
        async with self._pool.connection() as conn:
            cursor = await conn.execute(
                # Put together there: a hundred thousand rows would hold everybody up here.
                f"""
                SELECT coalesce(
                    (
                        SELECT string_agg(
                            uuid_send(id) || int4send(size), ''::bytea ORDER BY received_at, id
                        )
                        FROM (
                            SELECT id, size, received_at
                            FROM relay.messages
                            WHERE mailbox_id = b.id
                            ORDER BY received_at DESC, id DESC
                            LIMIT %s
                        ) newest
                    ),
                    ''::bytea
                )
                FROM relay.mailboxes b
                WHERE b.id = %s
                  AND {LIVE}
                """,  # noqa: S608 - constants of this module only
                (most, mailbox_id),
                binary=True,
            )
            row = await cursor.fetchone()
            return bytes(row[0]) if row else None

    async def change(
        self, mailbox_id: UUID, message_id: str | UUID, change: Change
    ) -> tuple[Entry, Placed] | None:
        """Say whether a message was read, and how it is tagged.

        Returns the message as it is then, None if it or its mailbox is not there.  `NotParsed` when
        it is to be tagged and was not parsed yet: then nothing is changed.
        """
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        values = {"mailbox": mailbox_id, "message": wanted, **await change.values(self._pool)}
        row = await self._pool.fetch_row(
            f"""
            WITH found AS MATERIALIZED (
                SELECT m.id, m.is_read, NOT %(tagging)s OR s.message_id IS NOT NULL AS may
                {_ONE}
                FOR NO KEY UPDATE OF m  -- before the summary, as bulk calls have it
            ), tagged AS (
                UPDATE relay.summaries s
                SET tags = {TAGS}
                WHERE %(tagging)s
                  AND message_id IN (SELECT id FROM found)
            ), marked AS (
                UPDATE relay.messages
                SET is_read = %(is_read)s
                WHERE id IN (SELECT id FROM found WHERE may AND is_read <> %(is_read)s::boolean)
            )
            SELECT may FROM found
            """,  # noqa: S608 - constants of this module only
            values,
        )
        if row is None:
            return None
        if not row[0]:
            raise NotParsed("the message is being parsed")
        rows = await self._pool.fetch(
            f"""
            SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
            {_ONE}
            """,
            values,
        )
        return entry_of(rows[0]) if rows else None

    async def delete(self, mailbox_id: UUID, message_id: str | UUID) -> bool:
        """Delete a message of a live mailbox for good.  False if either is not there."""
        wanted = parse_uuid(message_id)
        if wanted is None:
            return False
        changed = await self._pool.execute_durable(
            f"""
            DELETE FROM relay.messages m
            USING relay.mailboxes b
            WHERE b.id = %s
              AND m.id = %s
              AND m.mailbox_id = b.id
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id, wanted),
        )
        return changed > 0

    async def delete_all(self, mailbox_id: UUID, message_ids: Sequence[UUID]) -> bool:
        """Delete these messages of a live mailbox for good, those that are there still.

        In short statements, each durable when the next begins; False if the mailbox was over then.
        """
        for at in range(0, len(message_ids), _DELETED_AT_ONCE):
            row = await self._pool.fetch_durable(
                f"""
                WITH live AS (
                    SELECT b.id
                    FROM relay.mailboxes b
                    WHERE b.id = %s
                      AND {LIVE}
                ), deleted AS (
                    DELETE FROM relay.messages
                    WHERE id = ANY (ARRAY(
                        SELECT m.id
                        FROM live
                        JOIN relay.messages m ON m.mailbox_id = live.id
                        WHERE m.id = ANY (%s)
                        ORDER BY m.id  -- as bulk calls lock them
                        FOR UPDATE OF m))
                )
                SELECT FROM live
                """,  # noqa: S608 - constants of this module only
                (mailbox_id, list(message_ids[at : at + _DELETED_AT_ONCE])),
            )
            if not row:
                return False
        return True


def _asked(mailbox_id: UUID, limit: int, offset: int, cursor: str | None) -> dict[str, Any]:
    """The values of a page of a mailbox; `Invalid` for a cursor that was not made here."""
    after = decode_cursor(cursor, 2)
    before_at, before_id = None, None
    if after:
        before_at, before_id = parse_instant(after[0]), parse_uuid(after[1])
        if before_at is None or before_id is None:
            raise Invalid("the cursor is not one of ours")
    return {
        "mailbox": mailbox_id,
        "at": before_at,
        "id": before_id,
        "limit": limit + 1,
        "offset": min(offset, 2**62),
    }


def _cursor(received_at: datetime, message_id: UUID) -> str:
    """What the next page begins behind."""
    return encode_cursor(received_at.isoformat(), str(message_id))


def _as_read(row: Sequence[Any]) -> tuple[Any, ...]:
    """A row of `ENTRY_COLUMNS` and more, of a message that was marked read after it was read."""
    return (*row[:4], True, *row[5:])


def _newest_first(row: tuple[Any, ...]) -> tuple[float, int]:
    """The order of lists, for rows of `ENTRY_COLUMNS`."""
    return -row[3].timestamp(), -row[0].int
