"""Clocks, chance, the network and the database's waits have one door each.

`relay simulate` puts others in the place of what `relay.chance`, `relay.net` and `relay.db.waits`
hand out.  Whoever goes around these modules escapes it: a run would not be the same twice.  So this
walks over every file of the product and finds what is taken from the system directly.  The few that
may are in `EXCUSED`, each with its reason.  The commands (`relay/cli`) are other processes, and no
part of a simulation.
"""

import ast
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
import trio

import relay
from relay import ids
from relay.db import connection
from relay.smtp import connection as smtp

ROOT = Path(relay.__file__).parent.parent

CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.clock_gettime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
}
CHANCE = {
    "os.urandom",
    "os.getrandom",
    "random.SystemRandom",
    "uuid.uuid1",
    "uuid.uuid4",
    *(f"random.{name}" for name in ("random", "uniform", "choice", "shuffle", "randrange")),
    *(f"random.{name}" for name in ("randint", "randbytes", "getrandbits", "sample", "gauss")),
    *(f"secrets.{name}" for name in ("token_bytes", "token_hex", "token_urlsafe")),
    *(f"secrets.{name}" for name in ("choice", "randbelow", "randbits", "SystemRandom")),
}
NETWORK = {
    "socket.create_connection",
    "socket.create_server",
    "socket.getaddrinfo",
    "socket.gethostname",
    "trio.open_tcp_stream",
    "trio.open_tcp_listeners",
    "trio.open_ssl_over_tcp_stream",
    "trio.serve_tcp",
    "trio.socket.socket",
    "trio.socket.getaddrinfo",
    "httpx.AsyncClient",
}
METHODS = {"accept", "getpeername", "getsockname"}
"""Of sockets."""
SOCKETS = {"sock", "listener", "self._sock", "self.sock", "self.socket"}
"""What sockets are called, so that `accept` of something else is not meant."""
DATABASE = {
    "psycopg.waiting._ready",
    "select.poll",
    "time.monotonic",
    "trio.lowlevel.wait_readable",
    "trio.lowlevel.wait_writable",
}
"""In relay/db/connection.py."""

DOORS = {"relay/chance.py", "relay/net.py", "relay/db/waits.py"}

_PARSER = "runs in the parser's process, which a simulation calls in its own"
_MACHINE = "waits for another process of this machine, and is no part of the tree"
_SQLITE = "the store in a file has a thread of its own; a simulation keeps blobs in PostgreSQL"
_DEVICE = "the client of devices, which blocks; the relay does not use it"

EXCUSED = {
    ("relay/datadir.py", "os.urandom"): "keys of a first start; a simulation has them in settings",
    ("relay/datadir.py", "time.monotonic"): _MACHINE,
    ("relay/mailboxes/worker.py", "time.monotonic"): _PARSER,
    ("relay/devices/client.py", "time.monotonic"): _DEVICE,
    ("relay/devices/client.py", "socket.create_connection"): _DEVICE,
    ("relay/devices/outbox.py", "time.time"): _DEVICE,
    ("relay/devices/outbox.py", "time.time_ns"): _DEVICE,
    ("relay/devices/outbox.py", "time.monotonic"): _DEVICE,
    ("relay/devices/sqlite.py", "time.time"): _SQLITE,
    ("relay/devices/sqlite.py", "time.monotonic"): _SQLITE,
    ("relay/self_signed.py", "datetime.datetime.now"): "made by a command, before a relay runs",
    ("relay/http/probes/fetch.py", "httpx.AsyncClient"): "has them from trio.open_tcp_stream",
    ("relay/webhooks/post.py", "httpx.AsyncClient"): "has its connections from the same",
    ("supervisor.py", "time.time"): "a default: knows nothing of the relay, and is given a clock",
    ("supervisor.py", "time.monotonic"): "the watch-dog's thread, which a simulation leaves out",
}
"""File and what it takes, and why it may."""


