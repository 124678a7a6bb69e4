"""What plans allow: how many mailboxes one has, how long they live, and how much they hold.

The rows are in `relay.plans`, so that SQL and Python agree; this is the arithmetic.  Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from relay.errors import Invalid


@dataclass(frozen=True)
class Allowance:
    """What an owner, or a source of anonymous calls, may have; None: no limit."""

    plan: str
    mailboxes: int
    max_mailboxes: int | None
    max_messages: int | None
    max_bytes: int | None
    default_ttl_minutes: int | None
    """How long a mailbox lives where nobody says it; None: the plan is gone."""
    max_ttl_minutes: int | None

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
