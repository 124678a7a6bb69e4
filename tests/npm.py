"""What tests need from npm: installed from a lock file, once a version, outside the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_TIMEOUT = 300.0


def node_modules(folder: Path) -> Path:
    """Install what `package-lock.json` of a folder names; skip the test, with the reason, if not.

    The cache is named after the folder, and made anew when the lock file has changed.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = cache / "relay-tests" / folder.name
    lock = (folder / "package-lock.json").read_bytes()
    done = place / "installed-lock.json"
    if done.exists() and done.read_bytes() == lock:
        return place / "node_modules"
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    place.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(folder / name, place / name)
    installed = subprocess.run(
        [npm, "ci", "--prefix", str(place), "--ignore-scripts", "--no-audit", "--no-fund"],
        capture_output=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if installed.returncode != 0:
        said = installed.stderr.decode(errors="replace")[-300:]
        pytest.skip(f"npm cannot install what {folder.name} needs: {said}")
    done.write_bytes(lock)
    return place / "node_modules"
