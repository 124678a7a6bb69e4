"""Clocks, chance, the network and the database's waits have one door each.

`relay simulate` puts others in the place of what `relay.chance`, `relay.net` and `relay.db.waits`
hand out.  Whoever goes around these modules escapes it: a run would not be the same twice.  So this
walks over every file of the product and finds what is taken from the system directly.  The few that
may are in `EXCUSED`, each with its reason.  The commands (`relay/cli`) are other processes, and no
part of a simulation.
"""

import ast
import functools
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import psycopg
import pytest
import trio
from psycopg import waiting

import relay
from relay import ids
from relay.db import connection
from relay.smtp import connection as smtp

ROOT = Path(relay.__file__).parent.parent


def _is_of_the_module(it: object) -> bool:
    """Whether it is a method of the source of chance that all of a process share."""
    return isinstance(getattr(it, "__self__", None), random.Random)


CLOCKS = {
    "time.time",
    "time.time_ns",
    "time.monotonic",
    "time.monotonic_ns",
    "time.clock_gettime",
    "time.clock_gettime_ns",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "datetime.datetime.today",
    "datetime.date.today",
    "email.utils.localtime",
}
STOPWATCHES = {
    *(f"time.{name}{ns}" for name in ("perf_counter", "process_time") for ns in ("", "_ns")),
    "time.thread_time",
    "time.thread_time_ns",
    "os.times",
    "resource.getrusage",
}
"""What measures, and decides in the end who has a turn."""
CHANCE = {
    "os.urandom",
    "os.getrandom",
    "random.SystemRandom",
    "ssl.RAND_bytes",
    "uuid.uuid1",
    "uuid.uuid4",
    "uuid.getnode",
    "email.utils.make_msgid",
    *(f"random.{name}" for name, it in vars(random).items() if _is_of_the_module(it)),
    *(f"secrets.{name}" for name in secrets.__all__ if name != "compare_digest"),
}
UNTOLD = {
    "random.Random",
    "time.ctime",
    "time.gmtime",
    "time.localtime",
    "email.utils.formatdate",
}
"""What asks the system when it is told nothing, and does not when it has an argument."""
NETWORK = {
    "socket.create_connection",
    "socket.create_server",
    "socket.getaddrinfo",
    "socket.getfqdn",
    "socket.gethostbyaddr",
    "socket.gethostbyname",
    "socket.gethostbyname_ex",
    "socket.gethostname",
    "socket.getnameinfo",
    "os.uname",
    "platform.node",
    "trio.open_tcp_stream",
    "trio.open_tcp_listeners",
    "trio.open_ssl_over_tcp_stream",
    "trio.open_ssl_over_tcp_listeners",
    "trio.serve_tcp",
    "trio.serve_ssl_over_tcp",
    "trio.socket.socket",
    "trio.socket.getaddrinfo",
    "trio.socket.getnameinfo",
    "httpx.AsyncClient",
}
METHODS = {"accept", "getpeername", "getsockname"}
"""Of sockets."""
SOCKETS = {"sock", "listener", "self._sock", "self.sock", "self.socket"}
"""What sockets are called, so that `accept` of something else is not meant."""
DATABASE = {
    "psycopg.waiting._ready",
    *(f"psycopg.waiting.{name}" for name, it in vars(waiting).items() if name.startswith("wait")),
    *(f"select.{name}" for name in ("select", "poll", "epoll", "kqueue", "devpoll")),
    "selectors.DefaultSelector",
    "trio.lowlevel.wait_readable",
    "trio.lowlevel.wait_writable",
}
"""In relay/db, besides the others."""

DOORS = {"relay/chance.py", "relay/net.py", "relay/db/waits.py"}

_PARSER = "runs in the parser's process, which a simulation calls in its own"
_MACHINE = "waits for another process of this machine, and is no part of the tree"
_SQLITE = "the store in a file has a thread of its own; a simulation keeps blobs in PostgreSQL"
_DEVICE = "the client of devices, which blocks; the relay does not use it"
_DEFAULT = "a default: knows nothing of the relay, and is given one by a simulation"
_WATCH_DOG = "the watch-dog's thread, which a simulation leaves out"

