"""What heavy, slow and idle peers cost: memory, and how long everybody else waits meanwhile.

Three loads, each on a server that was just started, in a process of its own:

- `large`: 100 connections send a message of 25 MB each, all at once and without SIZE, until each is
  answered, two minutes at most; who is told to try again later does, a second later.  The relay
  reads as many as its memory for mail in flight allows, and the others afterwards; aiosmtpd holds
  them all.
- `slow`: 1,000 senders with a message each of which a kilobyte comes a second.
- `idle`: 10,000 sessions that have said EHLO and nothing since.

Meanwhile somebody else sends a message of 2 kB twenty times a second over one connection; what it
waits for the whole of MAIL, RCPT, DATA and 250 is the others' time.  `alone` is that without load.

- `relay`: its ingest and writer under its supervisor (`tests.bench.ingest`), 250 after COMMIT; its
  limits on connections are raised where a load needs more.
- `aiosmtpd`: on asyncio, with a handler that answers 250 and stores nothing.
- `Haraka`: Node.js, with a queue that throws away; from `tests/bench/haraka` with npm, where it
  can be installed.

Memory is resident, of the process that speaks SMTP and its children: `rest` before the load, `peak`
the highest that was seen.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import truediv
from pathlib import Path
from typing import Any

import pytest
import trio

from relay.smtp.limits import SmtpLimits
from tests.bench.ingest import RECIPIENT, prepare, serve_aiosmtpd, serve_relay
from tests.bench.proc import descendants, resident_bytes
from tests.db.cluster import Cluster, binaries
from tests.npm import node_modules

_HERE = Path(__file__).parent
SECONDS = 10.0
LARGE_SECONDS = 120.0
LOADS = {"alone": 0, "large": 100, "slow": 1000, "idle": 10_000}
"""Connections of each load."""
LARGE = 25_000_000
MIB = 1024 * 1024
PROBES = 20  # a second
_START = 30.0  # s
_LAST = 5.0  # s; for the last answers of slow senders
_FELT = 250.0  # ms; what somebody else may wait for a message, at p99, whatever the load
_LINE = b"X" * 78 + b"\r\n"


# ---------------------------------------------------------------------------- the servers


@contextmanager
def _server(name: str, dsn: str, directory: Path) -> Iterator[tuple[int, int]]:
    """Run a server; give its process id and port."""
    if name == "Haraka":
        port = _free_port()
        command = ["node", str(_haraka() / "Haraka/bin/haraka"), "-c", str(directory / "haraka")]
        _configure(directory / "haraka", port)
        stdout: int = subprocess.DEVNULL
    else:
        command = [sys.executable, "-m", __name__, "serve", name, dsn]
        stdout = subprocess.PIPE
    process = subprocess.Popen(
        command,
        stdout=stdout,
        text=True,
        env={**os.environ, "YES_REALLY_DO_DISCARD": "1"},
    )
    try:
        if process.stdout is not None:
            port = int(process.stdout.readline())
        deadline = time.monotonic() + _START
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as sock:
                sock.settimeout(_START)
                if sock.recv(100):
                    break
            assert time.monotonic() < deadline, f"{name} does not start"
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@functools.cache
def _haraka() -> Path:
    """Where Haraka is installed; skips with the reason where it cannot be."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    return node_modules(_HERE / "haraka")


def _configure(place: Path, port: int) -> None:
    """Write a configuration that takes all mail for the benches' domain, and throws it away."""
    config = place / "config"
    config.mkdir(parents=True, exist_ok=True)
    usual = (_haraka() / "Haraka/config/connection.ini").read_text()
    files = {
        "smtp.ini": f"listen=127.0.0.1:{port}\nnodes=0\n",
        "plugins": "rcpt_to.in_host_list\nqueue/discard\n",
        "host_list": RECIPIENT.partition("@")[2] + "\n",
        "me": "bench.example\n",
        "loglevel": "ERROR\n",
        "connection.ini": re.sub("(?m)^;?bytes=.*$", "bytes=26214400", usual),
    }
    for name, text in files.items():
        (config / name).write_text(text)


def memory(pid: int) -> int:
    """Return the resident bytes of a process and its children."""
    total = 0
    with suppress(FileNotFoundError, ProcessLookupError):
        for one in (pid, *descendants(pid)):
            total += resident_bytes(one)
    return total


