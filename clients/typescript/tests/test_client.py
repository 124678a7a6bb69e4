"""What the package does, by node's own test runner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Run

_FILES = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_node_finds_nothing(run: Run, tarball: Path, file: Path) -> None:
    """Every test of a file passes, and there are some."""
    said = run("node", "--test", "--test-reporter=tap", file).stdout
    counts = dict(re.findall(r"^# (\w+) (\d+)$", said, re.MULTILINE))
    assert int(counts["pass"]) > 0
    assert counts["fail"] == counts["skipped"] == counts["todo"] == "0"