EXCUSED = {
    ("relay/datadir.py", "os.urandom"): "keys of a first start; a simulation has them in settings",
    ("relay/datadir.py", "time.monotonic"): _MACHINE,
    ("relay/db/connection.py", "select.epoll"): "is waited for by the door, as any socket is",
    ("relay/lifecycle/pipe.py", "time.perf_counter"): "of `relay collect`, which is a command",
    ("relay/load.py", "time.process_time"): "a simulation answers in its stead: nobody lacks CPU",
    ("relay/mailboxes/worker.py", "time.monotonic"): _PARSER,
    ("relay/mailboxes/worker.py", "time.process_time_ns"): _PARSER,
    ("relay/devices/client.py", "time.monotonic"): _DEVICE,
    ("relay/devices/client.py", "socket.create_connection"): _DEVICE,
    ("relay/devices/outbox.py", "time.time"): _DEVICE,
    ("relay/devices/outbox.py", "time.time_ns"): _DEVICE,
    ("relay/devices/outbox.py", "time.monotonic"): _DEVICE,
    ("relay/devices/sqlite.py", "time.time"): _SQLITE,
    ("relay/devices/sqlite.py", "time.monotonic"): _SQLITE,
    ("relay/devices/sqlite.py", "time.perf_counter"): _SQLITE,
    ("relay/self_signed.py", "datetime.datetime.now"): "made by a command, before a relay runs",
    ("relay/http/probes/fetch.py", "httpx.AsyncClient"): "has them from trio.open_tcp_stream",
    ("relay/webhooks/post.py", "httpx.AsyncClient"): "has its connections from the same",
    ("supervisor.py", "random.Random"): _DEFAULT,
    ("supervisor.py", "time.time"): _DEFAULT,
    ("supervisor.py", "time.monotonic"): _WATCH_DOG,
    ("supervisor.py", "time.process_time"): _WATCH_DOG,
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


def _annotations(tree: ast.Module) -> set[ast.AST]:
    """The nodes of what only says of which type something is."""
    roots = [
        root
        for node in ast.walk(tree)
        for root in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if root is not None
    ]
    return {node for root in roots for node in ast.walk(root)}


def _told(tree: ast.Module) -> set[ast.AST]:
    """What is called with something that is not None."""
    return {
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(
            not (isinstance(each, ast.Constant) and each.value is None)
            for each in (*node.args, *(keyword.value for keyword in node.keywords))
        )
    }


def taken(source: str, forbidden: set[str]) -> set[str]:
    """Return what of `forbidden` a file takes, by whatever name it is imported.

    And what of `UNTOLD` it hands on, or calls without an argument.
    """
    tree = ast.parse(source)
    names = _names(tree)
    unmeant = _annotations(tree) | _told(tree)
    found = {stands for stands in names.values() if stands in forbidden}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        parts: list[str] = []
        below: ast.expr = node
        while isinstance(below, ast.Attribute):
            parts.append(below.attr)
            below = below.value
        if isinstance(below, ast.Name) and below.id in names:
            dotted = ".".join([names[below.id], *reversed(parts)])
            if dotted in forbidden or (dotted in UNTOLD and node not in unmeant):
                found.add(dotted)
        if (
            isinstance(node, ast.Attribute)
            and node.attr in METHODS
            and ast.unparse(node.value) in SOCKETS
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


def _forbidden(name: str) -> set[str]:
    everywhere = CLOCKS | STOPWATCHES | CHANCE | NETWORK
    return everywhere | DATABASE if name.startswith("relay/db/") else everywhere


@functools.cache
def _around() -> set[tuple[str, str]]:
    return {
        (name, what)
        for name in _files()
        for what in taken((ROOT / name).read_text(), _forbidden(name))
    }


def test_nobody_goes_around_the_doors() -> None:
    """No file takes a clock, chance or the network from the system, but those with a reason.

    Nor one of relay/db a wait for a socket.
    """
    assert _around() - EXCUSED.keys() == set()


def test_every_excuse_is_used() -> None:
    """An excuse for what nobody does any more would hide who does it next."""
    assert EXCUSED.keys() - _around() == set()


@pytest.mark.parametrize(
    ("name", "was", "goes_around"),
    [
        ("relay/db/listen.py", "rng or new_rng()", "rng or random.Random()"),
        (
            "relay/db/pool.py",
            "import trio\n",
            "import trio\nfrom trio.lowlevel import wait_readable\n",
        ),
        ("relay/db/embedded.py", "await trio.sleep(", "await trio.lowlevel.wait_readable("),
        ("relay/db/connection.py", "relay.chance import", "time import"),
        ("actors/reaper.py", "rng or new_rng()", "rng or random.Random(None)"),
        ("relay/jitter.py", "rng.uniform(", "random.triangular("),
        ("relay/http/responses/json_pieces.py", "relay.chance import", "time import"),
        ("relay/http/resources/first_mail.py", "formatdate(time())", "formatdate()"),
    ],
)
def test_who_begins_to_go_around_is_found(name: str, was: str, goes_around: str) -> None:
    """Each of these stood in its file and passed, or is of the same kind."""
    source = (ROOT / name).read_text()
    assert was in source
    assert taken(source.replace(was, goes_around), _forbidden(name)) - {
        what for where, what in EXCUSED if where == name
    }


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


_IN_A_SIMULATION = """
from simulation import seams
from simulation.network import Network
from simulation.world import World

world = World(seed=1)
seams.install(seams.Seams(world, Network(world)))

from relay.http.responses import json_pieces
from relay.load import Load, Scheduled
from relay.smtp import commands

assert json_pieces.monotonic == commands.monotonic == world.now
busy = Load(lambda: Scheduled(now, 0.0))
for now in (0.0, 1.0, 2.0):
    assert not busy.lacking(now)
"""


def test_no_turn_of_a_simulation_hangs_on_how_busy_its_machine_is() -> None:
    """What gives way after so long goes by the virtual clock, and nobody lacks the CPU."""
    subprocess.run([sys.executable, "-c", _IN_A_SIMULATION], cwd=ROOT, check=True)


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
        "import socket\nsocket.gethostbyname_ex('a.example')",
        "import random\nrandom.choices('ab')",
        "import random\nrandom.Random()",
        "from random import Random as R\nR(None)",
        "import random\ndef f(make=random.Random): return make()",
        "from secrets import choice",
        "from time import thread_time_ns",
    ],
)
def test_what_goes_around_is_seen(source: str) -> None:
    """The walk sees a name of the system however it was imported."""
    assert taken(source, _forbidden("relay/ids.py"))


@pytest.mark.parametrize(
    "source",
    [
        "from relay.chance import time\ntime()",
        "import time\ntime.sleep(1)",
        "x.accept()",
        "import random\nrandom.Random(7)",
        "import random\ndef f(rng: random.Random | None) -> random.Random: ...",
        "import secrets\nsecrets.compare_digest(a, b)",
    ],
)
def test_what_does_not_go_around_is_left_alone(source: str) -> None:
    """What comes by a door, and what decides nothing, is not meant."""
    assert not taken(source, _forbidden("relay/ids.py"))