class _Peak(threading.Thread):
    """Looks at the memory of a process again and again, until stopped."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._over = threading.Event()
        self.bytes = 0
        self.start()

    def run(self) -> None:
        """Look."""
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, memory(self._pid))

    def stop(self) -> int:
        """Return the most that was seen."""
        self._over.set()
        self.join()
        return self.bytes


# ---------------------------------------------------------------------------- the load


class _Peer:
    """A client of one connection."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._input = b""

    async def reply(self) -> int:
        """Read one reply; its code, 0 at the end of the stream."""
        while True:
            end = self._input.find(b"\r\n")
            if end >= 0:
                line, self._input = self._input[:end], self._input[end + 2 :]
                if line[3:4] != b"-":
                    return int(line[:3])
                continue
            chunk = await self._stream.receive_some(65536)
            if not chunk:
                return 0
            self._input += chunk

    async def ask(self, data: bytes) -> int:
        """Send bytes and read one reply."""
        await self._stream.send_all(data)
        return await self.reply()

    async def begin(self) -> int:
        """Open a transaction; the last code, 354 if all is well."""
        await self.ask(b"MAIL FROM:<a@bench.example>\r\n")
        await self.ask(b"RCPT TO:<%b>\r\n" % RECIPIENT.encode())
        return await self.ask(b"DATA\r\n")


@functools.cache
def _large_text() -> bytes:
    return _LINE * (LARGE // len(_LINE)) + b".\r\n"


async def _connected(port: int) -> _Peer:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    peer = _Peer(stream)
    if await peer.reply() != 220 or await peer.ask(b"EHLO bench\r\n") != 250:
        raise ConnectionError("not let in")
    return peer


class Load:
    """What one load does, and what became of it."""

    def __init__(self, kind: str, port: int) -> None:
        self._kind, self._port = kind, port
        self._connect = trio.CapacityLimiter(100)
        self.ends = math.inf
        self.found = {"connected": 0, "accepted": 0, "deferred": 0, "broken": 0, "seconds": 0.0}
        self._ready = trio.Event()

    async def run(self, count: int) -> None:
        """Connect all, say so, wait for the start, and go on for `SECONDS`."""
        begin = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            for number in range(count):
                nursery.start_soon(self._one, number / max(count, 1), begin)
            with trio.move_on_after(60):
                while self.found["connected"] + self.found["broken"] < count:
                    await trio.sleep(0.05)
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            began = trio.current_time()
            self.ends = began + (LARGE_SECONDS if self._kind == "large" else SECONDS)
            begin.set()
            if self._kind == "slow":
                nursery.cancel_scope.deadline = self.ends + _LAST
            else:
                nursery.cancel_scope.deadline = self.ends
            if self._kind == "large":
                while self.found["accepted"] + self.found["broken"] < count:
                    await trio.sleep(0.05)
                nursery.cancel_scope.cancel()
        self.found["seconds"] = trio.current_time() - began

    async def _one(self, phase: float, begin: trio.Event) -> None:
        try:
            async with self._connect:
                peer = await _connected(self._port)
            self.found["connected"] += 1
            await begin.wait()
            if self._kind == "large":
                await self._large(peer)
            elif self._kind == "slow":
                await self._slow(peer, phase)
            else:
                await trio.sleep_forever()
        except (OSError, trio.BrokenResourceError, ConnectionError):
            self.found["broken"] += 1

    async def _large(self, peer: _Peer) -> None:
        text = _large_text()
        while trio.current_time() < self.ends:
            code = await peer.begin()
            if code == 354:
                code = await peer.ask(text)
            if code == 250:
                self.found["accepted"] += 1
                return
            self.found["deferred"] += 1
            await peer.ask(b"RSET\r\n")
            await trio.sleep(1)

    async def _slow(self, peer: _Peer, phase: float) -> None:
        await trio.sleep(phase)
        if await peer.begin() != 354:
            self.found["deferred"] += 1
            return
        kilobyte = _LINE * 12 + b"X" * 62 + b"\r\n"
        while trio.current_time() < self.ends:
            await peer._stream.send_all(kilobyte)
            await trio.sleep(1)
        self.found["accepted" if await peer.ask(b".\r\n") == 250 else "deferred"] += 1


async def _probe(port: int) -> None:
    """Send small messages until told to stop; print how long each took, in seconds."""
    peer = await _connected(port)
    body = _LINE * 25 + b".\r\n"
    took: list[float] = []
    began = math.inf
    print("ready", flush=True)
    async with trio.open_nursery() as nursery:

        async def stop() -> None:
            await trio.to_thread.run_sync(sys.stdin.readline)
            if began < math.inf:
                took.append(trio.current_time() - began)  # what is not answered yet
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop)
        due = trio.current_time()
        while True:
            await trio.sleep_until(due)
            began = trio.current_time()
            code = await peer.begin()
            if code == 354:
                code = await peer.ask(body)
            if code == 250:
                took.append(trio.current_time() - began)
            else:
                took.append(math.inf)
                await peer.ask(b"RSET\r\n")
            began = math.inf
            due = max(due + 1 / PROBES, trio.current_time())
    print(json.dumps(took))


