"""Tells the service manager how the relay fares: ready, alive, stopping (`sd_notify`).

The protocol is one datagram of `NAME=value` lines to the Unix socket that `NOTIFY_SOCKET` names
(sd_notify(3)); that is all of it, so no library is needed.  Nothing is said, and nothing fails,
where no manager asked.

Promises
  * The variables are taken out of the environment, so that PostgreSQL, which knows the protocol
    too, does not report itself ready in our name.
  * Saying something never blocks and never raises.  What the manager had no room for, and must
    know, is said again with the next sign of life.

`journal_stream` is here for the same reason: lines that go to the journal carry their gravity
in front (sd-daemon(3)), so that `journalctl -p err` finds them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from typing import TextIO


class ServiceManager:
    """The service manager that started this process, or nobody."""

    def __init__(self, address: str = "", watchdog: float | None = None) -> None:
        # "@name" is a socket of the abstract namespace, whose address begins with a NUL.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog = watchdog
        """Seconds within which `alive` must be said again; None: nobody waits for it."""
        self._starting = True
        self._unsaid: list[str] = []

    @property
    def listens(self) -> bool:
        """Whether somebody wants to know."""
        return bool(self._address)

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] | None = None) -> ServiceManager:
        """Read, and remove, what systemd set for this process."""
        environ = os.environ if environ is None else environ
        address = environ.pop("NOTIFY_SOCKET", "")
        every = environ.pop("WATCHDOG_USEC", "")
        meant = environ.pop("WATCHDOG_PID", "") in {"", str(os.getpid())}
        return cls(address, int(every) / 1e6 if every.isdigit() and meant else None)

    def ready(self, status: str) -> None:
        """Say that the relay serves; `status` is one line for `systemctl status`."""
        self._starting = False
        self._insist("READY=1", f"STATUS={status}")

    def alive(self, starting_timeout: float) -> None:
        """Say that the loop turns; while it still starts, ask for so many seconds more for that.

        A crash recovery takes its time, and the relay's own deadlines say when it is stuck.
        """
        self._insist()
        lines = ["WATCHDOG=1"]
        if self._starting:
            lines.append(f"EXTEND_TIMEOUT_USEC={starting_timeout * 1e6:.0f}")
        self._say(lines)

    def stopping(self, status: str) -> None:
        """Say that the relay has begun to stop."""
        self._starting = False
        self._insist("STOPPING=1", f"STATUS={status}")

    def _insist(self, *lines: str) -> None:
        self._unsaid += lines
        if self._unsaid and self._say(self._unsaid):
            self._unsaid = []

    def _say(self, lines: list[str]) -> bool:
        """Send one datagram; False if the manager has no room for it now."""
        if self._address:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                    sender.setblocking(False)
                    sender.sendto("\n".join(lines).encode(), self._address)
            except BlockingIOError:
                return False
            except OSError:
                pass  # nobody is there: its loss
        return True


def journal_stream(stream: TextIO) -> bool:
    """Tell whether what is written to `stream` goes to the journal."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return (device, inode) == (str(found.st_dev), str(found.st_ino))
