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
- Where one large mailbox got all mail for a while its chunks are taken over, and no text is read
  for them again.
- Deletion and expiry change no chunk; one of which nothing is left goes with `tidy`.

Fails with `DatabaseUnavailable` from the pool, `TemporaryFailure` when no filter could be made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from relay.db.pool import Pool
from relay.mailboxes.matching import Condition, summary_condition
from relay.mailboxes.query import Term
from relay.mailboxes.search import HOLDS, LEAST, SIZE, SPAN, MakeFilter, filter_of, next_texts


class Chunk(NamedTuple):
    """The place of a chunk: `seq` above `after_seq` and up to `last_seq`; the highest id in it, and
    whether any recipient in it may be another than the mailbox's address."""

    after_seq: int
    last_seq: int
    newest_id: UUID
    readdressed: bool = True


def _candidates(which: str, order: str, asked: Sequence[int]) -> str:
    # OFFSET 0: in the order of an index, so that no more filters are asked than are needed.
    return f"""
        SELECT c.after_seq, c.last_seq, c.newest_id, c.some_readdressed
        FROM (
            SELECT *
            FROM relay.common_chunks
            WHERE {which}
            ORDER BY {order}
            OFFSET 0
        ) c
        {f"WHERE {HOLDS}" if asked else ""}
        LIMIT %(most)s"""  # noqa: S608 - constants of ours


def in_chunks(terms: Sequence[Term]) -> str:
    """Return what joins summaries `s`, mailboxes `b` and messages `m` of some chunks (`bounds`).

    Those are left out of which it can be told without their message that they do not fulfil the
    terms; its values are those of their `condition`.
    """
    # OFFSET 0: a message is looked up by itself, and only then; that is most of what a row costs.
    return f"""
    unnest(%(chunk_after)s::bigint[], %(chunk_last)s::bigint[], %(chunk_readdressed)s::boolean[])
        c (after_seq, last_seq, readdressed)
    CROSS JOIN LATERAL (
        SELECT * FROM relay.summaries WHERE seq > c.after_seq AND seq <= c.last_seq OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT * FROM relay.mailboxes WHERE id = s.mailbox_id OFFSET 0) b
    CROSS JOIN LATERAL (
        SELECT *
        FROM relay.messages
        WHERE id = s.message_id
          AND (c.readdressed OR s.from_address IS NULL OR {summary_condition(terms)})
        OFFSET 0
    ) m"""  # noqa: S608 - constants of ours


def bounds(chunks: Sequence[Chunk]) -> dict[str, list[Any]]:
    """Return the parameters that `in_chunks` needs."""
    return {
        "chunk_after": [chunk.after_seq for chunk in chunks],
        "chunk_last": [chunk.last_seq for chunk in chunks],
        "chunk_readdressed": [chunk.readdressed for chunk in chunks],
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
    behind: Chunk | None,
    below: UUID,
    most: int,
) -> list[Chunk]:
    """Return the next chunks that may hold what is `asked`, newest mail first.

    `narrowed`: what `narrow` said; `behind`: those after this one; `below`: with lower ids than
    that.
    """
    which, values = narrowed or _ANY
    if behind is not None:
        which += " AND (newest_id, last_seq) < (%(newest)s, %(last)s)"
        values = values | {"newest": behind.newest_id, "last": behind.last_seq}
    rows = await pool.fetch(
        _candidates(f"oldest_id < %(below)s AND {which}", "newest_id DESC, last_seq DESC", asked),
        {"below": below, "most": most, **_probed(asked), **values},
    )
    return [Chunk(*row) for row in rows]


async def forwards(
    pool: Pool,
    asked: Sequence[int],
    narrowed: Condition | None = None,
    *,
    above: int,
    most: int,
) -> list[Chunk]:
    """Return the next chunks that may hold what is `asked`, by `seq` from beyond `above`."""
    which, values = narrowed or _ANY
    rows = await pool.fetch(
        _candidates(f"last_seq > %(above)s AND {which}", "last_seq", asked),
        {"above": above, "most": most, **_probed(asked), **values},
    )
    return [Chunk(*row) for row in rows]


def _probed(asked: Sequence[int]) -> dict[str, Any]:
    return {"first": asked[0], "asked": list(asked)} if asked else {}


_TAKEN_OVER = 16  # chunks at once
_INSERT = """
    INSERT INTO relay.common_chunks (
        after_seq, last_seq, oldest_id, newest_id, oldest_at, newest_at,
        smallest, largest, some_attached, some_plain, some_readdressed, filter)"""
# Where mail went into one mailbox for a while, chunks of that one's are chunks of all; as far as no
# other mailbox had any.
_TAKE_OVER = f"""
    WITH next_one AS MATERIALIZED (
        SELECT mailbox_id
        FROM relay.summaries
        WHERE seq > %(after)s
        ORDER BY seq
        LIMIT 1
    ), chunks AS MATERIALIZED (
        SELECT greatest(after_seq, %(after)s) AS after_seq, last_seq, filter
        FROM relay.search_chunks
        WHERE mailbox_id = (SELECT mailbox_id FROM next_one)
          AND last_seq > %(after)s
          AND last_seq <= %(settled)s
        ORDER BY last_seq
        LIMIT {_TAKEN_OVER}
    ), other AS MATERIALIZED (
        SELECT seq
        FROM relay.summaries
        WHERE seq > %(after)s
          AND seq <= (SELECT max(last_seq) FROM chunks)
          AND mailbox_id <> (SELECT mailbox_id FROM next_one)
        ORDER BY seq
        LIMIT 1
    )
    {_INSERT}
    SELECT c.after_seq, c.last_seq, span.*, c.filter
    FROM chunks c
    CROSS JOIN LATERAL (
        SELECT {SPAN}
        FROM (
            SELECT *
            FROM relay.summaries
            WHERE seq > c.after_seq
              AND seq <= c.last_seq
            OFFSET 0
        ) s
        CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m
        HAVING count(*) > 0
    ) span
    WHERE c.last_seq < coalesce((SELECT seq FROM other), %(settled)s + 1)
    ON CONFLICT (last_seq) DO NOTHING"""  # noqa: S608 - constants of ours


async def settled(pool: Pool) -> int:
    """Return up to where `grow` may go."""
    found: int = await pool.fetch_value("SELECT relay.settled_seq()")
    return found


async def grow(
    pool: Pool, make: MakeFilter, *, settled: int, size: int = SIZE, least: int = LEAST
) -> bool:
    """Make the next chunk, or several, `settled` at most.

    False when there are too few messages for one.
    """
    after = await mark(pool)
    if not after and await _count(pool, least) < least:
        return False
    if await pool.execute(_TAKE_OVER, {"after": after, "settled": settled}):
        return True
    texts = await next_texts(
        pool, "%(after)s", "seq <= %(settled)s", size, {"after": after, "settled": settled}
    )
    if texts is None:
        return False
    made = await filter_of(texts, make)
    await pool.execute(
        f"{_INSERT} VALUES ({', '.join(['%s'] * 12)}) ON CONFLICT (last_seq) DO NOTHING",
        (*texts[:11], made),
    )
    return True


async def _count(pool: Pool, most: int) -> int:
    """The number of summaries, up to a limit."""
    found: int = await pool.fetch_value(
        "SELECT count(*) FROM (SELECT FROM relay.summaries LIMIT %s) first_ones", (most,)
    )
    return found


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
