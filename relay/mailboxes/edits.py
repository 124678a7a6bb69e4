"""What became of messages that somebody shows: deleted, marked, tagged, by whomever.

The database announces it by keys (`relay.db.channels.CHANGES`, and `MAILBOXES` where a mailbox ends
before it is due, and takes its mail along): MAILBOX:MESSAGE, or MAILBOX where many were changed at
once.  A key is a hint; what is told is how the messages are when it is looked.

Promises
- Nobody is told of a message that is not within their `Reach`; of one that is changed in a mailbox
  that is over, nobody is.
- An answer names `MOST` messages at most; where there are more, it says only that the caller should
  read again what it shows.

Fails with `DatabaseUnavailable` (temporary) from the pool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from relay.db.pool import Pool
from relay.ids import parse_uuid
from relay.mailboxes.visibility import LIVE, Reach

MOST = 200
"""Messages that are named at once."""


@dataclass(frozen=True)
class Edited:
    """A message as it is now."""

    id: UUID
    is_read: bool
    tags: list[str]

    def as_json(self) -> dict[str, Any]:
        """The members of a list's entry that may change."""
        return {"id": str(self.id), "is_read": self.is_read, "tags": self.tags}


@dataclass(frozen=True)
class Edits:
    """What became of messages; `reread`: of so many that they are not named."""

    changed: list[Edited] = field(default_factory=list)
    deleted: list[UUID] = field(default_factory=list)
    reread: bool = False

    def as_json(self) -> dict[str, Any]:
        """The edits as event streams tell them."""
        return {
            "changed": [one.as_json() for one in self.changed],
            "deleted": [str(one) for one in self.deleted],
            "reread": self.reread,
        }


async def edits(pool: Pool, reach: Reach, keys: Collection[str] | None) -> Edits | None:
    """What became of the messages that `keys` name, those within reach; None if there are none.

    `keys` None: of any message there is, since it is not known of which.
    """
    if keys is None:
        return Edits(reread=True)
    named = [key.partition(":") for key in keys]
    whole = [parse_uuid(mailbox) for mailbox, _, message in named if not message]
    gone = await _gone(pool, reach, whole) if whole else []
    if gone is None:
        return Edits(reread=True)
    pairs = [(parse_uuid(mailbox), parse_uuid(message)) for mailbox, _, message in named if message]
    rows = await _named(pool, reach, pairs) if pairs else []
    gone += [asked for asked, id, *_ in rows if id is None]
    if not rows and not gone:
        return None
    if len(rows) > MOST or len(gone) > MOST:
        return Edits(reread=True)
    return Edits(
        [Edited(id, is_read, tags or []) for _, id, is_read, tags in rows if id is not None], gone
    )


async def _named(
    pool: Pool, reach: Reach, pairs: Sequence[tuple[UUID | None, UUID | None]]
) -> list[tuple[Any, ...]]:
    """What there is by now of the messages of pairs, in mailboxes that live."""
    return await pool.fetch(
        f"""
        SELECT given.message, m.id, m.is_read, s.tags
        FROM unnest(%(mailboxes)s::uuid[], %(messages)s::uuid[]) given (mailbox, message)
        JOIN relay.mailboxes b ON b.id = given.mailbox
        LEFT JOIN relay.messages m ON m.id = given.message AND m.mailbox_id = b.id
        LEFT JOIN relay.summaries s ON s.message_id = m.id
        WHERE {LIVE}
          AND {reach.sql}
        LIMIT %(limit)s
        """,  # noqa: S608 - constants of ours only
        {
            "mailboxes": [mailbox for mailbox, _ in pairs],
            "messages": [message for _, message in pairs],
            "limit": MOST + 1,
            **reach.values(),
        },
    )


async def _gone(pool: Pool, reach: Reach, mailboxes: Sequence[UUID | None]) -> list[UUID] | None:
    """The messages that went with mailboxes; None where they cannot be named.

    So it is of one that lives, of which many messages were changed, and of one that was purged, of
    which some or all rows are deleted by now.
    """
    rows = await pool.fetch(
        f"""
        SELECT b.id IS NULL OR b.closed_at = '-infinity' OR ({LIVE}), m.id
        FROM unnest(%(mailboxes)s::uuid[]) given (id)
        LEFT JOIN relay.mailboxes b ON b.id = given.id
        LEFT JOIN relay.messages m ON m.mailbox_id = b.id AND NOT ({LIVE})
        WHERE (b.id IS NULL OR {reach.sql})
        LIMIT %(limit)s
        """,  # noqa: S608 - constants of ours only
        {"mailboxes": list(mailboxes), "limit": MOST + 1, **reach.values()},
    )
    if len(rows) > MOST or any(unnamed for unnamed, _ in rows):
        return None
    return [id for _, id in rows if id is not None]
