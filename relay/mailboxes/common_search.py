"""The search index over all mailboxes: chunks of all readable messages, each with a filter.

What `search.py` is for one large mailbox this is for many small ones: a chunk is a run of
summaries, whosever they are, by the `seq` that orders them over all mailboxes.

Promises
- Every summary up to `mark` is in a chunk; what lies above it, and what has no summary yet, is the
  tail, which is read as ever.
- It says of its messages what their times and sizes lie between, too, and whether some have
  attachments and some none (`narrow`).
- A chunk is made of what is settled (`relay.settled_seq`): nothing appears within it later.
- With fewer than `LEAST` messages there are none, and they cost nothing.
- Deletion and expiry change no chunk; one of which nothing is left goes with `tidy`.

Fails with `DatabaseUnavailable` from the pool, `TemporaryFailure` when no filter could be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from relay.db.pool import Pool
from relay.mailboxes.matching import Condition
from relay.mailboxes.query import Term
from relay.mailboxes.search import HOLDS, LEAST, SIZE, MakeFilter, filter_of, next_texts


class Run(NamedTuple):
    """The place of a chunk: `seq` above `after_seq` and up to `last_seq`; the highest id in it."""

    after_seq: int
    last_seq: int
    newest_id: UUID


def _candidates(which: str, order: str, asked: Sequence[int]) -> str:
    # OFFSET 0: sorted first, without the filters, of which no more are asked than are needed.
    filtered = f"""
        CROSS JOIN LATERAL (
            SELECT filter
            FROM relay.common_chunks
            WHERE last_seq = sorted.last_seq
            OFFSET 0
        ) c
        WHERE {HOLDS}"""  # noqa: S608 - constants of ours
    return f"""
        SELECT sorted.after_seq, sorted.last_seq, sorted.newest_id
        FROM (
            SELECT after_seq, last_seq, newest_id
            FROM relay.common_chunks
            WHERE {which}
            ORDER BY {order}
            OFFSET 0
        ) sorted
        {filtered if asked else ""}
        LIMIT %(most)s"""  # noqa: S608 - constants of ours


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


def narrow(terms: Sequence[Term]) -> Condition | None:
    """Return the condition on chunks that sizes, times and attachments make; None without any.

    Chunks that do not fulfil it hold no message that fulfils the terms.
    """
    parts: list[str] = []
    values: dict[str, Any] = {}
    for number, term in enumerate(terms):
        name = f"n{number}"
        if term.field == "attachment":
            parts.append("some_plain" if term.negated else "some_attached")
        elif (known := _BETWEEN.get((term.field, term.negated))) is not None:
            parts.append(known.format(name=f"%({name})s"))
            values[name] = term.value
    return Condition(" AND ".join(parts), values) if parts else None


_BETWEEN = {
    ("before", False): "oldest_at < {name}::timestamptz",
    ("before", True): "newest_at >= {name}::timestamptz",
    ("larger", False): "largest > {name}::bigint",
    ("larger", True): "smallest <= {name}::bigint",
    ("smaller", False): "smallest < {name}::bigint",
    ("smaller", True): "largest >= {name}::bigint",
}
_ANY = Condition("true", {})


async def backwards(
    pool: Pool,
    asked: Sequence[int],
    narrowed: Condition | None,
    *,
    behind: Run | None,
    below: UUID,
    most: int,
) -> list[Run]:
    """Return the next chunks that may hold what is `asked`, newest mail first, `behind` one.

    `narrowed`: what `narrow` said; `below`: with lower ids than that.
    """
    which, values = narrowed or _ANY
    if behind is not None:
        which += " AND (newest_id, last_seq) < (%(newest)s, %(last)s)"
        values = values | {"newest": behind.newest_id, "last": behind.last_seq}
    rows = await pool.fetch(
        _candidates(f"oldest_id < %(below)s AND {which}", "newest_id DESC, last_seq DESC", asked),
        {"below": below, "most": most, **_probed(asked), **values},
    )
    return [Run(*row) for row in rows]


async def forwards(
    pool: Pool,
    asked: Sequence[int],
    narrowed: Condition | None = None,
    *,
    above: int,
    most: int,
) -> list[Run]:
    """Return the next chunks that may hold what is `asked`, by `seq` from beyond `above`."""
    which, values = narrowed or _ANY
    rows = await pool.fetch(
        _candidates(f"last_seq > %(above)s AND {which}", "last_seq", asked),
        {"above": above, "most": most, **_probed(asked), **values},
    )
    return [Run(*row) for row in rows]


def _probed(asked: Sequence[int]) -> dict[str, Any]:
    return {"first": asked[0], "asked": list(asked)} if asked else {}


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
        INSERT INTO relay.common_chunks (
            last_seq, after_seq, oldest_id, newest_id, oldest_at, newest_at,
            smallest, largest, some_attached, some_plain, filter)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
        ON CONFLICT (last_seq) DO NOTHING
        """,
        (
            rows[-1].seq,
            after,
            min(row.id for row in rows),
            max(row.id for row in rows),
            min(row.received_at for row in rows),
            max(row.received_at for row in rows),
            min(row.size for row in rows),
            max(row.size for row in rows),
            any(row.attached for row in rows),
            not all(row.attached for row in rows),
            made,
        ),
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
