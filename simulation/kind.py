"""What kind of world a seed makes: whatever is the same all through a run, and not so in all.

Each trait has a source of chance of its own, so that one does not come with another, and a new one
leaves those of all seeds as they are.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LETTERS_A_MONTH = 133_921
"""What the budget pays for where there is one: a little more than are asked for in a rush."""
QUOTA = 5, 500_000
"""The messages, and the bytes, that a mailbox may hold which nobody's key made, where there is a
quota."""
_CLOCKS_APART = 3.0  # seconds, at most


@dataclass(frozen=True)
class Kind:
    """Traits of a world."""

    budget: bool
    """Letters have a budget."""
    direct: bool
    """Mail goes to the exchangers of its domain, not to a server in front."""
    returns: bool
    """Mail is signed, and what comes back of it counts."""
    one_host: bool
    """The database's URL names one host, and there is no failover (if all faults are asked for)."""
    often: bool
    """Sweeps, pings and looks are as often as in life, if the run is not too long for that."""
    pings: bool
    """Pings of the database are as often as in life, under the same condition."""
    quota: bool
    """Mailboxes that nobody's key made may hold little."""
    clocks_apart: float
    """Seconds by which the second server's clock is ahead of the first's."""

    @property
    def letters_a_second(self) -> float | None:
        """The rate of the budget; None: there is none."""
        return (LETTERS_A_MONTH - 1) / (31 * 86_400) if self.budget else None


_ONE_IN = {
    "budget": 2,
    "direct": 3,
    "returns": 4,
    "one_host": 4,
    "often": 6,
    "pings": 3,
    "quota": 4,
}


def kind_of(seed: int) -> Kind:
    """Return what kind of world a seed makes."""

    def source(trait: str) -> random.Random:
        return random.Random(f"{seed}/kind/{trait}")  # noqa: S311 - a simulation

    drawn = {trait: source(trait).randrange(of) == 0 for trait, of in _ONE_IN.items()}
    apart = source("clocks_apart")
    return Kind(**drawn, clocks_apart=apart.choice((0.0, round(apart.uniform(-3, 3), 3))))
