"""A rate of mails, as traffic rules, warm-ups and rows of `relay.outbound_rates` set one.  Pure."""

from __future__ import annotations

from typing import NamedTuple


class Rate(NamedTuple):
    """So many mails a second, of which so many may go at once after a silence."""

    rate: float
    burst: float
