"""What the package does, by node's own test runner."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Run

_FILES = sorted(Path(__file__).parent.glob("*.test.mjs"))


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.name.removesuffix(".test.mjs"))
def test_node_passes_its_tests(run: Run, tarball: Path, file: Path) -> None:
    """Each test of a file, of which there are some; none is skipped."""
    said = run("node", "--test", "--test-reporter=tap", file).stdout
    counts = dict(re.findall(r"^# (\w+) (\d+)$", said, re.MULTILINE))
    assert int(counts["pass"]) > 0
    assert counts["fail"] == counts["skipped"] == counts["todo"] == "0"
