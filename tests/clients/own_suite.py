"""The clients in `clients/`: the suite that each brings, and what the Python one's wheel names."""

from __future__ import annotations

import html
import json
import os
import re
import select
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "clients"

PLUGIN = ("-p", "no:relay", "-p", "relay_client.pytest_plugin")
"""Has pytest take the plug-in of the tree, once: one that is installed, or of which `pip install`
has left a description there, has the name `relay`."""

TIMEOUT = 1800
"""Seconds that a test has for it; what hangs ends earlier, by `QUIET`."""

QUIET = 320.0
"""Seconds within which a suite ends one of its tests, or it hangs: more than any of them may take
(clients/typescript/pyproject.toml).  On a busy machine all of it has taken ten minutes."""


def passes(client: str, *words: str) -> None:
    """Run it in a process of its own, with a relay of its own: it uses the plug-in that it tests.

    `client`: the name of its folder; `words`: what pytest is told besides.  Without npm nothing of
    the TypeScript client's can run: the test is skipped as all of those are.
    """
    status, said = watched([sys.executable, "-m", "pytest", "-q", *words], CLIENTS / client, QUIET)
    assert status == 0, said[-20_000:]
    counts = said.splitlines()[-1]
    if "skipped" in counts and "passed" not in counts:
        pytest.skip(f"{counts}:\n{said[-2_000:]}")
    assert " passed" in counts


def watched(command: Sequence[str], folder: Path, quiet: float) -> tuple[int, str]:
    """Run a command for as long as it says something within so many seconds, errors among it.

    Returns its exit code and what it said; one that is quiet for longer is killed, and the test
    fails with that.
    """
    said: list[bytes] = []
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        while select.select([pipe], [], [], quiet)[0]:
            piece = os.read(pipe, 65536)
            if not piece:
                break
            said.append(piece)
        else:
            process.kill()
            end = b"".join(said)[-20_000:].decode(errors="replace")
            pytest.fail(f"it says nothing for {quiet:g} s, and ended here:\n{end}")
    return process.returncode, b"".join(said).decode(errors="replace")


def pythons(folder: Path = CLIENTS / "python") -> list[str]:
    """Return the versions of Python that a project's wheel names, the client's if none is given;
    the oldest first."""
    named = tomllib.loads((folder / "pyproject.toml").read_text())
    classifiers = "\n".join(named["project"]["classifiers"])
    return re.findall(r"^Programming Language :: Python :: (3\.\d+)$", classifiers, re.MULTILINE)


def shown_in(report: Path) -> list[str]:
    """What pytest-html's report shows beside its tests, as it stands there."""
    (blob,) = re.findall(r'data-jsonblob="([^"]*)"', report.read_text())
    tests = json.loads(html.unescape(blob))["tests"].values()
    return [extra["content"] for rows in tests for row in rows for extra in row["extras"]]
