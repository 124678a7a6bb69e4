"""What tests install outside the tree, each lock file's once, for every clone on this machine.

A folder of the cache is named after what is in it: a name, and the digest of the lock file.  So it
never changes, and two clones with two locks leave each other's alone.  Of processes that want the
same one installs it and the others wait; what was broken off is installed anew.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_TIMEOUT = 300.0


class Missing(Exception):
    """What is needed cannot be had; why, in a sentence."""


def cached(name: str, lock: Path, install: Callable[[Path], None]) -> Path:
    """Return the folder in which `install` has put what a lock file names.

    `install` is called with an empty folder, and raises `Missing` if it cannot.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relay-tests"
    place = cache / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with cache.joinpath(f"{place.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done = place / ".installed"
        if not done.exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            install(place)
            done.touch()
    return place


def environment(folder: Path) -> Path:
    """Return a Python environment with what a folder's `requirements.lock` names; or `Missing`."""
    lock = folder / "requirements.lock"

    def install(place: Path) -> None:
        run([sys.executable, "-m", "venv", str(place)], folder.name)
        pip = [str(place / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install"]
        run([*pip, "--quiet", "--require-hashes", "-r", str(lock)], folder.name)

    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return cached(f"{folder.name}-{python}", lock, install)


def run(command: list[str], name: str) -> None:
    """Run what installs something; `Missing`, with what it said, if it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"what {name} needs cannot be installed: {error}") from None
    if ran.returncode != 0:
        said = ran.stderr.decode(errors="replace")[-300:]
        raise Missing(f"what {name} needs cannot be installed: {said}")
