"""Mailpit's search filters, read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from relay.errors import Invalid
from relay.http.compat.mailpit.filters import parse
from relay.mailboxes.query import LONGEST, Term


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ('word "a phrase" -no !nor', [
            Term("any", "word"), Term("any", "a phrase"),
            Term("any", "no", negated=True), Term("any", "nor", negated=True),
        ]),
        ('TO:Ada@x.y from:"the shop" -subject:draft tag:"two words"', [
            Term("to", "Ada@x.y"), Term("from", "the shop"),
            Term("subject", "draft", negated=True), Term("tag", "two words"),
        ]),
        ('"to:the shop" "unclosed one', [Term("to", "the shop"), Term("any", "unclosed one")]),
        ("is:read !is:unread has:attachments", [
            Term("unread", negated=True), Term("attachment"),
        ]),
        ("larger:1.5k smaller:2MB larger:many", [
            Term("larger", 1536), Term("smaller", 2 << 20), Term("any", "larger:many"),
        ]),
        ("foo:bar https://shop.example -- !! to:", [
            Term("any", "foo:bar"), Term("any", "https://shop.example"), Term("any", "to:"),
        ]),
    ],
)  # fmt: skip
def test_a_query_is_read_as_mailpit_reads_it(text: str, terms: list[Term]) -> None:
    """Quotes go, operators have any case, what is no operator is a word."""
    asked = parse(text)
    assert asked.keep is None
    assert list(asked.either[0]) == terms
    assert len(asked.either) == 1


def test_addressed_is_either() -> None:
    """From or to; and neither, where it is negated."""
    assert parse("addressed:ada hello").either == (
        (Term("from", "ada"), Term("any", "hello")),
        (Term("to", "ada"), Term("any", "hello")),
    )
    assert parse("-addressed:ada").either == (
        (Term("from", "ada", negated=True), Term("to", "ada", negated=True)),
    )


def test_a_time_without_a_zone_is_of_the_zone_that_is_named() -> None:
    """UTC otherwise; an hour that names its own keeps it."""
    for text, zone, at in (
        ("before:2026-11-01", "", datetime(2026, 11, 1, tzinfo=UTC)),
        ("after:2026-11-01", "Asia/Tokyo",
         datetime(2026, 11, 1, tzinfo=timezone(timedelta(hours=9)))),
        ("before:2026-11-01T08:00:00Z", "Asia/Tokyo", datetime(2026, 11, 1, 8, tzinfo=UTC)),
    ):  # fmt: skip
        ((term,),) = parse(text, zone).either
        assert term.value == at
        assert term.negated == text.startswith("after")


@pytest.mark.parametrize(
    ("text", "zone"),
    [
        ("before:soon", ""),
        ("before:2026-11-01", "Nowhere/There"),
        ("before:2026-11-01", "../../etc/passwd"),
        (" ".join(f"word{number}" for number in range(40)), ""),
        (" ".join(f"-cc:a{number}" for number in range(40)), ""),
        (" ".join(f"addressed:a{number}" for number in range(4)), ""),
        ("x" * (LONGEST + 1), ""),
    ],
)
def test_what_cannot_be_searched_is_refused(text: str, zone: str) -> None:
    """A time, a zone, and more than a search takes."""
    with pytest.raises(Invalid):
        parse(text, zone)
