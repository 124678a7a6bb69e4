"""Makes a plan that breaks a promise smaller: `python -m simulation.shrink SEED --plan …`.

Leaves out ever smaller parts of the plan for as long as some promise is still broken (delta
debugging), then makes each fault that is left plainer and shorter, and shows the page of what is
left, or of what there is by then when its time is over (`--seconds`).  Each try is a run of its
own; the seed stays, so all but the faults is what it was, as far as the faults did not change it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from simulation.faults import KINDS, Fault, read, written


def shrink(faults: Sequence[Fault], breaks: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return as few of these faults as still break a promise, in their order."""
    left = list(faults)
    size = len(left)
    while size:
        at = 0
        while at < len(left):
            fewer = left[:at] + left[at + size :]
            if breaks(fewer):
                left = fewer
            else:
                at += size
        size //= 2
    return left


def simplify(faults: Sequence[Fault], breaks: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """Return the same faults, each as plain and as short as still breaks a promise."""
    left = list(faults)
    for place in range(len(left)):
        for simpler in _SIMPLER:
            while (one := simpler(left[place])) != left[place]:
                if not breaks([*left[:place], one, *left[place + 1 :]]):
                    break
                left[place] = one
    return left


_SIMPLER: tuple[Callable[[Fault], Fault], ...] = (
    lambda fault: (
        replace(fault, answers=0, amid=0.0, whose="") if fault.amid or fault.answers else fault
    ),
    lambda fault: replace(fault, away=0.0, lasts_on=0.0, step=float(round(fault.step))),
    lambda fault: replace(fault, lasts=_half(fault.lasts)),
    lambda fault: replace(fault, at=float(round(fault.at))),
)


def _half(seconds: float) -> float:
    return float(round(seconds / 2)) if seconds > 1.0 else seconds


def main() -> int:
    """Shrink, and say what is left."""
    parser = argparse.ArgumentParser(prog="python -m simulation.shrink")
    parser.add_argument("seed")
    parser.add_argument("--days", default=str(1 / 24))
    parser.add_argument("--nodes", default="3")
    parser.add_argument("--faults", default=",".join(KINDS))
    parser.add_argument("--plan", type=read, required=True)
    parser.add_argument("--seconds", type=float, default=inf, help="when to stop trying")
    options = parser.parse_args()
    ends = time.monotonic() + options.seconds
    more = ["--days", options.days, "--nodes", options.nodes, "--faults", options.faults]
    shown = ""

    def breaks(faults: Sequence[Fault]) -> bool:
        nonlocal shown
        if time.monotonic() > ends:
            return False
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-m", "simulation", options.seed, *more, "--plan", written(faults)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        broken = done.returncode == 1
        print(f"{len(faults)} faults: {'broken' if broken else 'kept'}", flush=True)
        if broken:
            shown = done.stdout
        return broken

    breaks(options.plan)
    simplify(shrink(options.plan, breaks), breaks)
    print(f"\n{shown}" if shown else "no promise is broken")
    if time.monotonic() > ends:
        print("the time for leaving out faults was over: some of these may not be needed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
