"""Makes a plan that breaks a promise smaller: `python -m simulation.shrink SEED --plan …`.

Leaves out ever smaller parts of the plan for as long as some promise is still broken (delta
debugging), then says what is left.  Each try is a run of its own; the seed stays, so all but the
faults is what it was, as far as the faults did not change it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence

from simulation.faults import Fault, read, written


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


def main() -> int:
    """Shrink, and say what is left."""
    parser = argparse.ArgumentParser(prog="python -m simulation.shrink")
    parser.add_argument("seed")
    parser.add_argument("--days", default=str(1 / 24))
    parser.add_argument("--nodes", default="3")
    parser.add_argument("--plan", type=read, required=True)
    options = parser.parse_args()
    more = ["--days", options.days, "--nodes", options.nodes]

    def breaks(faults: Sequence[Fault]) -> bool:
        done = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-m", "simulation", options.seed, *more, "--plan", written(faults)],
            capture_output=True, check=False,
        )  # fmt: skip
        print(f"{len(faults)} faults: {'broken' if done.returncode == 1 else 'kept'}", flush=True)
        return done.returncode == 1

    left = shrink(options.plan, breaks)
    print(f"relay simulate --seed {options.seed} {' '.join(more)} --plan '{written(left)}'")
    return 0


if __name__ == "__main__":
    sys.exit(main())
