"""What processes have had of the machine, as Linux tells it in /proc."""

from __future__ import annotations

import os
from pathlib import Path

from relay import load

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of one process, of all its threads."""
    seconds = load.cpu_seconds(pid)
    if seconds is None:
        raise ProcessLookupError(f"there is no process {pid}")
    return seconds


def cpu_seconds_of_all(pid: int) -> float:
    """CPU seconds of a process and all its descendants, those that have ended included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        below = _children(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has just ended, and its parent's sum has it
    own = sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK
    return own + sum(map(cpu_seconds_of_all, below))


def resident_bytes(pid: int) -> int:
    """The resident memory of one process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def descendants(pid: int) -> list[int]:
    """The process ids of all descendants."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *descendants(child)]
    return found


def _children(pid: int) -> list[int]:
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
