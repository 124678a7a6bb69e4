"""A relay of the tests' own: started on free ports by who needs it first, one for all of them.

The workers of pytest-xdist share `folder`: whoever comes first starts the relay under a lock, and
writes down the process; the others read where it listens.  It is stopped by `stop`, which the
process calls that outlives them all, its owner; and where the owner is killed, soon after it.

Fails: `RelayError`, with the end of what the relay said.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from relay_client.errors import RelayError

_STARTS_WITHIN = 60.0  # s; the first start of all makes a database
_STOPS_WITHIN = 20.0  # s
_UP = re.compile(r"\bup\b")
_OURS: list[subprocess.Popen[bytes]] = []
# Ends a relay ($2, begun at $5) whose owner ($1) has gone: one that was killed stops nothing.  Then
# removes its data ($3; empty: it stays), as `stop` does it where there is an owner.  Where that was
# done, and perhaps another relay started there meanwhile, what says which relay has the folder ($4)
# says so.
_WATCH = """exec 2>/dev/null
while kill -0 "$1" && kill -0 "$2"; do sleep 1; done
kill -0 "$1" && exit
runs() { kill -0 "$2" && [ "$(sed 's/.*) //' "/proc/$2/stat" | cut -d' ' -f20)" = "$5" ]; }
runs "$@" && kill "$2"
n=0; while runs "$@" && [ $n -lt 20 ]; do sleep 1; n=$((n + 1)); done
[ -z "$3" ] || [ "$(cat "$4")" != "$2 $5" ] || rm -rf "$3" "$4"
"""
_FREE_PORTS = {
    "RELAY_HTTP__BIND": "127.0.0.1:0",
    "RELAY_SMTP__BIND": "127.0.0.1:0",
    "RELAY_SUBMISSION__BIND": "127.0.0.1:0",
    "RELAY_DEVICES__PUSH_BIND": "127.0.0.1:0",
    "RELAY_DEVICES__RECEIVE_BIND": "127.0.0.1:0",
}


class Process(NamedTuple):
    """A process, and not another that was given its number after it had ended."""

    pid: int
    began: str
    """As /proc says it, in clock ticks since the system's start; empty where there is none."""


def process_of(pid: int) -> Process:
    """Return the process that has this number now."""
    return Process(pid, (_stat(pid) or {}).get("began", ""))


