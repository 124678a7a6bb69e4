"""The TypeScript client: its own tests."""

from __future__ import annotations

import pytest

from tests.clients import own_suite


@pytest.mark.timeout(own_suite.TIMEOUT)
def test_it_passes_its_own_tests() -> None:
    """As `make test-clients` runs them."""
    own_suite.passes("typescript")
