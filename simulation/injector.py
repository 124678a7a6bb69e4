"""Does what a plan of faults says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import trio

from simulation.around import Around
from simulation.database import Database
from simulation.faults import FROZEN, HALF_OPEN, LOG, OVERTAKEN, SYNC, WITHIN, Fault
from simulation.history import History, Trouble
from simulation.network import Network
from simulation.node import Node
from simulation.places import DATABASE
from simulation.world import World

_IDLE = 60.0  # seconds after which nobody is waited for to speak to a node
_SERVERS = {"database", "failover", "disk"}
"""Faults that are about PostgreSQL itself: one at a time."""


class Injector:
    """Does what a plan says."""

    def __init__(
        self,
        world: World,
        network: Network,
        database: Database,
        nodes: dict[str, Node],
        around: Around,
        frozen: set[str],
    ) -> None:
        self._world = world
        self._network = network
        self._database = database
        self._servers = database.servers
        self._suffering = ""  # the fault of the servers' own that is at work: one at a time
        self._nodes = nodes
        self._around = around
        self._frozen = frozen
        self._freezes: Counter[str] = Counter()
        self._history: History = around.history

    async def run(self, faults: Sequence[Fault]) -> None:
        """Do all of them; returns when the last is over."""
        async with trio.open_nursery() as nursery:
            for fault in faults:
                await trio.sleep(max(0.0, fault.at - self._world.now()))
                nursery.start_soon(self._do, fault)

    async def _do(self, fault: Fault) -> None:
        if fault.after_bytes:
            with trio.move_on_after(_IDLE) as idle:
                silent = fault.how == HALF_OPEN
                await self._network.cut_after(fault.node, fault.after_bytes, silent=silent)
            if not idle.cancelled_caught:
                await self._strike(fault)
        elif fault.kind not in _SERVERS:
            await self._strike(fault)
        elif not self._suffering:
            self._suffering = fault.kind
            if fault.kind == "failover":
                self._servers.attach()
            if fault.how not in {LOG, SYNC} or await self._log_failed(fault):
                await self._strike(fault)
            self._suffering = ""

    async def _strike(self, fault: Fault) -> None:
        if fault.answers:
            with trio.move_on_after(_IDLE):
                in_hand = "upstream" if fault.how == OVERTAKEN else ""
                await self._around.wait_busy("", in_hand)
                for _ in range(fault.answers):
                    node = await self._database.wait_answer(fault.whose)
                    fault = replace(fault, node=node if fault.node else "")
            await trio.sleep(fault.amid)
        elif fault.amid:
            with trio.move_on_after(_IDLE):
                await self._around.wait_busy(fault.node, fault.whose)
            await trio.sleep(fault.amid)
        began = self._world.now()
        trouble = Trouble(
            fault.kind, began, began + fault.lasts, fault.node, fault.party, fault.how
        )
        self._history.troubles.append(trouble)
        told = {"kind": fault.kind, "of": fault.node, "party": fault.party, "how": fault.how}
        self._world.tell("fault.began", **told)
        await getattr(self, f"_do_{fault.kind}")(fault)
        trouble.ended = self._world.now()
        self._world.tell("fault.ended", **told)

    async def _do_kill(self, fault: Fault) -> None:
        node = self._nodes[fault.node]
        name = node.name
        if name in self._world.dead:
            return
        self._frozen.discard(name)
        node.kill()
        self._servers.sever(name)
        await trio.sleep(fault.lasts)
        node.start()

    async def _do_freeze(self, fault: Fault) -> None:
        name = self._nodes[fault.node].name
        self._frozen.add(name)
        self._freezes[name] += 1
        if fault.how == OVERTAKEN:
            with trio.move_on_after(fault.lasts):
                await self._around.wait_overtaken(fault.node)
            await trio.sleep(fault.lasts_on)
        else:
            await trio.sleep(fault.lasts)
        self._freezes[name] -= 1
        if not self._freezes[name]:
            self._frozen.discard(name)

    async def _do_partition(self, fault: Fault) -> None:
        self._network.part(fault.node, fault.party)
        await trio.sleep(fault.lasts)
        self._network.heal(fault.node, fault.party)

    async def _do_cut(self, fault: Fault) -> None:
        if not fault.after_bytes:  # else it is done
            self._network.cut([fault.node], fault.share, silent=fault.how == HALF_OPEN)
        await trio.sleep(fault.lasts)

    async def _do_database(self, fault: Fault) -> None:
        if fault.how == FROZEN:
            self._servers.freeze()
            await trio.sleep(fault.lasts)
            self._servers.thaw()
            return
        self._servers.crash()
        await trio.sleep(fault.lasts)
        self._servers.recover()

    async def _do_failover(self, fault: Fault) -> None:
        if fault.away or fault.how:
            self._servers.hold()
            await trio.sleep(fault.away)
        if fault.how:
            self._servers.promote()
            await trio.sleep(fault.lasts)
            self._servers.retire()
        else:
            self._servers.crash()
            await trio.sleep(fault.lasts)
            self._servers.promote()

    async def _log_failed(self, fault: Fault) -> bool:
        aimed = self._database.aimed
        with trio.move_on_after(_IDLE):
            await (aimed.fail_sync if fault.how == SYNC else aimed.fail_log)(fault.whose)
            return True
        return False

    async def _do_disk(self, fault: Fault) -> None:
        if fault.how in {LOG, SYNC}:
            await trio.sleep(fault.lasts)
            self._servers.recover()
        else:
            self._servers.fill()
            await trio.sleep(fault.lasts)
            self._servers.empty()

    async def _do_stall(self, fault: Fault) -> None:
        for node in self._nodes:
            self._network.part(node, DATABASE)
        await trio.sleep(fault.lasts)
        for node in self._nodes:
            self._network.heal(node, DATABASE)

    async def _do_doubt(self, fault: Fault) -> None:
        with trio.move_on_after(_IDLE):
            await self._database.aimed.lose_answer(fault.whose, within=fault.how == WITHIN)

    async def _do_clock(self, fault: Fault) -> None:
        self._world.skew[fault.node] = fault.step
        await trio.sleep(fault.lasts)
        self._world.skew[fault.node] = 0.0

    async def _do_peer(self, fault: Fault) -> None:
        self._around.peers_fail += 1
        await trio.sleep(fault.lasts)
        self._around.peers_fail -= 1
