"""The summary is what Python's `email` package reads, but where it is said why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from relay.mailboxes.summary import summarise
from tests.mailboxes import corpus, law

NAMELESS = "an attachment without a name gets one"
WHOLE = "a message in a message is an attachment as it is, and not taken apart"
UNENDED = "a multipart without its end: the last line break belongs to no boundary"
NO_ADDRESS = "what has no @ is no address"


def reasons(messages: Iterable[bytes]) -> Counter[str]:
    """Why the summaries of these differ, and how often; fails where nobody knows why."""
    found: Counter[str] = Counter()
    for raw in messages:
        summary = summarise(raw)
        for one in law.differences(raw, summary):
            why = law.explained(raw, summary, one)
            assert why is not None, (one, raw)
            found[why] += 1
    return found


@pytest.mark.parametrize("begin", [0, 2500])
def test_reads_what_programs_write(begin):
    """Five thousand messages, of all shapes, encodings and character sets."""
    found = reasons(map(law.generated, range(begin, begin + 2500)))
    assert found.keys() == {NAMELESS, WHOLE, UNENDED}


@pytest.mark.parametrize("begin", [5000, 7500])
def test_reads_what_is_damaged(begin):
    """Five thousand more, in each of which a line is missing, doubled or broken: more differences,
    few of each, and each is meant."""
    found = reasons(law.generated(n, damaged=1.0) for n in range(begin, begin + 2500))
    assert len(found) > 10
    assert sum(found.values()) - found[WHOLE] - found[NAMELESS] < 350


def test_reads_what_is_real():
    """The messages of the standard library's own tests, and mail of the usual kinds."""
    usual = [make(n) for n in range(20) for make in (corpus.plain, corpus.newsletter)]
    assert not reasons([*usual, *map(corpus.with_attachment, range(3))])
    assert len(corpus.real()) > 40
    assert reasons(corpus.real())[NO_ADDRESS] == 1
