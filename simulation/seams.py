"""Puts the simulation's own into the product's seams, before anything of the product is loaded.

What the product binds at import (`relay.chance`, `relay.net`, `relay.db.waits`) is replaced in
these three modules first, so that whoever imports a name from there gets the simulation's.  What
belongs to others is replaced where they look it up: Trio's threads and its throws (the order of
tasks that may run), psycopg's clock, the connections of httpx.
"""

from __future__ import annotations

import random
import select
import ssl
import sys
import uuid
from collections.abc import Awaitable, Callable
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any

import psycopg
import trio
from psycopg import pq

from simulation.database import Database
from simulation.database.patience import PATIENCE
from simulation.day import HOUR
from simulation.network import Network
from simulation.world import Dead, World, inline

_WRITE = 2  # of psycopg.waiting.Wait

_MAY_BE_LOADED = {
    "relay",
    "relay.chance",
    "relay.net",
    "relay.db",
    "relay.db.waits",
    "relay.errors",
}


_SWEEPS = {
    "actors.claimer:run": {"sweep_every": 60},
    "actors.collector:run": {"sweep_every": 60},
    "actors.notifier:run": {"sweep_every": 60, "watch_every": 10},
    "actors.returns:run": {"sweep_every": 60},
    "actors.reaper:run": {"sweep_every": 10, "retry_every": 60},
    "actors.summariser:run": {"sweep_every": 120},
    "actors.ticker:run": {"lease_ttl": 40},
    "actors.webhooks:run": {"sweep_every": 60},
    "relay.devices.postgres:PostgresStore.__init__": {"statistics_every": 60},
}
"""What asks the database again and again although nobody called: by which argument, and how many
times as rarely it does so in most worlds.  Every two to ten minutes then."""
_PINGS = {
    "actors.postgres:run": {"look_every": 40},
    "relay.db.listen:notifications": {"ping_every": 40},
}
"""The same of what looks whether the database is there still."""
_RESTS = 12
"""So many times as rarely does a sender that has nothing to do look around, in these."""
_LOOKS_AT_SERVERS = 120
"""So many times as rarely does a relay look at the server in use, and at the other, with those."""
_LOOKS = 10
"""So many times as rarely does a sender look, in these, for keys and for learned traffic rules of
which nobody told it."""
_NOT_RECORDED = 540.0
"""Seconds for which nobody records, in these, what the last minute was like."""
_PARSING = (0.0005, 0.02)
"""Seconds that a group of messages takes to be parsed, at least and at most."""
OFTEN_FOR = HOUR / 2
"""Seconds; in a longer run sweeps are rare whatever the seed."""


class Seams:
    """What the product sees of the world; `database` is there once it was made."""

    def __init__(self, world: World, network: Network) -> None:
        self.world = world
        self.network = network
        self.database: Database | None = None

    def there(self) -> Database:
        """Return the database."""
        assert self.database is not None
        return self.database


def install(seams: Seams) -> None:
    """Replace everything.  Call once, in a process of its own."""
    loaded = {name for name in sys.modules if name.partition(".")[0] in {"relay", "actors"}}
    if too_early := loaded - _MAY_BE_LOADED:
        raise RuntimeError(f"loaded before the simulation: {', '.join(sorted(too_early))}")
    import relay.chance
    import relay.db.waits
    import relay.net

    _replace(relay.chance, _chance(seams.world))
    _replace(relay.net, _net(seams.network))
    _replace(relay.db.waits, _waits(seams))
    _others(seams)


