"""Outbound end to end: claim, SMTP, finalise, all durable, to one local sink.

The queue is filled beforehand with 40,000 messages of 2 kB, fsync is on, the sink is a process of
its own.  What is measured is from when delivery may begin until the last message is recorded.

- `relay`: the whole program (`relay up`), one process, as shipped but for the upstream.
- `signed_relay`: the same, and each message is signed with both keys of its domain (DKIM).  Half of
  the rate without is asked for, and more than two cores can do: a signature by RSA-2048 alone costs
  a quarter of a millisecond there, which is more than a whole delivery without one.
- `two_relays`, `three_relays`: as many of them on the one database.
- `pgqueuer`: one PgQueuer process (uvloop, asyncpg, the workers and batch size that were fastest)
  with pooled aiosmtplib connections.
- `two_pgqueuers`: two of them on the one database.
- `procrastinate`: two procrastinate processes, psycopg, with pooled aiosmtplib connections; 1,500
  messages, as it takes long.
- `postfix`: its own queue and its own client (`tests.bench.postfix`), where one can be run.
- `signing_postfix`: the same, and opendkim signs each message by RSA as it is accepted (it signs by
  one algorithm, Postfix while it accepts).  What accepting them takes longer than without opendkim
  is part of the time; accepting itself is not.
- `bare`: a Trio loop that writes MAIL, RCPT and DATA in one go, with no database behind it.

The peers' messages are composed beforehand; the relay composes its own.  A run counts only if every
message was recorded as sent and the sink took each once.  CPU is that of all processes of a variant
but the sink, PostgreSQL included, until they are quiet; PostgreSQL's part stands beside it.  `cores
in use` are those of all this and the sink: where it is near to what the machine has, that is what
limits the rate.

Also the time from the commit of `relay.send` to MAIL FROM on the wire, with an idle relay.

Rounds are interleaved, figures are medians, ratios are what is promised; a ratio is the median of
the ratios of each round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import trio
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.migrate import migrate
from relay.outbound.signing.dkim import generate
from tests.bench import postfix
from tests.bench.outbound_peers import WAITING
from tests.bench.proc import cpu_seconds_of_all
from tests.bench.queue import FILL_DUE, SERVER
from tests.bench.smtp_client import ROOT, Sink, bare, running_sink
from tests.db.cluster import Cluster, binaries
from tests.relay_process import RelayProcess

JOBS = 40_000
PROCRASTINATE_JOBS = 1_500
SENDERS = "example.org"
"""The domain that the messages are from."""
LATENCIES = 200
_QUIET = 0.03  # s of CPU in half a second, of all processes


class Drain(NamedTuple):
    """What one run took; CPU in seconds, `cpu` with PostgreSQL's, without the sink's."""

    jobs: int
    seconds: float
    cpu: float
    server_cpu: float
    sink_cpu: float = 0.0

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.jobs / self.seconds


class Cpu:
    """The CPU that processes and PostgreSQL take from now on."""

    def __init__(self, cluster: Cluster, pids: list[int]) -> None:
        assert cluster.process is not None
        self._pids, self._server = pids, cluster.process.pid
        self._before = self._seconds()

    def _seconds(self) -> tuple[float, float]:
        return sum(map(cpu_seconds_of_all, self._pids)), cpu_seconds_of_all(self._server)

    def until_quiet(self) -> tuple[float, float]:
        """Wait until they rest; returns what they took, and PostgreSQL's part of it."""
        now = self._seconds()
        for _ in range(40):
            before = now
            time.sleep(0.5)
            now = self._seconds()
            if sum(now) - sum(before) < _QUIET:
                break
        server = now[1] - self._before[1]
        return now[0] - self._before[0] + server, server


