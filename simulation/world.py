"""One simulated world: its seed, its time, whose turn it is, and what is written down of it.

Every throw comes from a source that is named for who throws (`World.rng`): what one part of the
world throws does not shift what another does.  Whose turn it is says a context variable, which
Trio's tasks inherit; what runs for nobody in particular is the world's.

Times are virtual seconds since the beginning.  The wall clock began at `EPOCH`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

import trio
from trio.testing import MockClock

from simulation.kind import kind_of

EPOCH = 1_767_225_600
"""The wall clock's beginning in seconds since 1970: 2026-01-01T00:00:00Z."""

NODE: ContextVar[str] = ContextVar("node", default="world")
"""Whose turn it is."""


class Dead(OSError):
    """Said to what still runs of a node that was killed: there is nothing outside any more."""


class World:
    """What all parts of a simulation share."""

    def __init__(self, seed: int, trace: Path | None = None) -> None:
        self.seed = seed
        self.kind = kind_of(seed)
        self.clock = MockClock(autojump_threshold=0)
        self.skew: dict[str, float] = {}
        """Seconds by which a node's wall clock is off."""
        self.dead: set[str] = set()
        """Nodes, by incarnation, that were killed."""
        self.sweeps_rarely = False
        """Whether what looks although nobody called does so rarely (`seams.sweep_rarely`)."""
        self.whispers = "SIMULATION_WHISPERS" in os.environ
        self.events = 0
        """How many lines the trace has."""
        self._rngs: dict[str, random.Random] = {}
        self._trace: TextIO | None = None if trace is None else trace.open("w")

    def rng(self, name: str) -> random.Random:
        """Return the source of chance of one part of the world."""
        if name not in self._rngs:
            self._rngs[name] = random.Random(f"{self.seed}/{name}")  # noqa: S311 - a simulation
        return self._rngs[name]

    @property
    def secret(self) -> bytes:
        """The key of all relays of this world: what they sign letters by, and are known by."""
        return hashlib.sha256(f"{self.seed}".encode()).digest()

    @property
    def here(self) -> random.Random:
        """The source of chance of whoever's turn it is."""
        return self.rng(NODE.get())

    def now(self) -> float:
        """Virtual seconds since the beginning."""
        return self.clock.current_time()

    def wall(self) -> float:
        """Seconds since 1970, by the clock of whoever's turn it is."""
        return EPOCH + self.now() + self.skew.get(host_of(NODE.get()), 0.0)

    def utc_now(self) -> datetime:
        """The same as an instant."""
        return datetime.fromtimestamp(self.wall(), UTC)

    def check_alive(self) -> None:
        """Raise `Dead` to who was killed."""
        if NODE.get() in self.dead:
            raise Dead("this node was killed")

    def tell(self, event: str, node: str | None = None, /, **fields: Any) -> None:
        """Write a line of the trace; what is dead says nothing."""
        if NODE.get() in self.dead:
            return
        self.events += 1
        if self._trace is not None:
            line = {"t": round(self.now(), 6), "node": node or NODE.get(), "event": event} | fields
            self._trace.write(json.dumps(line, default=str, separators=(",", ":")) + "\n")

    def whisper(self, event: str, /, **fields: Any) -> None:
        """Write a line that only who looks for a difference between two runs wants to read."""
        if self.whispers:
            self.tell(event, **fields)

    def close(self) -> None:
        """Close the trace."""
        if self._trace is not None:
            self._trace.close()


def host_of(node: str) -> str:
    """Return the host of an incarnation: `n2` of `n2.3`."""
    return node.partition(".")[0]


async def inline(function: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
    """Stand for `trio.to_thread.run_sync`: what a thread would do is done at once."""
    await trio.lowlevel.checkpoint_if_cancelled()
    result = function(*arguments)
    await trio.lowlevel.cancel_shielded_checkpoint()
    return result
