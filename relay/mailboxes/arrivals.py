"""What arrives in a mailbox, for those who wait for it: in the order in which it became readable.

A message is readable once it was parsed; its place in that order is `seq`, which only grows.  So a
caller that goes on from what it got last sees every message once, also when one that came earlier
took longer to parse.

Promises: every call answers None from the instant at which the mailbox is over (`visibility.py`),
and nothing is marked read.  Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid`
for an `after` that is neither a message nor a time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.db.text import like_pattern, storable
from relay.errors import Invalid
from relay.ids import parse_uuid
from relay.mailboxes import search
from relay.mailboxes.grams import probes
from relay.mailboxes.records import (
    ENTRY_COLUMNS,
    MESSAGE_COLUMNS,
    PLACED_COLUMNS,
    Entry,
    Found,
    News,
    Placed,
    entry_of,
    message_of,
)
from relay.mailboxes.visibility import LIVE, Reach
from relay.times import parse_instant

_ANYWHERE = """
    CROSS JOIN relay.summaries s
    JOIN relay.messages m ON m.id = s.message_id"""


class Arrivals:
    """Answers those who wait for mail in the mailboxes of one relay."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def next_match(
        self,
        mailbox_id: UUID,
        *,
        sender: str | None = None,
        subject: str | None = None,
        after: UUID | datetime | None = None,
    ) -> Found | None:
        """The oldest parsed message that matches; None if the mailbox is no longer live.

        `sender` and `subject` are sub-strings without regard to case; `after` (see
        `parse_after`) is exclusive: with the id of the message before, every message comes once.
        """
        seq = None
        if isinstance(after, UUID):
            seq = await seq_of(self._pool, Reach(mailbox_id=mailbox_id), after)
        values: dict[str, Any] = {
            "mailbox": mailbox_id,
            "from": like_pattern(sender),
            "subject": like_pattern(subject),
            "at": after if isinstance(after, datetime) else None,
            "id": after if isinstance(after, UUID) and seq is None else None,
            "seq": seq or 0,
        }
        if values["from"] or values["subject"] or values["at"]:
            # Most mailboxes have no chunks: the statement that says so has looked at all there is.
            found, mark = await self._oldest(_ANYWHERE, values, chunked=False)
            if found is None or mark <= values["seq"]:
                return found
            asked = probes(storable(sender or ""), storable(subject or ""))

            async def look(behind: search.Chunk | None, most: int) -> list[search.Chunk]:
                above = values["seq"] if behind is None else behind.last_seq
                return await search.forwards(
                    self._pool, mailbox_id, asked, above=above, since=values["at"], most=most
                )

            ahead = search.Ahead(look)
            batch = search.FIRST_CHUNKS
            while mark > values["seq"]:
                began = trio.current_time()
                chunks = await ahead.take(batch)
                if not chunks:
                    values["seq"] = mark
                    break
                found, _ = await self._oldest(search.IN_CHUNKS, values | search.bounds(chunks))
                if found is None or found.message is not None:
                    return found
                values["seq"] = chunks[-1].last_seq
                batch = search.next_batch(
                    len(chunks), trio.current_time() - began, found=0, missing=1
                )
        found, _ = await self._oldest(_ANYWHERE, values)
        return found

    async def _oldest(
        self, where: str, values: dict[str, Any], *, chunked: bool = True
    ) -> tuple[Found | None, int]:
        """The oldest match with a `seq` above the one given, in some chunks or anywhere; and
        `search.mark`.

        Without `chunked` nothing is looked at where that mark is above the `seq` given.
        """
        rows = await self._pool.fetch(
            # relay.summaries_mailbox gives the order.  An `after` whose message is gone or not
            # parsed yet falls back to the ids' own order, which is that of arrival.
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8, k.mark, e.*
            FROM relay.mailboxes b
            CROSS JOIN LATERAL (
                SELECT coalesce(max(last_seq), 0) AS mark
                FROM relay.search_chunks
                WHERE mailbox_id = b.id
            ) k
            LEFT JOIN LATERAL (
                SELECT {MESSAGE_COLUMNS}
                FROM (SELECT) one
                {where}
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(seq)s
                  AND (%(chunked)s OR k.mark <= %(seq)s)
                  AND (%(from)s::text IS NULL
                       OR coalesce(s.from_address, m.reverse_path) ILIKE %(from)s)
                  AND (%(subject)s::text IS NULL OR s.subject ILIKE %(subject)s)
                  AND (%(at)s::timestamptz IS NULL OR m.received_at > %(at)s)
                  AND (%(id)s::uuid IS NULL OR m.id > %(id)s)
                ORDER BY s.seq
                LIMIT 1
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            {**values, "chunked": chunked},
        )
        if not rows:
            return None, 0
        seconds, mark, *row = rows[0]
        return Found(message_of(tuple(row)) if row[0] is not None else None, seconds), mark

    async def news(
        self, mailbox_id: UUID, cursor: int | None = None, *, limit: int = 100
    ) -> News[tuple[Entry, Placed]] | None:
        """What became readable after `cursor`, in that order; None if the mailbox is not live.

        `cursor` None starts at the present: nothing found, and the cursor to go on from.  A full
        answer (`limit` entries) means: ask again at once.
        """
        rows = await self._pool.fetch(
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8,
                   (SELECT max(seq) FROM relay.summaries WHERE mailbox_id = b.id),
                   e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM relay.summaries s
                JOIN relay.messages m ON m.id = s.message_id
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(cursor)s
                ORDER BY s.seq
                LIMIT %(limit)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            {"mailbox": mailbox_id, "cursor": cursor, "limit": limit},
        )
        if not rows:
            return None
        seconds, newest = rows[0][:2]
        found = [entry_of(row[2:]) for row in rows if row[2] is not None]
        if cursor is None:
            cursor = newest or 0
        elif found:
            cursor = cast(int, found[-1][0].seq)
        return News(found, cursor, seconds)

    async def cursor_after(self, mailbox_id: UUID, message_id: str | UUID) -> int:
        """The cursor of `events` that goes on behind a message, which may be deleted by now.

        An id that is none starts at the beginning.
        """
        return await cursor_after(self._pool, Reach(mailbox_id=mailbox_id), message_id)


async def cursor_after(pool: Pool, reach: Reach, message_id: str | UUID) -> int:
    """The `seq` of a message within reach, which may be deleted by now.

    0 for an id that is none.
    """
    wanted = parse_uuid(message_id)
    if wanted is None:
        return 0
    seq = await seq_of(pool, reach, wanted)
    if seq is None:  # deleted: ids go by age, so behind those that are not younger
        seq = await pool.fetch_value(
            """
            SELECT max(seq)
            FROM relay.summaries
            WHERE mailbox_id = %(reach_mailbox)s
              AND message_id < %(message)s
            """
            if reach.mailbox_id is not None
            else """
            SELECT seq
            FROM relay.summaries
            WHERE message_id < %(message)s
            ORDER BY message_id DESC
            LIMIT 1
            """,
            {"message": wanted, **reach.values()},
        )
    return cast("int | None", seq) or 0


async def seq_of(pool: Pool, reach: Reach, message_id: UUID) -> int | None:
    """The `seq` of a message; None if it is gone, not parsed yet, or out of reach."""
    value = await pool.fetch_value(
        f"""
        SELECT s.seq
        FROM relay.summaries s
        JOIN relay.mailboxes b ON b.id = s.mailbox_id
        WHERE s.message_id = %(message)s
          AND {reach.sql}
        """,  # noqa: S608 - constants of ours only
        {"message": message_id, **reach.values()},
    )
    return cast("int | None", value)


def parse_after(value: str) -> UUID | datetime:
    """Read the `after` of a waiter: a message id or an RFC 3339 time.  `Invalid` if neither."""
    found = parse_uuid(value) or parse_instant(value)
    if found is None:
        raise Invalid("after must be a message id or an RFC 3339 time")
    return found
