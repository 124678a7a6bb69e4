"""The messages of a mailbox: listed and searched, read, fetched byte for byte, deleted.

Promises
- Each call answers None (or False) from the instant at which the mailbox is over (`visibility.py`).
- Paging is by keyset: rows that arrive meanwhile neither repeat nor hide others.
- A search reads what its chunks (`search.py`) say may match, and finds what a scan of all would.

Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid` for a cursor that was not made
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from relay.db.pool import Pool
from relay.errors import Invalid, TemporaryFailure
from relay.mailboxes import search
from relay.mailboxes.cursors import decode_cursor, encode_cursor, parse_uuid
from relay.mailboxes.matching import Condition, condition
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
)
from relay.mailboxes.visibility import LIVE
from relay.times import parse_instant

_RAW_TIMEOUT = 60.0  # s; the largest message over a slow network

_DELETED_AT_ONCE = 500  # messages

_BEHIND = """(%(at)s::timestamptz IS NULL
    OR (m.received_at, m.id) < (%(at)s::timestamptz, %(id)s::uuid))"""

# The primary key's one row.  Where nothing of `s` is asked for, it is not looked for either.
_ONE = f"""
    FROM relay.mailboxes b
    JOIN relay.messages m ON m.mailbox_id = b.id
    LEFT JOIN relay.summaries s ON s.message_id = m.id
    WHERE b.id = %(mailbox)s
      AND m.id = %(message)s
      AND {LIVE}"""


class NotParsed(TemporaryFailure):
    """The message has no summary yet, which would hold what is to be changed."""


class Messages:
    """The messages of one relay's mailboxes."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

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
        after = decode_cursor(cursor, 2)
        before_at, before_id = None, None
        if after:
            before_at, before_id = parse_instant(after[0]), parse_uuid(after[1])
            if before_at is None or before_id is None:
                raise Invalid("the cursor is not one of ours")
        values: dict[str, Any] = {
            "mailbox": mailbox_id,
            "at": before_at,
            "id": before_id,
            "limit": limit + 1,
            "offset": min(offset, 2**62),
        }
        if not terms:
            rows = await self._unfiltered(values)
        else:
            wanted = condition(terms)
            values |= wanted.values
            if mark := await search.mark(self._pool, mailbox_id):
                rows = await self._search(values, wanted, search.asked(terms), mark)
            else:
                rows = await self._scan(values, wanted)
        if not rows:
            return None
        items = [entry_of(row) for row in rows[:limit] if row[0] is not None]
        more = len(rows) > limit
        last = items[-1][0] if items else None
        if not more or last is None:
            return Page(items, None)
        return Page(items, encode_cursor(last.received_at.isoformat(), str(last.id)))

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
                    SELECT id
                    FROM relay.messages
                    WHERE mailbox_id = b.id
                      AND (%(at)s::timestamptz IS NULL
                           OR (received_at, id) < (%(at)s::timestamptz, %(id)s::uuid))
                    ORDER BY received_at DESC, id DESC
                    LIMIT %(limit)s
                    OFFSET %(offset)s
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

    async def _scan(self, values: dict[str, Any], wanted: Condition) -> list[tuple[Any, ...]]:
        """The messages that match among all, newest first."""
        return await self._pool.fetch(
            # relay.messages_mailbox gives the order.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM relay.messages m
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE m.mailbox_id = b.id
                  AND {_BEHIND}
                  AND {wanted.sql}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(limit)s
                OFFSET %(offset)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )

    async def _search(
        self, values: dict[str, Any], wanted: Condition, asked: list[int], mark: int
    ) -> list[tuple[Any, ...]]:
        """What `_scan` gives, for a mailbox all of which up to `mark` is in chunks."""
        mailbox_id, offset = values["mailbox"], values["offset"]
        needed = values["limit"] + offset
        values = values | {"needed": needed, "mark": mark}
        rows = await self._pool.fetch(
            # The tail: what is in no chunk yet.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM (
                    SELECT message_id FROM relay.summaries
                    WHERE mailbox_id = b.id AND seq > %(mark)s
                    UNION
                    SELECT message_id FROM relay.unsummarised WHERE mailbox_id = b.id
                ) tail
                JOIN relay.messages m ON m.id = tail.message_id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE {_BEHIND}
                  AND {wanted.sql}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(needed)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )
        if not rows:
            return []
        found = {row[0]: row for row in rows if row[0] is not None}
        below: search.Chunk | None = None
        batch = search.FIRST_CHUNKS
        while True:
            chunks = await search.candidates_backwards(
                self._pool, mailbox_id, asked, below=below, before=values["at"], most=batch
            )
            best = sorted(found.values(), key=_newest_first)[:needed]
            # No chunk that is left has anything as new as the last of what is asked for.
            if not chunks or (len(best) == needed and best[-1][3] > chunks[0].newest_at):
                break
            rows = await self._pool.fetch(
                f"""
                SELECT {ENTRY_COLUMNS}, {PLACED_COLUMNS}
                FROM relay.mailboxes b
                {search.IN_CHUNKS}
                WHERE b.id = %(mailbox)s
                  AND {LIVE}
                  AND {_BEHIND}
                  AND {wanted.sql}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(needed)s
                """,  # noqa: S608 - constants of this module only
                values | search.bounds(chunks),
            )
            found |= {row[0]: row for row in rows}
            below, batch = chunks[-1], min(2 * batch, search.MOST_CHUNKS)
        return best[offset:] or [(None,)]

    async def get(
        self, mailbox_id: UUID, message_id: str | UUID, *, mark_read: bool = True
    ) -> ReceivedMessage | None:
        """One message of a live mailbox, marked read; None if either is not there."""
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        row = await self._pool.fetch_row(
            # The UPDATE runs though nobody reads from it; a message read before is not written
            # again.  The answer shows the flag as it is after this call.
            f"""
            WITH found AS MATERIALIZED (
                SELECT {MESSAGE_COLUMNS}
                {_ONE}
            ), marked AS (
                UPDATE relay.messages
                SET is_read = true
                WHERE %(mark)s
                  AND id IN (SELECT id FROM found WHERE NOT is_read)
            )
            SELECT * FROM found
            """,  # noqa: S608 - constants of this module only
            {"mailbox": mailbox_id, "message": wanted, "mark": mark_read},
        )
        if row is None:
            return None
        if mark_read:
            row = (*row[:4], True, *row[5:])
        return message_of(row)

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
        self,
        mailbox_id: UUID,
        message_id: str | UUID,
        *,
        is_read: bool | None = None,
        tags: Sequence[str] | None = None,
    ) -> tuple[Entry, Placed] | None:
        """Say whether a message was read, and how it is tagged; None leaves either as it is.

        Returns the message as it is then, None if it or its mailbox is not there.  `NotParsed` when
        it is to be tagged and was not parsed yet: then nothing is changed.
        """
        wanted = parse_uuid(message_id)
        if wanted is None:
            return None
        values = {
            "mailbox": mailbox_id,
            "message": wanted,
            "is_read": is_read,
            "tags": None if tags is None else list(tags),
        }
        row = await self._pool.fetch_row(
            f"""
            WITH found AS MATERIALIZED (
                SELECT m.id, m.is_read, %(tags)s::text[] IS NULL OR s.message_id IS NOT NULL AS may
                {_ONE}
            ), tagged AS (
                UPDATE relay.summaries
                SET tags = relay.tags_of(%(tags)s::text[])
                WHERE %(tags)s::text[] IS NOT NULL
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
                    DELETE FROM relay.messages m
                    USING live
                    WHERE m.mailbox_id = live.id
                      AND m.id = ANY(%s)
                )
                SELECT FROM live
                """,  # noqa: S608 - constants of this module only
                (mailbox_id, list(message_ids[at : at + _DELETED_AT_ONCE])),
            )
            if not row:
                return False
        return True


def _newest_first(row: tuple[Any, ...]) -> tuple[float, int]:
    """The order of lists, for rows of `ENTRY_COLUMNS`."""
    return -row[3].timestamp(), -row[0].int