def started(
    folder: Path,
    command: str | None,
    owner: int,
    *,
    keep: bool = False,
    begins: Callable[[], object] | None = None,
) -> dict[str, Any]:
    """Return what `run/relay.json` of the relay in `folder` says; start it if there is none.

    It ends with the process `owner` at the latest, and its data with it unless that is to be kept.
    `command` is what a shell would be given, the installed `relay-mail up` if there is none; it
    finds `RELAY_DATA_DIR` and the ports to use in its environment, and no other setting of a relay.
    `begins` is called before it is started here, and not where somebody else has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        process = folder / "pid"
        if not process.exists():
            words = shlex.split(command) if command else _installed()
            if begins is not None:
                begins()
            if keep:  # apart from pytest's own folders, which it removes three runs later
                kept = tempfile.mkdtemp(prefix="relay-kept-")
                (folder / "data").symlink_to(kept, target_is_directory=True)
            relay = _start(folder, words)
            process.write_text(f"{relay.pid} {relay.began}")
            _watch(owner, relay, None if keep else folder / "data", process)
        return _ready(folder, _read(process), command)


def opens(folder: Path, command: str | None) -> str:
    """Return what a shell is given to see what a relay that was started in `folder` has kept."""
    words = shlex.split(command) if command else _installed()
    named = words if words[-1:] == ["up"] else ["relay", "up"]
    return shlex.join([*named, "--data-dir", str((folder / "data").resolve())])


def running(folder: Path) -> Process | None:
    """Return the process of the relay that was started in `folder`."""
    try:
        return _read(folder / "pid")
    except FileNotFoundError:
        return None


def ended(folder: Path, process: Process) -> RelayError | None:
    """Return what is to be said of the relay that was started in `folder` if it runs no more."""
    if _runs(process):
        return None
    return RelayError(
        f"the relay that was started for these tests has ended; {_said(folder, None)}"
    )


def stop(folder: Path, process: Process, *, keep: bool = False) -> None:
    """Stop what `running` has returned, wait for its end, and remove its data or keep it."""
    with contextlib.suppress(ProcessLookupError):
        if _runs(process):
            os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOPS_WITHIN
        while _runs(process):
            if time.monotonic() > deadline:
                os.kill(process.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
    if not keep:
        shutil.rmtree(folder / "data", ignore_errors=True)
    # Last: whoever is killed before leaves the rest to who watches.
    (folder / "pid").unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        import fcntl  # Windows has none; whoever names a relay there needs none
    except ImportError:
        raise RelayError(
            "no relay can be started on this system: set RELAY_URL (and RELAY_TOKEN)"
        ) from None
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(file: Path) -> Process:
    pid, _, began = file.read_text().partition(" ")
    return Process(int(pid), began)


def _start(folder: Path, words: list[str]) -> Process:
    with (folder / "relay.log").open("wb") as log:
        try:
            process = subprocess.Popen(  # noqa: S603  # whoever runs the tests chose it
                words,
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            raise RelayError(
                f"the relay cannot be started by {shlex.join(words)}: {error}"
            ) from None
    _OURS.append(process)  # or its object would warn that it still runs, which is meant
    return process_of(process.pid)


def _environment(folder: Path) -> dict[str, str]:
    others = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    return {**others, **_FREE_PORTS, "RELAY_DATA_DIR": str(folder / "data")}


def _watch(owner: int, relay: Process, data: Path | None, process: Path) -> None:
    quiet = subprocess.DEVNULL
    what = [str(owner), str(relay.pid), str(data or ""), str(process), relay.began]
    words = ["/bin/sh", "-c", _WATCH, "relay-client", *what]
    _OURS.append(
        subprocess.Popen(  # noqa: S603  # numbers and a path of ours
            words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
    )


def _installed() -> list[str]:
    beside = Path(sys.executable).parent
    path = os.pathsep.join([str(beside), os.environ.get("PATH", "")])
    # Other programs are called relay, too; none is called as the distribution is.
    for name in ("relay-mail", "relay"):
        if found := shutil.which(name, path=path):
            return [found, "up"]
    raise RelayError(
        "there is no relay to test with: set RELAY_URL (and RELAY_TOKEN), give --relay-command,"
        " or install a relay beside your tests: its clone, or the wheel that `make dist` makes"
    )


def _ready(folder: Path, process: Process, command: str | None = None) -> dict[str, Any]:
    description = folder / "data" / "run" / "relay.json"
    deadline = time.monotonic() + _STARTS_WITHIN
    while True:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(description.read_text())
            return found
        if not _runs(process):
            raise RelayError(f"the relay ended as it started; {_said(folder, command)}")
        if time.monotonic() > deadline:
            raise RelayError(
                f"the relay is not ready after {_STARTS_WITHIN:g} s; {_said(folder, command)}"
            )
        time.sleep(0.02)


def _runs(process: Process) -> bool:
    for child in _OURS:
        if child.poll() is not None and child.pid == process.pid and not process.began:
            return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, who has its number
    # One whose parent was a worker that has gone is nobody's child, or of somebody who never looks,
    # such as the first process of a container.
    found = _stat(process.pid)
    return found is None or (found["state"] != "Z" and found["began"] == process.began)


def _stat(pid: int) -> dict[str, str] | None:
    """Return what /proc says of a process; None where it says nothing."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return {"state": fields[0], "began": fields[19]}


def _said(folder: Path, command: str | None) -> str:
    log = folder / "relay.log"
    said = log.read_text(errors="replace").strip()
    tail = f"its log is {log}:\n{said[-2000:].strip() or '(nothing)'}"
    if command is None or _UP.search(command):
        return tail
    hint = "does the command end in `up`?"
    if re.search(r"^\s*usage:", said, re.IGNORECASE | re.MULTILINE):
        return f"it said how it is called: {hint} (its log is {log})"
    return f"{tail}\n{hint}"
