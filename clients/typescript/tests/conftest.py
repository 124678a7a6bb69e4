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
    _install(run, folder, "--offline", tarball)
    for name in ("@playwright", "@types", "typescript", "vite", "vitest"):
        (folder / "node_modules" / name).symlink_to((modules / name).resolve())
    return folder


@pytest.fixture(scope="session")
def oldest(run: Run, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with the oldest test runners that package.json says it works with."""
    folder = tmp_path_factory.mktemp("oldest")
    runners = [f"{name}@{_first(version)}" for name, version in _said()["peerDependencies"].items()]
    types = _said()["devDependencies"]["@types/node"]
    _install(run, folder, "--ignore-scripts", tarball, *runners, f"@types/node@{types}")
    return folder


@pytest.fixture(scope="session")
def newest(run: Run, tarball: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same with the newest that Node.js 20 runs: Vitest 5 asks for 22."""
    folder = tmp_path_factory.mktemp("newest")
    runners = ("@playwright/test@latest", "vitest@4", "@types/node@20")
    _install(run, folder, "--ignore-scripts", tarball, *runners)
    return folder


@pytest.fixture(
    params=[
        "clean",
        pytest.param("oldest", marks=pytest.mark.soak),
        pytest.param("newest", marks=pytest.mark.soak),
    ]
)
def project(request: pytest.FixtureRequest) -> Path:
    """Return a project that has installed the tarball, with one after the other's test runners."""
    found: Path = request.getfixturevalue(request.param)
    return found


def _install(run: Run, folder: Path, *words: str | Path) -> None:
    (folder / "package.json").write_text('{"private": true, "type": "module"}\n')
    run("npm", "install", "--no-audit", "--no-fund", *words, folder=folder)


def _said() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((HERE / "package.json").read_text())
    return found


def _first(version: str) -> str:
    """Return the first that `>=1.40` names: 1.40.0."""
    numbers = version.removeprefix(">=").split(".")
    return ".".join([*numbers, "0", "0"][:3])


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
