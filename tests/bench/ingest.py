"""Durable ingest: messages per second of 2 kB over 20 connections that are used again.

Every variant is a process of its own, driven by the same generator (Postfix's smtp-source where it
is installed, else a small client here), in interleaved rounds; the figure is the median.

- `relay`: the relay's own ingest and writer under its supervisor, 250 after COMMIT.
- `relay, two processes`: the same, in two processes (`tests.bench.processes`); only where it is
  asked for by name.
- `relay up`: the whole program, which also summarises what it accepts, meanwhile and afterwards.
- `aiosmtpd, stores nothing`: aiosmtpd on asyncio with a handler that answers 250.
- `aiosmtpd, INSERT a message`: the same with one INSERT and COMMIT a message through asyncpg, as a
  typical application does.
- `relay, plain tasks`: `relay` with a switch of tasks at each wait, in the place of its trampoline
  (`relay.smtp.trampoline`); only where it is asked for by name.
- `relay, captured` and `relay, captured anew`: `relay` with mail for another domain, all of it for
  one address that has a mailbox since the first, or each for an address of its own, whose mailbox
  is made with it; with smtp-source only, and the former only where it is asked for by name.
- `relay, captured anew, evicting`: the latter where as many are captured as may be, so that each
  that is made costs another one its place.
- `Postfix`: its durable queue, where one can be run (`tests.bench.postfix`); reported only.

The database is one PostgreSQL 18 with fsync, its tables emptied between rounds.  CPU seconds are
those of the peer until every message has a summary, where it makes any; the server's beside them.
What either does afterwards, until both are quiet, is told apart: filters for searches, vacuum.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import trio

from relay.mailboxes.capture import Capture
from relay.smtp.limits import SmtpLimits
from tests.bench import postfix
from tests.bench.proc import cpu_seconds_of_all
from tests.db.cluster import Cluster, binaries

CONNECTIONS = 20
BYTES = 2048
MESSAGES = 10_000
WARM_UP = 1_000
RECIPIENT = "bench@relay.localhost"
POOL = 10  # connections of the asyncpg application

VARIANTS = (
    # What is compared is measured next to each other: other work on the machine comes and goes.
    *("aiosmtpd, stores nothing", "relay", "aiosmtpd, INSERT a message", "relay up"),
    *(
        ("relay, captured anew", "relay, captured anew, evicting")
        if shutil.which("smtp-source")
        else ()
    ),
    *(("Postfix",) if postfix.available() else ()),
)
CAPTURED = {
    "relay, captured": ("-t", "one@shop.example"),
    "relay, captured anew": ("-N", "-t", "@shop.example"),
    "relay, captured anew, evicting": ("-N", "-t", "@shop.example"),
}
"""To whom smtp-source sends; with `-N` it numbers the recipients."""
PROCESSES = {
    "relay, one SMTP process": 1,
    "relay, two processes": 2,
    "relay, three processes": 3,
}
"""Served by so many processes; only where they are asked for by name."""

_CALM = 6  # half seconds in a row: filters for searches are made 2 s after the last mail


# ---------------------------------------------------------------------------- the peers


def serve_relay(
    dsn: str,
    *,
    plain: bool = False,
    limits: SmtpLimits | None = None,
    capture: Capture | None = None,
) -> None:
    """Run writer and ingest, as actors/tree.py wires them, until killed."""
    from actors import ingest, writer
    from actors.messages import Accept
    from relay import log
    from relay.db.pool import Pool
    from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec
    from tests.smtp.plain import Plain

    log.configure("info", stream=open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    pool = Pool(dsn)
    messages: Mailbox[Accept] = Mailbox("writer", on_dead=writer.dead)
    tree = SupervisorSpec(
        name="relay",
        children=(
            ChildSpec(
                "writer",
                functools.partial(writer.run, pool=pool, capture=capture),
                mailbox=messages,
            ),
            ChildSpec(
                "ingest",
                functools.partial(
                    ingest.run,
                    sockets=[listener],
                    pool=pool,
                    writer=messages,
                    limits=limits,
                    capture=capture,
                    scheduling=Plain() if plain else None,
                ),
            ),
        ),
    )
    gc.collect()  # these three as relay.app does when all has started
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    trio.run(functools.partial(Supervisor().run, tree))


def serve_processes(dsn: str, count: int) -> None:
    """Run ingest and so many processes, as actors/tree.py wires them, until killed."""
    from actors import ingest, ingest_process
    from relay import log
    from relay.db.hosts import Hosts
    from relay.settings import CONNECTIONS_A_PROCESS
    from relay.smtp.channel import Setup
    from relay.smtp.front import Front
    from relay.smtp.limits import SmtpLimits, part_of
    from relay.storage import AMPLE
    from supervisor import ChildSpec, Supervisor, SupervisorSpec

    log.configure("info", stream=open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    limits = SmtpLimits()
    front = Front(limits, count)
    setups = [
        Setup(
            place=place,
            level="info",
            dsn=dsn,
            connections=CONNECTIONS_A_PROCESS,
            prepare=True,
            call_timeout=15.0,
            domains=("relay.localhost",),
            limits=part_of(limits, count),
        )
        for place in range(count)
    ]
    processes = (
        ChildSpec(
            f"ingest-{setup.place + 1}",
            functools.partial(
                ingest_process.run,
                front=front,
                setup=setup,
                hosts=Hosts(),
                space=AMPLE,
                wake_summariser=lambda: None,
            ),
        )
        for setup in setups
    )
    hand_on = functools.partial(ingest.hand_on, sockets=[listener], front=front)
    tree = SupervisorSpec("relay", (*processes, ChildSpec("ingest", hand_on)))
    trio.run(functools.partial(Supervisor().run, tree))


async def asyncpg_pool(dsn: str, size: int) -> Any:
    """The pool of an application that speaks to PostgreSQL by asyncpg."""
    import asyncpg

    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    return await asyncpg.create_pool(
        host=parts["host"],
        user=parts["user"],
        database=parts["dbname"],
        min_size=size,
        max_size=size,
    )


def serve_aiosmtpd(dsn: str | None) -> None:
    """Run aiosmtpd on asyncio; with a DSN, its handler stores each message with asyncpg."""
    import logging

    from aiosmtpd.smtp import SMTP

    logging.getLogger("mail.log").setLevel(logging.ERROR)

    class Nothing:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            return "250 OK"

    class Insert:
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            await self.pool.execute(
                "INSERT INTO bench_messages (sender, recipient, raw) VALUES ($1, $2, $3)",
                envelope.mail_from,
                envelope.rcpt_tos[0],
                envelope.content,
            )
            return "250 OK"

    async def main() -> None:
        handler: Any = Nothing()
        if dsn is not None:
            handler = Insert(await asyncpg_pool(dsn, POOL))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: SMTP(handler, hostname="bench", loop=loop), "127.0.0.1", 0
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


# ---------------------------------------------------------------------------- the generator


def generate(
    port: int,
    messages: int,
    connections: int = CONNECTIONS,
    to: Sequence[str] = ("-t", RECIPIENT),
) -> float:
    """Send so many messages over so many connections; return the seconds it took.

    `to`: smtp-source's arguments for the recipients.
    """
    program = shutil.which("smtp-source")
    command = [sys.executable, "-m", "tests.bench.ingest", "generate"]
    command += map(str, (port, messages, connections))
    if program:
        command = [program, "-s", str(connections), "-d", "-l", str(BYTES), "-m", str(messages)]
        command += ["-f", "a@bench.example", *to, f"127.0.0.1:{port}"]
    began = time.perf_counter()
    subprocess.run(command, check=True, timeout=300)
    return time.perf_counter() - began


async def _generate(port: int, messages: int, connections: int) -> None:
    body = (b"X" * 76 + b"\r\n") * (BYTES // 78) + b"\r\n.\r\n"
    left = messages

    async def connection() -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def ask(data: bytes, code: bytes) -> None:
            writer.write(data)
            while (line := await reader.readline())[3:4] == b"-":
                pass
            if line[:3] != code:
                raise RuntimeError(f"{data[:40]!r}: {line!r}")

        await ask(b"", b"220")
        await ask(b"EHLO bench\r\n", b"250")
        while left > 0:
            left -= 1
            await ask(b"MAIL FROM:<a@bench.example>\r\n", b"250")
            await ask(f"RCPT TO:<{RECIPIENT}>\r\n".encode(), b"250")
            await ask(b"DATA\r\n", b"354")
            await ask(body, b"250")
        writer.close()

    await asyncio.gather(*(connection() for _ in range(connections)))


# ---------------------------------------------------------------------------- the measurement


class Peer:
    """One server in a process of its own."""

    def __init__(self, variant: str, dsn: str) -> None:
        self.variant = variant
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.ingest", "serve", variant, dsn],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def cpu(self) -> float:
        """CPU seconds so far."""
        return cpu_seconds_of_all(self.process.pid)

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


class Queue:
    """Postfix."""

    def __init__(self) -> None:
        self.postfix = postfix.Postfix()
        self.port = self.postfix.port

    def cpu(self) -> float:
        """CPU seconds so far, of all its processes."""
        return cpu_seconds_of_all(self.postfix.process.pid)

    def close(self) -> None:
        """End it."""
        self.postfix.close()


class Whole:
    """`relay up`, on the same database."""

    def __init__(self, dsn: str, directory: Path) -> None:
        from tests.relay_process import RelayProcess

        self.relay = RelayProcess(directory / "relay", env={"RELAY_DATABASE__URL": dsn})
        self.relay.start()
        self.port = self.relay.smtp[1]

    def cpu(self) -> float:
        """CPU seconds so far, its summariser's included."""
        return cpu_seconds_of_all(self.relay.pid)

    def close(self) -> None:
        """End it."""
        self.relay.kill()