def _names(tree: ast.Module) -> dict[str, str]:
    """What each name that a file imports stands for."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                found[each.asname or each.name.partition(".")[0]] = (
                    each.name if each.asname else each.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for each in node.names:
                found[each.asname or each.name] = f"{node.module}.{each.name}"
    return found


def taken(source: str, forbidden: set[str]) -> set[str]:
    """Return what of `forbidden` a file takes, by whatever name it is imported."""
    tree = ast.parse(source)
    names = _names(tree)
    found = {stands for stands in names.values() if stands in forbidden}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        parts = [node.attr]
        below = node.value
        while isinstance(below, ast.Attribute):
            parts.append(below.attr)
            below = below.value
        if isinstance(below, ast.Name) and below.id in names:
            dotted = ".".join([names[below.id], *reversed(parts)])
            if dotted in forbidden:
                found.add(dotted)
        if (
            node.attr in METHODS
            and ast.unparse(node.value) in SOCKETS
            and forbidden is not DATABASE
        ):
            found.add(f"socket.{node.attr}")
    return found


def _files() -> list[str]:
    paths = [ROOT / "supervisor.py", *ROOT.glob("actors/*.py"), *ROOT.glob("relay/**/*.py")]
    return sorted(
        name
        for name in (path.relative_to(ROOT).as_posix() for path in paths)
        if not name.startswith("relay/cli/") and name not in DOORS
    )


def _around() -> set[tuple[str, str]]:
    forbidden = CLOCKS | CHANCE | NETWORK
    return {
        (name, what) for name in _files() for what in taken((ROOT / name).read_text(), forbidden)
    }


def test_nobody_goes_around_the_doors() -> None:
    """No file takes a clock, chance or the network from the system, but those with a reason."""
    assert _around() - EXCUSED.keys() == set()


def test_every_excuse_is_used() -> None:
    """An excuse for what nobody does any more would hide who does it next."""
    assert EXCUSED.keys() - _around() == set()


def test_a_connection_to_the_database_waits_by_its_door() -> None:
    """relay/db/connection.py has its waits, its polls and its clock from the seams alone."""
    assert taken((ROOT / "relay/db/connection.py").read_text(), DATABASE) == set()


@pytest.mark.parametrize(
    ("module", "name", "systems"),
    [
        (ids, "urandom", os.urandom),
        (ids, "time_ns", time.time_ns),
        (connection, "monotonic", time.monotonic),
        (connection, "wait_readable", trio.lowlevel.wait_readable),
        (connection, "wait_writable", trio.lowlevel.wait_writable),
        (connection, "ready_now", psycopg.waiting._ready),
        (connection, "more_now", psycopg.waiting._ready),
        (smtp, "open_tcp_stream", trio.open_tcp_stream),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_door_leads_to_the_system_itself(
    module: ModuleType, name: str, systems: Callable[..., object]
) -> None:
    """What is handed out is the system's own, bound where it is used: nothing is dispatched."""
    assert getattr(module, name) is systems


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.time()",
        "from time import time as t\nt()",
        "import datetime as dt\ndt.datetime.now()",
        "from datetime import datetime\ndatetime.now()",
        "import trio\ntrio.socket.socket()",
        "from trio import socket\nsocket.socket()",
        "import os\nmake = os.urandom",
        "from uuid import UUID, uuid4",
        "import socket\ndef f(sock: socket.socket): return sock.getpeername()",
    ],
)
def test_what_goes_around_is_seen(source: str) -> None:
    """The walk sees a name of the system however it was imported."""
    assert taken(source, CLOCKS | CHANCE | NETWORK)


@pytest.mark.parametrize(
    "source", ["from relay.chance import time\ntime()", "import time\ntime.sleep(1)", "x.accept()"]
)
def test_what_does_not_go_around_is_left_alone(source: str) -> None:
    """What comes by a door, and what decides nothing, is not meant."""
    assert not taken(source, CLOCKS | CHANCE | NETWORK)