def sweep_rarely(world: World, seconds: float) -> None:
    """In most worlds, and in all that last for over half an hour, have sweeps be rare.

    Sweeps find what a wake-up should have said: where they are rare, one that is lost shows.  And
    an idle relay costs a world as much as its work does.  An hour is too long for them to be often
    (five times the statements), so `simulation.many` has some seeds be shorter.
    """
    from relay.db import lookout

    short = seconds <= OFTEN_FOR
    if short and world.kind.often:
        return
    world.sweeps_rarely = True
    if not (short and world.kind.pings):
        _rarer(_PINGS)
        lookout.LOOK_CLOSELY_EVERY *= _LOOKS_AT_SERVERS
        lookout.LOOK_AROUND_EVERY *= _LOOKS_AT_SERVERS
    _rarer(_SWEEPS)
    from actors import sender
    from relay.history import History
    from relay.outbound.shaping import keeper
    from relay.outbound.signing import signer

    sender.LONG_REST *= _RESTS
    signer.LOOK_EVERY *= _LOOKS
    keeper.LOOK_EVERY *= _LOOKS
    record = History.record

    async def record_rarely(history: History) -> float:
        return await record(history) + _NOT_RECORDED

    History.record = record_rarely  # type: ignore[method-assign, assignment]


def _rarer(arguments: dict[str, dict[str, int]]) -> None:
    for place, rarer in arguments.items():
        module, _, path = place.partition(":")
        function = attrgetter(path)(import_module(module))
        for argument, times in rarer.items():
            function.__kwdefaults__[argument] *= times


def _replace(module: ModuleType, names: dict[str, Any]) -> None:
    if names.keys() != set(module.__all__):
        raise RuntimeError(f"{module.__name__} hands out {sorted(module.__all__)}")
    for name, stand_in in names.items():
        setattr(module, name, stand_in)


def _chance(world: World) -> dict[str, Any]:
    def urandom(size: int) -> bytes:
        return world.here.randbytes(size)

    def token_hex(size: int = 32) -> str:
        return urandom(size).hex()

    def token_urlsafe(size: int = 32) -> str:
        import base64

        return base64.urlsafe_b64encode(urandom(size)).rstrip(b"=").decode()

    return {
        "monotonic": world.now,
        "new_rng": lambda: random.Random(world.here.getrandbits(64)),  # noqa: S311 - a simulation
        "randbelow": lambda below: world.here.randrange(below),
        "randbits": lambda bits: world.here.getrandbits(bits),
        "time": world.wall,
        "time_ns": lambda: int(world.wall() * 1_000_000) * 1000,
        "token_bytes": lambda size=32: urandom(size),
        "token_hex": token_hex,
        "token_urlsafe": token_urlsafe,
        "urandom": urandom,
        "utc_now": world.utc_now,
        "uuid4": lambda: uuid.UUID(bytes=urandom(16), version=4),
    }


def _net(network: Network) -> dict[str, Any]:
    from relay.net import UNIX, NoSuchSource

    return {
        "UNIX": UNIX,
        "NoSuchSource": NoSuchSource,
        "accept": network.accept,
        "getaddrinfo": network.getaddrinfo,
        "gethostname": network.gethostname,
        "leaving_addresses": network.leaving_addresses,
        "listen": network.listen,
        "open_tcp_stream": network.open_tcp_stream,
        "open_tcp_stream_from": network.open_tcp_stream_from,
        "open_udp_socket": network.open_udp_socket,
        "own_address": network.own_address,
        "peer_address": network.peer_address,
    }


def _waits(seams: Seams) -> dict[str, Any]:
    from psycopg.waiting import Wait

    from relay.db.waits import ready_now

    def ready(fileno: int, wanted: int) -> int:
        # Writing first: whether something can be read in this very moment is the kernel's secret.
        wanted = wanted & _WRITE or wanted
        now = int(ready_now(fileno, Wait(wanted)))
        if wanted & _WRITE and not now and not seams.there().servers.is_frozen:
            # So is how fast a server reads a statement that is longer than the socket's buffer.
            socket = select.poll()
            socket.register(fileno, select.POLLOUT)
            socket.poll(PATIENCE * 1000)
            now = int(ready_now(fileno, Wait(wanted)))
        return now

    async def wait_readable(fileno: int) -> None:
        await seams.there().wait_readable(fileno)

    async def wait_writable(fileno: int) -> None:
        seams.world.check_alive()
        await trio.lowlevel.wait_writable(fileno)

    return {
        "more_now": lambda fileno, wanted: seams.there().more_now(fileno, wanted),
        "ready_now": ready,
        "wait_readable": wait_readable,
        "wait_writable": wait_writable,
    }


