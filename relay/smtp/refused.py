"""Which recipients SMTP has refused of late, for those who ask why no mail came.

Promises: nothing here waits, and memory is bounded, whatever strangers send: `MOST` addresses, each
with what it was answered last, for an hour.  It is forgotten with the process, and is another one
on each node.

Fails: never.

Whoever may hear of an address is another's to say (`relay.mailboxes.misaddressed`).

Pure: no I/O, no clock of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from relay.accepted import Why

LONGEST_ADDRESS, LONGEST_REPLY = 320, 200
"""Characters that are kept."""


class RefusedRecipient(NamedTuple):
    """An address that was refused: why, in what words, and how often since it is remembered.

    `ago`: the seconds since the last time; `login`: as whom the sender had signed in, if anybody
    may under any name.
    """

    address: str
    why: Why
    reply: str
    ago: float
    times: int
    login: str | None = None


Note = Callable[[str, Why, str, str | None], object]
"""Takes an address that is refused, why, the reply, and as whom its sender has signed in."""


class RefusedRecipients:
    """The recipients that were refused within the last hour, the newest of them."""

    MOST = 1000
    """How many are remembered, of each sender apart; above, the one that was refused longest ago is
    forgotten."""

    KEPT = 3600.0
    """Seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: seconds of a clock that only rises; `since` takes instants of it."""
        self._now = now
        # By address and login, the newest last.
        self._refused: dict[tuple[str, str | None], tuple[Why, str, float, int]] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def note(self, address: str, why: Why, reply: str, login: str | None = None) -> None:
        """Remember a recipient that is refused."""
        one = address[:LONGEST_ADDRESS], login
        reply, now = " ".join(reply.split())[:LONGEST_REPLY], self._now()
        *_, count = self._refused.pop(one, (0,))
        while self._refused:
            oldest = next(iter(self._refused))
            if len(self._refused) < self.MOST and now - self._refused[oldest][2] <= self.KEPT:
                break
            del self._refused[oldest]
        self._refused[one] = why, reply, now, count + 1

    def since(self, instant: float) -> list[RefusedRecipient]:
        """Return those that were refused at an instant or later, the newest first."""
        now = self._now()
        oldest = max(instant, now - self.KEPT)
        found: list[RefusedRecipient] = []
        for (address, login), (why, reply, at, count) in reversed(self._refused.items()):
            if at < oldest:
                break
            found.append(RefusedRecipient(address, why, reply, now - at, count, login))
        return found
