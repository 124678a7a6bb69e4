"""The clients in `clients/`: the suite that each brings, and what the Python one's wheel names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "clients"

PLUGIN = ("-p", "no:relay", "-p", "relay_client.pytest_plugin")
"""Has pytest take the plug-in of the tree, once: one that is installed, or of which `pip install`
has left a description there, has the name `relay`."""

TIMEOUT = 400
"""Seconds that a test has for it."""


def passes(client: str, *words: str) -> None:
    """Run it in a process of its own, with a relay of its own: it uses the plug-in that it tests.

    `client`: the name of its folder; `words`: what pytest is told besides.  Without npm nothing of
    the TypeScript client's can run: the test is skipped as all of those are.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *words],
        cwd=CLIENTS / client,
        capture_output=True,
        text=True,
        timeout=TIMEOUT - 20,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    counts = done.stdout.splitlines()[-1]
    if "skipped" in counts and "passed" not in counts:
        pytest.skip(f"{counts}:\n{done.stdout[-2_000:]}")
    assert " passed" in counts


def pythons(folder: Path = CLIENTS / "python") -> list[str]:
    """Return the versions of Python that a project's wheel names, the client's if none is given;
    the oldest first."""
    named = tomllib.loads((folder / "pyproject.toml").read_text())
    classifiers = "\n".join(named["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)
