"""What arrives in a mailbox, for those who wait for it: in the order in which it became readable.

A message is readable once it was parsed; its place in that order is `seq`, which only grows.  So a
caller that goes on from what it got last sees every message once, also when one that came earlier
took longer to parse.

Promises: every call answers None from the instant at which the mailbox is over (`visibility.py`),
and nothing is marked read; no look reads messages for much more than a second: it says where to go
on, and whoever looks again looks at nothing twice.  Fails with `DatabaseUnavailable` (temporary)
from the pool, `Invalid` for an `after` that is neither a message nor a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, cast
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.db.text import holds, sought, storable
from relay.errors import Invalid
from relay.ids import parse_uuid
from relay.mailboxes import search
from relay.mailboxes.grams import probes
from relay.mailboxes.matching import SENDER
from relay.mailboxes.records import (
    ENTRY_COLUMNS,
    MESSAGE_COLUMNS,
    PLACED_COLUMNS,
    Entry,
    Found,
    News,
    Placed,
    ReceivedMessage,
    entry_of,
    message_of,
)
from relay.mailboxes.visibility import LIVE, Reach
from relay.mailboxes.walks import SECONDS, next_step
from relay.times import parse_instant

_ANYWHERE = """
    CROSS JOIN (SELECT * FROM relay.summaries WHERE seq <= k.reached) s
    JOIN relay.messages m ON m.id = s.message_id"""
_STEP = 128  # messages of the first step of a look for some of them


_HEADS = 64  # messages whose heads are read at once
_LONGEST = 4000  # bytes of a subject that is read for its head


class Sought(NamedTuple):
    """What a wait seeks in mail, to be compared here: parts of texts, their case folded."""

    sender: str
    subject: str
    since: datetime | None

    def may_be(self, head: Head) -> bool:
        """Whether a message may match: False is certain."""
        return (
            (self.since is None or head.received_at > self.since)
            and self.sender in head.sender
            and (head.subject is None or self.subject in head.subject)
        )


class Head(NamedTuple):
    """What waits go by, of a message, its case folded; `subject` None: it is too long to tell."""

    seq: int
    received_at: datetime
    sender: str
    subject: str | None


class Heads(NamedTuple):
    """The heads of messages, in their order, the place to go on from, and the seconds that the
    mailbox has.  `cut`: there are more."""

    found: list[Head]
    reached: int
    expires_in: float
    cut: bool


class _Look(NamedTuple):
    """What one statement found: a match, the seconds that the mailbox has, up to where it is in
    chunks, and of the step the last `seq` and how many messages it has."""

    message: ReceivedMessage | None
    expires_in: float
    mark: int
    reached: int | None
    looked_at: int


class Arrivals:
    """Answers those who wait for mail in the mailboxes of one relay.

    `seconds`: how long one look goes on beginning steps; `step`: messages of the first.
    """

    def __init__(self, pool: Pool, *, seconds: float = SECONDS, step: int = _STEP) -> None:
        self._pool = pool
        self._seconds = seconds
        self._step = step

    async def next_match(
        self,
        mailbox_id: UUID,
        *,
        sender: str | None = None,
        subject: str | None = None,
        after: UUID | datetime | None = None,
        above: int = 0,
        brief: bool = False,
    ) -> Found | None:
        """The oldest parsed message that matches; None if the mailbox is no longer live.

        `sender` and `subject` are sub-strings without regard to case; `after` (see
        `parse_after`) is exclusive: with the id of the message before, every message comes once.
        `above`: what the `Found` before said; `brief`: it is one step.
        """
        seq = None
        if isinstance(after, UUID):
            seq = await seq_of(self._pool, Reach(mailbox_id=mailbox_id), after)
        at = after if isinstance(after, datetime) else None
        # An `after` whose message is gone or not parsed yet falls back to the ids' own order, which
        # is that of arrival.
        id = after if isinstance(after, UUID) and seq is None else None
        values: dict[str, Any] = {"mailbox": mailbox_id, "at": at, "id": id}
        values["seq"] = max(seq or 0, above)
        wanted = [
            *(("m.received_at > %(at)s",) if at else ()),
            *(("m.id > %(id)s",) if id else ()),
        ]
        for name, text, needle in (
            ("from", SENDER, sender),
            ("subject", "s.subject", subject),
        ):
            if needle:
                values[name] = sought(needle)
                wanted.append(holds(text, name, needle))
        until = trio.current_time() + (-1 if brief else self._seconds)
        step = self._step if wanted else 1
        # Most mailboxes have no chunks: the statement that says so has looked at its step.
        by_chunks = bool(at or sender or subject)
        while True:
            began = trio.current_time()
            look = await self._look(_ANYWHERE, wanted, values | {"step": step}, chunked=by_chunks)
            if look is None:
                return None
            if by_chunks and look.mark > values["seq"]:
                asked = probes(storable(sender or ""), storable(subject or ""))
                found = await self._in_chunks(asked, wanted, values, look.mark, until)
                if found is None or found.message is not None or found.cut:
                    return found
                values["seq"], by_chunks = look.mark, False
                continue
            if look.message is not None:
                return Found(look.message, look.expires_in)
            values["seq"] = look.reached or values["seq"]
            now = trio.current_time()
            if look.looked_at < step or now > until:
                return Found(None, look.expires_in, values["seq"], cut=look.looked_at == step)
            step = next_step(step, now - began)

    async def _in_chunks(
        self,
        asked: list[int],
        wanted: Sequence[str],
        values: dict[str, Any],
        mark: int,
        until: float,
    ) -> Found | None:
        """What `next_match` gives, of what is in chunks up to `mark`."""

        async def look_for(behind: search.Chunk | None, most: int) -> list[search.Chunk]:
            above = values["seq"] if behind is None else behind.last_seq
            return await search.forwards(
                self._pool, values["mailbox"], asked, above=above, since=values["at"], most=most
            )

        ahead = search.Ahead(look_for)
        batch = search.FIRST_CHUNKS
        while True:
            began = trio.current_time()
            chunks = await ahead.take(batch)
            if not chunks:
                return Found(None, 0.0, mark)  # what is in none says how long the mailbox has
            chunks, look = await ahead.read(
                chunks,
                lambda those: self._look(search.IN_CHUNKS, wanted, values | search.bounds(those)),
            )
            if look is None:
                return None
            if look.message is not None:
                return Found(look.message, look.expires_in)
            values["seq"] = chunks[-1].last_seq
            now = trio.current_time()
            if now > until:
                return Found(None, look.expires_in, values["seq"], cut=True)
            batch = search.next_batch(len(chunks), now - began, found=0, missing=1)

    async def _look(
        self, where: str, wanted: Sequence[str], values: dict[str, Any], *, chunked: bool = False
    ) -> _Look | None:
        """The oldest match with a `seq` above the one given, in some chunks or the next step.

        With `chunked` nothing is looked at where `search.mark` is above the `seq` given.
        """
        rows = await self._pool.fetch(
            # relay.summaries_mailbox gives the order.
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8,
                   k.mark, k.reached, k.count, e.*
            FROM relay.mailboxes b
            CROSS JOIN LATERAL (
                SELECT (
                           SELECT coalesce(max(last_seq), 0)
                           FROM relay.search_chunks
                           WHERE mailbox_id = b.id
                       ) AS mark,
                       max(seq) AS reached, count(*) AS count
                FROM (
                    SELECT seq
                    FROM relay.summaries
                    WHERE mailbox_id = b.id AND seq > %(seq)s
                    ORDER BY seq
                    LIMIT %(step)s
                ) step
            ) k
            LEFT JOIN LATERAL (
                SELECT {MESSAGE_COLUMNS}
                FROM (SELECT) one
                {where}
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(seq)s
                  AND (NOT %(chunked)s OR k.mark <= %(seq)s)
                  AND {" AND ".join(wanted) or "true"}
                ORDER BY s.seq
                LIMIT 1
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of ours only
            {"step": 0, **values, "chunked": chunked},
        )
        if not rows:
            return None
        seconds, mark, reached, looked_at, *row = rows[0]
        message = message_of(tuple(row)) if row[0] is not None else None
        return _Look(message, seconds, mark, reached, looked_at)

    async def sought(
        self, sender: str | None, subject: str | None, after: UUID | datetime | None
    ) -> Sought:
        """What `next_match` looks for, but for an `after` that is an id."""
        # The database folds it, as it folds texts: in Python some letters have another case.
        folded = await self._pool.fetch_row(
            "SELECT lower(%s), lower(%s)", (storable(sender or ""), storable(subject or ""))
        )
        assert folded is not None
        return Sought(folded[0], folded[1], after if isinstance(after, datetime) else None)

    async def heads(self, mailbox_id: UUID, above: int) -> Heads | None:
        """What is new above a `seq`, for many who wait; None if the mailbox is no longer live."""
        rows = await self._pool.fetch(
            # relay.summaries_mailbox gives the order.
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8, e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT s.seq, m.received_at, coalesce(lower({SENDER}), ''),
                       CASE WHEN octet_length(coalesce(s.subject, '')) <= %(longest)s
                       THEN lower(coalesce(s.subject, '')) END
                FROM relay.summaries s
                JOIN relay.messages m ON m.id = s.message_id
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(above)s
                ORDER BY s.seq
                LIMIT %(limit)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            """,  # noqa: S608 - constants of ours only
            {"mailbox": mailbox_id, "above": above, "longest": _LONGEST, "limit": _HEADS},
        )
        if not rows:
            return None
        found = [Head(*row[1:]) for row in rows if row[1] is not None]
        reached = found[-1].seq if found else above
        return Heads(found, reached, rows[0][0], len(found) == _HEADS)

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
        """The cursor of `news` that goes on behind a message, which may be deleted by now.

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
