"""The metrics that are this program's own count as those of prometheus_client do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from relay.metrics import Collector, Counts, Tally, registry

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


def _shown(collector: Collector) -> list[bytes]:
    """What a scrape shows of it alone."""
    alone = CollectorRegistry()
    alone.register(collector)
    return sorted(generate_latest(alone).splitlines())


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 10**9))))
def test_counts_are_what_a_counter_counts(added: list[tuple[str, int]]):
    """With a label and without one: what a scrape shows is the same, from the first."""
    general = CollectorRegistry()
    slow = Counter("some_labelled", "How many.", ["kind"], registry=general)
    one = Counter("some_plain", "How many.", registry=general)
    for kind in "ab":
        slow.labels(kind)
    fast, plain = (
        Counts("some_labelled", "How many.", "kind", "ab"),
        Counts("some_plain", "How many."),
    )
    try:
        for kind, count in added:
            slow.labels(kind).inc(count)
            fast.of[kind].value += count
            one.inc(count)
            plain.of[""].value += count
        assert _shown(fast) == _shown(slow)
        assert _shown(plain) == _shown(one)
    finally:
        registry.unregister(fast)
        registry.unregister(plain)
