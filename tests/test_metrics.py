"""The metrics that are this program's own count as those of prometheus_client do."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector

from relay.metrics import Collector, Counts, Moved, Registry, Tally, registry

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


def test_what_another_process_counts_is_part_of_the_same_metric():
    """Counters and histograms are sums, labels that only the other has appear, gauges are ours."""
    ours, theirs = Registry(), Registry()
    made = []
    for each in (ours, theirs):
        counter = Counter("things", "Things.", ["kind"], registry=each)
        histogram = Histogram("sizes", "Sizes.", ["of"], buckets=(1, 10), registry=each)
        gauge = Gauge("now", "Now.", registry=each)
        made.append((counter, histogram, gauge))
    mine, other = made
    mine[0].labels("a").inc(2)
    mine[2].set(7)
    other[0].labels("a").inc(3)
    other[0].labels("b").inc()
    other[1].labels("x").observe(5)
    other[2].set(9)
    moved = Moved(theirs)
    ours.add(moved.steps())
    assert moved.steps() == [], "nothing has moved since"
    other[0].labels("a").inc(4)
    ours.add(moved.steps())
    value = ours.get_sample_value
    assert value("things_total", {"kind": "a"}) == 9
    assert value("things_total", {"kind": "b"}) == 1
    assert value("now") == 7
    buckets = [value("sizes_bucket", {"of": "x", "le": le}) for le in ("1.0", "10.0", "+Inf")]
    assert buckets == [0, 1, 1]
    assert value("sizes_sum", {"of": "x"}) == 5
    mine[0].labels("a").inc()
    assert value("things_total", {"kind": "a"}) == 10


def test_what_a_python_process_takes_is_no_part_of_another():
    """Its CPU seconds are a counter, too: no sum, and no step whenever the clock has ticked."""
    theirs = Registry()
    ProcessCollector(registry=theirs)
    assert theirs.get_sample_value("process_cpu_seconds_total") is not None
    assert Moved(theirs).steps() == []
