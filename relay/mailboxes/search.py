"""The search index of large mailboxes: chunks of messages, each with a filter of what is in it.

With it a search reads next to none of the messages that cannot match.  A chunk is a run of a
mailbox's messages, in the order in which they became readable; its filter (`relay.mailboxes.grams`)
is of their senders, subjects and bodies.  `grow` makes the next chunk; `backwards` and `forwards`
give those that may hold what is looked for.  What is in no chunk yet, the tail, is read as ever.

Promises
- Every message that is in no chunk has a `seq` above `mark`, or no summary yet.
- Small mailboxes (below `LEAST` messages) have no chunks and cost nothing.
- Two nodes that grow the same mailbox do it twice, and nothing worse.

Fails with `DatabaseUnavailable` from the pool, `TemporaryFailure` when no filter could be made.

Why not an index of PostgreSQL's: substrings need pg_trgm, an extension that not every server lets
one have, and keeping its index costs each message more than all the rest of its summary.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar
from uuid import UUID

import psycopg
import trio

from relay.db.pool import Pool
from relay.db.text import storable
from relay.mailboxes.grams import probes
from relay.mailboxes.matching import DETAILS, IN_UNICODE, RECIPIENT, SENDER, TEXT
from relay.mailboxes.query import Term

LEAST = 512
"""Messages from which a mailbox has chunks."""
SIZE = 64
"""Messages of a chunk."""
_BYTES = 512 * 1024  # of text in a chunk, unless it is one message's

T = TypeVar("T")
R = TypeVar("R")
MakeFilter = Callable[[bytes, bytes], Awaitable[bytes]]
"""Gives `relay.mailboxes.worker.filter_of` texts and details; raises `TemporaryFailure`."""


# The first bit by itself: it says no to most filters, for a tenth of what the function costs.
# Held by tests/mailboxes/test_search.py; pays in `python -m tests.bench page`.
HOLDS = """
    (%(first)s::bigint IS NULL
     OR get_bit(
         substr(c.filter, (%(first)s %% (8 * octet_length(c.filter)) >> 3)::integer + 1, 1),
         %(first)s %% (8 * octet_length(c.filter)) & 7) = 1)
    AND relay.filter_holds(c.filter, %(asked)s::bigint[])"""


def _candidates(which: str, order: str) -> str:
    """Return the statement that finds `which` chunks in this order, up to `most` that may match.

    OFFSET 0: in the order of an index, so that no more filters are asked than are needed.
    """
    return f"""
        SELECT c.after_seq, c.last_seq, c.newest_at
        FROM (
            SELECT *
            FROM relay.search_chunks
            WHERE mailbox_id = %(mailbox)s
              AND {which}
            ORDER BY {order}
            OFFSET 0
        ) c
        WHERE {HOLDS}
        LIMIT %(most)s"""  # noqa: S608 - constants of this module


_BACKWARDS = _candidates(
    """(%(newest)s::timestamptz IS NULL
                   OR (newest_at, last_seq) < (%(newest)s::timestamptz, %(last)s::bigint))
              AND (%(before)s::timestamptz IS NULL OR oldest_at <= %(before)s)""",
    "newest_at DESC, last_seq DESC",
)
_FORWARDS = _candidates(
    """last_seq > %(above)s
              AND (%(since)s::timestamptz IS NULL OR newest_at > %(since)s)""",
    "last_seq",
)

# OFFSET 0: the chunks' summaries and no others, whatever the statistics say.
IN_CHUNKS = """
    CROSS JOIN unnest(%(after)s::bigint[], %(last)s::bigint[]) c (after_seq, last_seq)
    CROSS JOIN LATERAL (
        SELECT *
        FROM relay.summaries
        WHERE mailbox_id = b.id AND seq > c.after_seq AND seq <= c.last_seq
        OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m"""
"""Joins the summaries `s` and messages `m` of some chunks (`bounds`) to the mailbox `b`."""
FIRST_CHUNKS, MOST_CHUNKS = 2, 32
"""How many chunks the first statement of a search reads, and the largest one."""
QUICK = 0.1  # s
"""What the next statement of a search may take, by the last one."""
LONGEST = 0.5  # s
"""What a statement may take that reads more than one chunk: the texts in them may be of any kind,
and those before say nothing of them."""
AHEAD = 64
"""How many chunks are looked for at once."""


def next_batch(batch: int, seconds: float, *, found: int, missing: int) -> int:
    """Return how many chunks to read after so many that took `seconds` and had `found` matches.

    As many as will have the `missing` ones, if the others are like them; no more than are read in
    `QUICK`, as fast as them, nor than `MOST_CHUNKS`.
    """
    enough = batch * missing // found + 1 if found else MOST_CHUNKS
    quick = int(batch * QUICK / max(seconds, 1e-6))
    return max(1, min(enough, quick, MOST_CHUNKS))


class Ahead(Generic[T]):
    """Chunks in their order, looked for `AHEAD` at a time and handed out in batches.

    A look that finds fewer goes through all chunks: 3 ms of 100,000 messages.

    `look`: gives the next ones behind a chunk (None: the first), that many at most.  `longest`:
    seconds that a statement about more than one of them may take.
    """

    def __init__(
        self, look: Callable[[T | None, int], Awaitable[list[T]]], *, longest: float | None = None
    ) -> None:
        self._look = look
        self._longest = LONGEST if longest is None else longest
        self._waiting: list[T] = []
        self._last: T | None = None
        self._ended = False

    async def take(self, most: int) -> list[T]:
        """Return the next chunks, `most` at most; none when there are no more."""
        if not self._waiting and not self._ended:
            self._waiting = await self._look(self._last, AHEAD)
            self._ended = len(self._waiting) < AHEAD
        taken, self._waiting = self._waiting[:most], self._waiting[most:]
        if taken:
            self._last = taken[-1]
        return taken

    async def read(
        self, taken: list[T], fetch: Callable[[list[T]], Awaitable[R]]
    ) -> tuple[list[T], R]:
        """Return what a statement finds in these chunks, and in which.

        Where it takes too long it is cancelled, and of a quarter of them: the others come again.
        """
        while len(taken) > 1:
            with trio.move_on_after(self._longest):
                return taken, await fetch(taken)
            few = max(1, len(taken) // 4)
            self._waiting = [*taken[few:], *self._waiting]
            taken = taken[:few]
        return taken, await fetch(taken)


class Chunk(NamedTuple):
    """The place of a chunk: `seq` above `after_seq` and up to `last_seq`; when its newest came."""

    after_seq: int
    last_seq: int
    newest_at: datetime


def bounds(chunks: Sequence[Chunk]) -> dict[str, list[int]]:
    """Return the parameters that `IN_CHUNKS` needs."""
    return {
        "after": [chunk.after_seq for chunk in chunks],
        "last": [chunk.last_seq for chunk in chunks],
    }


def asked(terms: Sequence[Term]) -> list[int]:
    """Return what to ask of filters: those that say no hold no message that fulfils the terms."""
    # What must not be there says nothing, and what texts do not hold is in no filter.
    return probes(
        *(
            storable(term.value)
            for term in terms
            if isinstance(term.value, str) and term.field != "tag" and not term.negated
        )
    )


_MARK = """
    SELECT coalesce(max(last_seq), 0)
    FROM relay.search_chunks
    WHERE mailbox_id = %(mailbox)s"""


async def mark(pool: Pool, mailbox_id: UUID) -> int:
    """Return the `seq` up to which everything of a mailbox is in chunks; 0: it has none."""
    found: int = await pool.fetch_value(_MARK, {"mailbox": mailbox_id})
    return found


async def backwards(
    pool: Pool,
    mailbox_id: UUID,
    asked: Sequence[int],
    *,
    behind: Chunk | None,
    before: datetime | None,
    most: int,
) -> list[Chunk]:
    """Return the next chunks that may hold what is `asked` (`grams.probes`), newest mail first.

    `behind`: those after this one; `before`: with mail from then or earlier.
    """
    rows = await pool.fetch(
        _BACKWARDS,
        {
            "mailbox": mailbox_id,
            "newest": behind.newest_at if behind else None,
            "last": behind.last_seq if behind else None,
            "before": before,
            "first": asked[0] if asked else None,
            "asked": list(asked),
            "most": most,
        },
    )
    return [Chunk(*row) for row in rows]


async def forwards(
    pool: Pool,
    mailbox_id: UUID,
    asked: Sequence[int],
    *,
    above: int,
    since: datetime | None,
    most: int,
) -> list[Chunk]:
    """Return the next chunks that may hold what is `asked`, by `seq` from beyond `above`.

    `since`: with mail that came after that.
    """
    rows = await pool.fetch(
        _FORWARDS,
        {
            "mailbox": mailbox_id,
            "above": above,
            "since": since,
            "first": asked[0] if asked else None,
            "asked": list(asked),
            "most": most,
        },
    )
    return [Chunk(*row) for row in rows]


async def lagging(pool: Pool, *, least: int = LEAST, size: int = SIZE) -> list[UUID]:
    """Return mailboxes that have a chunk to make."""
    rows = await pool.fetch(
        # mailbox_usage has rows of mailboxes that were busy, so it is short.
        """
        SELECT u.mailbox_id
        FROM relay.mailbox_usage u
        CROSS JOIN LATERAL (
            SELECT coalesce(max(last_seq), 0) AS mark
            FROM relay.search_chunks c
            WHERE c.mailbox_id = u.mailbox_id
        ) c
        WHERE u.messages >= %s
          AND (SELECT count(*)
               FROM (SELECT FROM relay.summaries s
                     WHERE s.mailbox_id = u.mailbox_id AND s.seq > c.mark
                     LIMIT %s) waiting) = %s
        """,
        (least, size, size),
    )
    return [row[0] for row in rows]


class Texts(NamedTuple):
    """The messages that are to be in a chunk: where they are, what `SPAN` says of them, all of them
    that is searched, and the details with their senders' names."""

    after_seq: int
    last_seq: int
    oldest_id: UUID
    newest_id: UUID
    oldest_at: datetime
    newest_at: datetime
    smallest: int
    largest: int
    some_attached: bool
    some_plain: bool
    some_readdressed: bool
    text: str
    details: str


SPAN = """min(m.id::text COLLATE "C")::uuid, max(m.id::text COLLATE "C")::uuid,
    min(m.received_at), max(m.received_at), min(m.size), max(m.size),
    bool_or(s.has_attachments IS TRUE), bool_or(s.has_attachments IS NOT TRUE),
    coalesce(bool_or(m.recipient <> (
        SELECT address FROM relay.mailboxes WHERE id = m.mailbox_id)), false)"""
"""What the ids, times and sizes of messages `m` lie between, whether their summaries `s` tell of
attachments, and of none, and whether any has another recipient than its mailbox's address."""


async def next_texts(
    pool: Pool, mark: str, which: str, size: int, values: dict[str, Any]
) -> Texts | None:
    """Return the messages of the next chunk, by `seq`; None while there are fewer than `size`.

    `mark`: the `seq` up to which they are in chunks, and `which`: the condition on their summaries;
    both in SQL, with their `values`.
    """
    row = await pool.fetch_row(
        # OFFSET 0: their messages are looked up, whatever the statistics say.
        f"""
        SELECT ({mark}), max(s.seq), {SPAN},
               string_agg(
                   concat_ws(E'\\n', {SENDER}, s.subject, {RECIPIENT}, {IN_UNICODE}, {TEXT}), E'\\n'
               ),
               coalesce(string_agg({DETAILS}, E'\\n'), '')
        FROM (
            SELECT *, count(*) OVER () AS waiting,
                   sum(octet_length(coalesce(body_text, body_html, ''))
                       + octet_length(coalesce(details, '')))
                       OVER (ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                       AS before
            FROM (
                SELECT *
                FROM relay.summaries
                WHERE seq > ({mark})
                  AND {which}
                ORDER BY seq
                LIMIT %(size)s
            ) first_ones
        ) s
        CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m
        JOIN relay.mailboxes b ON b.id = m.mailbox_id
        WHERE waiting = %(size)s
          AND coalesce(before, 0) < %(bytes)s
        HAVING count(*) > 0
        """,  # noqa: S608 - constants of ours only
        {"size": size, "bytes": _BYTES, **values},
    )
    return None if row is None else Texts(*row)


async def filter_of(texts: Texts, make: MakeFilter) -> bytes:
    """Make the filter of a chunk.  `TemporaryFailure` when it could not be made."""
    return await make(texts.text.encode(), texts.details.encode())


async def grow(pool: Pool, mailbox_id: UUID, make: MakeFilter, *, size: int = SIZE) -> bool:
    """Make the next chunk of a mailbox.  False when there are too few messages for one."""
    texts = await next_texts(pool, _MARK, "mailbox_id = %(mailbox)s", size, {"mailbox": mailbox_id})
    if texts is None:
        return False
    made = await filter_of(texts, make)
    try:
        await pool.execute(
            """
            INSERT INTO relay.search_chunks
                (mailbox_id, last_seq, after_seq, oldest_at, newest_at, filter)
            SELECT b.id, %s, %s, %s, %s, %s
            FROM relay.mailboxes b
            WHERE b.id = %s
            ON CONFLICT (mailbox_id, last_seq) DO NOTHING
            """,
            (texts.last_seq, texts.after_seq, texts.oldest_at, texts.newest_at, made, mailbox_id),
        )
    except psycopg.errors.ForeignKeyViolation:
        return False  # the mailbox was deleted at this moment
    return True
