"""Outcomes of TLS with the exchangers of domains, counted in memory for reports (RFC 8460).

A session is a connection to an exchanger, counted once for each domain whose mail goes over it, and
one that could not be secured as the domain's policy asks once for the domain whose mail it was
opened for.  Counts leave by `take`, once a minute (`relay.outbound.tls_reports`).

Promises: counting waits for nothing and writes nothing; at most `MOST` different results are kept,
the others are left out.

Fails: never.

Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from relay.outbound.mx.policy import Published

MOST = 10_000
"""Different results that are kept until they are taken."""


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


class TlsResults:
    """Counts since the last `take`; one for all who deliver."""

    def __init__(self) -> None:
        self._counted: Counter[TlsResult] = Counter()

    def count(self, result: TlsResult, times: int = 1) -> None:
        """Count sessions."""
        if result in self._counted or len(self._counted) < MOST:
            self._counted[result] += times

    def take(self) -> dict[TlsResult, int]:
        """Take out all that was counted."""
        taken, self._counted = self._counted, Counter()
        return dict(taken)

    def put_back(self, taken: dict[TlsResult, int]) -> None:
        """Keep what was taken and could not be stored."""
        for result, times in taken.items():
            self.count(result, times)
