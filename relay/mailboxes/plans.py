"""What plans allow: how long a mailbox lives, and how much it may hold.

The rows are in `relay.plans` (so that SQL and Python agree); this is the arithmetic, and the text
of the SQL that counts, for those who ask.  Nothing here asks the database itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from relay.errors import PermanentFailure

USED = """
    SELECT coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(bytes), 0)::bigint AS bytes
    FROM (
        SELECT messages, bytes FROM relay.mailbox_usage WHERE mailbox_id = b.id
        UNION ALL
        SELECT messages, bytes FROM relay.usage_changes WHERE mailbox_id = b.id
    ) folded_and_since"""
"""What the mailbox `b` holds, as a sub-select of one row; in one snapshot it is exact."""

LIMITED = "b.owner_id IS DISTINCT FROM '00000000-0000-0000-0000-000000000000'"
"""Whether the quotas of its plan hold for the mailbox `b`: not for the administrator's."""


class Invalid(PermanentFailure):
    """A value that a caller gave cannot be used; the message says which and why (422)."""


@dataclass(frozen=True)
class Usage:
    """What a mailbox holds, and what its plan allows; None: no limit."""

    messages: int = 0
    bytes: int = 0
    max_messages: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class Allowance:
    """What an owner, or a source of anonymous calls, may have; None: no limit."""

    plan: str
    mailboxes: int
    max_mailboxes: int | None
    max_messages: int | None
    max_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """The allowance as the HTTP API shows it."""
        return dict(vars(self))


def lifetime_minutes(asked: float | None, default: float, ceiling: float) -> float:
    """Return the minutes that a mailbox lives: what was asked or the default, at most the ceiling.

    `asked` None means the plan's default.  `Invalid` unless it is a number above 0; a value
    above the ceiling is clamped, not refused.
    """
    if asked is None:
        return min(default, ceiling)
    if isinstance(asked, bool) or not isinstance(asked, (int, float)):
        raise Invalid("ttl_minutes must be a number of minutes")
    if math.isnan(asked) or asked <= 0:
        raise Invalid("ttl_minutes must be above 0")
    return float(min(asked, ceiling))
