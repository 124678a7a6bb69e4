"""The clients in `clients/`: their own tests, as `make test-clients` runs them, and their types."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.npm import node_modules

HERE = Path(__file__).parent
CLIENTS = HERE.parents[1] / "clients"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("client", ["python", "typescript"])
def test_a_client_passes_its_own_tests(client: str) -> None:
    """In a process of their own, each with a relay: they use the plug-in that they test.

    Without npm nothing of the other client's can run: this is skipped as all of those are.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=CLIENTS / client,
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    counts = done.stdout.splitlines()[-1]
    if "skipped" in counts and "passed" not in counts:
        pytest.skip(f"{counts}:\n{done.stdout[-2_000:]}")
    assert " passed" in counts


def supported() -> list[str]:
    """The versions of Python that the client's wheel names, the oldest first."""
    of_client = tomllib.loads((CLIENTS / "python" / "pyproject.toml").read_text())
    classifiers = "\n".join(of_client["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


@pytest.mark.clients
@pytest.mark.parametrize("version", [supported()[0], supported()[-1]])
def test_pyright_finds_nothing_in_the_python_client(version: str) -> None:
    """As strict as it gets, for the oldest Python and the newest; so does mypy in `make check`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    pyright = node_modules(HERE / "pyright") / "pyright" / "index.js"
    done = subprocess.run(
        [
            *(node, pyright, "--project", CLIENTS / "python", "--pythonpath", sys.executable),
            *("--pythonversion", version),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout
