"""Which tags there are on the mail that a caller may see.

Promises
- A tag is there while a live message within reach has it, and is written as the newest such message
  has it.
- A look is bounded, however much mail there is.  Of everybody's mail it finds the first `MOST` tags
  by the alphabet, each of which one of its newest `LOOKS` messages shows; of a caller's own, those
  of `OWN` messages, the newest of each mailbox.

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from relay.db.pool import Pool
from relay.mailboxes.visibility import LIVE, Reach

MOST = 200
"""Tags that a look gives."""
LOOKS = 50
"""Messages of a tag that are looked at: of mailboxes that are over for a while yet, none counts."""
OWN = 5000
"""Messages of a caller that are looked at."""
_NAMES = 5 * MOST  # that are looked at: of some, no message may be seen any more

# A step through relay.tagged goes from each tag to the next one, by its primary key.
_EVERYBODYS = f"""
    WITH RECURSIVE names (tag, place) AS (
        (SELECT tag, 1 FROM relay.tagged ORDER BY tag LIMIT 1)
        UNION ALL
        SELECT following.tag, names.place + 1
        FROM names
        CROSS JOIN LATERAL (
            SELECT tag FROM relay.tagged WHERE tag > names.tag ORDER BY tag LIMIT 1
        ) following
        WHERE names.place < {_NAMES}
    )
    SELECT said.tag
    FROM names
    CROSS JOIN LATERAL (
        SELECT one AS tag
        FROM (
            SELECT message_id
            FROM relay.tagged
            WHERE tag = names.tag
            ORDER BY message_id DESC
            LIMIT {LOOKS}
        ) newest
        JOIN relay.summaries s ON s.message_id = newest.message_id
        JOIN relay.mailboxes b ON b.id = s.mailbox_id
        CROSS JOIN LATERAL unnest(s.tags) one
        WHERE {LIVE}
          AND lower(one) = names.tag
        ORDER BY newest.message_id DESC
        LIMIT 1
    ) said
    ORDER BY names.tag
    LIMIT {MOST}"""  # noqa: S608 - constants of ours only
_OWN = f"""
    SELECT DISTINCT ON (lower(one)) one
    FROM (
        SELECT m.id
        FROM (SELECT id FROM relay.mailboxes b WHERE {LIVE} AND {{reach}}) b
        CROSS JOIN LATERAL (
            SELECT id
            FROM relay.messages
            WHERE mailbox_id = b.id
            ORDER BY received_at DESC, id DESC
            LIMIT {OWN // 5}
        ) m
        LIMIT {OWN}
    ) m
    JOIN relay.summaries s ON s.message_id = m.id
    CROSS JOIN LATERAL unnest(s.tags) one
    ORDER BY lower(one), m.id DESC
    LIMIT {MOST}"""  # noqa: S608 - likewise


async def tags_of(pool: Pool, reach: Reach) -> list[str]:
    """Return the tags within reach, by the alphabet, each once whatever its case."""
    statement = _EVERYBODYS if reach.sees_all else _OWN.format(reach=reach.sql)
    rows = await pool.fetch(statement, {} if reach.sees_all else reach.values())
    return [tag for (tag,) in rows]
