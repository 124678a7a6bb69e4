"""Device sessions from outside: durable pushes through Noise, and the memory of idle sessions.

The relay is the real program.  Its rate through 64 push sessions, each with one blob of 1 kB in
flight, is held against one INSERT a transaction into the same schema with the same pragmas
(`tests.bench.devices`), made in the same round on the same disk by a process of its own.

Absolute figures are the machine's: client and relay share its cores.
"""

from __future__ import annotations

import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from relay.devices.noise import NK, XX, Handshake, KeyPair, Transport
from relay.devices.wire import prefixed, push
from tests.bench.devices import measured
from tests.bench.proc import cpu_seconds, resident_bytes
from tests.relay_process import RelayProcess

SECONDS = 4.0
WARM_UP = 1.0
PUSHERS = 64
BLOB = bytes(range(256)) * 4
RECIPIENTS = 20_000  # each takes 20 a second, and holds 10,000
IDLE_SESSIONS = 10_000
QUIET = {"RELAY_LOG__LEVEL": "warning"}

# --- clients, in processes of their own -----------------------------------------------------------


def connected(address: str) -> socket.socket:
    """Connect to `host:port`."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def read_message(sock: socket.socket) -> bytes:
    """Read one Noise message."""
    with sock.makefile("rb", buffering=0) as file:
        prefix = file.read(2)
        return file.read(int.from_bytes(prefix, "big"))  # small ones come in one piece


def push_session(address: str, key: bytes) -> tuple[socket.socket, Transport]:
    """Open a push session."""
    sock = connected(address)
    handshake = Handshake(NK, initiator=True, remote_static=key)
    sock.sendall(prefixed(handshake.write()))
    handshake.read(read_message(sock))
    return sock, handshake.transport()


def push_for(address: str, key: bytes, seconds: float, pushers: int) -> None:
    """Keep one blob in flight in each session; print acknowledged a second and latencies."""
    sessions = [push_session(address, key) for _ in range(pushers)]
    poll = selectors.DefaultSelector()
    sent_at: dict[int, float] = {}
    number = 0
    latencies: list[float] = []
    begins = time.perf_counter() + WARM_UP
    ends = begins + seconds
    for sock, transport in sessions:
        poll.register(sock, selectors.EVENT_READ, (sock, transport))
        sock.sendall(prefixed(transport.encrypt(push(number.to_bytes(32, "big"), BLOB))))
        sent_at[sock.fileno()] = time.perf_counter()
        number += 1
    now = 0.0
    while now < ends:
        for ready, _ in poll.select(1.0):
            sock, transport = ready.data
            answer = transport.decrypt(sock.recv(4096)[2:])
            now = time.perf_counter()
            assert answer == b"\x04\0\0\0\0", answer
            if now >= begins:
                latencies.append(now - sent_at[ready.fd])
            recipient = (number % RECIPIENTS).to_bytes(32, "big")
            number += 1
            sent_at[ready.fd] = now
            sock.sendall(prefixed(transport.encrypt(push(recipient, BLOB))))
    latencies.sort()
    print(
        len(latencies) / seconds,
        statistics.median(latencies),
        latencies[int(len(latencies) * 0.99)],
        flush=True,
    )


def hold_idle(address: str, count: int) -> None:
    """Open receive sessions of as many devices, say so, and hold them until stdin ends."""
    held = []
    for _ in range(count):
        sock = connected(address)
        handshake = Handshake(XX, initiator=True, static=KeyPair.generate())
        sock.sendall(prefixed(handshake.write()))
        handshake.read(read_message(sock))
        sock.sendall(prefixed(handshake.write()))
        held.append(sock)
    print("held", flush=True)
    sys.stdin.read()


def client(*arguments: str) -> subprocess.Popen[str]:
    """Start this module as a client."""
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


# --- measurements ---------------------------------------------------------------------------------


def pushes(relay: RelayProcess) -> dict[str, float]:
    """Return the rate through Noise sessions, latencies in ms, CPU of the relay a blob."""
    before = cpu_seconds(relay.pid)
    process = client(
        "push", relay.run["devices_push"], relay.run["devices_key"], str(SECONDS), str(PUSHERS)
    )
    out, _ = process.communicate(timeout=60)
    rate, median, p99 = map(float, out.split())
    cpu = (cpu_seconds(relay.pid) - before) / (rate * (SECONDS + WARM_UP))
    return {"rate": rate, "median": median * 1e3, "p99": p99 * 1e3, "cpu": cpu * 1e6}


def idle_sessions(relay: RelayProcess, count: int) -> float:
    """Return by how many MB the relay grows with so many idle receive sessions."""
    before = resident_bytes(relay.pid)
    process = client("idle", relay.run["devices_receive"], str(count))
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "held\n"
    with relay.http() as http:
        end = time.monotonic() + 30
        open_sessions = 0
        while open_sessions < count and time.monotonic() < end:
            open_sessions = http.get("/api/v1/devices").json()["receive_sessions"]
            time.sleep(0.2)
    assert open_sessions == count, open_sessions
    time.sleep(1.0)
    grown = resident_bytes(relay.pid) - before
    process.stdin.close()
    process.wait(30)
    return grown / 1e6


def run(rounds: int) -> dict[str, Any]:
    """Interleave baseline and sessions; then fill the node with idle devices."""
    through: list[dict[str, float]] = []
    plain: list[float] = []
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as scratch:
        for number in range(rounds):
            directory = Path(scratch) / str(number)
            directory.mkdir()
            plain.append(measured("plain", str(directory))["blobs/s"])
            with RelayProcess(directory / "var", env=QUIET) as relay:
                through.append(pushes(relay))
                if number == rounds - 1:
                    megabytes = idle_sessions(relay, IDLE_SESSIONS)
    rate = statistics.median(each["rate"] for each in through)
    baseline = statistics.median(plain)
    middle = sorted(through, key=lambda each: each["rate"])[len(through) // 2]
    return {
        "name": "device sessions",
        "unit": "blobs/s",
        "results": {
            "one INSERT a transaction": {"blobs/s": baseline},
            f"{PUSHERS} push sessions": {
                "blobs/s": rate,
                "Ack median ms": middle["median"],
                "Ack p99 ms": middle["p99"],
                "relay CPU µs": middle["cpu"],
            },
            f"{IDLE_SESSIONS} idle receive sessions": {"MB": megabytes},
        },
        "ratios": {
            f"{PUSHERS} pushers to one INSERT a transaction": {
                "value": rate / baseline,
                "required": 1.2,
            },
            "MB of RSS for the idle sessions": {"value": megabytes, "at_most": 400},
        },
    }


if __name__ == "__main__":
    if sys.argv[1] == "push":
        push_for(sys.argv[2], bytes.fromhex(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    else:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        hold_idle(sys.argv[2], int(sys.argv[3]))
    os._exit(0)  # ten thousand sockets close faster this way
