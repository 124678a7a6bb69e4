"""The metrics that are this program's own count as those of prometheus_client do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from relay.metrics import Tally, registry

BOUNDS = (0.001, 0.1, 1.0, 60.0)


@given(st.lists(st.one_of(st.sampled_from(BOUNDS), st.floats(0, 1000, allow_subnormal=False))))
def test_a_tally_counts_what_a_histogram_counts(values: list[float]):
    """Every bucket, the number of values and their sum, whatever was observed."""
    general = CollectorRegistry()
    slow = Histogram("a_duration", "Seconds.", buckets=BOUNDS, registry=general)
    fast = Tally("a_duration", "Seconds.", BOUNDS)
    try:
        for value in values:
            slow.observe(value)
            fast.observe(value)
        (wanted,) = slow.collect()
        (found,) = fast.collect()
    finally:
        registry.unregister(fast)
    samples = {(one.name, *one.labels.items()): one.value for one in found.samples}
    expected = {
        (one.name, *one.labels.items()): one.value
        for one in wanted.samples
        if not one.name.endswith("_created")
    }
    assert samples.keys() == expected.keys()
    assert all(math.isclose(samples[key], expected[key]) for key in expected)
