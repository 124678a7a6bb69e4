"""How long a mailbox lives: the rule of plans.  Pure.

The rows are in `relay.plans` (so that SQL and Python agree); this is the arithmetic.
"""

from __future__ import annotations

import math

from relay.errors import PermanentFailure


class Invalid(PermanentFailure):
    """A value that a caller gave cannot be used; the message says which and why (422)."""


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
