"""Runs one simulation, in a process of its own (`__main__`).

Ends with 0 if every promise was kept, with 1 if one was broken (the last line of its output is
JSON), with 2 if it was asked for what cannot be, with 130 if it was told to stop, and with 70 if
the simulation itself failed.  Its servers and its directory go with it; what one that was killed
left behind is taken away by the next.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from simulation import seams
from simulation.database import room
from simulation.faults import KINDS, Fault, asked, named, read, written
from simulation.network import Network
from simulation.page import FEWER, page
from simulation.world import World

if TYPE_CHECKING:
    from simulation.run import Outcome

_MEMORY = "/dev/shm"  # noqa: S108 - mkdtemp makes a private directory in it
_ROOM = 2 << 30  # bytes
_BAR = 40
_SAY_EVERY = 0.5  # real seconds
_QUITS_WITHIN = 3.0  # real seconds
_PREFIX = "relay-simulation-"
"""Of its directory's name; what follows is its process id."""
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""By which it is told to stop."""


def main() -> int:
    """Simulate, and return the exit code."""
    options = parsed(sys.argv[1:])
    # It and its server take turns: on one core a turn passes from one to the other at once.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[options.seed % len(cores)]})
    directory = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=_place()))
    for each in _ENDS:
        signal.signal(each, lambda *_: _stop(directory))
    trace = options.trace or directory / "trace"
    try:
        world = World(options.seed, trace)
    except OSError as error:
        print(f"the trace cannot be written to {trace}: {error.strerror}", file=sys.stderr)
        shutil.rmtree(directory, ignore_errors=True)
        return 2
    if "disk" in options.faults and not room.enter(directory):
        print("no file system can be mounted here: disks do not fail", file=sys.stderr)
        options.faults = tuple(kind for kind in options.faults if kind != "disk")
    place = seams.Seams(world, Network(world))
    seams.install(place)
    _tidy()
    seams.sweep_rarely(world, options.days * 86_400)
    from simulation.run import run

    # What is loaded stays: looking through all of it again and again costs a twentieth.  The rest
    # is looked through after so many statements (`Database.begin`): how much there is at an instant
    # is no matter of the seed, and what goes may be a socket.
    gc.freeze()
    gc.disable()

    seconds = options.days * 86_400
    try:
        with _progress(world, seconds):
            outcome = run(
                place,
                directory,
                seconds=seconds,
                nodes=options.nodes,
                kinds=options.faults,
                faults=options.plan,
            )
        world.close()
        if outcome.violations:
            _show(outcome, options, trace)
    except BaseException:
        traceback.print_exc()
        return 70
    finally:
        with contextlib.suppress(OSError):  # it was said
            world.close()
        shutil.rmtree(directory, ignore_errors=True)
    print(
        json.dumps(
            {
                "seed": outcome.seed,
                "virtual_seconds": outcome.virtual_seconds,
                "events": outcome.events,
                "statements": outcome.statements,
                "faults": Counter(fault.kind for fault in outcome.faults),
                "violations": len(outcome.violations),
            }
        )
    )
    return 1 if outcome.violations else 0


def _stop(directory: Path) -> NoReturn:
    """End at once, wherever it is, and leave nothing."""
    for sign in _ENDS:
        signal.signal(sign, signal.SIG_IGN)
    _take_away(directory)
    os._exit(130)


def _take_away(directory: Path) -> None:
    """Remove a simulation's directory, and what serves in it."""
    # At once, but for the memory that they share, which SIGKILL would leave.
    for sign in (signal.SIGCONT, signal.SIGQUIT, signal.SIGKILL):
        for pid in _serving(directory):
            with contextlib.suppress(OSError):
                os.kill(pid, sign)
        if sign == signal.SIGQUIT:
            ends = time.monotonic() + _QUITS_WITHIN
            while _serving(directory) and time.monotonic() < ends:
                time.sleep(0.02)
    for place in directory.glob("postgres*"):
        room.leave(place)
    shutil.rmtree(directory, ignore_errors=True)


def _serving(directory: Path) -> set[int]:
    """Return the processes of servers in a directory.

    By their command line: where they are mounted is seen by their own simulation alone.
    """
    began: dict[int, int] = {}
    first = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # gone, or another account's
                status = (entry / "stat").read_text().rpartition(")")[2].split()
                began[int(entry.name)] = int(status[1])
                if os.fsencode(f"{directory}/postgres") in (entry / "cmdline").read_bytes():
                    first.add(int(entry.name))
    return first | {pid for pid, parent in began.items() if parent in first}


def _tidy() -> None:
    """Take away what simulations that were killed have left."""
    for directory in Path(_place() or tempfile.gettempdir()).glob(f"{_PREFIX}[0-9]*-*"):
        pid = directory.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError):
            if directory.stat().st_uid == os.geteuid() and not Path("/proc", pid).exists():
                _take_away(directory)


@contextlib.contextmanager
def _progress(world: World, seconds: float) -> Iterator[None]:
    """Say on a terminal how far it is, from a thread: the world must not notice."""
    if not sys.stderr.isatty():
        yield
        return
    over, began = threading.Event(), time.monotonic()

    def say() -> None:
        while not over.wait(_SAY_EVERY):
            now = world.now()
            full = int(_BAR * min(now / seconds, 1.0))
            where = (
                f"{now / 3600:.2f} h of {seconds / 3600:.2f}" if now < seconds else "coming to rest"
            )
            sys.stderr.write(
                f"\r\033[K[{'#' * full}{' ' * (_BAR - full)}] {where},"
                f" {world.events} events, {time.monotonic() - began:.0f} s"
            )
            sys.stderr.flush()

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _show(outcome: Outcome, options: argparse.Namespace, trace: Path) -> None:
    """Say what was broken, on one page, with what to run to see it again."""
    print(page(outcome.violations, outcome.faults, trace, outcome.names))
    again = command(options, outcome.faults)
    print(f"\nagain: relay simulate --seed {again}")
    if outcome.faults:
        print(f"{FEWER}simulation.shrink {again}")
    print()


def command(options: argparse.Namespace, faults: Sequence[Fault]) -> str:
    """Return what follows the program's name to do the same again, with these faults."""
    return (
        f"{options.seed} --days {options.days} --nodes {options.nodes} "
        f"--faults {named(options.faults)} --plan '{written(faults)}'"
    )


def _place() -> str | None:
    """Return where the database goes: into memory, where there is room; None: as usual."""
    with contextlib.suppress(OSError):
        if not os.environ.get("TMPDIR") and shutil.disk_usage(_MEMORY).free > _ROOM:
            return _MEMORY
    return None


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """Return what the words of a command line ask for."""
    parser = argparse.ArgumentParser(prog="python -m simulation")
    parser.add_argument("seed", type=int)
    parser.add_argument("--days", type=float, default=1 / 24)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--faults", type=_kinds, default=KINDS)
    parser.add_argument("--plan", type=read, default=None)
    parser.add_argument("--trace", type=Path, default=None)
    return parser.parse_args(words)


def _kinds(text: str) -> tuple[str, ...]:
    try:
        return asked(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
