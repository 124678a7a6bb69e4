"""Two mail catchers of other people: what developers run to look at the mail that they send.

- MailDev 3 (Node.js) parses with mailparser before it answers 250, writes the raw message to a
  file without fsync, and keeps what it parsed in memory.
- Sendria 2 (Python) takes mail with aiosmtpd, parses it with `email` before it answers 250, and
  stores it afterwards in SQLite, a message a transaction, from a queue in memory without a limit.

Both tell their own web page over a WebSocket when a message can be listed (MailDev after it is in
its store, Sendria after COMMIT).  That is listened to here, as a page would, and afterwards each
list is read whole through the API: what was announced must be in it.

Installed on first use into the user's cache, from lock files with hashes: MailDev from
`tests/bench/maildev` with npm, Sendria from `tests/bench/sendria` into an environment of its own.
`missing` says why one cannot be run.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import websocket

from tests.bench.mail_kinds import number_of
from tests.cached import Missing, environment
from tests.npm import installed

_HERE = Path(__file__).parent
_START = 30.0  # s
_PAGE = 100  # messages; what Sendria lists at once
_ANNOUNCED = '42["newMail",'  # Socket.IO: an event, its name, its data


class Catcher(ABC):
    """One that runs until closed; `port` takes SMTP."""

    name: str
    _socket_path: str
    _announced: str  # what an announcement of a message begins with

    def __init__(self, command: list[str], directory: Path, port: int, http_port: int) -> None:
        self.port, self._http = port, http_port
        self.log = directory / f"{self.name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=directory,
                env={**os.environ, "TMPDIR": str(directory), "HOME": str(directory)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + _START
        while True:
            try:
                for listener in (port, http_port):
                    socket.create_connection(("127.0.0.1", listener), timeout=5).close()
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    said = self.log.read_text(errors="replace")[-500:]
                    raise Missing(f"{self.name} does not start: {said}") from None
                time.sleep(0.05)
            else:
                return

    def call(self, method: str, path: str) -> Any:
        """One call of its API; what it answers."""
        client = http.client.HTTPConnection("127.0.0.1", self._http, timeout=120)
        with contextlib.closing(client):
            client.request(method, path)
            answer = client.getresponse()
            body = answer.read()
            assert answer.status == 200, (answer.status, body[:200])
            return json.loads(body)

    @abstractmethod
    def reset(self) -> None:
        """Forget all mail."""

    @contextmanager
    def watch(self) -> Iterator[Announcements]:
        """Listen for what becomes readable."""
        url = f"ws://127.0.0.1:{self._http}{self._socket_path}"
        announcements = Announcements(url, self._announced, self._greet)
        try:
            yield announcements
        finally:
            announcements.close()

    @abstractmethod
    def _greet(self, connection: websocket.WebSocket) -> None:
        """Say on a new WebSocket what the program waits for before it announces anything."""

    @abstractmethod
    def listed(self, heard: list[tuple[float, str]]) -> dict[int, float]:
        """When each message could be read, by its number, of those that are in its list."""

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


class Announcements(threading.Thread):
    """What a catcher says on its WebSocket, and when; `wanted` tells what announces a message."""

    def __init__(self, url: str, wanted: str, greet: Callable[[websocket.WebSocket], None]) -> None:
        super().__init__(daemon=True)
        self._wanted = wanted
        self._socket = websocket.create_connection(url, timeout=30)
        greet(self._socket)
        self._socket.settimeout(None)
        self.heard: list[tuple[float, str]] = []
        self.start()

    def run(self) -> None:
        """Listen until closed."""
        while True:
            try:
                said = self._socket.recv()
            except (OSError, websocket.WebSocketException):
                return
            if isinstance(said, str) and said.startswith(self._wanted):
                self.heard.append((time.monotonic(), said))
            elif said == "2":  # Engine.IO's ping
                self._socket.send("3")
            elif not said:
                return

    def count(self) -> int:
        """How many messages were announced."""
        return len(self.heard)

    def close(self) -> None:
        """Hear no more."""
        connection = self._socket.sock
        if connection is not None:
            connection.shutdown(socket.SHUT_RDWR)
        self.join(10)


class MailDev(Catcher):
    """MailDev, with its files in a directory."""

    name = "MailDev"
    _socket_path = "/socket.io/?EIO=4&transport=websocket"
    _announced = _ANNOUNCED

    def __init__(self, directory: Path) -> None:
        place = directory / "maildev"
        place.mkdir()
        smtp, web = _free_ports()
        super().__init__(
            [
                *("node", str(_modules() / "maildev/dist/bin/maildev.js"), "--silent"),
                *("--ip", "127.0.0.1", "--smtp", str(smtp)),
                *("--web-ip", "127.0.0.1", "--web", str(web)),
            ],
            place,
            smtp,
            web,
        )

    def reset(self) -> None:
        self.call("DELETE", "/api/email/all")

    def _greet(self, connection: websocket.WebSocket) -> None:
        assert str(connection.recv()).startswith("0")
        connection.send("40")
        assert str(connection.recv()).startswith("40")

    def listed(self, heard: list[tuple[float, str]]) -> dict[int, float]:
        entries = ((at, json.loads(said[len(_ANNOUNCED) : -1])) for at, said in heard)
        times = {entry["id"]: at for at, entry in entries}
        found: dict[int, float] = {}
        skip = 0
        while page := self.call("GET", f"/api/email/summary?limit=200&skip={skip}")["items"]:
            skip += len(page)
            for entry in page:
                number = number_of(entry["subject"])
                if number is not None:
                    found[number] = times[entry["id"]]
        return found


class Sendria(Catcher):
    """Sendria, with its database in a directory."""

    name = "Sendria"
    _socket_path = "/ws"
    _announced = "add_message,"

    def __init__(self, directory: Path) -> None:
        place = directory / "sendria"
        place.mkdir()
        smtp, web = _free_ports()
        super().__init__(
            [
                *(str(_environment() / "bin/sendria"), "--foreground"),
                *("--db", str(place / "mail.sqlite"), "--no-quit"),
                *("--smtp-ip", "127.0.0.1", "--smtp-port", str(smtp)),
                *("--http-ip", "127.0.0.1", "--http-port", str(web)),
            ],
            place,
            smtp,
            web,
        )

    def reset(self) -> None:
        self.call("DELETE", "/api/messages/")

    def _greet(self, connection: websocket.WebSocket) -> None:
        """It waits for nothing."""

    def listed(self, heard: list[tuple[float, str]]) -> dict[int, float]:
        times = {int(said.partition(",")[2]): at for at, said in heard}
        found: dict[int, float] = {}
        page = 0
        while True:
            page += 1
            entries = self.call("GET", f"/api/messages/?page={page}")["data"]
            for entry in entries:
                number = number_of(entry["subject"])
                if number is not None:
                    found[number] = times[entry["id"]]
            if len(entries) < _PAGE:
                return found


def _free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


@functools.cache
def _modules() -> Path:
    if shutil.which("node") is None:
        raise Missing("node is not installed")
    return installed(_HERE / "maildev")


@functools.cache
def _environment() -> Path:
    """Where Sendria is installed, apart: it brings a web stack that nothing else here needs."""
    return environment(_HERE / "sendria")
