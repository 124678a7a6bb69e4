"""The one registry of Prometheus metrics, and how it is rendered.

Each module defines its counters beside the code that counts, with `registry=registry`.  What is
somebody's state anyway (the tree, a pool) is not counted again but read at each scrape: `gather`.

What other processes of this relay count comes in steps (`Moved` finds them there, `registry.add`
takes them here) and is shown as part of the same metrics: whoever scrapes sees one relay.  Only
what is said of the Python process (`process_…`) is said of this one alone.

Labels are small closed sets (an outcome, an actor): never an address, a subject or any other
personal data, because a scrape is not a confidential channel.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, disable_created_metrics, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector as Collector
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

# A second series for each counter, which nobody asks for.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types for it
Steps = list[tuple[str, list[tuple[str, dict[str, str], float]]]]
"""By metric: name, labels and growth of each of its samples.  JSON can hold it."""

_GROWS = {"counter", "histogram"}
_OF_ONE = "process_"  # how the metrics of a Python process begin: of each its own, and no sum


class Registry(CollectorRegistry):
    """A registry that adds to its own counters and histograms what others have counted."""

    def __init__(self) -> None:
        super().__init__()
        self._others: dict[str, dict[_Key, float]] = {}

    def add(self, steps: Steps) -> None:
        """Add what `Moved.steps` of another process returned."""
        for metric, samples in steps:
            sums = self._others.setdefault(metric, {})
            for name, labels, growth in samples:
                key = name, tuple(sorted(labels.items()))
                sums[key] = sums.get(key, 0.0) + growth

    def collect(self) -> Iterator[Metric]:
        """Yield every metric with its sums."""
        for metric in super().collect():
            if metric.name in self._others:
                metric.samples = _with(metric.samples, self._others[metric.name])
            yield metric


_Key = tuple[str, tuple[tuple[str, str], ...]]


def _key(sample: Sample) -> _Key:
    return sample.name, tuple(sorted(sample.labels.items()))


def _with(samples: Sequence[Sample], sums: Mapping[_Key, float]) -> list[Sample]:
    own = {_key(sample) for sample in samples}
    return [
        *(sample._replace(value=sample.value + sums.get(_key(sample), 0.0)) for sample in samples),
        *(Sample(key[0], dict(key[1]), sums[key]) for key in sums if key not in own),
    ]


class Moved:
    """What the counters and histograms of this process have grown by since it was asked last."""

    def __init__(self, of: CollectorRegistry | None = None) -> None:
        """`of`: another registry than this module's."""
        self._of = registry if of is None else of
        self._seen: dict[_Key, float] = {}

    def steps(self) -> Steps:
        """Return it, for `Registry.add` of another process.

        Of a metric all samples or none, since buckets make sense only together.
        """
        found: Steps = []
        for metric in self._of.collect():
            if metric.type not in _GROWS or metric.name.startswith(_OF_ONE):
                continue
            samples = []
            for sample in metric.samples:
                key = _key(sample)
                growth = sample.value - self._seen.get(key, 0.0)
                self._seen[key] = sample.value
                samples.append((sample.name, dict(sample.labels), growth))
            if any(growth for _, _, growth in samples):
                found.append((metric.name, samples))
        return found


registry = Registry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)


class _Gathered(Collector):
    """Gauges that are read when they are scraped."""

    def __init__(self, help_by_name: Mapping[str, str], label: str, read: Callable[[], Rows]):
        self._help = dict(help_by_name)
        self._label = label
        self._read = read

    def describe(self) -> Iterator[Metric]:
        """Name the gauges without reading them (nothing may be there to read yet)."""
        for name, text in self._help.items():
            yield GaugeMetricFamily(name, text, labels=[self._label])

    def collect(self) -> Iterator[Metric]:
        """Read them."""
        families = {metric.name: metric for metric in self.describe()}
        for key, values in self._read():
            for name, value in values.items():
                family = families[name]
                assert isinstance(family, GaugeMetricFamily)
                family.add_metric([key], value)
        yield from families.values()


class Tally(Collector):
    """A histogram for what happens thousands of times a second, on one thread.

    Observing costs two additions; `prometheus_client.Histogram` takes a lock and walks the buckets.
    `tests/test_metrics.py` holds it to that one; `python -m tests.bench outbound` is where it pays.
    """

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """`bounds`: the upper limits of the buckets, ascending, without infinity."""
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Show the buckets as Prometheus wants them: each holds those below it too."""
        limits = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(limits, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class Count:
    """One series of `Counts`: add to its `value`."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Counts(Collector):
    """A counter for what happens thousands of times a second, on one thread.

    Counting is an addition; `prometheus_client.Counter` takes a lock and seven calls for it.
    `tests/test_metrics.py` holds it to that one; `python -m tests.bench ingest` is where it pays.
    """

    def __init__(self, name: str, text: str, label: str = "", values: Sequence[str] = ()) -> None:
        """`values`: of the label, in order, if there is one; `of` has the series by these."""
        self._name = name
        self._text = text
        self._labelnames = [label] if label else []  # as in `prometheus_client`, for the page
        self.of = {value: Count() for value in (values if label else ("",))}
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Show them as Prometheus wants them."""
        family = CounterMetricFamily(self._name, self._text, labels=self._labelnames)
        for value, one in self.of.items():
            family.add_metric([value] if self._labelnames else [], one.value)
        yield family


Rows = Iterable[tuple[str, Mapping[str, float]]]
"""(value of the label, gauge name → value) for each thing that is measured."""


def gather(help_by_name: Mapping[str, str], label: str, read: Callable[[], Rows]) -> Collector:
    """Add gauges (name → help) with one label that `read` gives at each scrape.

    Returns what `registry.unregister` takes when their subject ends.
    """
    collector = _Gathered(help_by_name, label, read)
    registry.register(collector)
    return collector


def render() -> bytes:
    """Return every metric in the Prometheus text format."""
    return generate_latest(registry)
