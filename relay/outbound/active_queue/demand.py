"""How much a sender lets the claimer claim: what it can deliver soon, and some more for high mail.

Beside what is under way it wants as much as it delivered lately within `AHEAD` seconds, so that a
claim is worth its cost and nobody waits for one.  Above that it lets the claimer have room that
only high mail may take (`kept`), so that a backlog of other mail never fills all there is, as much
again for lanes of which little is in hand, and half as much for such owners
(`relay.outbound.queue.lanes`), so that neither does what does not end.

Promises
- What was granted and not used stays granted; what is held and what is granted together exceed
  what is wanted only after it has shrunk.
- Where nothing is held, other mail than high has room once `grant` was asked: what is kept never
  outlasts the demand that it was a part of.

Pure.
"""

from __future__ import annotations

from typing import NamedTuple

from relay.outbound.queue.lanes import spare_of_owners

AHEAD = 0.15
"""Seconds of work that are claimed beyond what is being delivered."""
_MOST_AHEAD = 1000  # messages


class Granted(NamedTuple):
    """The number of messages that may be claimed.

    `kept` of all the room is for high priority, as much again for lanes of which little is in hand,
    and half as much for such owners.
    """

    room: int
    kept: int


class Demand:
    """The room of one sender, which delivers `concurrency` messages at once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._ahead = 0
        self._granted = 0  # room that the claimer has and has not used
        self._kept = 0  # of it, for high priority, as was said last

    def note(self, ended: int, seconds: float) -> None:
        """Note that so many deliveries have ended within the last `seconds`."""
        self._ahead = min(int(ended / seconds * AHEAD), _MOST_AHEAD)

    def claimed(self, count: int) -> None:
        """The claimer has used so much of its room."""
        self._granted = max(self._granted - count, 0)

    def grant(self, held: int, *, fresh: bool = False, still: bool = False) -> Granted | None:
        """What to tell the claimer while so many are held, if it is worth telling.

        What stands aside (`relay.outbound.active_queue.dispatch`) is not among them: it delays
        nobody.

        `fresh`: the claimer knows of no room, or is to forget it; `still`: nothing ended lately.
        """
        target = self._concurrency + self._ahead
        kept = max(target // 4, self._concurrency // 2, 1)
        if fresh:
            self._granted = 0
        aside = 2 * kept + spare_of_owners(kept)
        room = max(target + aside - held - self._granted, 0)
        if not fresh:
            # Where nothing ends, whoever the room does not do for would wait for more of it.
            worth = room > 0 and (room >= target // 4 or held == 0 or still)
            if not worth and kept >= self._kept:
                return None
            if not worth:
                room = 0  # but less of what it has is kept: else it would be kept for ever
        self._granted += room
        self._kept = kept
        return Granted(room, kept)
