"""What systemd is told, and what the journal is given."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from relay.systemd import ServiceManager
from tests.relay_process import RelayProcess


class Manager:
    """The socket of a service manager, and what came to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.settimeout = self._socket.settimeout
        self.settimeout(60)

    def heard(self) -> dict[str, str]:
        """Return the next datagram, by name."""
        text = self._socket.recv(4096).decode()
        return dict(line.split("=", 1) for line in text.split("\n"))

    def hears(self, name: str) -> dict[str, str]:
        """Return the next datagram that has `name`."""
        while name not in (found := self.heard()):
            pass
        return found

    def close(self) -> None:
        self._socket.close()


def _children(parent: int) -> Iterator[Path]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone already
            if f"\nPPid:\t{parent}\n" in (process / "status").read_text():
                yield process


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify")
    yield found
    found.close()


def test_what_happens_is_reported(manager: Manager, tmp_path: Path) -> None:
    """Time to start in is asked for; READY with relay.json, signs of life, STOPPING at SIGTERM.

    Stopped in its tracks the relay is silent, which is what a watchdog acts on.
    """
    env = {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "400000"}
    relay = RelayProcess(tmp_path / "data", env=env)
    process = relay.spawn()
    try:
        assert int(manager.heard()["EXTEND_TIMEOUT_USEC"]) >= 10_000_000
        assert manager.hears("READY")["STATUS"].startswith("Serving http http://127.0.0.1:")
        assert relay.run_file.exists()
        for _ in range(3):
            assert manager.heard() == {"WATCHDOG": "1"}, "twice within 0.4 s"
        servers = list(_children(process.pid))
        assert servers
        for server in servers:
            assert b"NOTIFY_SOCKET" not in (server / "environ").read_bytes()
        process.send_signal(signal.SIGSTOP)
        manager.settimeout(0.5)
        with pytest.raises(TimeoutError):
            for _ in range(3):  # what was on its way already
                manager.heard()
        process.send_signal(signal.SIGCONT)
        manager.settimeout(60)
        assert manager.heard() == {"WATCHDOG": "1"}
        process.send_signal(signal.SIGTERM)
        assert "SIGTERM" in manager.hears("STOPPING")["STATUS"]
        assert process.wait(30) == 0
    finally:
        if process.poll() is None:
            relay.kill()


def test_what_there_was_no_room_for_is_said_again(manager: Manager) -> None:
    """A manager whose queue is full still learns that the relay is ready, a little later."""
    ours = ServiceManager(str(manager.path))
    for _ in range(1000):
        ours.alive(1.0)
    ours.ready("Serving.")
    manager.heard()
    manager.settimeout(0.05)
    with suppress(TimeoutError):
        while True:
            assert "READY" not in manager.heard()
    ours.alive(1.0)
    assert manager.heard() == {"READY": "1", "STATUS": "Serving."}
    assert manager.heard() == {"WATCHDOG": "1"}


def test_the_environment_is_read_once_and_cleared() -> None:
    """Children do not inherit the socket; a watchdog for another process is none of ours."""
    environ = {"NOTIFY_SOCKET": "@name", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1", "A": "b"}
    assert ServiceManager.from_environment(environ).watchdog is None
    assert environ == {"A": "b"}
    ours = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}
    assert ServiceManager.from_environment(ours).watchdog == 3.0
    assert not ServiceManager.from_environment({}).listens


def test_an_abstract_socket_is_reached_and_a_dead_one_ignored(tmp_path: Path) -> None:
    """A name that begins with @ is of the abstract namespace; nobody there is no error."""
    name = f"relay-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0{name}")
        listener.settimeout(20)
        ServiceManager(f"@{name}").ready("Serving.")
        assert listener.recv(100) == b"READY=1\nSTATUS=Serving."
    ServiceManager(f"@{name}").ready("Serving.")
    ServiceManager(str(tmp_path / "nowhere")).alive(1.0)


def test_lines_for_the_journal_carry_their_gravity(tmp_path: Path) -> None:
    """A line begins with its priority if stdout is the journal's stream, and only then."""
    program = (
        "from relay import log; log.configure(); log.get_logger().error('a.b', x=1);"
        "log.get_logger().info('c.d')"
    )
    reading, writing = os.pipe()
    found = os.fstat(writing)
    for stream, expected in (
        (f"{found.st_dev}:{found.st_ino}", b"<3><6>"),
        ("1:2", b""),
        ("", b""),
    ):
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "JOURNAL_STREAM": stream},
            stdout=writing,
            check=True,
            timeout=60,
        )
        lines = os.read(reading, 4096).splitlines()
        assert b"".join(line[: line.index(b"{")] for line in lines) == expected
    os.close(reading)
    os.close(writing)
