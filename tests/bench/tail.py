"""How many lines of log a second get through `relay tail`.

Three places, since each could be the narrow one:
- `a process`: `relay tail --json` with a filter, as a process, on a server that sends prepared
  lines as fast as they are taken; the start of the process is not counted.
- `rendered`: the same without a filter, drawn for people.
- `a relay`: the real relay selects from its full log and sends what is left.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from relay.log import RING_LINES
from tests.relay_process import RelayProcess

LINES = 1_000_000
RENDERED = 200_000
PROMISE = 100_000  # lines a second


def _body(lines: int) -> bytes:
    """Return a log such as a busy relay writes: one line in ten is a session's end."""
    return b"".join(
        json.dumps(
            {
                "timestamp": f"2026-11-21T13:26:12.{number % 1_000_000:06}Z",
                "level": "info" if number % 10 else "warning",
                "event": "writer.stored" if number % 10 else "smtp.session_ended",
                "actor": "writer" if number % 10 else "ingest",
                "messages": number % 7,
                "bytes": 1200 + number % 77,
                "id": f"01a1fe49-e878-7000-8000-{number:012}",
                "incarnation": 1,
            },
            separators=(",", ":"),
        ).encode()
        + b"\n"
        for number in range(lines)
    )


class _Prepared(BaseHTTPRequestHandler):
    """Sends the body in chunks, as the relay does, once the client's request has come."""

    body: ClassVar[bytes] = b""
    began: ClassVar[float] = 0.0

    def do_GET(self) -> None:
        type(self).began = time.perf_counter()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def prepared(lines: int) -> Iterator[Path]:
    """Give a data directory whose "relay" sends so many lines."""
    _Prepared.body = _body(lines)
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
        ThreadingHTTPServer(("127.0.0.1", 0), _Prepared) as server,
    ):
        run = Path(folder) / "run"
        run.mkdir()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        (run / "relay.json").write_text(json.dumps({"http": base, "admin_token": "x", "pid": 1}))
        lock = os.open(run / "lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Path(folder)
        finally:
            server.shutdown()
            thread.join()
            os.close(lock)


def _tail(data_dir: Path, *arguments: str) -> bytes:
    command = [sys.executable, "-m", "relay", "tail", "--data-dir", str(data_dir), *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout


def a_process(lines: int, *arguments: str) -> float:
    """Return lines a second from the request to the end of the process."""
    with prepared(lines) as data_dir:
        out = _tail(data_dir, *arguments)
        took = time.perf_counter() - _Prepared.began
    expected = lines // 10 if "--grep" in arguments else lines
    assert out.count(b"\n") == expected, (out.count(b"\n"), expected)
    return lines / took


def _fill(relay: RelayProcess) -> None:
    """Write more lines than the relay keeps: each call is one, at debug."""

    def calls() -> None:
        client = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"), timeout=30)
        for _ in range(RING_LINES // 4 + 100):
            client.request("GET", "/healthz")
            client.getresponse().read()
        client.close()

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def a_relay(relay: RelayProcess, query: str) -> float:
    """Return lines looked through a second, from the request to the last byte."""
    client = http.client.HTTPConnection(relay.run["http"].removeprefix("http://"), timeout=30)
    headers = {"Authorization": f"Bearer {relay.run['admin_token']}"}
    began = time.perf_counter()
    client.request("GET", f"/api/v1/logs{query}", headers=headers)
    answer = client.getresponse()
    body = answer.read()
    took = time.perf_counter() - began
    assert answer.status == 200, body
    if not query:
        assert body.count(b"\n") >= RING_LINES, "the log is full"
    client.close()
    return RING_LINES / took


def run(rounds: int) -> dict[str, Any]:
    """Measure each `rounds` times; medians."""
    found: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="relay-bench-") as folder,
        RelayProcess(Path(folder) / "var", env={"RELAY_LOG__LEVEL": "debug"}) as relay,
    ):
        _fill(relay)
        for _ in range(rounds):
            for name, figure in (
                (
                    "a process, --grep",
                    a_process(LINES, "--json", "--grep", "event=smtp.session_ended"),
                ),
                (
                    "a process, --grep by expression",
                    a_process(RENDERED, "--json", "--grep", "event=~^smtp"),
                ),
                ("a process, all rendered", a_process(RENDERED)),
                ("a relay, one event of many", a_relay(relay, "?grep=event%3Drelay.ready")),
                ("a relay, everything", a_relay(relay, "")),
            ):
                found.setdefault(name, []).append(figure)
    figures = {name: statistics.median(values) for name, values in found.items()}
    return {
        "name": "tail",
        "unit": "lines/s",
        "results": figures,
        "ratios": {
            f"{name}, lines/s": {"value": figures[name], "required": PROMISE} for name in figures
        },
    }
