"""Searching all mailboxes at once: which messages are looked at, and when it is enough.

A search goes by what narrows it most.  Where few messages have the tag that is asked for, were read
or are the caller's, it looks at these.  Else words go by chunks (`common_search.py`), what else is
asked of one mailbox by the index of that; of many, sizes, times and attachments go by chunks, too,
tags by `relay.tagged`, what is read or unread by its index.  Anything else walks through all mail
by its ids.

Promises
- What is found is what reading everything would find, highest ids first, as far as the search came.
- No statement reads more messages than a step or `search.MOST_CHUNKS` chunks have, nor, of a step,
  more text than `matching.TEXT_BYTES` and that of one message, nor, of more than one chunk, for
  more than `search.LONGEST`; and no search
  begins one after `SECONDS`, unless it came nowhere yet: it says where to go on, and whoever asks
  for the next page does.
- Not bounded so are the look for the next chunks, which asks as many filters as say no (some
  microseconds each), and that for a caller's own messages, which goes through the mailboxes.

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import trio

from relay.db.pool import Pool
from relay.db.text import storable
from relay.mailboxes import common_search, search
from relay.mailboxes.matching import Condition, condition, first_texts
from relay.mailboxes.query import Term
from relay.mailboxes.visibility import LIVE, Reach

SECONDS = 1.0
"""How long a search goes on beginning steps."""
FEW = 2000
"""Messages that are looked at one by one, of a caller, with a tag, or read."""
LONGEST = 4096
"""Messages of a step, at most."""
HIGHEST = UUID(int=2**128 - 1)
"""The id that no other is above."""


def next_step(step: int, seconds: float, longest: int = LONGEST) -> int:
    """Return how many messages to read after a `step` of so many that took `seconds`.

    Twice as many where that was quick (`search.QUICK`), up to `longest`; else half as many.
    """
    return min(2 * step, longest) if seconds < search.QUICK else max(step // 2, 1)


@dataclass(frozen=True)
class Stretch:
    """What a search found, highest ids first, and the id below which it has not looked.

    `below` is None when there is nothing more.
    """

    ids: list[UUID]
    below: UUID | None


class Source(NamedTuple):
    """A statement that gives ids of messages as `id`, and its values."""

    sql: str
    values: dict[str, Any]


# OFFSET 0: these messages and no others, whatever the statistics say.
_MATCHES = f"""
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = step.id OFFSET 0) m
    CROSS JOIN LATERAL (SELECT * FROM relay.mailboxes WHERE id = m.mailbox_id OFFSET 0) b
    LEFT JOIN LATERAL (SELECT * FROM relay.summaries WHERE message_id = m.id OFFSET 0) s ON true
    WHERE {LIVE}"""  # noqa: S608 - a constant of ours
_ALL = "SELECT id FROM relay.messages"
_OWN = "SELECT unnest(%(own)s::uuid[]) AS id"
_TAGGED = "SELECT message_id AS id FROM relay.tagged WHERE tag = lower(%(source_tag)s::text)"
# messages_mailbox has the ids without the rows.
_OF_ONE = "SELECT id FROM relay.messages WHERE mailbox_id = %(source_mailbox)s"
_TAIL = """
    SELECT message_id AS id FROM relay.summaries WHERE seq > %(mark)s
    UNION
    SELECT message_id FROM relay.unsummarised"""


class Walk:
    """One search of what a caller may see."""

    def __init__(
        self, pool: Pool, reach: Reach, terms: Sequence[Term], *, seconds: float = SECONDS
    ) -> None:
        self._pool = pool
        self._reach = reach
        self._terms = terms
        self._wanted = condition(terms)
        self._ends_at = trio.current_time() + seconds

    async def find(self, *, below: UUID | None, limit: int) -> Stretch:
        """The ids of matches with lower ids than `below`, `limit` at most."""
        below = below or HIGHEST
        asked = search.asked(self._terms)
        narrow = common_search.narrow(self._terms)
        by_chunks = bool(asked) or narrow is not None
        indexed = self._indexed()
        if by_chunks or len(indexed) > 1:
            for source in indexed:
                if await self._few(source):
                    return await self._walk(source, below, limit)
        if by_chunks:
            if not self._reach.sees_all and (own := await self._own()) is not None:
                return await self._walk(own, below, limit)
            if not asked and (whole := self._whole()) is not None:
                return await self._walk(whole, below, limit)
            if mark := await common_search.mark(self._pool):
                return await self._by_chunks(asked, narrow, mark, below, limit)
        return await self._walk(indexed[0] if indexed else Source(_ALL, {}), below, limit)

    def _indexed(self) -> list[Source]:
        """What has the messages of a term by an index: of a tag, read or unread."""
        found: list[Source] = []
        for term in self._terms:
            if term.field == "tag" and not term.negated:
                found.append(Source(_TAGGED, {"source_tag": storable(str(term.value))}))
        for term in self._terms:
            if term.field == "unread":
                found.append(Source(f"{_ALL} WHERE {'' if term.negated else 'NOT '}is_read", {}))
        return found

    async def _few(self, source: Source) -> bool:
        """Whether there is little to look at."""
        count: int = await self._pool.fetch_value(
            f"SELECT count(*) FROM (SELECT FROM ({source.sql}) source LIMIT %(most)s) first_ones",  # noqa: S608 - a constant of ours
            {"most": FEW + 1, **source.values},
        )
        return count <= FEW

    async def _walk(self, source: Source, below: UUID, limit: int) -> Stretch:
        """Matches among the ids of a source, step by step."""
        found: list[UUID] = []
        step = 2 * limit
        may_be_few = not self._reach.sees_all and source.sql not in (_OWN, _OF_ONE, _TAIL)
        while True:
            began = trio.current_time()
            row = await self._pool.fetch_row(
                f"""
                WITH first AS MATERIALIZED (
                    SELECT id
                    FROM ({source.sql}) source
                    WHERE id < %(below)s
                    ORDER BY id DESC
                    LIMIT %(step)s
                ), step AS MATERIALIZED (
                    {first_texts(self._wanted, "id DESC")}
                )
                SELECT (SELECT count(*) FROM first) < %(step)s
                       AND (SELECT count(*) FROM first) = (SELECT count(*) FROM step),
                       (SELECT id FROM step ORDER BY id LIMIT 1),
                       ARRAY(
                           SELECT step.id
                           FROM step
                           {_MATCHES}
                             AND {self._reach.sql}
                             AND {self._wanted.sql}
                           ORDER BY step.id DESC
                           LIMIT %(limit)s)
                """,  # noqa: S608 - constants of ours only
                {
                    "below": below, "step": step, "limit": limit - len(found),
                    **source.values, **self._reach.values(), **self._wanted.values,
                },
            )  # fmt: skip
            assert row is not None
            ended, lowest, ids = row
            found += ids
            if len(found) == limit:
                return Stretch(found, found[-1])
            if ended:
                return Stretch(found, None)
            below = lowest
            # The caller's may be few, or old, among many of others.
            if may_be_few:
                own = await self._own()
                if own is None and source.sql != _TAGGED:
                    own = self._whole()
                if own is not None:
                    source, step, may_be_few = own, FEW + 1, False
                    continue
            may_be_few = False
            now = trio.current_time()
            if now > self._ends_at:
                return Stretch(found, below)
            step = next_step(step, now - began)

    async def _own(self) -> Source | None:
        """All messages within reach, if they are few."""
        rows = await self._pool.fetch(
            f"""
            SELECT m.id
            FROM relay.mailboxes b
            CROSS JOIN LATERAL (
                SELECT id FROM relay.messages WHERE mailbox_id = b.id LIMIT %(most)s
            ) m
            WHERE {self._reach.sql}
              AND {LIVE}
            LIMIT %(most)s
            """,  # noqa: S608 - constants of ours only
            {"most": FEW + 1, **self._reach.values()},
        )
        return Source(_OWN, {"own": [row[0] for row in rows]}) if len(rows) <= FEW else None

    def _whole(self) -> Source | None:
        """All messages within reach, if that is one mailbox: each step sorts their ids."""
        if self._reach.mailbox_id is None:
            return None
        return Source(_OF_ONE, {"source_mailbox": self._reach.mailbox_id})

    async def _by_chunks(
        self, asked: list[int], narrow: Condition | None, mark: int, below: UUID, limit: int
    ) -> Stretch:
        """What a walk through all gives, of mail all of which up to `mark` is in chunks."""
        tail = await self._walk(Source(_TAIL, {"mark": mark}), below, limit)
        found = set(tail.ids)
        # A tail that was not read to its end says nothing of what is older.
        floor = tail.below

        # Nothing as high as the cursor is wanted, but lower ids may be in a chunk with higher ones.
        async def look(behind: common_search.Chunk | None, most: int) -> list[common_search.Chunk]:
            return await common_search.backwards(
                self._pool, asked, narrow, behind=behind, below=below, most=most
            )

        statement = f"""
            SELECT m.id
            FROM {common_search.in_chunks(self._terms)}
            WHERE m.id < %(below)s
              AND {LIVE}
              AND {self._reach.sql}
              AND {self._wanted.sql}
            ORDER BY m.id DESC
            LIMIT %(limit)s
            """  # noqa: S608 - constants of ours only
        values = {"below": below, "limit": limit, **self._reach.values(), **self._wanted.values}
        ahead = search.Ahead(look)
        batch = search.FIRST_CHUNKS
        while True:
            began = trio.current_time()
            chunks = await ahead.take(batch)
            best = sorted((one for one in found if floor is None or one >= floor), reverse=True)
            best = best[:limit]
            ended = not chunks or (floor is not None and chunks[0].newest_id < floor)
            # No chunk that is left has anything as new as the last of what is asked for.
            if ended or (len(best) == limit and best[-1] > chunks[0].newest_id):
                return Stretch(best, best[-1] if len(best) == limit else floor)
            chunks, rows = await ahead.read(
                chunks,
                lambda those: self._pool.fetch(statement, values | common_search.bounds(those)),
            )
            found |= {row[0] for row in rows}
            last = chunks[-1]
            now = trio.current_time()
            if now > self._ends_at and last.newest_id < below:
                floor = last.newest_id if floor is None else max(floor, last.newest_id)
            batch = search.next_batch(
                len(chunks), now - began, found=len(rows), missing=limit - len(found)
            )