def _others(seams: Seams) -> None:
    import psycopg.connection_async
    import psycopg.generators
    from trio._core import _run

    _run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    _run._r = random.Random(f"{seams.world.seed}/scheduler")  # noqa: S311 - a simulation
    trio.to_thread.run_sync = inline  # type: ignore[assignment]
    trio.open_tcp_stream = seams.network.open_tcp_stream  # type: ignore[assignment]
    psycopg.connection_async.monotonic = seams.world.now  # type: ignore[attr-defined]

    # Nobody reads the page here; a library in Go has threads and descriptors of its own.
    blank = ModuleType("minify")
    blank.string = lambda media_type, text: text  # type: ignore[attr-defined]
    sys.modules["minify"] = blank

    # Who is there is known by DANE alone here, and reading whom all the world trusts costs each
    # start of a node.
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]

    # Figures are of a process; here it has several nodes, and nobody scrapes.
    from relay.metrics import registry

    registry.register = lambda collector: None  # type: ignore[method-assign]
    registry.unregister = lambda collector: None  # type: ignore[method-assign]

    # Computing takes no time here: nobody lacks the CPU, however busy this machine is.
    from relay.load import Load

    Load.lacking = lambda self, now: False  # type: ignore[method-assign]

    from relay.http.queue_gauges import QueueGauges

    async def nobody_scrapes(gauges: QueueGauges) -> None:
        await trio.sleep_forever()

    QueueGauges.run = nobody_scrapes  # type: ignore[method-assign, assignment]

    from relay.db.connection import Connection

    Connection.wait = _waiting(seams.there, Connection.wait)  # type: ignore[method-assign, assignment]
    Connection.cancel_safe = _cancelling(  # type: ignore[method-assign, assignment]
        seams.there, Connection.cancel_safe
    )
    Connection.abandon = _abandoning(seams.there, Connection.abandon)  # type: ignore[method-assign]

    from relay.outbound.signing import dkim_keys
    from relay.outbound.signing.processes import SigningProcesses
    from simulation.keys import private_key

    dkim_keys.generate = private_key  # type: ignore[attr-defined]
    SigningProcesses.want = lambda self: None  # type: ignore[method-assign]  # no children here

    from relay.mailboxes import parser, worker

    async def converse(self: Any, requests: Any) -> Any:
        # Somebody else may be killed, or be quicker, meanwhile.
        await trio.sleep(seams.world.rng("parser").uniform(*_PARSING))
        replies = []
        for head, payload in requests:
            kind, argument, _ = worker.REQUEST.unpack(head)
            status, answer = worker._answer(kind & ~worker.HOLD, argument, payload)
            replies.append((status, 0.001, answer))
        return replies, None

    parser.Parser._converse = converse  # type: ignore[method-assign]


Wait = Callable[..., Awaitable[Any]]


def _waiting(database: Callable[[], Database], original: Wait) -> Wait:
    """Return `Connection.wait` as it is, after the database has been told who is about to ask."""

    async def wait(conn: Any, *arguments: Any, **options: Any) -> Any:
        try:
            database().begin(conn)
        except Dead as error:
            raise psycopg.OperationalError(str(error)) from error
        return await original(conn, *arguments, **options)

    return wait


def _cancelling(database: Callable[[], Database], original: Wait) -> Wait:
    """Return `Connection.cancel_safe` as it is, after which the database is told."""

    async def cancel_safe(conn: Any, **options: Any) -> None:
        await original(conn, **options)
        database().cancelled(conn)

    return cancel_safe


def _abandoning(database: Callable[[], Database], original: Callable[[Any], None]) -> Any:
    """Return `Connection.abandon` as it is, after which the database is told."""

    def abandon(conn: Any) -> None:
        pid = conn.pgconn.backend_pid if conn.pgconn.status == pq.ConnStatus.OK else 0
        original(conn)
        if pid:
            database().abandoned(conn, pid)

    return abandon
