"""A relay of one test's own, which may be killed and started again at the same place."""

from __future__ import annotations

import smtplib
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from relay_client._started import _environment, _installed, _ready


@contextmanager
def restartable(folder: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[str], None]]]:
    """Run a relay at fixed ports: its URL, what kills it, and what starts it and mails somebody."""
    http, smtp = _free_port(), _free_port()
    env = _environment(folder)
    env.update({"RELAY_HTTP__BIND": f"127.0.0.1:{http}", "RELAY_SMTP__BIND": f"127.0.0.1:{smtp}"})
    running: list[subprocess.Popen[bytes]] = []

    def start(address: str = "") -> None:
        description = folder / "data" / "run" / "relay.json"
        description.unlink(missing_ok=True)
        with (folder / "relay.log").open("ab") as log:
            running.append(subprocess.Popen(_installed(), env=env, stdout=log, stderr=log))
        _ready(folder, running[-1].pid)
        if address:
            with smtplib.SMTP("127.0.0.1", smtp) as client:
                client.sendmail("a@shop.example", [address], b"Subject: Reset\r\n\r\n1")

    def kill() -> None:
        running[-1].kill()
        running[-1].wait()

    start()
    try:
        yield f"http://127.0.0.1:{http}", kill, start
    finally:
        if running[-1].poll() is None:
            running[-1].terminate()
            running[-1].wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
