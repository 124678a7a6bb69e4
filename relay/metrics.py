"""The one registry of Prometheus metrics, and how it is rendered.

Each module defines its counters beside the code that counts, with `registry=registry`.
Labels are small closed sets (an outcome, an actor): never an address, a subject or any
other personal data, because a scrape is not a confidential channel.
"""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

registry = CollectorRegistry()
ProcessCollector(registry=registry)
PlatformCollector(registry=registry)


def render() -> bytes:
    """Return every metric in the Prometheus text format."""
    return generate_latest(registry)
