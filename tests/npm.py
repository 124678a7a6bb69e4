"""What tests need from npm: installed from a lock file, outside the tree (`tests.cached`).

`python -m tests.npm FOLDER PROGRAM [WORD…]` runs a program of such a folder, in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cached import Missing, cached, run


def node_modules(folder: Path) -> Path:
    """Install what a folder's `package-lock.json` names; skip the test, with the reason, if not."""
    try:
        return installed(folder)
    except Missing as missing:
        pytest.skip(str(missing))


def linked(folder: Path) -> Path:
    """The same, to be found from the folder itself, unless somebody has installed it there."""
    place = folder / "node_modules"
    if place.is_symlink() or not place.is_dir():
        found = installed(folder)
        if not place.is_symlink() or place.readlink() != found:
            # Other processes may be about to do the same.
            made = folder / f".node_modules-{os.getpid()}"
            made.symlink_to(found)
            made.replace(place)
    return place


def installed(folder: Path) -> Path:
    """Install what `package-lock.json` of a folder names; `Missing` if that cannot be."""

    def install(place: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise Missing("npm is not installed")
        for name in ("package.json", "package-lock.json"):
            shutil.copy(folder / name, place / name)
        quiet = ("--ignore-scripts", "--no-audit", "--no-fund")
        run([npm, "ci", "--prefix", str(place), *quiet], folder.name)

    return cached(folder.name, folder / "package-lock.json", install) / "node_modules"


def _main(where: str, program: str, *words: str) -> int:
    folder = Path(where).resolve()
    try:
        path = f"{linked(folder) / '.bin'}{os.pathsep}{os.environ['PATH']}"
    except Missing as missing:
        print(f"{program} is left out: {missing}", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    return subprocess.run(
        [program, *words], cwd=folder, env={**os.environ, "PATH": path}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
