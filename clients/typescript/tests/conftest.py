"""What the tests share: the relay of relay_client's pytest plug-in, and the package, packed.

npm's packages are those of package-lock.json: the ones in node_modules if somebody has installed
them here, else those of the tests' cache.  With `CI` set, what cannot be had is a failure.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest
from relay_client import Relay
from tests.cached import Missing
from tests.npm import linked

HERE = Path(__file__).parents[1]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def modules() -> Path:
    """Return the folder of what npm installed, which node finds from here."""
    try:
        return linked(HERE)
    except Missing as missing:
        _left_out(str(missing))


@pytest.fixture(scope="session")
def run(relay: Relay, modules: Path) -> Run:
    """Return what runs a program of node's, with the relay in its environment."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("RELAY_")}
    env |= {"RELAY_URL": relay.url, "NO_COLOR": "1"}
    env |= {"RELAY_TOKEN": str(relay.token)}
    env.pop("CI", None)  # which changes what the runners of tests print
    env.pop("FORCE_COLOR", None)

    def started(
        *words: str | Path, folder: Path = HERE, fails: bool = False, **more: str | None
    ) -> subprocess.CompletedProcess[str]:
        told = {name: value for name, value in (env | more).items() if value is not None}
        done = subprocess.run(
            [str(word) for word in words],
            cwd=folder,
            env=told,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        if not fails:
            assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done

    return started


@pytest.fixture(scope="session")
def tarball(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what `npm pack` makes; dist/ is built by it."""
    folder = tmp_path_factory.mktemp("packed")
    return packed(run, HERE, folder)


def packed(run: Run, source: Path, folder: Path, *more: str) -> Path:
    """Pack what is in a folder."""
    said = run("npm", "pack", "--json", "--pack-destination", folder, *more, folder=source).stdout
    (one,) = json.loads(said[said.index("[") :])
    return folder / str(one["filename"])


def digest(file: Path) -> str:
    """Return the SHA-256 of what is in a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def clean(run: Run, tarball: Path, modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a project that has installed the tarball, and the test runners beside it."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    run("npm", "install", "--offline", "--no-audit", "--no-fund", tarball, folder=folder)
    for name in ("@playwright", "@types", "typescript", "vite", "vitest"):
        (folder / "node_modules" / name).symlink_to((modules / name).resolve())
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the browser's path."""
    found = shutil.which("chromium")
    if found is None:
        _left_out("Chromium is not installed")
    return found


def _left_out(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