class Bench:
    """One server, one sink, a fresh database for each run."""

    def __init__(self, cluster: Cluster, sink: Sink) -> None:
        self.cluster = cluster
        self.sink = sink
        cluster.admin("CREATE DATABASE template_outbound")
        trio.run(migrate, cluster.dsn("template_outbound"))

    def run(self, variant: str) -> Drain:
        """Prepare, measure, check and clean up."""
        name = self.cluster.new_database("template_outbound" if "relay" in variant else None)
        measure: Callable[[str], Drain] = getattr(self, f"_{variant}")
        before, sink_cpu = self.sink.taken(), cpu_seconds_of_all(self.sink.pid)
        try:
            found = measure(self.cluster.dsn(name))
        finally:
            self.cluster.drop_database(name)
        after = self.sink.taken()
        if before is not None and after is not None and after - before != found.jobs:
            raise RuntimeError(f"{variant}: the sink took {after - before} of {found.jobs}")
        return found._replace(sink_cpu=cpu_seconds_of_all(self.sink.pid) - sink_cpu)

    def _relay(self, dsn: str) -> Drain:
        return self._relays(dsn, 1)

    def _signed_relay(self, dsn: str) -> Drain:
        return self._relays(dsn, 1, signed=True)

    def _two_relays(self, dsn: str) -> Drain:
        return self._relays(dsn, 2)

    def _three_relays(self, dsn: str) -> Drain:
        return self._relays(dsn, 3)

    def _relays(self, dsn: str, count: int, *, signed: bool = False) -> Drain:
        with contextlib.ExitStack() as stack:
            admin = stack.enter_context(psycopg.connect(dsn, autocommit=True))
            admin.execute("UPDATE relay.outbound_control SET paused = true")
            values = {"count": JOBS, "domain": "example.com", "owner": ADMINISTRATOR_ID}
            # No checkpoint: it would have each page's first change write all of the page once
            # more, and the peers' queues are not followed by one either.
            admin.execute(FILL_DUE, values)
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-"))
            environment = _environment(dsn, self.sink.port)
            pids = []
            for number in range(count):
                relay = RelayProcess(Path(folder) / f"data{number}", env=environment)
                stack.enter_context(relay)
                assert relay.process is not None
                pids.append(relay.process.pid)
                if signed:
                    with relay.http() as api:
                        api.post("/api/v1/dkim", json={"domain": SENDERS}).raise_for_status()
            time.sleep(0.5)
            cpu = Cpu(self.cluster, pids)
            admin.execute("UPDATE relay.outbound_control SET paused = false, paused_at = now()")
            admin.execute("NOTIFY relay_outbound")
            began = time.monotonic()
            while _recorded(admin) < JOBS:
                if time.monotonic() > began + 120:
                    raise RuntimeError(f"{_recorded(admin)} of {JOBS} were delivered")
                time.sleep(0.25)
            spent = cpu.until_quiet()
            row = admin.execute(
                """
                SELECT extract(epoch FROM max(finished_at) - min(paused_at))::float8,
                       count(*) FILTER (WHERE status = 'sent'),
                       (SELECT count(*) FROM relay.outbound_due)
                FROM relay.outbound_log, relay.outbound_control
                """
            ).fetchone()
        assert row is not None
        if row[1:] != (JOBS, 0):
            raise RuntimeError(f"{row[1]} of {JOBS} were sent, {row[2]} are left")
        return Drain(JOBS, float(row[0]), *spent)

    def _pgqueuer(self, dsn: str) -> Drain:
        return self._peer("pgqueuer", dsn, JOBS, 1)

    def _two_pgqueuers(self, dsn: str) -> Drain:
        return self._peer("pgqueuer", dsn, JOBS, 2)

    def _procrastinate(self, dsn: str) -> Drain:
        return self._peer("procrastinate", dsn, PROCRASTINATE_JOBS, 2)

    def _peer(self, peer: str, dsn: str, jobs: int, count: int) -> Drain:
        command = [sys.executable, "-m", "tests.bench.outbound_peers"]
        subprocess.run([*command, "fill", peer, dsn, str(jobs)], check=True, timeout=300, cwd=ROOT)
        workers = [
            subprocess.Popen(
                [*command, "drain", peer, dsn, str(self.sink.port)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for _ in range(count)
        ]
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise RuntimeError(f"{peer} does not start")
        cpu = Cpu(self.cluster, [])
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        reports = [json.loads(worker.communicate(timeout=300)[0]) for worker in workers]
        _, server = cpu.until_quiet()
        with psycopg.connect(dsn) as admin:
            row = admin.execute(WAITING[peer]).fetchone()
        done = sum(report["done"] for report in reports)
        if row != (0,) or done != jobs:
            raise RuntimeError(f"{done} of {jobs} were delivered, {row} are left")
        began = min(report["began"] for report in reports)
        ended = max(report["ended"] for report in reports)
        own = sum(report["cpu"] for report in reports)
        return Drain(jobs, ended - began, own + server, server)

    def _signing_postfix(self, _dsn: str) -> Drain:
        with contextlib.closing(postfix.Postfix(deliver_to=self.sink.port)) as peer:
            unsigned = _fill_postfix(peer)
        with (
            tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
            _opendkim(Path(folder)) as milter,
            contextlib.closing(postfix.Postfix(self.sink.port, f"inet:{milter}")) as peer,
        ):
            signed = _fill_postfix(peer)
            if not peer.holds(b"DKIM-Signature: "):
                raise RuntimeError("opendkim has not signed all of it")
            found = self._drained(peer)
        return found._replace(seconds=found.seconds + max(0.0, signed - unsigned))

    def _postfix(self, _dsn: str) -> Drain:
        with contextlib.closing(postfix.Postfix(deliver_to=self.sink.port)) as peer:
            _fill_postfix(peer)
            return self._drained(peer)

    def _drained(self, peer: postfix.Postfix) -> Drain:
        if peer.waiting() != JOBS:
            raise RuntimeError(f"{peer.waiting()} of {JOBS} are in Postfix's queue")
        cpu = Cpu(self.cluster, [peer.process.pid])
        began = time.monotonic()
        peer.release()
        while not peer.empty():
            if time.monotonic() > began + 120:
                raise RuntimeError(f"{peer.waiting()} of {JOBS} are left")
            time.sleep(0.02)
        seconds = time.monotonic() - began
        return Drain(JOBS, seconds, *cpu.until_quiet())

    def _bare(self, _dsn: str) -> Drain:
        answer = subprocess.run(
            [sys.executable, "-m", "tests.bench.outbound", "--bare", str(self.sink.port)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            cwd=ROOT,
        )
        seconds, cpu = json.loads(answer.stdout)
        return Drain(JOBS, seconds, cpu, 0.0)


def _fill_postfix(peer: postfix.Postfix) -> float:
    """Have it accept all messages; the seconds that took."""
    generator = shutil.which("smtp-source")
    assert generator is not None
    began = time.monotonic()
    subprocess.run(
        [
            *(generator, "-s", "20", "-d", "-l", "2048", "-m", str(JOBS), "-N"),
            *("-f", "a@example.org", "-t", "u@example.com", f"127.0.0.1:{peer.port}"),
        ],
        check=True,
        timeout=300,
    )
    return time.monotonic() - began


@contextlib.contextmanager
def _opendkim(folder: Path) -> Iterator[str]:
    """Run opendkim, which signs by RSA-2048 whatever is from `SENDERS`; its host:port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    key = generate("rsa-sha256").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key").write_bytes(key)
    (folder / "key").chmod(0o600)
    lines = (
        *("Mode s", "Canonicalization relaxed/relaxed", f"Domain {SENDERS}", "Selector s"),
        *(f"KeyFile {folder}/key", "OversignHeaders From", "InternalHosts 0.0.0.0/0"),
        *("Syslog no", "RequireSafeKeys no"),  # it is in a directory below one that all may write
    )
    (folder / "conf").write_text("".join(f"{line}\n" for line in lines))
    process = subprocess.Popen(
        ["opendkim", "-f", "-x", str(folder / "conf"), "-p", f"inet:{port}@127.0.0.1"]
    )
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("opendkim does not start") from None
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _recorded(admin: psycopg.Connection[Any]) -> int:
    row = admin.execute("SELECT count(*) FROM relay.outbound_log").fetchone()
    assert row is not None
    return int(row[0])


def _environment(dsn: str, port: int) -> dict[str, str]:
    return {
        "RELAY_DATABASE__URL": dsn,
        "RELAY_OUTBOUND__UPSTREAM": f"smtp://127.0.0.1:{port}",
        "RELAY_LOG__LEVEL": "warning",
    }


def latencies(cluster: Cluster) -> list[float]:
    """Milliseconds from the commit of `relay.send` to MAIL FROM, one message at a time."""
    arrived: list[float] = []
    event = threading.Event()

    def serve(peer: socket.socket) -> None:
        peer.sendall(b"220 sink\r\n")
        with peer, peer.makefile("rb") as lines:
            for line in lines:
                if line.startswith(b"MAIL"):
                    arrived.append(time.perf_counter())
                    event.set()
                if line.startswith(b"DATA"):
                    peer.sendall(b"354 go on\r\n")
                    while lines.readline() != b".\r\n":
                        pass
                peer.sendall(b"250 Ok\r\n")

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    dsn = cluster.dsn(cluster.new_database("template_outbound"))
    found = []
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
    ):
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        environment = _environment(dsn, listener.getsockname()[1])
        with (
            RelayProcess(Path(folder) / "data", env=environment),
            psycopg.connect(dsn, autocommit=True) as user,
        ):
            for _ in range(LATENCIES):
                event.clear()
                arrived.clear()
                user.execute(
                    "SELECT relay.send('a@example.org', 'b@example.net', 'Subject', 'text')"
                )
                committed = time.perf_counter()
                if not event.wait(10):
                    raise RuntimeError("a message did not arrive")
                found.append((arrived[0] - committed) * 1000)
                time.sleep(0.02)
        listener.shutdown(socket.SHUT_RDWR)
    return found


MISSING = (
    dict.fromkeys(("postfix", "signing_postfix"), "Postfix cannot be run here")
    if not postfix.available()
    else {}
    if shutil.which("opendkim")
    else {"signing_postfix": "opendkim is not installed"}
)
"""The peers that cannot be run, and why."""

_RSA = "RSA-2048 bounds two cores at 4,100 a second"

VARIANTS = (
    # What is compared is measured next to each other: other work on the machine comes and goes.
    *("relay", "signed_relay", "pgqueuer", "two_relays", "two_pgqueuers"),
    *(variant for variant in ("postfix", "signing_postfix") if variant not in MISSING),
    *("three_relays", "procrastinate", "bare"),
)


def run(rounds: int = 3, variants: tuple[str, ...] = VARIANTS) -> dict[str, Any]:
    """Measure every variant `rounds` times, interleaved."""
    bin_dir = binaries(18)
    if bin_dir is None:
        raise RuntimeError("the embedded PostgreSQL 18 is missing")
    cluster = Cluster(bin_dir, fsync=True, settings=SERVER)
    drains: dict[str, list[Drain]] = {variant: [] for variant in variants}
    waits: list[float] = []
    try:
        cluster.start()
        with running_sink() as sink:
            bench = Bench(cluster, sink)
            for _ in range(rounds):
                for variant in variants:
                    drains[variant].append(bench.run(variant))
        if "relay" in variants:
            waits = latencies(cluster)
    finally:
        cluster.remove()
    results = {
        variant: {
            "messages/s": statistics.median(drain.rate for drain in found),
            "CPU µs a message": _per_message([drain.cpu / drain.jobs for drain in found]),
            "PostgreSQL's part": _per_message([drain.server_cpu / drain.jobs for drain in found]),
            "cores in use": statistics.median(
                (drain.cpu + drain.sink_cpu) / drain.seconds for drain in found
            ),
        }
        for variant, found in drains.items()
    }
    ratios: dict[str, Any] = {}
    for name, over, under, required, aim in (
        ("relay against PgQueuer", "relay", "pgqueuer", 3.0, None),
        ("relay against two PgQueuers", "relay", "two_pgqueuers", 2.0, None),
        ("relay against Postfix", "relay", "postfix", 6.0, None),
        ("relay against two procrastinate", "relay", "procrastinate", 7.0, None),
        ("relay against a bare loop", "relay", "bare", 0.30, None),
        ("signed, against Postfix with opendkim", "signed_relay", "signing_postfix", 2.0, None),
        ("signed, against unsigned", "signed_relay", "relay", 0.2, 0.5),
        ("two relays against one", "two_relays", "relay", 1.0, None),
        ("three relays against one", "three_relays", "relay", 1.0, None),
    ):
        if over in drains and under in drains:
            pairs = zip(drains[over], drains[under], strict=True)
            value = statistics.median(one.rate / other.rate for one, other in pairs)
            ratios[name] = {"value": value, "required": required}
            if aim:
                ratios[name] |= {"aim": aim, "why": _RSA}
    if waits:
        results["relay.send to MAIL FROM"] = {
            "p50 ms": statistics.median(waits),
            "p95 ms": statistics.quantiles(waits, n=20)[-1],
        }
        ratios["relay.send to MAIL FROM, p50 ms"] = {
            "value": statistics.median(waits),
            "at_most": 10.0,
        }
    return {
        "name": f"outbound end to end, {JOBS:,} messages, sink: {sink.name}",
        "unit": "messages/s",
        "results": results,
        "ratios": ratios,
        "missing": MISSING if variants == VARIANTS else {},
    }


def _per_message(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1e6


def main() -> None:
    """Print the figures as JSON, or run the bare loop for a parent."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.outbound", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--bare", type=int, metavar="PORT")
    arguments = parser.parse_args()
    if arguments.bare:
        began = time.perf_counter()
        trio.run(bare, arguments.bare, JOBS)
        print(json.dumps([time.perf_counter() - began, time.process_time()]))
    else:
        print(json.dumps(run(arguments.rounds, tuple(arguments.variants)), indent=2))


if __name__ == "__main__":
    main()
