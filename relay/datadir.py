"""The data directory: who holds it, and where a running relay is to be found.

Layout::

    <data-dir>/            mode 0700
        run/lock           held (flock) by the one relay that uses this directory
        run/relay.json     how to reach it; there while it is ready, removed at a clean stop
        postgres/          the embedded server, when there is no external one
        secret_key         made at the first start, mode 0600, unless the settings give one
        encryption_keys    likewise
        device_key         likewise: the private half of what devices know this relay by
        devices.db         what waits for devices, unless PostgreSQL keeps it
        timeline           the highest timeline met of an external PostgreSQL (`relay.db.hosts`)

Promises: two relays never share a directory (the second is a `ConfigError`, the first is
unhurt; the lock is the kernel's, so a kill -9 leaves nothing to clean up); `relay.json` is
never seen half-written; a file left behind by a killed relay is recognised as stale.

What is in the directory is believed: keys that sign, and where commands find their relay.  So it
must be nobody else's.  A directory, a secret or a `relay.json` that belongs to another user (root's
are believed), or that everybody may write to, is a `ConfigError`: on a machine of several users it
may have been put there before the first start.  That a group may write is its owner's will.  What
is mounted in this place is believed whatever its owner and mode are: only root mounts, and volumes
of containers come so (an emptyDir is root's, with mode 0777).
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from relay import files
from relay.errors import ConfigError, Occupied

SECRETS = ("secret_key", "encryption_keys", "device_key")
"""Files of keys, where no setting gives them."""


class DataDir:
    """One data directory; nothing is touched before `prepare`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.run_file = self.path / "run" / "relay.json"
        self.postgres = self.path / "postgres"
        self.timeline_file = self.path / "timeline"
        self._lock: int | None = None

    def prepare(self) -> None:
        """Make the directories and take the lock, or raise `ConfigError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._must_be_ours(self.path)
            (self.path / "run").mkdir(mode=0o700, exist_ok=True)
            self._must_be_ours(self.path / "run")
            lock = os.open(self.path / "run" / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The data directory {self.path} cannot be used ({error.strerror}); "
                "name another with --data-dir or RELAY_DATA_DIR."
            ) from error
        if not _locked(lock, patience=0.5):
            os.close(lock)
            raise Occupied(
                f"Another relay holds the data directory {self.path}; stop it first, or name "
                "another with --data-dir or RELAY_DATA_DIR."
            )
        self._lock = lock
        self.run_file.unlink(missing_ok=True)  # we hold the lock, so whoever wrote it is dead

    def release(self) -> None:
        """Give the lock back; the directory may be used by another relay from now on."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def write_run(self, entries: dict[str, Any]) -> None:
        """Publish how to reach this relay: whole or not at all, mode 0600."""
        files.replace(self.run_file, json.dumps(entries, indent=2).encode() + b"\n")

    def remove_run(self) -> None:
        """Withdraw `relay.json`, as the last act of a clean stop."""
        self.run_file.unlink(missing_ok=True)

    def read_run(self) -> dict[str, Any] | None:
        """Return what a running relay published, or None where none runs.

        `ConfigError` where another user may have written it: whoever asks would be somebody else's.
        """
        try:
            for place in (self.path, self.run_file.parent, self.run_file):
                self._must_be_ours(place)
            entries = json.loads(self.run_file.read_text())
        except (OSError, ValueError):
            return None
        return entries if isinstance(entries, dict) and self.is_held() else None

    def is_held(self) -> bool:
        """Tell whether some relay holds the lock now."""
        try:
            probe = os.open(self.path / "run" / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locked(probe, shared=True)
        finally:
            os.close(probe)

    def secret_keys(self, configured: str) -> tuple[bytes, ...]:
        """Return the signing keys (32 bytes each), newest first; made here when unset."""
        text = configured or self.kept("secret_key", lambda: os.urandom(32).hex())
        return tuple(bytes.fromhex(part) for part in text.split(",") if part.strip())

    def device_key(self, configured: str) -> bytes:
        """Return the private X25519 key (32 bytes) of the device ports; made here when unset."""
        text = configured or self.kept("device_key", lambda: os.urandom(32).hex())
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) != 32:
            raise ConfigError(
                f"{self.path / 'device_key'} does not hold 64 hexadecimal digits; restore it, or "
                "remove it to have another key made, which devices and pushers must then be told."
            )
        return key

    def kept(self, name: str, make: Callable[[], str]) -> str:
        """Return the secret of this name; made, and kept, where there is none yet."""
        file = self.path / name
        try:
            self._must_be_ours(file)
            return file.read_text().strip()
        except FileNotFoundError:
            text = make()
        self.keep(name, text)
        return text

    def keep(self, name: str, text: str) -> None:
        """Replace a kept secret: whole or not at all, durably, mode 0600."""
        files.replace(self.path / name, text.encode() + b"\n")

    def check(self) -> None:
        """Raise `ConfigError` if another user may have written what is believed here."""
        for name in (".", "run", "run/relay.json", *SECRETS):
            if (self.path / name).exists():
                self._must_be_ours(self.path / name)

    def _must_be_ours(self, place: Path) -> None:
        """Raise `ConfigError` for what another user owns, or everybody may write to."""
        found = place.stat()
        if self.path.resolve().is_mount():
            return
        if found.st_uid not in {os.geteuid(), 0}:
            owner = _name(found.st_uid)
            raise ConfigError(
                f"{place} belongs to another user ({owner}), whose keys may be in it: run this as "
                f"{owner}, or name another data directory with --data-dir or RELAY_DATA_DIR."
            )
        if found.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f"{place} can be written to by everybody (mode {stat.S_IMODE(found.st_mode):04o}): "
                "look that what is in it is yours, and take that away with "
                f"`chmod -R o-w {self.path}`, or name another data directory with --data-dir or "
                "RELAY_DATA_DIR."
            )


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _locked(lock: int, *, shared: bool = False, patience: float = 0.0) -> bool:
    """Take the lock; `patience` (seconds) outlasts a probe, which holds it for microseconds."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(lock, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.02)
        else:
            return True