def run(
    rounds: int = 5, variants: tuple[str, ...] = VARIANTS, connections: int = CONNECTIONS
) -> dict[str, Any]:
    """Measure every variant `rounds` times, interleaved."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    # The settings that a modest real server has; all variants share them.
    cluster = Cluster(bin_dir, fsync=True, settings={"shared_buffers": "256MB"})
    figures: dict[str, list[tuple[float, float, float, float]]] = {name: [] for name in variants}
    with tempfile.TemporaryDirectory() as directory:
        try:
            cluster.start()
            assert cluster.process is not None
            server = cluster.process.pid
            databases = {name: _OWN.get(name, "bench") for name in variants}
            dsns = {name: prepare(cluster, name) for name in set(databases.values())}
            peers: dict[str, Any] = {}
            try:
                for name in variants:
                    dsn = dsns[databases[name]]
                    if name == "relay up":
                        peers[name] = Whole(dsn, Path(directory))
                    elif name == "Postfix":
                        peers[name] = Queue()
                    else:
                        peers[name] = Peer(name, dsn)
                    generate(peers[name].port, WARM_UP, connections, _to(name))
                for _ in range(rounds):
                    for name, peer in peers.items():
                        wait_for_rest(server, peer)
                        for database in dsns:
                            cluster.admin("TRUNCATE relay.messages CASCADE", database)
                            cluster.admin("TRUNCATE bench_messages", database)
                            cluster.admin(_FORGET, database)
                        if name == "relay, captured anew, evicting":
                            cluster.admin(_FILL, databases[name])
                        cluster.admin("CHECKPOINT")
                        before, server_before = peer.cpu(), cpu_seconds_of_all(server)
                        seconds = generate(peer.port, MESSAGES, connections, _to(name))
                        if name == "relay up":
                            _wait_for_summaries(dsns["whole"])
                        spent = peer.cpu() - before
                        server_spent = cpu_seconds_of_all(server) - server_before
                        wait_for_rest(server, peer)
                        later = peer.cpu() - before - spent
                        later += cpu_seconds_of_all(server) - server_before - server_spent
                        figures[name].append(
                            (
                                MESSAGES / seconds,
                                spent / MESSAGES * 1000,
                                server_spent / MESSAGES * 1000,
                                later / MESSAGES * 1000,
                            )
                        )
                        _check(dsns[databases[name]], name)
                        # Or it would go on with them beside the next: filters for searches, vacuum.
                        cluster.admin("TRUNCATE relay.messages CASCADE", databases[name])
            finally:
                for peer in peers.values():
                    peer.close()
        finally:
            cluster.remove()
    return _report(figures, connections)


# One that has taken mail before stays; those that are made anew go.
_FORGET = "DELETE FROM relay.mailboxes WHERE captured_at IS NOT NULL AND address NOT LIKE 'one@%'"
_OWN = {"relay up": "whole", "relay, captured anew, evicting": "bound"}
"""Those with a database of their own: the whole program summarises whatever is stored in it."""
_MOST = 10_000  # captured mailboxes, as RELAY_SMTP__CAPTURE_MAILBOXES has it
_FILL = f"""
    INSERT INTO relay.mailboxes (address, owner_type, owner_id, captured_at, expires_at)
    SELECT n || '@full.example', 'capture', '00000000-0000-0000-0000-000000000000',
           now() - interval '1 hour', now() + interval '1 hour'
    FROM generate_series(1, {_MOST}) n
    """


def _to(name: str) -> Sequence[str]:
    return CAPTURED.get(name, ("-t", RECIPIENT))


def prepare(cluster: Cluster, database: str) -> str:
    """Make a migrated database with the mailbox of the benches; return its DSN."""
    from relay.db.migrate import migrate

    cluster.admin(f"CREATE DATABASE {database}")
    dsn = cluster.dsn(database)
    trio.run(functools.partial(migrate, dsn))
    cluster.admin(
        "CREATE TABLE bench_messages (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
        "received_at timestamptz NOT NULL DEFAULT now(), sender text NOT NULL, "
        "recipient text NOT NULL, raw bytea NOT NULL)",
        database,
    )
    cluster.admin(
        f"INSERT INTO relay.mailboxes (address, expires_at) "
        f"VALUES ('{RECIPIENT}', now() + interval '1 day')",
        database,
    )
    return dsn


def _wait_for_summaries(dsn: str) -> None:
    """Wait until everything that is stored was parsed."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute("SELECT FROM relay.unsummarised LIMIT 1").fetchone() is not None:
            time.sleep(0.02)


