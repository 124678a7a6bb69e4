"""Planted bugs are found: a simulation that finds none says nothing."""

import re
from pathlib import Path

import pytest

from tests.simulation.bugs import BUGS, Planted
from tests.simulation.planted import ROOT, found, plant

IN_EVERY_RUN = 1
"""So many are looked for in each run of the tests, the others where there is time."""
WITHIN = 200
"""Seeds with which each is found."""


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(
            bug,
            id=bug.name.replace(" ", "-"),
            marks=() if number < IN_EVERY_RUN else (pytest.mark.soak, pytest.mark.timeout(3600)),
        )
        for number, bug in enumerate(BUGS)
    ],
)
def test_a_planted_bug_is_found(bug: Planted, tmp_path: Path) -> None:
    """The judge says that the promise is broken which the bug breaks.

    With the seed that is put down, or, where what the product asks of the database has changed
    since, with another.
    """
    plant(bug, tmp_path)
    for seed in (bug.seed, *range(1, WITHIN + 1)):
        result = found(bug, seed, tmp_path)
        assert result.returncode in {0, 1}, result.stdout + result.stderr
        if bug.broken in result.stdout:
            assert f"again: relay simulate --seed {seed} " in result.stdout
            return
    pytest.fail(f"not found within {WITHIN} seeds")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_bug_can_be_planted(bug: Planted) -> None:
    """What it replaces is in the product still, or the search for it would prove nothing."""
    assert (ROOT / bug.file).read_text().count(bug.old) == 1
    assert bug.new != bug.old


@pytest.mark.parametrize(
    "bug",
    [bug for bug in BUGS if bug.file.endswith(".sql")],
    ids=lambda bug: bug.name.replace(" ", "-"),
)
def test_what_a_bug_in_sql_changes_is_run(bug: Planted) -> None:
    """No later migration defines the function anew, or the bug would be in none that is there."""
    path = ROOT / bug.file
    text = path.read_text()
    above = text[: text.index(bug.old) + len(bug.old)]
    names = re.findall(r"^CREATE (?:OR REPLACE )?FUNCTION (\S+?)\(", above, re.MULTILINE)
    anew = re.compile(rf"^CREATE (?:OR REPLACE )?FUNCTION {re.escape(names[-1])}\(", re.MULTILINE)
    later = [each for each in path.parent.glob("*.sql") if each.name > path.name]
    assert not [each.name for each in later if anew.search(each.read_text())]


def test_the_table_of_planted_bugs() -> None:
    """docs/simulation.md says of each with which seed it was found."""
    text = (ROOT / "docs/simulation.md").read_text().partition("## Planted bugs\n")[2]
    said = dict(re.findall(r"^\| (.+) \| ([0-9]+) \|$", text, re.MULTILINE))
    assert said == {bug.name: str(bug.seed) for bug in BUGS}
