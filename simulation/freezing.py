"""Freezing a node: its tasks stay where they are, as those of a process that was sent SIGSTOP.

Trio takes all tasks that may run out of one queue.  This one keeps those of frozen nodes back: what
becomes ready for them meanwhile (bytes, deadlines) waits until they are thawed.  The two tasks that
Trio runs have for the SMTP client (`relay.system_tasks`) belong to all nodes and are not frozen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from trio._core import _run

from simulation.world import NODE


class Queue(deque[Any]):
    """Trio's queue of tasks that may run, without those of frozen nodes."""

    def __init__(self, frozen: set[str]) -> None:
        super().__init__()
        self._frozen = frozen

    def _may(self, task: Any) -> bool:
        return task.context.get(NODE) not in self._frozen

    def __iter__(self) -> Iterator[Any]:
        return filter(self._may, super().__iter__()) if self._frozen else super().__iter__()

    def __bool__(self) -> bool:
        return any(True for _ in self) if self._frozen else super().__len__() > 0

    def __len__(self) -> int:
        return sum(1 for _ in self) if self._frozen else super().__len__()

    def clear(self) -> None:
        """Forget those that were taken."""
        kept = [task for task in super().__iter__() if not self._may(task)] if self._frozen else []
        super().clear()
        self.extend(kept)


def install(frozen: set[str]) -> None:
    """Have this run keep back the tasks of nodes in `frozen`, which may change."""
    runner = _run.GLOBAL_RUN_CONTEXT.runner
    queue = Queue(frozen)
    queue.extend(runner.runq)
    runner.runq = queue