def wait_for_rest(server: int, peer: Any = None) -> None:
    """Wait until the database, and a peer, have finished with the round before."""

    def spent() -> float:
        return cpu_seconds_of_all(server) + (0.0 if peer is None else peer.cpu())

    calm, deadline = 0, time.monotonic() + 60
    while calm < _CALM and time.monotonic() < deadline:
        before = spent()
        time.sleep(0.5)
        calm = calm + 1 if spent() - before < 0.05 else 0


def _check(dsn: str, name: str) -> None:
    """A figure counts only if every message that was answered 250 is stored."""
    table = {
        "aiosmtpd, stores nothing": None,
        "aiosmtpd, INSERT a message": "bench_messages",
        "Postfix": None,
    }
    where = table.get(name, "relay.messages")
    if where is not None:
        with psycopg.connect(dsn) as conn:
            row = conn.execute(f"SELECT count(*) FROM {where}").fetchone()
        assert row == (MESSAGES,), f"{name} stored {row} of {MESSAGES}"
    if name == "relay, captured anew, evicting":
        with psycopg.connect(dsn) as conn:
            row = conn.execute(
                "SELECT count(*) FROM relay.mailboxes WHERE is_active AND captured_at IS NOT NULL"
            ).fetchone()
        assert row == (_MOST,), f"{name} left {row} mailboxes of {_MOST}"


