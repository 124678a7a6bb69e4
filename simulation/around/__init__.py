"""Those around the relay: who sends mail in, who sends through it, signs up, leaves blobs, reads.

Each is a task on a host of its own, which goes on as its own chance says until it is told to stop,
and writes into the history what it was told and what it saw.  All speak to the nodes over the
simulated network, in the protocols that the nodes speak.

- `senders` send mail in and make mailboxes; `programs` send through the relay, make accounts,
  submit; `shop` makes and changes accounts by SQL; `people` open the links of letters.
- `exchangers` are the servers that it hands mail to, `dns` what it asks for them, `reports` what
  they report afterwards; `hooks` receives webhooks.
- `devices` leave blobs and fetch them.
- `probe` asks every node for everything, when all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from simulation.day import after
from simulation.history import Copy, History, Letter, Report
from simulation.network import Network
from simulation.places import LEASE, SERVERS
from simulation.world import NODE, World

if TYPE_CHECKING:
    from relay.db.pool import Pool

_IN_HAND = 1.0  # seconds for which a node speaks of a message


class Around:
    """What all of them have in common."""

    def __init__(
        self, world: World, network: Network, history: History, hosts: Sequence[str]
    ) -> None:
        self.world = world
        self.network = network
        self.history = history
        self.hosts = hosts
        self.stopped = trio.Event()
        self.letters: list[Letter] = []
        """Those that came and that nobody has opened yet."""
        self.coming_back: list[tuple[str, Report]] = []
        """What servers have still to report, and of which return path."""
        self.took: Callable[[Copy, str, Sequence[bytes]], None] | None = None
        """Called with what a server took, with its return path and its lines."""
        self.sql: Pool | None = None
        """By which those who write SQL do."""
        self.device_keys: list[Any] = []
        """Of the devices; the last is the probe's."""
        self.peers_fail = 0
        """Faults for which those to whom the relay speaks misbehave now."""
        self._numbers = 0
        self._bringers: dict[str, tuple[str, float]] = {}  # recipient: who spoke of it last, when
        self._overtaken: dict[str, tuple[float, trio.Event]] = {}
        self._busy: dict[tuple[str, str], trio.Event] = {}

    def choose(self, rng: Any) -> str:
        """Return the host to speak to now."""
        host: str = rng.choice(self.hosts)
        self.busy(host)
        return host

    def busy(self, host: str) -> None:
        """Say that whoever's turn it is speaks to a host, or has just got something from it."""
        who = "upstream" if NODE.get() in SERVERS else NODE.get().rstrip("0123456789")
        for key in ((host, who), (host, ""), ("", who), ("", "")):
            if key in self._busy:
                self._busy.pop(key).set()

    async def wait_busy(self, host: str, who: str) -> None:
        """Wait until somebody (`who`: of that kind) is busy with a host; "": with any."""
        await self._busy.setdefault((host, who), trio.Event()).wait()

    def speaks_of(self, recipient: str, host: str) -> None:
        """Say that a host is about to hand over mail for somebody."""
        before, at = self._bringers.get(recipient, (host, 0.0))
        self._bringers[recipient] = host, self.world.now()
        since, overtaken = self._overtaken.get(before, (inf, None))
        # Sooner, and it had been deferred.
        lost = self.world.now() > since + LEASE and at >= since
        if before != host and lost and overtaken is not None:
            overtaken.set()

    async def wait_overtaken(self, host: str) -> None:
        """Wait until another hands over what this host was about to, a moment ago."""
        overtaken = trio.Event()
        self._overtaken[host] = self.world.now() - _IN_HAND, overtaken
        await overtaken.wait()

    def marker(self, kind: str) -> str:
        """Return a word that stands in one message only."""
        self._numbers += 1
        return f"M-{kind}-{self._numbers}"

    async def pause(self, rng: Any, mean: float) -> bool:
        """Wait a while (`mean`: busy seconds); whether to go on."""
        with trio.move_on_at(after(self.world.now(), rng.expovariate(1 / mean))):
            await self.stopped.wait()
        return not self.stopped.is_set()
