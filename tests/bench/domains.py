"""Whether a domain whose server is dead, or slow, holds up the mail to 499 others.

The relay delivers directly (`mx:`) to 499 domains, each with an exchanger at an address of loopback
of its own, at a steady rate, open loop.  In between the same goes on beside mail to one more
domain, fifty mails at once and then one each second:

- `silent`: its server accepts connections and says nothing;
- `black hole`: nobody answers who connects;
- `refuses`: nobody listens.

Then, on a relay that has met none of them, 16, 32 and 50 domains are dead at once (`crowd`), a
quarter of them each: silent, black holes, and those whose servers say nothing to EHLO, or to the
final dot.  Each has ten mails at once, and one each second.

What is measured is the time from a mail's commit to the commit of its delivery, by the database's
clock.  The ratios are that beside the dead over that of the stretches before and after, and
`memory` is what the relay's own process has grown by in all.  `python -m tests.bench.domains one`,
`crowd` or `slow` does a part alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import trio

from tests.black_hole import black_hole
from tests.dns.server import DnsServer
from tests.relay_process import RelayProcess
from tests.stalling import many_files, resident

DOMAINS = 499
RATE = 50  # mails a second, of all domains together
SECONDS = 30.0  # of a stretch: in each a site is looked up once (`sites.FRESH`)
BACKLOG = 50
KINDS = ("silent", "black hole", "refuses")
_DEAD = {"silent": "127.2.0.1", "black hole": "127.2.0.2", "refuses": "127.2.0.3"}
CROWDS = (16, 32, 50)
CROWD_BACKLOG = 10  # mails to each
CROWD_SECONDS = 10.0
HANGS = ("", "black hole", "EHLO", "dot")
"""What the servers of a crowd say nothing to, in turn; the first do not even greet."""
SLOW, SLOW_SECONDS = 16, 5.0
_BESIDE_DEAD = (("p50", 1.25), ("p99", 1.5))
_BESIDE_SLOW = (("p50", 1.5), ("p99", 2.0))  # whose own mail is delivered, too: half as much more
PARTS = ("one", "crowd", "slow")
_MIB = 1024 * 1024


def _address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _dead(kind: str) -> str:
    return f"{kind.replace(' ', '-')}.dead.example"


def _crowd(count: int) -> list[tuple[str, str, str]]:
    """The domains, addresses and deaths of so many that are dead at once."""
    return [
        (f"n{number}.of{count}.example", f"127.3.{count}.{number + 1}", HANGS[number % len(HANGS)])
        for number in range(count)
    ]


def _slow() -> list[tuple[str, str]]:
    """The domains that are slow, and their addresses."""
    return [(f"s{number}.slow.example", f"127.4.0.{number + 1}") for number in range(SLOW)]


# The world: a process of its own ------------------------------------------------------------------


def _zone() -> dict[tuple[str, str], list[str]]:
    zone: dict[tuple[str, str], list[str]] = {}
    for number in range(DOMAINS):
        zone[f"d{number}.example", "MX"] = [f"10 mx.d{number}.example."]
        zone[f"mx.d{number}.example", "A"] = [_address(number)]
    dead = [(_dead(kind), address) for kind, address in _DEAD.items()]
    dead += [(domain, address) for count in CROWDS for domain, address, _ in _crowd(count)]
    for domain, address in [*dead, *_slow()]:
        zone[domain, "MX"] = [f"10 mx.{domain}."]
        zone[f"mx.{domain}", "A"] = [address]
    return zone


def _listening(address: str, port: int, backlog: int = 64) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


async def _take(stream: trio.SocketStream, hangs: str = "nowhere", *, seconds: float = 0.0) -> None:
    """Take all mail, up to what it says nothing to: a verb, `dot`, or empty for the greeting.

    `seconds`: until it answers the final dot.
    """
    async with stream:
        if not hangs:
            await trio.sleep_forever()
        await stream.send_all(b"220 here\r\n")
        data = b""
        in_data = False
        async for more in stream:
            data += more
            while True:
                line, end, rest = data.partition(b"\r\n.\r\n" if in_data else b"\r\n")
                if not end:
                    break
                data = rest
                verb = b"DOT" if in_data else line[:4].upper()
                if verb.decode(errors="replace") == hangs.upper():
                    await trio.sleep_forever()
                if in_data:
                    await trio.sleep(seconds)
                    in_data, answer = False, b"250 taken\r\n"
                elif verb == b"EHLO":
                    answer = b"250-here\r\n250 PIPELINING\r\n"
                elif verb == b"DATA":
                    in_data, answer = True, b"354 go on\r\n"
                elif verb == b"QUIT":
                    await stream.send_all(b"221 bye\r\n")
                    return
                else:
                    answer = b"250 ok\r\n"
                await stream.send_all(answer)


async def _serve(
    listener: socket.socket,
    nursery: trio.Nursery,
    handle: Callable[[trio.SocketStream], Awaitable[None]],
) -> None:
    accepting = trio.SocketListener(trio.socket.from_stdlib_socket(listener))

    async def handled(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await handle(stream)

    await trio.serve_listeners(handled, [accepting], handler_nursery=nursery)


async def _world() -> None:
    first = _listening(_address(0), 0)
    port = first.getsockname()[1]
    listeners = [first, *(_listening(_address(number), port) for number in range(1, DOMAINS))]
    holes = contextlib.ExitStack()
    holes.enter_context(black_hole(_DEAD["black hole"], port))
    dead = [(_DEAD["silent"], "")]
    for _, address, hangs in (each for count in CROWDS for each in _crowd(count)):
        if hangs == "black hole":
            holes.enter_context(black_hole(address, port))
        else:
            dead.append((address, hangs))
    async with trio.open_nursery() as nursery:
        server = await nursery.start(DnsServer(_zone(), ttl=3600, negative=3600).run)
        for listener in listeners:
            nursery.start_soon(_serve, listener, nursery, _take)
        others = [(address, partial(_take, hangs=hangs)) for address, hangs in dead]
        others += [(address, partial(_take, seconds=SLOW_SECONDS)) for _, address in _slow()]
        for address, takes in others:
            nursery.start_soon(_serve, _listening(address, port), nursery, takes)
        print(json.dumps({"port": port, "dns": list(server.address)}), flush=True)
        # Until nobody reads what is said here.
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    holes.close()


@contextmanager
def _running_world() -> Iterator[dict[str, Any]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.domains", "world"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(10)


# The measurement ----------------------------------------------------------------------------------

_SEND = "SELECT relay.send('a@sender.example', %s, %s, 'text')"


def _stretch(
    database: psycopg.Connection[Any],
    name: str,
    dead: Sequence[str] = (),
    backlog: int = BACKLOG,
    seconds: float = SECONDS,
) -> list[float]:
    """Send to all for a while; the seconds that each mail to a living domain took, sorted."""
    with database.transaction():
        for domain in dead:
            for number in range(backlog):
                database.execute(_SEND, (f"b{number}@{domain}", f"dead {name}"))
    began = time.monotonic()
    count = int(RATE * seconds)
    for number in range(count):
        time.sleep(max(began + number / RATE - time.monotonic(), 0))
        database.execute(_SEND, (f"a{number}@d{number % DOMAINS}.example", name))
        if number % RATE == 0:
            for domain in dead:
                database.execute(_SEND, (f"c{number}@{domain}", f"dead {name}"))
    for _ in range(600):
        rows = database.execute(
            """
            SELECT extract(epoch FROM sent_at - created_at)::float8
            FROM relay.outbound_messages
            WHERE subject = %s AND status = 'sent'
            """,
            (name,),
        ).fetchall()
        if len(rows) >= count:
            break
        time.sleep(0.1)
    else:
        raise RuntimeError(f"of {count} mails {len(rows)} were delivered within a minute")
    return sorted(took for (took,) in rows)


def _compared(beside: list[float], *alone: list[float]) -> dict[str, float]:
    """What a stretch beside the dead was like, and those without."""
    found = {}
    for what, at in (("p50", 0.5), ("p99", 0.99)):
        ours = statistics.fmean(one[int(len(one) * at)] for one in alone)
        theirs = beside[int(len(beside) * at)]
        found[f"{what}, ms"] = theirs * 1e3
        found[f"{what} alone, ms"] = ours * 1e3
        found[f"{what} / alone"] = theirs / ours
    found["longest, ms"] = beside[-1] * 1e3
    return found


@contextmanager
def _running_relay(
    world: dict[str, Any],
) -> Iterator[tuple[RelayProcess, psycopg.Connection[Any]]]:
    env = {
        "RELAY_OUTBOUND__UPSTREAM": "mx:",
        "RELAY_OUTBOUND__PRIVATE_MX": "true",
        "RELAY_OUTBOUND__MX_PORT": str(world["port"]),
        "RELAY_DNS__SERVERS": "{}:{}".format(*world["dns"]),
    }
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
        RelayProcess(Path(folder) / "var", env=env) as relay,
        psycopg.connect(relay.run["database_url"], autocommit=True) as database,
    ):
        yield relay, database


def _one(world: dict[str, Any], figures: dict[str, list[dict[str, float]]]) -> float:
    """A dead domain of each kind after the other; returns what the relay has grown by, in MiB."""
    with _running_relay(world) as (relay, database):
        _stretch(database, "warm")
        quiet = _stretch(database, "quiet")
        before = resident(relay.pid)
        for number, kind in enumerate(KINDS):
            beside = _stretch(database, kind, [_dead(kind)])
            again = _stretch(database, f"quiet {number}")
            figures.setdefault(kind, []).append(_compared(beside, quiet, again))
            quiet = again
        return (resident(relay.pid) - before) / _MIB


def _beside(
    world: dict[str, Any], figures: dict[str, list[dict[str, float]]], name: str, which: list[str]
) -> None:
    """Mail to domains that are dead or slow, all at once, on a relay that knows none of them."""
    with _running_relay(world) as (relay, database):
        _stretch(database, "warm", seconds=CROWD_SECONDS)
        quiet = _stretch(database, "quiet", seconds=CROWD_SECONDS)
        beside = _stretch(database, "beside", which, CROWD_BACKLOG, CROWD_SECONDS)
        later = _stretch(database, "later", which, 1, CROWD_SECONDS)
        figures.setdefault(name, []).append(_compared(beside, quiet))
        figures.setdefault(f"{name}, later", []).append(_compared(later, quiet))
        relay.kill()  # it would give those that hang some time


def run(rounds: int = 5, parts: Collection[str] = PARTS) -> dict[str, Any]:
    """Every kind of death, every crowd, and the slow, `rounds` times; medians."""
    figures: dict[str, list[dict[str, float]]] = {}
    grown: list[float] = []
    with many_files(), _running_world() as world:
        for _ in range(rounds):
            if "one" in parts:
                grown.append(_one(world, figures))
            for count in CROWDS if "crowd" in parts else ():
                dead = [domain for domain, _, _ in _crowd(count)]
                _beside(world, figures, f"{count} dead", dead)
            if "slow" in parts:
                _beside(world, figures, f"{SLOW} slow", [domain for domain, _ in _slow()])
    medians = {
        kind: {what: statistics.median(one[what] for one in each) for what in each[0]}
        for kind, each in figures.items()
    }
    ratios: dict[str, Any] = {
        f"{what} / alone, {kind}": {"value": found.pop(f"{what} / alone"), "at_most": most}
        for kind, found in medians.items()
        for what, most in (_BESIDE_SLOW if "slow" in kind else _BESIDE_DEAD)
    }
    if grown:
        ratios["memory, MiB"] = {"value": statistics.median(grown), "at_most": 16.0}
    return {
        "name": f"dead and slow domains beside {DOMAINS} others",
        "unit": "ms",
        "results": medians,
        "ratios": ratios,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["world"]:
        trio.run(_world)
    else:
        rounds = int(os.environ.get("ROUNDS", "1"))
        print(json.dumps(run(rounds, sys.argv[1:] or PARTS), indent=2))
