"""Plants bugs (`tests.simulation.bugs`) in a copy of the product, for the simulation to find.

`python -m tests.simulation.planted` looks for each from seed 1 on.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import relay
from tests.simulation.bugs import BUGS, Planted

ROOT = Path(relay.__file__).parent.parent
NODES = "2"


def plant(bug: Planted, folder: Path) -> None:
    """Make a copy of the product in `folder`, with the bug in it."""
    for name in ("relay", "actors", "simulation"):
        shutil.copytree(
            ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
        )
    shutil.copy(ROOT / "supervisor.py", folder)
    path = folder / bug.file
    text = path.read_text()
    assert text.count(bug.old) == 1, f"{bug.name}: no longer fits {bug.file}"
    path.write_text(text.replace(bug.old, bug.new))


def found(bug: Planted, seed: int, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the simulation of a copy with the bug."""
    faults = ["--faults", bug.faults] if bug.faults else []
    options = ["--days", bug.days, "--nodes", NODES, *faults]
    return subprocess.run(
        [sys.executable, "-m", "simulation", str(seed), *options],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )


def _look_for(bug: Planted, most: int) -> str:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "copy"
        folder.mkdir()
        plant(bug, folder)
        for seed in range(1, most + 1):
            result = found(bug, seed, folder)
            if bug.broken in result.stdout:
                return f"{bug.name}: found with seed {seed}"
            if result.returncode not in {0, 1}:
                return f"{bug.name}: seed {seed} failed: {result.stderr[-500:]}"
    return f"{bug.name}: NOT found within {most} seeds"


def main() -> None:
    """Look for all of them, or those whose names have a word."""
    parser = argparse.ArgumentParser()
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--most", type=int, default=20)
    options = parser.parse_args()
    wanted = [bug for bug in BUGS if options.word in bug.name]
    with ThreadPoolExecutor(2) as places:
        for line in places.map(lambda bug: _look_for(bug, options.most), wanted):
            print(line, flush=True)


if __name__ == "__main__":
    main()
