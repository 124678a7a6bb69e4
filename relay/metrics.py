"""The one registry of Prometheus metrics, and how it is rendered.

Each module defines its counters beside the code that counts, with `registry=registry`.  What is
somebody's state anyway (the tree, a pool) is not counted again but read at each scrape: `gather`.

Labels are small closed sets (an outcome, an actor): never an address, a subject or any other
personal data, because a scrape is not a confidential channel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector as Collector

registry = CollectorRegistry()
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
