"""The Python client: its own tests, and its types."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import clients
from tests.clients import own_suite
from tests.npm import node_modules

PYRIGHT = Path(__file__).parent / "pyright"


@pytest.mark.timeout(own_suite.TIMEOUT)
def test_it_passes_its_own_tests() -> None:
    """As `make test-clients` runs them."""
    own_suite.passes("python")


@pytest.mark.soak  # a thousand tests, eight at a time
@pytest.mark.timeout(900)
def test_a_thousand_tests_on_eight_workers_see_their_own_mail_alone(tmp_path: Path) -> None:
    """Each finds its own code and nothing else, at one relay, which the plug-in starts for all; and
    none fails for being one of many."""
    command = f"{sys.executable} -m relay up"
    figures, failed, relays = clients.suite(tmp_path, 8, "--relay-command", command)
    print(figures)  # how fast they were depends on what else the machine does: `tests.bench`
    assert failed == 0
    assert len(relays) == 1


@pytest.mark.clients
@pytest.mark.parametrize("version", [own_suite.pythons()[0], own_suite.pythons()[-1]])
def test_pyright_finds_nothing(version: str) -> None:
    """As strict as it gets, for the oldest Python and the newest; so does mypy in `make check`."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    pyright = node_modules(PYRIGHT) / "pyright" / "index.js"
    done = subprocess.run(
        [
            *(
                node,
                pyright,
                "--project",
                own_suite.CLIENTS / "python",
                "--pythonpath",
                sys.executable,
            ),
            *("--pythonversion", version),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "0 errors" in done.stdout
