"""How the suites of the clients are watched: what goes on may, what hangs is ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients import own_suite

FAILED = pytest.fail.Exception


def test_a_suite_may_take_as_long_as_it_goes_on(tmp_path: Path) -> None:
    """It takes longer than it may be quiet, in all, and says its errors, too."""
    slow = "for n in 1 2 3 4 5 6; do echo $n; sleep 0.25; done; echo bad >&2; pwd; exit 3"
    status, said = own_suite.watched(["sh", "-c", slow], tmp_path, 1.4)
    assert (status, said.split()) == (3, [*"123456", "bad", str(tmp_path.resolve())])


def test_a_suite_that_hangs_is_ended(tmp_path: Path) -> None:
    """And what it had said is told."""
    with pytest.raises(FAILED, match=r"says nothing for 0\.3 s, and ended here:\n\.\.F"):
        own_suite.watched(["sh", "-c", "printf ..F; exec sleep 1000"], tmp_path, 0.3)
