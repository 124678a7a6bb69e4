"""The search index over all mailboxes: chunks of all readable messages, each with a filter.

What `search.py` is for one large mailbox this is for many small ones: a chunk is a run of
summaries, whosever they are, by the `seq` that orders them over all mailboxes.

Promises
- Every summary up to `mark` is in a chunk; what lies above it, and what has no summary yet, is the
  tail, which is read as ever.
- A chunk is made of what is settled (`relay.settled_seq`): nothing appears within it later.
- With fewer than `LEAST` messages there are none, and they cost nothing.
- Deletion and expiry change no chunk; one of which nothing is left goes with `tidy`.

Fails with `DatabaseUnavailable` from the pool, `TemporaryFailure` when no filter could be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from relay.db.pool import Pool
from relay.mailboxes.search import HOLDS, LEAST, SIZE, MakeFilter, filter_of, next_texts


class Run(NamedTuple):
    """The place of a chunk: `seq` above `after_seq` and up to `last_seq`; the highest id in it."""

    after_seq: int
    last_seq: int
    newest_id: UUID


def _candidates(which: str, order: str) -> str:
    # OFFSET 0: sorted first, without the filters, of which no more are asked than are needed.
    return f"""
        SELECT sorted.after_seq, sorted.last_seq, sorted.newest_id
        FROM (
            SELECT after_seq, last_seq, newest_id
            FROM relay.common_chunks
            WHERE {which}
            ORDER BY {order}
            OFFSET 0
        ) sorted
        CROSS JOIN LATERAL (
            SELECT filter
            FROM relay.common_chunks
            WHERE last_seq = sorted.last_seq
            OFFSET 0
        ) c
        WHERE {HOLDS}
        LIMIT %(most)s"""  # noqa: S608 - constants of ours


_BACKWARDS = _candidates(
    "%(id)s::uuid IS NULL OR (newest_id, last_seq) < (%(id)s::uuid, %(last)s::bigint)",
    "newest_id DESC, last_seq DESC",
)
_FORWARDS = _candidates("last_seq > %(above)s", "last_seq")

IN_RUNS = """
    unnest(%(run_after)s::bigint[], %(run_last)s::bigint[]) c (after_seq, last_seq)
    CROSS JOIN LATERAL (
        SELECT * FROM relay.summaries WHERE seq > c.after_seq AND seq <= c.last_seq OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m
    JOIN relay.mailboxes b ON b.id = m.mailbox_id"""
"""Summaries `s`, messages `m` and mailboxes `b` of some chunks (`bounds`)."""


def bounds(runs: Sequence[Run]) -> dict[str, list[int]]:
    """Return the parameters that `IN_RUNS` needs."""
    return {
        "run_after": [run.after_seq for run in runs],
        "run_last": [run.last_seq for run in runs],
    }


async def mark(pool: Pool) -> int:
    """Return the `seq` up to which everything is in chunks; 0: there are none."""
    found: int = await pool.fetch_value(
        "SELECT coalesce(max(last_seq), 0) FROM relay.common_chunks"
    )
    return found


async def backwards(pool: Pool, asked: Sequence[int], *, below: Run | None, most: int) -> list[Run]:
    """Return the next chunks that may hold what is `asked`, newest mail first, behind `below`."""
    values = {
        "id": below.newest_id if below else None,
        "last": below.last_seq if below else None,
        "first": asked[0] if asked else None,
        "asked": list(asked),
        "most": most,
    }
    return [Run(*row) for row in await pool.fetch(_BACKWARDS, values)]


async def forwards(pool: Pool, asked: Sequence[int], *, above: int, most: int) -> list[Run]:
    """Return the next chunks that may hold what is `asked`, by `seq` from beyond `above`."""
    values = {
        "above": above,
        "first": asked[0] if asked else None,
        "asked": list(asked),
        "most": most,
    }
    return [Run(*row) for row in await pool.fetch(_FORWARDS, values)]


async def grow(pool: Pool, make: MakeFilter, *, size: int = SIZE, least: int = LEAST) -> bool:
    """Make the next chunk.  False when there are too few messages for one."""
    settled: int = await pool.fetch_value("SELECT relay.settled_seq()")
    after = await mark(pool)
    rows = await next_texts(
        pool,
        """seq > %(after)s
           AND seq <= %(settled)s
           AND (%(after)s > 0 OR (
               SELECT count(*)
               FROM (SELECT FROM relay.summaries LIMIT %(least)s) first_ones) = %(least)s)""",
        size,
        {"after": after, "settled": settled, "least": least},
    )
    if not rows:
        return False
    made = await filter_of(rows, make)
    await pool.execute(
        """
        INSERT INTO relay.common_chunks (last_seq, after_seq, newest_id, filter)
        VALUES (%s, %s, %s, %s)
        ON CONFLICT (last_seq) DO NOTHING
        """,
        (rows[-1].seq, after, max(row.id for row in rows), made),
    )
    return True


async def tidy(pool: Pool) -> None:
    """Delete the chunks of which nothing is left, but the last: it says how far they go."""
    await pool.execute(
        """
        DELETE FROM relay.common_chunks c
        WHERE NOT EXISTS (
            SELECT FROM relay.summaries s WHERE s.seq > c.after_seq AND s.seq <= c.last_seq)
          AND last_seq < (SELECT max(last_seq) FROM relay.common_chunks)
        """
    )
