"""The language of searches: what is read, what is refused, and what it finds."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.errors import Invalid
from relay.mailboxes.query import LONGEST, MOST_TERMS, OPERATORS, Term, parse

DAY = datetime(2026, 11, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("   ", []),
        ("*", []),
        (" * ", []),
        ("reset", [Term("any", "reset")]),
        ("reset  Reset reset", [Term("any", "reset"), Term("any", "Reset")]),
        ('"reset your password"', [Term("any", "reset your password")]),
        ('"never closed', [Term("any", "never closed")]),
        ('""', []),
        ("-draft", [Term("any", "draft", True)]),
        ('-"a b" c', [Term("any", "a b", True), Term("any", "c")]),
        ("- a-b --c", [Term("any", "-"), Term("any", "a-b"), Term("any", "-c", True)]),
        ("from:shop TO:ada", [Term("from", "shop"), Term("to", "ada")]),
        ('subject:"your order" x', [Term("subject", "your order"), Term("any", "x")]),
        ("-from:ads@", [Term("from", "ads@", True)]),
        ("tag:billing", [Term("tag", "billing")]),
        ("has:attachment -has:ATTACHMENTS", [Term("attachment"), Term("attachment", "", True)]),
        ("is:unread", [Term("unread")]),
        ("is:read", [Term("unread", "", True)]),
        ("-is:read", [Term("unread")]),
        ("before:2026-11-01", [Term("before", DAY)]),
        ("after:2026-11-01", [Term("before", DAY, True)]),
        ('-after:"2026-11-01T01:00:00+01:00"', [Term("before", DAY)]),
        ("larger:100k", [Term("larger", 102_400)]),
        ("smaller:2MB -larger:1", [Term("smaller", 2 * 1024**2), Term("larger", 1, True)]),
        ("larger:999999999999g", [Term("larger", 2**40)]),
        # Colons that make no operator.
        ("Re: 12:30", [Term("any", "Re:"), Term("any", "12:30")]),
        ("https://shop.example/a?b=c:d", [Term("any", "https://shop.example/a?b=c:d")]),
        ('"localhost:8025"', [Term("any", "localhost:8025")]),
        ("a.b:c x-y:z", [Term("any", "a.b:c"), Term("any", "x-y:z")]),
        ('from:"a:b"', [Term("from", "a:b")]),
        ("from:from:x", [Term("from", "from:x")]),
    ],
)
def test_reads(text: str, terms: list[Term]):
    """Words, phrases and operators, each once, in the order they came."""
    assert list(parse(text)) == terms


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("frm:shop", '"frm:"'),
        ("localhost:8025", '"localhost:8025"'),
        ("-foo:bar", '"foo:bar"'),
        ('subject:""', "subject: needs a value"),
        ("tag: shop", "tag: needs a value right behind the colon"),
        ("-From:", "from: needs a value right behind the colon"),
        ("has:links", "has: takes attachment"),
        ("is:new", "is: takes unread or read"),
        ("before:tomorrow", "before: takes a day"),
        ("after:2026-13-01", "after: takes a day"),
        ("larger:big", "larger: takes bytes"),
        ("smaller:-1", "smaller: takes bytes"),
        ("a " * (LONGEST // 2 + 1), f"at most {LONGEST}"),
        (" ".join(map(str, range(MOST_TERMS + 1))), f"at most {MOST_TERMS} terms"),
    ],
)
def test_refuses(text: str, said: str):
    """What it cannot mean is said, with the way out."""
    with pytest.raises(Invalid) as refused:
        parse(text)
    assert said in str(refused.value)


def test_takes_as_many_terms_as_it_says():
    """The limit itself is within it."""
    assert len(parse(" ".join(map(str, range(MOST_TERMS))))) == MOST_TERMS


@given(st.text(max_size=200))
def test_reads_or_refuses_anything(text: str):
    """No text raises anything but `Invalid`; a term has a value where it needs one."""
    try:
        terms = parse(text)
    except Invalid:
        return
    assert len(terms) <= MOST_TERMS
    for term in terms:
        assert term.value != "" or term.field in {"attachment", "unread"}


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.sampled_from(("", "from:", "to:", "subject:", "tag:")),
            st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), min_size=1),
        ),
        max_size=8,
    )
)
def test_quoted_values_come_back_as_they_were(parts: list[tuple[bool, str, str]]):
    """Whatever is within quotes is the value, to the letter."""
    text = " ".join(f'{"-" * minus}{name}"{value}"' for minus, name, value in parts)
    if len(text) > LONGEST:
        return
    wanted = [Term(name[:-1] or "any", value, minus) for minus, name, value in parts]  # type: ignore[arg-type]  # of the sample
    assert list(parse(text)) == list(dict.fromkeys(wanted))


def test_every_operator_is_known():
    """Each one of the list takes something."""
    values = {"has": "attachment", "is": "read", "before": "2026-11-01", "after": "2026-11-01"}
    for name in OPERATORS:
        assert parse(f"{name}:{values.get(name, '1')}")
