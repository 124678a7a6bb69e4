"""Two relays take mail over a failover: each way that `tests.bench.failover` measures, once.

Nothing that was answered 250 is lost, nothing reaches a primary that was left behind, and every
relay accepts mail again by itself.
"""

from __future__ import annotations

import pytest

from tests.bench.failover import VARIANTS

# The others take long: `test_failover` and `test_frozen_primary` test one relay with every run.
WAYS = [
    pytest.param(way, id=name, marks=[] if name.startswith("PgBouncer") else pytest.mark.soak)
    for name, way in VARIANTS.items()
]


@pytest.mark.parametrize("fail", WAYS)
def test_nothing_is_lost_and_all_accept_again(fail) -> None:
    """That mail was accepted at all before and after, on each relay, is asserted on the way."""
    found = fail()
    print(found)
    assert found["lost"] == 0
    assert found.get("strays", 0) == 0
    assert len(found["pauses"]) == 2
    assert found["accepted"] > 100
