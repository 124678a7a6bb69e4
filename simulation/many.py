"""Many seeds, two at a time: `python -m simulation.many`, which is `make simulate`.

Each has a core of its own: a simulation and its server take turns, and on one core a turn passes
from one to the other at once.  Shows how far it is, and of every seed that broke a promise the page
that is left once its faults are made as few and as plain as there is time for (`shrink`).  Ends
with 1 if there was one, or if a simulation failed; with 130 if it was told to stop, and those that
run are told, too.  The last line is JSON.

Worlds in which sweeps are to be often (`kind.often`) last for half an hour at most: an hour is too
long for that (`seams.sweep_rarely`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import cycle, islice
from queue import SimpleQueue
from typing import NoReturn

from simulation.kind import kind_of
from simulation.page import FEWER
from simulation.seams import OFTEN_FOR

_BAR = 40
_STOP_WITHIN = 50  # tenths of a second for which they are waited for


def main() -> int:
    """Run them, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m simulation.many")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--days", default=str(1 / 24))
    parser.add_argument("--nodes", default="3")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--shrink", default="600", help="seconds for a seed that broke a promise")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    more = ["--nodes", options.nodes]
    began = time.monotonic()
    broken: list[int] = []
    failed: list[int] = []
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, _stop)
    cores: SimpleQueue[int] = SimpleQueue()
    for core in islice(cycle(sorted(os.sched_getaffinity(0))), options.at_once):
        cores.put(core)
    with ThreadPoolExecutor(
        options.at_once, initializer=lambda: os.sched_setaffinity(0, {cores.get()})
    ) as places:
        running: dict[Future[subprocess.CompletedProcess[str]], int] = {
            places.submit(_run, seed, [*_days(seed, options.days), *more], options.shrink): seed
            for seed in seeds
        }
        for number, done in enumerate(as_completed(running), 1):
            result = done.result()
            if result.returncode:
                seed = running[done]
                (broken if result.returncode == 1 else failed).append(seed)
                print(f"\r\033[Kseed {seed}:\n{result.stdout}{result.stderr}", flush=True)
            _show(number, len(seeds), len(broken), time.monotonic() - began)
    print()
    seconds = round(time.monotonic() - began, 1)
    said = {"seeds": len(seeds), "broken": sorted(broken), "failed": sorted(failed)}
    print(json.dumps(said | {"seconds": seconds}))
    return 1 if broken or failed else 0


_RUNNING: set[subprocess.Popen[str]] = set()
"""Each leads a group of its own: a simulation, or what shrinks one, and that which it tries."""


_stopping = threading.Event()


def _stop(*_: object) -> NoReturn:
    """Tell all that run to stop, and end when they have; no other is begun."""
    _stopping.set()
    for _attempt in range(_STOP_WITHIN):
        for child in list(_RUNNING):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        if not _RUNNING:
            break
        time.sleep(0.1)
    os._exit(130)


def _days(seed: int, days: str) -> tuple[str, str]:
    """For how long to simulate a seed."""
    most = OFTEN_FOR / 86_400
    return "--days", str(most) if kind_of(seed).often and float(days) > most else days


def _run(seed: int, more: list[str], shrink: str) -> subprocess.CompletedProcess[str]:
    result = _python("simulation", str(seed), *more)
    for line in result.stdout.splitlines():
        if line.startswith(FEWER):
            smaller = _python(*shlex.split(line.removeprefix(FEWER)), "--seconds", shrink)
            _, _, page = smaller.stdout.partition("\n\n")
            result.stdout = page or result.stdout
    return result


def _python(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    if _stopping.is_set():
        return subprocess.CompletedProcess(module, 130, "", "")
    child = subprocess.Popen(  # noqa: S603 - ourselves
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
    )  # fmt: skip
    _RUNNING.add(child)
    try:
        output, error = child.communicate()
    finally:
        _RUNNING.discard(child)
    return subprocess.CompletedProcess(child.args, child.returncode, output, error)


def _show(done: int, of: int, broken: int, seconds: float) -> None:
    if sys.stdout.isatty():
        full = _BAR * done // of
        print(
            f"\r[{'#' * full}{' ' * (_BAR - full)}] {done} of {of}, {broken} broken, "
            f"{seconds:.0f} s",
            end="",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
