"""All that is read out of a message for a check of it: evidence, findings and links.

The parser makes it (`relay.mailboxes.worker`), which may be killed, and the relay asks the DNS and
the web about it: of the message itself the relay reads nothing.

Promises: linear in the message; it never raises for what that holds.

Imports the standard library and pure modules only, as the parser asks.  Pure.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from relay.checks import evidence as evidence_of
from relay.checks.evidence import Evidence
from relay.checks.findings import Finding, Ignored, find, ignored
from relay.checks.markup import read
from relay.mailboxes.summary import summarise


class Examined(NamedTuple):
    """What a message tells."""

    evidence: Evidence
    """Of who sent it."""
    findings: tuple[Finding, ...]
    links: tuple[str, ...]
    """As its summary has them."""
    ignored: tuple[Ignored, ...] = ()
    """What clients ignore of its HTML."""
    names: int | None = None
    """How many different things its HTML is made of; None: it has none."""

    def as_json(self) -> bytes:
        """Write it as a JSON object, for another process."""
        rest = json.dumps([self.findings, self.links, self.ignored, self.names])
        return b"[%b, %b]" % (self.evidence.as_json(), rest.encode())

    @classmethod
    def from_json(cls, text: bytes) -> Examined:
        """Read what `as_json` wrote."""
        evidence, (findings, links, features, names) = json.loads(text)
        return cls(
            Evidence.from_object(evidence),
            tuple(Finding(*finding) for finding in findings),
            tuple(links),
            tuple(Ignored(*feature) for feature in features),
            names,
        )


def examine(raw: bytes) -> Examined:
    """Read a message."""
    summary = summarise(raw)
    headers = [(name, value) for name, value in summary.headers]
    markup = None if summary.body_html is None else read(summary.body_html)
    return Examined(
        evidence_of.examine(raw),
        tuple(find(headers, summary.body_text, summary.body_html, markup)),
        tuple(summary.links),
        () if markup is None else tuple(ignored(markup)),
        None if markup is None else len(markup.marks),
    )
