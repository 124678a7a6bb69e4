"""Redaction: nothing personal survives, and what is taken out can still be correlated."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.redact import correlation, redact

KEY = b"k" * 32
MARK = re.compile(r"<redacted:[0-9a-f]{10}>")

locals_ = st.text("abcdefghijkXYZ0189.!#$%&'*+/=?^_`{|}~-äé日", min_size=1, max_size=30)
domains = st.text("abcxyzABC019.-ä日", min_size=1, max_size=30)
addresses = st.one_of(
    st.builds(lambda local, domain: f"{local}@{domain}", locals_, domains),
    st.builds(lambda local, domain: f'"{local} x"@{domain}', locals_, domains),
    st.builds(lambda local, domain: f"<{local}@[IPv6:{domain}]>", locals_, domains),
    st.emails(),
)


@settings(deadline=None)  # the machine may be busy
@given(before=st.text(max_size=40), address=addresses, after=st.text(max_size=40))
def test_no_address_survives(before: str, address: str, after: str):
    """Whatever stands around an address, no @ is left, and a mark is."""
    shown = redact(before + " " + address + after, KEY)
    assert "@" not in shown
    assert "\uff20" not in shown
    assert MARK.search(shown)


@settings(deadline=None)  # the machine may be busy
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_redacting_twice_changes_nothing(text: str):
    """What was redacted once is stored, and may be redacted again on its way out."""
    once = redact(text, KEY)
    assert redact(once, KEY) == once


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(
        st.sampled_from(
            ["a@b", "1234567", "::1", "1.2.3.4", "https://a.b/c?d", '"', "<", ">", " ", "x", "%40",
             "<redacted:0123456789>", "+1 555 ", "12 34 56", "/", ":", "A1" * 15]
        ),
        max_size=12,
    ),
    st.integers(20, 120),
)  # fmt: skip
def test_redacting_twice_changes_nothing_where_kinds_meet(pieces: list[str], limit: int):
    """Kinds of data that touch each other, and a cut through them, change nothing later."""
    once = redact("".join(pieces), KEY, limit=limit)
    assert len(once) <= limit
    assert redact(once, KEY, limit=limit) == once


@settings(deadline=None)  # the machine may be busy
@given(st.text(max_size=3000))
def test_the_result_is_one_bounded_line(text: str):
    """No control character and no more than the limit comes out."""
    shown = redact(text, KEY, limit=300)
    assert len(shown) <= 300
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b\u202e]", shown)


def test_one_address_has_one_hash():
    """Case, quotes, brackets and disguise of the @ do not change who it is; the key does."""
    expected = f"<redacted:{correlation('alice@example.com', KEY)}>"
    assert redact("<alice@example.com> user unknown", KEY) == f"{expected} user unknown"
    for spelling in ("ALICE@Example.COM", '"alice"@example.com', "alice\uff20example.com."):
        assert redact(spelling, KEY) == expected
    assert redact("alice@example.com", b"other") != expected
    assert redact("bob@example.com", KEY) != expected


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Message <20261120.abc@mail.example.com> refused", "20261120"),
        ("bounce+alice=example.org@list.example.com", "alice"),
        ("no such user alice%40example.com here", "alice"),
        ("blocked 203.0.113.77 by list", "203.0.113.77"),
        ("blocked [2001:db8::1:2] by list", "2001:db8"),
        ("call +49 (30) 1234 5678 now", "1234"),
        ("call 555-123-4567 now", "4567"),
        ("account 123456789 closed", "123456789"),
        ("see https://example.com/unsubscribe?token=s3cret&u=alice", "s3cret"),
        ("see https://example.com/u/8f14e45fceea167a5a36dedd4bea2543", "8f14e45"),
        ("see https://alice:pass@example.com/", "pass"),
        ("id a1-20020a170902b49000b001c5f0a1b2c3si1234pla.12 - gsmtp", "20020a17"),
    ],
)
def test_personal_data_goes(text: str, secret: str):
    """Each kind of personal data that upstreams put into their replies is taken out."""
    shown = redact(text, KEY)
    assert secret not in shown
    assert MARK.search(shown)


@pytest.mark.parametrize(
    "text",
    [
        "550 5.1.1 The email account that you tried to reach does not exist",
        "452-4.2.2 The recipient's inbox is out of storage space",
        "421 4.7.0 Try again later, closing connection",
        "see https://support.example.com/mail/answer/55 for more",
        "size 40960 over limit=40960 at 12:34:56",
    ],
)
def test_what_is_not_personal_stays(text: str):
    """An operator can still read what went wrong."""
    assert redact(text, KEY) == text


def test_what_is_known_to_be_personal_goes_in_any_dress():
    """The recipient's local part and a password are taken out even without their @."""
    shown = redact(
        "user ALICE.B unknown; hunter2pass; dGVzdA", KEY, ("alice.b@example.com", "hunter2pass")
    )
    assert "ALICE.B" not in shown
    assert "hunter2pass" not in shown
    assert "unknown" in shown


def test_an_address_is_not_halved_by_the_cut():
    """An input cut in the middle of an address keeps neither half."""
    shown = redact("x " * 20 + "alice.in.wonderland@example.com", KEY, limit=50)
    assert "alice" not in shown
    assert shown.endswith("…")


def test_a_megabyte_is_no_work():
    """Only the bounded beginning of an endless text is looked at."""
    assert len(redact("a@" * 500_000, KEY)) <= 2000
    assert len(redact('"' * 500_000, KEY)) <= 2000
