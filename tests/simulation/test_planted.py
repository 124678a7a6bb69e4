"""Planted bugs are found: a simulation that finds none says nothing."""

from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, Planted, found, plant

IN_EVERY_RUN = 1
"""So many are looked for in each run of the tests, the others where there is time."""


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            bug,
            id=bug.name.replace(" ", "-"),
            marks=() if number < IN_EVERY_RUN else (pytest.mark.soak, pytest.mark.timeout(600)),
        )
        for number, bug in enumerate(bug for bug in BUGS if bug.seed is not None)
    ],
)
def test_a_planted_bug_is_found(bug: Planted, tmp_path: Path) -> None:
    """With its seed, the judge says that the promise is broken which the bug breaks."""
    assert bug.seed is not None
    plant(bug, tmp_path)
    result = found(bug, bug.seed, tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert bug.broken in result.stdout


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_bug_can_be_planted(bug: Planted, tmp_path: Path) -> None:
    """What it replaces is in the product still, or the search for it would prove nothing."""
    plant(bug, tmp_path)
    assert bug.new in (tmp_path / bug.file).read_text()