def _report(
    figures: dict[str, list[tuple[float, float, float, float]]], connections: int
) -> dict[str, Any]:
    results = {
        name: {
            "messages/s": round(statistics.median(taken[0] for taken in rounds), 1),
            "CPU s/1,000": round(statistics.median(taken[1] for taken in rounds), 3),
            "PostgreSQL CPU s/1,000": round(statistics.median(taken[2] for taken in rounds), 3),
            "both, afterwards": round(statistics.median(taken[3] for taken in rounds), 3),
        }
        for name, rounds in figures.items()
    }
    ratios = {}
    for relay, peer, required, aim in (
        ("relay", "aiosmtpd, stores nothing", 2.0, None),
        ("relay", "Postfix", 4.5, None),
        ("relay up", "relay", 0.9, None),
        ("relay", "aiosmtpd, INSERT a message", 2.0, 2.7),
        ("relay, two processes", "relay", 0.6, 1.3),
        ("relay, captured anew", "relay", 0.8, None),
        ("relay, captured anew, evicting", "relay", 0.5, 0.8),
    ):
        if peer in results and relay in results:
            value = statistics.median(
                ours[0] / theirs[0]
                for ours, theirs in zip(figures[relay], figures[peer], strict=True)
            )
            ratios[f"{relay} / {peer}"] = {"value": round(value, 2), "required": required}
            if aim is not None:
                ratios[f"{relay} / {peer}"]["aim"] = aim
    if {"relay up", "Postfix"} <= figures.keys():
        for until, last in (("summary included", 3), ("until all is quiet", 4)):
            ratios[f"CPU a message, {until}: Postfix / relay up"] = {
                "value": round(
                    statistics.median(
                        sum(theirs[1:last]) / sum(ours[1:last])
                        for ours, theirs in zip(
                            figures["relay up"], figures["Postfix"], strict=True
                        )
                    ),
                    2,
                ),
                "required": 3.5,
            }
    return {
        "name": f"durable ingest, {BYTES} bytes over {connections} connections",
        "unit": "messages/s",
        "generator": "smtp-source" if shutil.which("smtp-source") else "python",
        "results": results,
        "missing": {} if postfix.available() else {"Postfix": "cannot be run here"},
        "ratios": ratios,
    }


