"""Whether a domain whose server is dead holds up the mail to 499 others.

The relay delivers directly (`mx:`) to 499 domains, each with an exchanger at an address of loopback
of its own, at a steady rate, open loop.  In between the same goes on beside mail to one more
domain, fifty mails at once and then one each second:

- `silent`: its server accepts connections and says nothing;
- `black hole`: nobody answers who connects;
- `refuses`: nobody listens.

What is measured is the time from a mail's commit to the commit of its delivery, by the database's
clock.  The ratios are that beside the dead domain over that of the stretches before and after, and
`memory` is what the relay's own process has grown by in all.
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
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import trio

from tests.dns.server import DnsServer
from tests.relay_process import RelayProcess
from tests.stalling import many_files, resident

DOMAINS = 499
RATE = 50  # mails a second, of all domains together
SECONDS = 30.0  # of a stretch: in each a site is looked up once (`sites.FRESH`)
BACKLOG = 50
KINDS = ("silent", "black hole", "refuses")
_DEAD = {"silent": "127.2.0.1", "black hole": "127.2.0.2", "refuses": "127.2.0.3"}
_MIB = 1024 * 1024


def _address(number: int) -> str:
    return f"127.1.{number // 250}.{number % 250 + 1}"


def _dead(kind: str) -> str:
    return f"{kind.replace(' ', '-')}.dead.example"


# The world: a process of its own ------------------------------------------------------------------


def _zone() -> dict[tuple[str, str], list[str]]:
    zone: dict[tuple[str, str], list[str]] = {}
    for number in range(DOMAINS):
        zone[f"d{number}.example", "MX"] = [f"10 mx.d{number}.example."]
        zone[f"mx.d{number}.example", "A"] = [_address(number)]
    for kind, address in _DEAD.items():
        zone[_dead(kind), "MX"] = [f"10 mx.{_dead(kind)}."]
        zone[f"mx.{_dead(kind)}", "A"] = [address]
    return zone


def _listening(address: str, port: int, backlog: int = 64) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(backlog)
    listener.setblocking(False)
    return listener


async def _take(stream: trio.SocketStream) -> None:
    """Take all mail."""
    async with stream:
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
                verb = line[:4].upper()
                if in_data:
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


async def _say_nothing(stream: trio.SocketStream) -> None:
    async with stream:
        await trio.sleep_forever()


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
    hole = _listening(_DEAD["black hole"], port, 0)
    filling = []
    for _ in range(4):  # its queue is full then, and who knocks is not heard
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((_DEAD["black hole"], port))
        filling.append(sock)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(DnsServer(_zone(), ttl=3600, negative=3600).run)
        for listener in listeners:
            nursery.start_soon(_serve, listener, nursery, _take)
        nursery.start_soon(_serve, _listening(_DEAD["silent"], port), nursery, _say_nothing)
        print(json.dumps({"port": port, "dns": list(server.address)}), flush=True)
        # Until nobody reads what is said here.
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()
    for each in (hole, *filling):
        each.close()


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


def _stretch(database: psycopg.Connection[Any], name: str, dead: str | None) -> list[float]:
    """Send to all for a while; the seconds that each mail to a living domain took, sorted."""
    if dead is not None:
        for number in range(BACKLOG):
            database.execute(_SEND, (f"b{number}@{dead}", name))
    began = time.monotonic()
    count = int(RATE * SECONDS)
    for number in range(count):
        time.sleep(max(began + number / RATE - time.monotonic(), 0))
        database.execute(_SEND, (f"a{number}@d{number % DOMAINS}.example", name))
        if dead is not None and number % RATE == 0:
            database.execute(_SEND, (f"c{number}@{dead}", name))
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


def run(rounds: int = 5) -> dict[str, Any]:
    """Every kind of death, `rounds` times; medians."""
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    grown: list[float] = []
    with many_files(), _running_world() as world:
        for _ in range(rounds):
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
                _stretch(database, "warm", None)
                quiet = _stretch(database, "quiet", None)
                before = resident(relay.pid)
                for number, kind in enumerate(KINDS):
                    beside = _stretch(database, kind, _dead(kind))
                    again = _stretch(database, f"quiet {number}", None)
                    found = {}
                    for what, at in (("p50", 0.5), ("p99", 0.99)):
                        ours = statistics.fmean(one[int(len(one) * at)] for one in (quiet, again))
                        theirs = beside[int(len(beside) * at)]
                        found[f"{what}, ms"] = theirs * 1e3
                        found[f"{what} alone, ms"] = ours * 1e3
                        found[f"{what} / alone"] = theirs / ours
                    found["longest, ms"] = beside[-1] * 1e3
                    figures[kind].append(found)
                    quiet = again
                grown.append((resident(relay.pid) - before) / _MIB)
    medians = {
        kind: {what: statistics.median(one[what] for one in each) for what in each[0]}
        for kind, each in figures.items()
    }
    ratios: dict[str, Any] = {
        f"{what} / alone, {kind}": {"value": found.pop(f"{what} / alone"), "at_most": most}
        for kind, found in medians.items()
        for what, most in (("p50", 1.25), ("p99", 1.5))
    }
    ratios["memory, MiB"] = {"value": statistics.median(grown), "at_most": 16.0}
    return {
        "name": f"a dead domain beside {DOMAINS} others",
        "unit": "ms",
        "results": medians,
        "ratios": ratios,
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["world"]:
        trio.run(_world)
    else:
        print(json.dumps(run(int(os.environ.get("ROUNDS", "1"))), indent=2))
