"""An outbox: a directory of blobs on their way to a relay, for pushers that may lose none.

A blob is kept first and pushed then, so it survives whatever happens in between: a relay that is
away, one that refuses for now, a kill -9, a machine that stops.

    DIR/NUMBER.blob             waits: a line of JSON {"to", "ttl", "kept_at"}, then the envelope
    DIR/refused/NUMBER.blob     was refused for good, has expired, or is none; NUMBER.txt says why
    DIR/.order, DIR/.replay     locks

Promises
- When `keep` returns, the blob is on the disk, whole: written beside, flushed, renamed, and the
  directory flushed.
- `replay` pushes what waits in the order in which it was kept.  Behind a blob that is refused for
  now the later ones of the same recipient wait; those of others do not.
- A blob leaves the directory only when the relay has said that it is durable, or never will be:
  then it is set aside, with the reason.
- A time to live counts from `keep`: what has outlived it is not pushed any more.
- What somebody else put there stops nothing: under the name of a blob it is set aside, or, where it
  cannot even be read now, left and named in `Replayed.trouble`; other names are left alone.
- Any number of processes may use one directory.  One replays at a time, and takes what the others
  keep meanwhile.

| the process or the machine dies …        | the blob                                        |
|------------------------------------------|-------------------------------------------------|
| before `keep` returned                   | is there or not, whole; its caller heard nothing |
| after                                    | waits                                           |
| between the relay's yes and the removal  | waits, and is pushed a second time               |
| while it is set aside                    | waits, and is refused again; or is aside         |

Fails with `OSError` where the directory cannot be used.  Blocking; needs local locks (`flock`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from relay import files

LOCK_PATIENCE = 10.0
"""Seconds that `replay` waits for another process that replays."""

_DIGITS = 20  # of a number: nanoseconds, or one more than the last
# All of one length, so that the order of the names is that of the numbers.
_BLOB = re.compile(rf"[0-9]{{{_DIGITS}}}\.blob")


_MOST_HEAD = 1024  # bytes; ours have under 200, and a parser of JSON minds what is nested deep


class Kept(NamedTuple):
    """A blob that waits; `ttl` (None: the relay's) in seconds, `kept_at` in Unix seconds."""

    to: bytes
    envelope: bytes
    ttl: float | None
    kept_at: float


class NotNow(Exception):
    """The relay refuses a blob for now; with `everybody`, whosever it is."""

    def __init__(self, reason: str, *, everybody: bool = False) -> None:
        super().__init__(reason)
        self.everybody = everybody


class Never(Exception):
    """The relay refuses a blob for good."""


class Push(Protocol):
    """Pushes one blob: returns when it is durable.  `NotNow`, `Never`; `OSError`: no relay."""

    def __call__(self, to: bytes, envelope: bytes, ttl: float | None) -> None: ...


@dataclass
class Replayed:
    """What became of a replay: numbers of blobs, and why anything still waits."""

    pushed: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    waiting: int = 0
    trouble: str | None = None


class Outbox:
    """The outbox in `directory`, which is made where there is none; `clock` gives Unix seconds."""

    def __init__(self, directory: Path, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._aside = directory / "refused"
        self._clock = clock

    def keep(self, to: bytes, envelope: bytes, ttl: float | None = None) -> str:
        """Keep a blob durably and return its number."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        head = json.dumps({"to": to.hex(), "ttl": ttl, "kept_at": self._clock()})
        with self._locked(".order"):
            for left in self._directory.glob("*.tmp"):
                left.unlink()  # its writer died: whoever writes one holds this lock
            last = max(self.numbers(), default="0")
            number = f"{max(time.time_ns(), int(last) + 1):0{_DIGITS}}"
            if len(number) > _DIGITS:
                raise OSError(errno.EOVERFLOW, f"no number is left behind {last}.blob")
            files.replace(self._directory / f"{number}.blob", head.encode() + b"\n" + envelope)
        return number

    def numbers(self) -> list[str]:
        """Return the numbers of what waits, in order."""
        with suppress(FileNotFoundError):
            return sorted(name[:-5] for name in os.listdir(self._directory) if _is_blob(name))
        return []

    def refusal(self, number: str) -> str | None:
        """Return why a blob was set aside; None if it was not."""
        if not os.path.lexists(self._aside / f"{number}.blob"):
            return None
        return (self._aside / f"{number}.txt").read_text().strip()

    def replay(self, push: Push, patience: float = LOCK_PATIENCE) -> Replayed:
        """Push what waits, until nothing more can be; `patience` in seconds, for others who do."""
        done = Replayed()
        if not self.numbers():
            return done
        try:
            with self._locked(".replay", patience):
                self._replay(push, done)
        except TimeoutError:
            done.trouble = "another process is pushing what waits"
        done.waiting = len(self.numbers())
        return done

    def _replay(self, push: Push, done: Replayed) -> None:
        held_up: set[bytes] = set()
        last = ""
        while waiting := [number for number in self.numbers() if number > last]:
            for last in waiting:
                try:
                    kept = self._read(last)
                except ValueError:
                    self._set_aside(last, "it is no blob of an outbox", done)
                    continue
                except OSError as error:
                    done.trouble = f"{last}.blob: {error.strerror or error}"
                    continue
                ttl = None if kept.ttl is None else kept.ttl - (self._clock() - kept.kept_at)
                if ttl is not None and ttl <= 0:
                    self._set_aside(last, "it expired before a relay took it", done)
                    continue
                if kept.to in held_up:
                    continue
                try:
                    push(kept.to, kept.envelope, ttl)
                except Never as refusal:
                    self._set_aside(last, str(refusal), done)
                except NotNow as refusal:
                    done.trouble = str(refusal)
                    if refusal.everybody:
                        return
                    held_up.add(kept.to)
                except OSError as error:
                    done.trouble = str(error.strerror or error)
                    return
                else:
                    (self._directory / f"{last}.blob").unlink()
                    done.pushed.append(last)
        if done.pushed:
            files.sync_directory(self._directory)

    def _read(self, number: str) -> Kept:
        path = self._directory / f"{number}.blob"
        if not stat.S_ISREG(path.lstat().st_mode):
            raise ValueError("no file")  # a directory, or a link, which may lead to nothing
        head, _, envelope = path.read_bytes().partition(b"\n")
        if len(head) > _MOST_HEAD:
            raise ValueError("no head")
        try:
            said = json.loads(head)
            to, ttl = bytes.fromhex(said["to"]), said["ttl"]
            kept_at = float(said["kept_at"])
            ttl = None if ttl is None else float(ttl)
        except (KeyError, TypeError, RecursionError, OverflowError) as error:
            raise ValueError("no head") from error
        if len(to) != 32:
            raise ValueError("no key")
        if not math.isfinite(kept_at) or (ttl is not None and not math.isfinite(ttl)):
            raise ValueError("no time")
        return Kept(to, envelope, ttl, kept_at)

    def _set_aside(self, number: str, why: str, done: Replayed) -> None:
        try:
            self._aside.mkdir(mode=0o700, exist_ok=True)
            for left in self._aside.glob("*.tmp"):
                left.unlink()  # its writer died: whoever writes one holds the lock of `replay`
            files.replace(self._aside / f"{number}.txt", f"{why}\n".encode())
            os.rename(self._directory / f"{number}.blob", self._aside / f"{number}.blob")
            files.sync_directory(self._aside)
            files.sync_directory(self._directory)
        except OSError as error:
            done.trouble = f"{number}.blob cannot be set aside: {error.strerror or error}"
        else:
            done.refused[number] = why

    @contextmanager
    def _locked(self, name: str, patience: float | None = None) -> Iterator[None]:
        """Hold a lock for the block; `TimeoutError` when it could not be had in time."""
        lock = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if patience is None:
                fcntl.flock(lock, fcntl.LOCK_EX)
            else:
                until = time.monotonic() + patience
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    if time.monotonic() >= until:
                        raise TimeoutError("another process has the lock")
                    time.sleep(0.05)
            yield
        finally:
            os.close(lock)


def _is_blob(name: str) -> bool:
    return _BLOB.fullmatch(name) is not None
