"""What tests need from npm: installed from a lock file, once a version, outside the tree.

`python -m tests.npm FOLDER PROGRAM [WORD…]` runs a program of such a folder, in it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_TIMEOUT = 300.0


class Missing(Exception):
    """What is needed cannot be had; why, in a sentence."""


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
        cached = installed(folder)
        if not place.is_symlink() or place.readlink() != cached:
            place.unlink(missing_ok=True)
            place.symlink_to(cached)
    return place


def installed(folder: Path) -> Path:
    """Install what `package-lock.json` of a folder names; `Missing` if that cannot be.

    The cache is named after the folder, and made anew when the lock file has changed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "relay-tests" / folder.name
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _installed(folder, place)


def _installed(folder: Path, place: Path) -> Path:
    lock = (folder / "package-lock.json").read_bytes()
    done = place / "installed-lock.json"
    if done.exists() and done.read_bytes() == lock:
        return place / "node_modules"
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is not installed")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(folder / name, place / name)
    ran = subprocess.run(
        [npm, "ci", "--prefix", str(place), "--ignore-scripts", "--no-audit", "--no-fund"],
        capture_output=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace")[-300:]
        raise Missing(f"npm cannot install what {folder.name} needs: {said}")
    done.write_bytes(lock)
    return place / "node_modules"


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
