"""A test that cannot run is skipped; in CI, where all it needs is there, it fails."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]

CONFTEST = "from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport\n"
TESTS = """
import pytest
from tests.clients.senders import program

def test_a_client_that_is_not_there():
    program("no-such-client")

@pytest.mark.skipif(True, reason="needs Postfix")
def test_a_mark():
    pass

def test_a_fixture(browser):
    pass

@pytest.fixture
def browser():
    pytest.skip("Chromium is not installed")

def test_that_runs():
    pass
"""


def test_what_is_missing_is_seen_in_ci(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program, a mark, a fixture, a module: each with its reason."""
    monkeypatch.setenv("CI", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_some=TESTS, test_none="import pytest; pytest.importorskip('nope_')")
    result = pytester.runpytest("-p", "no:schemathesis", "--continue-on-collection-errors")
    counts = result.parseoutcomes()
    assert counts["passed"] == 1
    assert counts["failed"] + counts["errors"] == 4
    assert "skipped" not in counts
    for reason in ("no-such-client is not", "needs Postfix", "Chromium is not", "could not import"):
        assert re.search(f"a failure in CI: (Skipped: )?{reason}", result.stdout.str()), reason
