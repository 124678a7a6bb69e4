"""The search index of large mailboxes: chunks of messages, each with a filter of what is in it.

With it a search reads next to none of the messages that cannot match.  A chunk is a run of a
mailbox's messages, in the order in which they became readable; its filter (`relay.mailboxes.grams`)
is of their senders, subjects and bodies.  `grow` makes the next chunk; `candidates` gives those
that may hold what is looked for.  What is in no chunk yet, the tail, is read as ever.

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
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from relay.db.pool import Pool
from relay.db.text import storable
from relay.mailboxes.grams import probes
from relay.mailboxes.matching import DETAILS, RECIPIENT, SENDER, TEXT
from relay.mailboxes.query import Term

LEAST = 512
"""Messages from which a mailbox has chunks."""
SIZE = 64
"""Messages of a chunk."""
_BYTES = 512 * 1024  # of text in a chunk, unless it is one message's

MakeFilter = Callable[[bytes], Awaitable[bytes]]
"""The filter of texts in UTF-8; raises `TemporaryFailure`."""


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

    OFFSET 0: sorted first, without the filters, of which no more are asked than are needed.
    """
    return f"""
        SELECT sorted.after_seq, sorted.last_seq, sorted.newest_at
        FROM (
            SELECT after_seq, last_seq, newest_at
            FROM relay.search_chunks
            WHERE mailbox_id = %(mailbox)s
              AND {which}
            ORDER BY {order}
            OFFSET 0
        ) sorted
        CROSS JOIN LATERAL (
            SELECT filter
            FROM relay.search_chunks
            WHERE mailbox_id = %(mailbox)s AND last_seq = sorted.last_seq
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


async def mark(pool: Pool, mailbox_id: UUID) -> int:
    """Return the `seq` up to which everything of a mailbox is in chunks; 0: it has none."""
    found: int = await pool.fetch_value(
        "SELECT coalesce(max(last_seq), 0) FROM relay.search_chunks WHERE mailbox_id = %s",
        (mailbox_id,),
    )
    return found


async def candidates_backwards(
    pool: Pool,
    mailbox_id: UUID,
    asked: Sequence[int],
    *,
    below: Chunk | None,
    before: datetime | None,
    most: int,
) -> list[Chunk]:
    """Return the next chunks that may hold what is `asked` (`grams.probes`), newest mail first.

    `below`: behind this one; `before`: with mail from then or earlier.
    """
    rows = await pool.fetch(
        _BACKWARDS,
        {
            "mailbox": mailbox_id,
            "newest": below.newest_at if below else None,
            "last": below.last_seq if below else None,
            "before": before,
            "first": asked[0] if asked else None,
            "asked": list(asked),
            "most": most,
        },
    )
    return [Chunk(*row) for row in rows]


async def candidates(
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


class Text(NamedTuple):
    """A message that is to be in a chunk, and all of it that is searched."""

    id: UUID
    seq: int
    received_at: datetime
    size: int
    attached: bool
    text: str


async def next_texts(pool: Pool, which: str, size: int, values: dict[str, Any]) -> list[Text]:
    """Return the messages of the next chunk, by `seq`; none while there are fewer than `size`.

    `which`: the condition on their summaries, in SQL, with its `values`.
    """
    rows = await pool.fetch(
        f"""
        SELECT id, seq, received_at, size, attached, text, waiting
        FROM (
            SELECT m.id, s.seq, m.received_at, m.size,
                   s.has_attachments IS TRUE AS attached, count(*) OVER () AS waiting,
                   concat_ws(E'\\n\\n\\n', {SENDER}, relay.sender_of({DETAILS}), s.subject,
                             {RECIPIENT}, {TEXT}) AS text,
                   sum(octet_length(coalesce(s.body_text, s.body_html, '')))
                       OVER (ORDER BY s.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                       AS before
            FROM (
                SELECT *
                FROM relay.summaries
                WHERE {which}
                ORDER BY seq
                LIMIT %(size)s
            ) s
            JOIN relay.messages m ON m.id = s.message_id
            JOIN relay.mailboxes b ON b.id = m.mailbox_id
        ) counted
        WHERE coalesce(before, 0) < %(bytes)s
        ORDER BY seq
        """,  # noqa: S608 - constants of ours only
        {"size": size, "bytes": _BYTES, **values},
    )
    return [Text(*row[:6]) for row in rows] if rows and rows[0][6] >= size else []


async def filter_of(texts: Sequence[Text], make: MakeFilter) -> bytes:
    """Make the filter of a chunk.  `TemporaryFailure` when it could not be made."""
    return await make("\n\n\n".join(one.text for one in texts).encode("utf-8", "replace"))


async def grow(pool: Pool, mailbox_id: UUID, make: MakeFilter, *, size: int = SIZE) -> bool:
    """Make the next chunk of a mailbox.  False when there are too few messages for one."""
    after = await mark(pool, mailbox_id)
    rows = await next_texts(
        pool, "mailbox_id = %(mailbox)s AND seq > %(after)s", size,
        {"mailbox": mailbox_id, "after": after},
    )  # fmt: skip
    if not rows:
        return False
    made = await filter_of(rows, make)
    times = [row.received_at for row in rows]
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
            (rows[-1].seq, after, min(times), max(times), made, mailbox_id),
        )
    except psycopg.errors.ForeignKeyViolation:
        return False  # the mailbox was deleted at this moment
    return True