def main() -> None:
    """Be a peer or the generator, or measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ingest")
    parser.add_argument("role", choices=["serve", "generate", "run"])
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parsed = parser.parse_intermixed_args()
    match parsed.role, parsed.arguments:
        case "serve", ["relay", dsn]:
            serve_relay(dsn)
        case "serve", ["relay, plain tasks", dsn]:
            serve_relay(dsn, plain=True)
        case "serve", [variant, dsn] if variant in CAPTURED:
            limits = SmtpLimits(max_connections_per_peer=1000)
            most = _MOST if variant.endswith("evicting") else 10 * MESSAGES
            capture = Capture.beside(["relay.localhost"], 3600.0, most)
            serve_relay(dsn, limits=limits, capture=capture)
        case "serve", [variant, dsn] if variant in PROCESSES:
            serve_processes(dsn, PROCESSES[variant])
        case "serve", ["aiosmtpd, stores nothing", _]:
            serve_aiosmtpd(None)
        case "serve", [_, dsn]:
            serve_aiosmtpd(dsn)
        case "generate", [port, messages, connections]:
            asyncio.run(_generate(int(port), int(messages), int(connections)))
        case "run", [*variants]:
            print(run(parsed.rounds, tuple(variants) or VARIANTS))


if __name__ == "__main__":
    main()
