"""A relay of one test's own, which may be killed and started again at the same place."""

from __future__ import annotations

import re
import smtplib
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from relay_client._local_relay import _environment, _installed, _ready, process_of


class Restartable:
    """A relay that runs at `url`, and stays there when it is killed and started again."""

    def __init__(self, folder: Path) -> None:
        http, self._smtp = _free_port(), _free_port()
        self.url = f"http://127.0.0.1:{http}"
        self._folder = folder
        self._env = _environment(folder)
        self._env["RELAY_HTTP__BIND"] = f"127.0.0.1:{http}"
        self._env["RELAY_SMTP__BIND"] = f"127.0.0.1:{self._smtp}"
        self.start()

    def start(self, *addresses: str) -> None:
        """Start it, and send to each address what is waited for, under `Reset`."""
        (self._folder / "data" / "run" / "relay.json").unlink(missing_ok=True)
        with (self._folder / "relay.log").open("ab") as log:
            self._process = subprocess.Popen(_installed(), env=self._env, stdout=log, stderr=log)
        _ready(self._folder, process_of(self._process.pid))
        for address in addresses:
            with smtplib.SMTP("127.0.0.1", self._smtp) as client:
                client.sendmail("a@shop.example", [address], b"Subject: Reset\r\n\r\n1")

    def until_waiting(self, count: int = 1) -> None:
        """Return when so many calls wait for mail in it."""
        deadline = time.monotonic() + 20.0
        while True:
            metrics = httpx.get(f"{self.url}/metrics", trust_env=False)
            metrics.raise_for_status()
            kind = r'^relay_http_streams\{kind="wait"\} (\S+)$'
            found = re.search(kind, metrics.text, re.MULTILINE)
            waiting = 0 if found is None else int(float(found[1]))
            if waiting == count:
                return
            assert time.monotonic() < deadline, f"{waiting} calls wait, not {count}"
            time.sleep(0.01)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """End it, if it runs."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def restartable(folder: Path) -> Iterator[Restartable]:
    """Run a relay at ports that stay the same."""
    relay = Restartable(folder)
    try:
        yield relay
    finally:
        relay.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
