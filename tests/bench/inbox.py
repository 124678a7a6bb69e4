"""The inbox system from outside: wake-up, start, commands, idle cost, memory.

Measured on the real program over its public surface.  These are absolute figures, with the
bounds that the project promises; a loaded machine may miss them, a broken one certainly does.
"""

from __future__ import annotations

import compileall
import http.client
import json
import smtplib
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests.bench.proc import cpu_seconds, descendants, resident_bytes
from tests.cli.command import cli
from tests.relay_process import RelayProcess

WAITS = 200
COMMANDS = 20
IDLE_SECONDS = 20.0
IDLE_SESSIONS = 1000
ROOT = Path(__file__).parents[2]


def wake_ups(relay: RelayProcess, count: int) -> list[float]:
    """Seconds from the 250 of a message (it is committed by then) to the answer of `wait`."""
    address = relay.create_mailbox(ttl_minutes=60)
    seconds: list[float] = []
    # http.client, since a heavier one would be most of what is measured.
    waiter = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"))
    bearer = {"Authorization": f"Bearer {relay.run['admin_token']}"}
    with relay.http() as helper, smtplib.SMTP(*relay.smtp) as client:
        after = ""
        for number in range(count):
            answered: list[tuple[float, int, bytes]] = []
            path = f"/api/v1/mailboxes/{address}/messages/wait?timeout=20&after={after}"

            def wait(
                path: str = path.removesuffix("&after="),
                answered: list[tuple[float, int, bytes]] = answered,
            ) -> None:
                waiter.request("GET", path, headers=bearer)
                answer = waiter.getresponse()
                body = answer.read()
                answered.append((time.perf_counter(), answer.status, body))

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.02)  # the call is waiting by then
            client.sendmail(
                "a@example.org", [address], f"Subject: n{number}\r\n\r\ncode 123456\r\n"
            )
            committed = time.perf_counter()
            thread.join()
            at, status, body = answered[0]
            assert status == 200, body
            after = json.loads(body)["id"]
            seconds.append(at - committed)
        helper.delete(f"/api/v1/mailboxes/{address}")
    return seconds


def commands(relay: RelayProcess, count: int) -> list[float]:
    """Seconds that `relay status` takes, from the start of its process to the end."""
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        done = cli("status", "--data-dir", relay.data_dir)
        seconds.append(time.perf_counter() - began)
        assert done.returncode == 0, done.stderr
    return seconds


def idle_cpu(relay: RelayProcess) -> float:
    """Return the share of one core that an idle relay uses, its children included."""
    time.sleep(3.0)  # what the work before has left to do
    pids = [relay.pid, *descendants(relay.pid)]
    before = {pid: cpu_seconds(pid) for pid in pids}
    time.sleep(IDLE_SECONDS)
    after = sum(cpu_seconds(pid) - before[pid] for pid in pids if Path(f"/proc/{pid}").exists())
    return after / IDLE_SECONDS


def idle_sessions(relay: RelayProcess, count: int) -> float:
    """Return the megabytes by which `count` greeted sessions make the relay grow."""
    before = resident_bytes(relay.pid)
    sessions: list[socket.socket] = []
    try:
        for _ in range(count):
            session = socket.create_connection(relay.smtp, timeout=20)
            assert session.recv(200).startswith(b"220"), "a session was refused"
            session.sendall(b"EHLO bench.example\r\n")
            assert session.recv(2000).startswith(b"250")
            sessions.append(session)
        return (resident_bytes(relay.pid) - before) / 1e6
    finally:
        for session in sessions:
            session.close()


def run(rounds: int) -> dict[str, Any]:
    """Measure, on one relay that is started `rounds` + 1 times."""
    for folder in ("relay", "actors"):  # as an installation has them
        compileall.compile_dir(ROOT / folder, quiet=1)
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        relay = RelayProcess(
            Path(folder) / "var",
            env={
                "RELAY_LOG__LEVEL": "warning",
                "RELAY_SMTP__MAX_CONNECTIONS": str(IDLE_SESSIONS + 100),
                "RELAY_SMTP__MAX_CONNECTIONS_PER_PEER": str(IDLE_SESSIONS + 100),
            },
            first_start=True,
        )
        first = relay.start()
        starts = []
        for _ in range(rounds):
            relay.stop()
            starts.append(relay.start())
        try:
            idle = idle_cpu(relay)
            resident = sum(
                resident_bytes(pid)
                for pid in [relay.pid, *descendants(relay.pid)]
                if Path(f"/proc/{pid}/exe").resolve().name.startswith("python")
            )
            status = statistics.median(commands(relay, COMMANDS))
            wakes = sorted(wake_ups(relay, WAITS))
            grown = idle_sessions(relay, IDLE_SESSIONS)
        finally:
            relay.stop()
    p50, p99 = statistics.median(wakes), wakes[int(len(wakes) * 0.99)]
    return {
        "name": "inbox",
        "unit": "value",
        "results": {
            "wait answers after commit, p50 (ms)": p50 * 1e3,
            "wait answers after commit, p99 (ms)": p99 * 1e3,
            "first start, with initdb (s)": first,
            "start on existing data (s)": statistics.median(starts),
            "relay status (ms)": status * 1e3,
            "idle, whole program (share of a core)": idle,
            "idle, without PostgreSQL, the parser with it (MB of RSS)": resident / 1e6,
            f"{IDLE_SESSIONS} idle SMTP sessions (MB)": grown,
        },
        "ratios": {
            "wake-up p50, ms": {"value": p50 * 1e3, "at_most": 10.0},
            "start on existing data, s": {"value": statistics.median(starts), "at_most": 1.0},
            "first start, with initdb, s": {"value": first, "at_most": 2.0},
            "relay status, ms": {"value": status * 1e3, "at_most": 100.0},
            "idle, share of a core": {"value": idle, "at_most": 0.005, "aim": 0.003},
            "idle, without PostgreSQL, MB": {
                "value": resident / 1e6,
                "at_most": 110.0,
                "aim": 75.0,
            },
            "1000 idle sessions, MB": {"value": grown, "at_most": 100.0},
        },
    }
