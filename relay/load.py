"""Whether this thread lacks the CPU, so that work which can wait gives way to it.

Everything that somebody waits for (a session's next line, 250, an event) runs on one thread.  Work
beside it, in processes of its own, is welcome as long as that thread has what it needs: an idle
core helps nobody.

The rule: a thread lacks the CPU when it did nothing lately but run and wait for a core
(`SATURATED`).  Then whatever else runs makes it slower.  A thread that also sleeps keeps up.  Linux
tells both to the nanosecond in `/proc/thread-self/schedstat`
(Documentation/scheduler/sched-stats.rst): on a core, and runnable without one.

Where SMTP sessions run in processes of their own (`RELAY_SMTP__PROCESSES`) each measures itself and
says so to the relay (`relay.smtp.channel`); `others` asks whether one of them lacks the CPU.

Where that file is missing nobody knows how long a thread waited.  There a process that used
`UNKNOWN_SATURATED` of a core is taken to lack it: it might, where others use the machine too.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SATURATED = 0.97
"""Share of the time that a thread runs or waits for a core, from which on it lacks the CPU."""
UNKNOWN_SATURATED = 0.4
"""Share of a core from which on it is taken to lack the CPU, where its waiting is not known."""

# s, at least, over which that is measured: a thread that runs is charged by the kernel's tick, so
# that a look may be some milliseconds off.
_OVER = 0.25

WAITING = 0.3
"""Share of the connections whose message waits, from which on they send as fast as they are let.

One that sends without a pause waits for its 250 about half of the time."""
_A_LOOK = 0.2  # of the figure is the last look; one of them is chance
_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class Scheduled(NamedTuple):
    """What a thread had of the CPU since it began, in seconds."""

    ran: float
    waited: float | None
    """Runnable, but without a core; None where that is not known."""


def scheduled(schedstat: Path = _SCHEDSTAT) -> Scheduled:
    """What the thread that calls this had; where nothing tells that, its process."""
    try:
        ran, waited, _ = schedstat.read_bytes().split()
        return Scheduled(int(ran) / 1e9, int(waited) / 1e9)
    except (OSError, ValueError):
        return Scheduled(time.process_time(), None)


def cpu_seconds(pid: int | None, proc: Path = Path("/proc")) -> float | None:
    """What all threads of a process had of the CPU; None: no such process, or nothing tells it."""
    if pid is None:
        return None
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def lacks(before: Scheduled, after: Scheduled, seconds: float) -> bool:
    """Whether a thread lacked the CPU between two looks that are so many seconds apart."""
    ran = after.ran - before.ran
    if before.waited is None or after.waited is None:
        return ran >= UNKNOWN_SATURATED * seconds
    return ran + after.waited - before.waited >= SATURATED * seconds


class Senders:
    """Whether those who send wait for us: then they send as fast as they are let.

    Whoever lets connections in says how to count them (`count_by`); before that nobody waits.
    """

    def __init__(self, waiting: Callable[[], int]) -> None:
        """`waiting`: how many messages that were sent wait to be answered."""
        self._waiting = waiting
        self._connections: Callable[[], int] = lambda: 0
        self._share = 0.0

    def count_by(self, connections: Callable[[], int]) -> None:
        """Have `connections` say how many there are."""
        self._connections = connections

    def wait(self) -> bool:
        """Whether a good part of them did lately; asked again and again, a look each time."""
        connections = self._connections()
        share = min(1.0, self._waiting() / connections) if connections > 1 else 0.0
        self._share += (share - self._share) * _A_LOOK
        return self._share >= WAITING


class Load:
    """Says whether the thread that asks lacked the CPU lately."""

    def __init__(
        self,
        look: Callable[[], Scheduled] = scheduled,
        others: Callable[[], bool] = lambda: False,
    ) -> None:
        """`look`: what the thread had so far; `others`: whether one like it elsewhere lacks it."""
        self._look = look
        self._others = others
        self._since = -math.inf
        self._had = Scheduled(0.0, None)
        self._lacking = False

    def lacking(self, now: float) -> bool:
        """Asked again and again; each answer is about at least the last quarter of a second.

        `now` in seconds, of a clock that only goes forward.
        """
        if now < self._since + _OVER:
            return self._lacking or self._others()
        had, seconds = self._look(), now - self._since
        self._lacking = seconds < math.inf and lacks(self._had, had, seconds)
        self._since, self._had = now, had
        return self._lacking or self._others()
