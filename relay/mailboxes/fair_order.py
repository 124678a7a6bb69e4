"""In which order messages are parsed, so that no mailbox's mail waits for another's.  Pure.

Promises
- The mailbox that has had the least of the parser's time lately comes first, and from each
  mailbox one message is taken in turn: mail for a quiet mailbox is in the very next group, whatever
  heap waits for another.
- What is small goes before what is large: a message counts for what it may cost, so that a code is
  not behind heavy mail for mailboxes that are all new.  Nothing starves of that: one group in
  `OLDEST_EVERY` begins with what has waited longest, whatever it is.
- A group is small, in number and in bytes; a message that is larger than a group is one by itself.

What a mailbox has had is forgotten by half every second: who was busy a minute ago begins like
everybody else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

GROUP = 64
"""Messages of a group at most."""
GROUP_BYTES = 128 * 1024
"""Bytes of a group, but for a message that is larger by itself."""

OLDEST_EVERY = 8
"""Of so many groups one begins with the oldest message."""

_HALF_LIFE = 1.0  # s
_A_BYTE = 1e-6  # s; what parsing a byte takes of mail that is made to be slow
_FORGOTTEN = 0.001  # s; nobody is remembered for less


class Waiting(NamedTuple):
    """A message that waits for its summary; `size` in bytes.

    The ids are those of UUIDs as 16 bytes, which sort alike and cost a tenth in sets and tables.
    """

    message_id: bytes
    mailbox_id: bytes
    size: int


class FairOrder:
    """Chooses what is parsed next by what each mailbox has had of the parser's time."""

    def __init__(self) -> None:
        self._had: dict[bytes, float] = {}
        self._halved_at = 0.0
        self._groups = 0

    def charge(self, mailbox_id: bytes, seconds: float) -> None:
        """Note what parsing a message of a mailbox took."""
        self._had[mailbox_id] = self._had.get(mailbox_id, 0.0) + seconds

    def had(self, mailbox_id: bytes) -> float:
        """Seconds that a mailbox has had lately."""
        return self._had.get(mailbox_id, 0.0)

    def choose(
        self,
        waiting: Sequence[Waiting],
        now: float,
        *,
        newest: bool = False,
        most: int = GROUP,
    ) -> list[Waiting]:
        """The next group of those that wait, which come in the order of their arrival.

        A mailbox's oldest message first, with `newest` its youngest.  `now` in seconds, of a clock
        that only goes forward.
        """
        self._forget(now)
        if not waiting:
            return []
        self._groups += 1
        ahead = [waiting[0]] if self._groups % OLDEST_EVERY == 0 else []
        queues: dict[bytes, deque[Waiting]] = {}
        rest = waiting[len(ahead) :]
        for one in reversed(rest) if newest else rest:
            queues.setdefault(one.mailbox_id, deque()).append(one)

        def claim(mailbox_id: bytes) -> float:
            return self.had(mailbox_id) + queues[mailbox_id][0].size * _A_BYTE

        # Sorting keeps the order of arrival (from either end) among those whose claims are equal.
        turns = deque(queues[mailbox_id] for mailbox_id in sorted(queues, key=claim))
        chosen: list[Waiting] = ahead
        room = GROUP_BYTES - sum(one.size for one in ahead)
        while turns and len(chosen) < most:
            queue = turns.popleft()
            if queue[0].size > room and chosen:
                break  # it comes with one of the next groups
            chosen.append(queue.popleft())
            room -= chosen[-1].size
            if queue:
                turns.append(queue)
        return chosen

    def _forget(self, now: float) -> None:
        halves = int((now - self._halved_at) / _HALF_LIFE)
        if halves > 0:
            self._halved_at = now
            factor = 0.5 ** min(halves, 60)
            self._had = {
                mailbox_id: had * factor
                for mailbox_id, had in self._had.items()
                if had * factor >= _FORGOTTEN
            }
