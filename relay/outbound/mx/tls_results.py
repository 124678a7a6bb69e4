"""Outcomes of TLS with the exchangers of domains, counted in memory for reports (RFC 8460).

A session is a connection to an exchanger, counted once for each domain whose mail goes over it, and
one that could not be secured as the domain's policy asks once for the domain whose mail it was
opened for.  Counts leave by `take`, once a minute (`relay.outbound.reporting.tls_reports`).

Promises: counting waits for nothing and writes nothing; at most `MOST` different results are kept,
the others are left out; of one
domain at most `MOST_OF_DOMAIN` and a few, that nobody's names fill a report.

Fails: never.

Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from relay.outbound.mx.policy import Published

MOST = 10_000
"""Different results that are kept until they are taken."""
MOST_OF_DOMAIN = 50
"""Different results of one domain, a day; all others are a few that say less (`others`)."""


class TlsResult(NamedTuple):
    """One way in which sessions end."""

    domain: str
    """Of the mail; A-labels in small letters."""
    published: Published
    fault: str = ""
    """A result type of RFC 8460, 4.3; empty: it was secured as it should be."""
    host: str = ""
    """The exchanger."""
    address: str = ""
    """Of it."""
    source: str = ""
    """The address of ours that a session which failed came from."""


def others(result: TlsResult) -> TlsResult:
    """What a result is counted as where its domain has too many: it says how it ended, no more."""
    fault = "validation-failure" if result.fault else ""
    return TlsResult(result.domain, Published(result.published.type), fault)


class TlsResults:
    """Counts since the last `take`; one for all who deliver."""

    def __init__(self) -> None:
        self._counted: Counter[TlsResult] = Counter()
        self._of_domain: Counter[str] = Counter()

    def count(self, result: TlsResult, times: int = 1) -> None:
        """Count sessions."""
        if result not in self._counted:
            if self._of_domain[result.domain] >= MOST_OF_DOMAIN:
                result = others(result)
            if result not in self._counted:
                if len(self._counted) >= MOST:
                    return
                self._of_domain[result.domain] += 1
        self._counted[result] += times

    def take(self) -> dict[TlsResult, int]:
        """Take out all that was counted."""
        taken, self._counted = self._counted, Counter()
        self._of_domain = Counter()
        return dict(taken)

    def put_back(self, taken: dict[TlsResult, int]) -> None:
        """Keep what was taken and could not be stored."""
        for result, times in taken.items():
            self.count(result, times)
