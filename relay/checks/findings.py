"""What readers and their programs would find wrong with a message, and a score of it.

Pure, and linear in the message whatever it holds, for the parser, which may be killed: it imports
the standard library and pure modules only.  It takes what the parser has made of a message already
(`relay.mailboxes.summary`): header fields, text and HTML.

Which clients ignore which HTML and CSS is told by `support.json`, from the data of caniemail.com;
`tests/checks/support.py` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from relay.checks.markup import Markup, read

GMAIL_CLIPS = 102 * 1024
"""Bytes of HTML from which Gmail hides the rest behind a link."""
MAX_SUPPORT = 50
"""Features that clients ignore which are told."""

Severity = Literal["error", "warning", "note"]


class Finding(NamedTuple):
    """One thing to mend."""

    id: str
    severity: Severity
    """error: readers lose something; warning: many do, or mail is trusted less; note: to know."""
    text: str


class Ignored(NamedTuple):
    """A feature of HTML or CSS that is in a message, and the clients that ignore it."""

    slug: str
    """Of its page at caniemail.com."""
    title: str
    clients: Sequence[str]


class Score(NamedTuple):
    """From 0 (nobody would take it) to 10 (nothing to mend), and what each point was taken for."""

    score: float
    reasons: tuple[str, ...]


def find(
    headers: Iterable[tuple[str, str]],
    text: str | None,
    html: str | None,
    markup: Markup | None = None,
) -> list[Finding]:
    """Look at a message: its header fields, its text and its HTML (None: it has none).

    `markup`: what that HTML is made of, if it was read already.
    """
    fields = {name.lower(): value for name, value in headers}
    found = [*_required(fields), *_unsubscribing(fields)]
    if html is None:
        return found
    if not (text or "").strip():
        said = "There is no text beside the HTML: some show nothing, and filters trust it less."
        found.append(Finding("no-text-part", "warning", said))
    size = len(html.encode("utf-8", "replace"))
    if size > GMAIL_CLIPS:
        said = f"The HTML has {size // 1024} kB: Gmail hides what is beyond 102 kB behind a link."
        found.append(Finding("clipped-by-gmail", "error", said))
    markup = markup or read(html)
    return (
        found
        + _images(markup)
        + [
            Finding(f"support-{slug}", "note", f"{title}: ignored by {', '.join(who)}.")
            for slug, title, who in ignored(markup)
        ]
    )


def _required(headers: Mapping[str, str]) -> Iterator[Finding]:
    if not headers.get("date", "").strip():
        said = "There is no Date (RFC 5322): filters trust it less, and readers show another time."
        yield Finding("no-date", "note", said)
    if not headers.get("message-id", "").strip():
        said = "There is no Message-ID: filters trust it less, and replies find no thread."
        yield Finding("no-message-id", "note", said)


def _unsubscribing(headers: Mapping[str, str]) -> list[Finding]:
    where = headers.get("list-unsubscribe", "")
    one_click = headers.get("list-unsubscribe-post", "").replace(" ", "").lower()
    if not where.strip():
        said = "There is no List-Unsubscribe: large providers ask for it in bulk mail."
        return [Finding("no-list-unsubscribe", "note", said)]
    if "<https://" not in where.lower() or one_click != "list-unsubscribe=one-click":
        said = (
            "List-Unsubscribe does not work by one click (RFC 8058): it takes an https address, and"
            " List-Unsubscribe-Post: List-Unsubscribe=One-Click."
        )
        return [Finding("no-one-click-unsubscribe", "warning", said)]
    return []


def _images(markup: Markup) -> list[Finding]:
    found = []
    if markup.without_alt:
        said = f"Images without an alt text: {markup.without_alt} of {markup.images}."
        found.append(Finding("images-without-alt", "warning", said))
    if markup.remote:
        said = f"Images fetched from elsewhere: {markup.remote}. Many readers see none at first."
        found.append(Finding("remote-images", "note", said))
    return found


@cache
def _data() -> tuple[list[str], dict[str, tuple[str, str, list[int]]]]:
    data = json.loads(Path(__file__).with_name("support.json").read_text(encoding="utf-8"))
    return data["clients"], data["features"]


def ignored(markup: Markup) -> list[Ignored]:
    """Return what of it clients ignore, `MAX_SUPPORT` at most."""
    known, features = _data()
    found: dict[str, Ignored] = {}
    for mark in sorted(markup.marks & features.keys()):
        slug, title, ignored_by = features[mark]
        found[slug] = Ignored(slug, title, [known[number] for number in ignored_by])
    return list(found.values())[:MAX_SUPPORT]


def clients() -> Sequence[str]:
    """Return the clients that are known."""
    return _data()[0]


def features() -> int:
    """Return how many features are looked for."""
    return len({slug for slug, _, _ in _data()[1].values()})


# ----------------------------------------------------------------------------- score

_BY_SEVERITY: dict[Severity, float] = {"error": 2.0, "warning": 1.0, "note": 0.1}
_MOST_FOR_NOTES = 1.0
_BY_RESULT = {
    "spf": {"fail": 1.5, "softfail": 1.0, "permerror": 1.0},
    "dkim": {"fail": 1.5, "permerror": 1.0, "neutral": 1.0, "none": 1.0},
    "dmarc": {"fail": 3.0, "permerror": 2.0, "none": 0.5},
}


def score(findings: Iterable[Finding], results: Mapping[str, str]) -> Score:
    """Score a message by its findings and the results of `spf`, `dkim` and `dmarc`."""
    lost = 0.0
    reasons = []
    for check, result in results.items():
        if points := _BY_RESULT.get(check, {}).get(result):
            lost += points
            reasons.append(f"-{points:g} {check.upper()} is {result}")
    notes = 0.0
    for finding in findings:
        points = _BY_SEVERITY[finding.severity]
        if finding.severity == "note":
            points = min(points, _MOST_FOR_NOTES - notes)
            notes += points
        if points > 0.05:
            lost += points
            reasons.append(f"-{points:.2g} {finding.id}")
    return Score(round(max(0.0, 10.0 - lost), 1), tuple(reasons))