def _client(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# ---------------------------------------------------------------------------- the measurement


def measure(name: str, kind: str, dsn: str, directory: Path) -> dict[str, float | None]:
    """Put one load on one server."""
    with _server(name, dsn, directory) as (pid, port):
        rest = memory(pid)
        load = _client("load", kind, str(port))
        probe = _client("probe", str(port))
        time.sleep(0.2)
        peak = _Peak(pid)
        _tell(load)
        said, _ = load.communicate(timeout=300)
        highest = peak.stop()
        out, _ = probe.communicate("\n", timeout=60)
    took = sorted(json.loads(out))
    assert took, "nobody else was answered"
    found = json.loads(said)
    return {
        "others' p50, ms": statistics.median(took) * 1e3,
        "others' p99, ms": took[int(len(took) * 0.99)] * 1e3,
        "others' refused": float(sum(one == math.inf for one in took)),
        "rest, MiB": rest / MIB,
        "peak, MiB": highest / MIB,
        **{what: float(count) for what, count in found.items()},
    }


def run(rounds: int) -> dict[str, Any]:
    """Every load on every server, `rounds` times interleaved; medians."""
    names, missing = ["relay", "aiosmtpd"], {}
    try:
        _haraka()
    except pytest.skip.Exception as reason:
        missing["Haraka"] = str(reason)
    else:
        names.append("Haraka")
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True, settings={"shared_buffers": "256MB"})
    figures: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        try:
            cluster.start()
            dsn = prepare(cluster, "bench")
            cluster.admin("UPDATE relay.mailboxes SET plan = 'enterprise'", "bench")  # 2.5 GB
            for _ in range(rounds):
                for kind in LOADS:
                    for name in names:
                        cluster.admin("TRUNCATE relay.messages CASCADE", "bench")
                        found = measure(name, kind, dsn, Path(folder))
                        figures.setdefault(f"{kind}, {name}", []).append(found)
        finally:
            cluster.remove()
    return {
        "name": f"large, slow and idle peers, {SECONDS:.0f} s each, or {LARGE_SECONDS:.0f} at most",
        "unit": "ms and MiB",
        "results": {
            label: {
                what: round(statistics.median(one[what] for one in each), 1) for what in each[0]
            }
            for label, each in figures.items()
        },
        "missing": missing,
        "ratios": _ratios(figures, names[1:]),
    }


def _ratios(
    figures: dict[str, list[dict[str, Any]]], peers: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Memory and the others' time against each peer, and what nobody else may feel."""

    def middle(kind: str, what: str, peer: str | None = None) -> float:
        ours = [one[what] for one in figures[f"{kind}, relay"]]
        theirs = [one[what] for one in figures[f"{kind}, {peer}"]] if peer else [1.0] * len(ours)
        return float(statistics.median(map(truediv, ours, theirs)))

    ratios: dict[str, dict[str, float]] = {}
    for kind, what in (
        ("large", "others' p99, ms"),
        ("large", "peak, MiB"),
        ("slow", "peak, MiB"),
        ("idle", "peak, MiB"),
    ):
        for peer in peers:
            value = middle(kind, what, peer)
            ratios[f"{what}, {kind}: relay / {peer}"] = {"value": value, "at_most": 1.0}
    for kind in ("large", "slow", "idle"):
        value = middle(kind, "others' p99, ms")
        ratios[f"others' p99, {kind}, ms"] = {"value": value, "at_most": _FELT}
    for kind, what, required in (
        ("slow", "accepted", LOADS["slow"]),
        ("idle", "connected", LOADS["idle"]),
        ("large", "accepted", 90),
    ):
        value = min(one[what] for one in figures[f"{kind}, relay"])
        ratios[f"{what}, {kind}"] = {"value": value, "required": required}
    return ratios


def main() -> None:
    """Be a server, a load or the others."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.large_slow")
    parser.add_argument("role", choices=["serve", "load", "probe"])
    parser.add_argument("arguments", nargs="*")
    parsed = parser.parse_args()
    match parsed.role, parsed.arguments:
        case "serve", ["relay", dsn]:
            most = max(LOADS.values()) + 100
            serve_relay(dsn, limits=SmtpLimits(max_connections=most, max_connections_per_peer=most))
        case "serve", ["aiosmtpd", _]:
            serve_aiosmtpd(None)
        case "load", [kind, port]:

            async def loaded() -> dict[str, float]:
                load = Load(kind, int(port))
                await load.run(LOADS[kind])
                return load.found

            print(json.dumps(trio.run(loaded)))
        case "probe", [port]:
            trio.run(_probe, int(port))
        case _:
            parser.error("unknown arguments")


if __name__ == "__main__":
    main()
