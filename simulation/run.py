"""One simulation, from its seed to its verdict.

The hours asked for are lived with faults and work; then both end, nodes are started again, links
healed, and the relay has `judge.SETTLES_WITHIN` to come to rest.  Then every node is asked for all
it does, which is to be done at once, and the judge looks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from simulation import freezing, judge
from simulation.around import (
    Around,
    devices,
    dns,
    exchangers,
    hooks,
    people,
    probe,
    programs,
    readers,
    reports,
    senders,
    shop,
)
from simulation.database import Database, Server
from simulation.faults import KINDS, Fault, plan
from simulation.history import History
from simulation.injector import Injector
from simulation.kind import QUOTA, Kind
from simulation.node import Node
from simulation.page import subject
from simulation.places import DNS, HOOKS, SERVERS
from simulation.seams import Seams
from simulation.world import World

_SETTLED = 3  # looks in a row at which everything was at rest
_LOOK_EVERY = 10.0  # virtual seconds
_WARM = 5.0  # virtual seconds before the first fault: mailboxes are made


@dataclass
class Outcome:
    """What became of a run."""

    seed: int
    virtual_seconds: float = 0.0
    events: int = 0
    faults: list[Fault] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    """Of what the first violation is about: by what lines of the trace name it."""
    statements: int = 0


async def simulate(
    seams: Seams,
    servers: Sequence[Server],
    directory: Path,
    *,
    seconds: float,
    nodes: int,
    kinds: Sequence[str],
    faults: Sequence[Fault] | None,
) -> Outcome:
    """Live through one world.  `faults`: those, and not the seed's own."""
    world, network = seams.world, seams.network
    apart = abs(world.kind.clocks_apart) if len(servers) > 1 else 0.0
    history, frozen = History(apart), set[str]()
    freezing.install(frozen)
    database = seams.database = Database(world, network, servers, "relay")
    database.make()
    _log_into(world, str(directory))

    from relay.db.hosts import Hosts
    from relay.db.migrate import migrate
    from relay.db.pool import Pool

    hosts = [f"n{number}" for number in range(1, nodes + 1)]
    around = Around(world, network, history, hosts)
    rate = world.kind.letters_a_second
    outcome = Outcome(world.seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        await migrate(database.dsn)
        database.shadow_functions()
        if world.kind.quota:
            database.query(
                "UPDATE relay.plans SET max_messages = %s, max_bytes = %s WHERE name = 'free'",
                QUOTA,
            )
        around.sql = Pool(database.dsn, size=2, hosts=Hosts())
        dns.open_dns(around)
        for host in SERVERS:
            await nursery.start(exchangers.upstream, around, host)
        await nursery.start(hooks.hooks, around)
        living = {
            host: Node(world, network, database.dsn, host, directory / host) for host in hosts
        }
        for node in living.values():
            nursery.start_soon(node.serve)
        await trio.sleep(_WARM)
        _people(nursery, around, world)
        began = world.now()
        if faults is None:
            rng = world.rng("faults")
            others = [*_handed_to(world), HOOKS, *_PEOPLE]
            outcome.faults = plan(rng, kinds, hosts, others, began, began + seconds)
        else:
            outcome.faults = list(faults)
        injector = Injector(world, network, database, living, around, frozen)
        async with trio.open_nursery() as faulty:
            faulty.start_soon(injector.run, outcome.faults)
            await trio.sleep(seconds)
        around.stopped.set()
        world.tell("faults.over")
        left = await _settle(world, database, around)
        if not left:
            if rate is not None:  # until what is asked for is saved
                await trio.sleep((probe.PROBES * nodes + 1) / rate)
            await probe.probe(around, partial(judge.is_open, database))
            left = await _settle(world, database, around)
        outcome.virtual_seconds = round(world.now(), 3)
        if left:
            text = ", ".join(f"{count} {what}" for what, count in left.items())
            outcome.violations.append(
                f"after {judge.SETTLES_WITHIN:g} s without faults there are still: {text}"
            )
        database.tick()
        outcome.violations += judge.violations(database, history, world.now(), rate)
        outcome.violations += judge.half_open(network, hosts, world.now())
        for sentence in outcome.violations:
            world.tell("promise.broken", "judge", said=sentence)
        if outcome.violations:
            outcome.names = judge.names(database, history, subject(outcome.violations[0]))
        for node in living.values():
            node.kill()
        nursery.cancel_scope.cancel()
    outcome.events = world.events
    outcome.statements = database.statements
    database.close()
    return outcome


def _handed_to(world: World) -> tuple[str, ...]:
    """Return the hosts of whom the relay asks something when it hands mail over."""
    return (*SERVERS[1:], DNS) if world.kind.direct else SERVERS[:1]


_PEOPLE = (
    "maker", "reader", "client1", "client2", "client3", "program1", "program2", "submitter1",
    "person", "pusher", "device1", "device2", "device3",
)  # fmt: skip


def _people(nursery: trio.Nursery, around: Around, world: World) -> None:
    """Let those around the relay begin."""
    from relay.devices.noise import KeyPair

    rng = world.rng("devices")
    around.device_keys = [KeyPair.from_private(rng.randbytes(32)) for _ in range(4)]
    keys = around.device_keys[:3]
    nursery.start_soon(senders.mailbox_maker, around, "maker", 60.0)
    nursery.start_soon(readers.reader, around, "reader", 45.0)
    for number in range(1, 4):
        nursery.start_soon(senders.mail_client, around, f"client{number}", 32.0)
    for number in range(1, 3):
        nursery.start_soon(programs.program, around, f"program{number}", 20.0)
    nursery.start_soon(programs.submitter, around, "submitter1", 30.0)
    nursery.start_soon(people.person, around, "person", 30.0)
    nursery.start_soon(shop.shop, around, "shop", 60.0)
    nursery.start_soon(shop.moderator, around, "moderator", 120.0)
    nursery.start_soon(devices.pusher, around, "pusher", 30.0, keys)
    for number, key in enumerate(keys):
        nursery.start_soon(devices.device, around, number, key, 30.0)
    if world.kind.returns:
        around.took = partial(reports.take, around)
        nursery.start_soon(reports.administrator, around, "administrator", 300.0)
        nursery.start_soon(reports.reporter, around, "reporter", 20.0)


async def _settle(world: World, database: Database, around: Around) -> dict[str, int]:
    """Wait until everything is at rest; return what is not when the time is over."""
    from actors import ticker

    since, lease = world.now(), (ticker.run.__kwdefaults__ or {})["lease_ttl"]
    left: dict[str, int] = {}
    rested = 0
    with trio.move_on_after(judge.SETTLES_WITHIN):
        while rested < _SETTLED:
            await trio.sleep(_LOOK_EVERY)
            database.tick()
            left = judge.unsettled(database, since, lease)
            if around.coming_back:
                left["reports to be handed in"] = len(around.coming_back)
            rested = 0 if left else rested + 1
    return left


_DROPPED = {"timestamp", "event", "level", "pid", "backend", "exc_info", "stack", "where"}
"""Of a line of the log: what is told otherwise, or is of this process and not of the world."""


def _log_into(world: World, directory: str) -> None:
    from relay import log

    def told(value: Any) -> Any:
        return value.replace(directory, "") if isinstance(value, str) else value

    def write(line: dict[str, Any]) -> None:
        fields = {key: told(value) for key, value in line.items() if key not in _DROPPED}
        world.tell(line["event"], **fields)

    log.configure(os.environ.get("SIMULATION_LOG", "info"), write=write)


def run(
    seams: Seams,
    directory: Path,
    *,
    seconds: float,
    nodes: int,
    kinds: Sequence[str],
    faults: Sequence[Fault] | None = None,
) -> Outcome:
    """Run a simulation in this process, in which `seams` are installed."""
    room = "disk" in kinds
    server = Server(directory / "postgres", own_room=room, nodes=nodes)
    servers = [server]
    kind = seams.world.kind
    if two_hosts(kinds, kind):
        ahead = kind.clocks_apart
        servers.append(Server(directory / "postgres2", own_room=room, ahead=ahead, nodes=nodes))
    elif faults is None:
        kinds = [kind for kind in kinds if kind != "failover"]
    server.make()
    server.start()
    try:
        return trio.run(
            partial(
                simulate, seams, servers, directory,
                seconds=seconds, nodes=nodes, kinds=kinds, faults=faults,
            ),
            clock=seams.world.clock,
        )  # fmt: skip
    finally:
        for each in servers:
            each.stop()
            if each.room is not None:
                each.room.close()


def two_hosts(kinds: Sequence[str], kind: Kind) -> bool:
    """Whether the database's URL names a second server, to which a failover may lead.

    In all worlds in which that fault was asked for by its name.
    """
    return "failover" in kinds and (len(kinds) < len(KINDS) or not kind.one_host)


__all__ = ["Outcome", "run"]
