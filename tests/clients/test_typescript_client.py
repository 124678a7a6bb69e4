"""The TypeScript client: its own tests."""

from __future__ import annotations

import pytest

from tests.clients import own_suite


@pytest.mark.timeout(own_suite.TIMEOUT)
def test_it_passes_its_own_tests() -> None:
    """As `make test-clients` runs them."""
    own_suite.passes("typescript")


@pytest.mark.soak  # npm installs them: a network
@pytest.mark.timeout(own_suite.TIMEOUT)
def test_it_works_with_the_oldest_test_runners_and_the_newest() -> None:
    """Those of Playwright and Vitest that package.json names first, and the last that there are."""
    own_suite.passes("typescript", "-m", "soak")
