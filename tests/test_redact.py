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
        ("call +49 170 1234567 now", "67"),
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
        "user ALICE.B unknown; xhunter2pass; dGVzdA",
        KEY,
        ("alice.b@example.com",),
        secrets=("hunter2pass",),
    )
    assert "ALICE.B" not in shown
    assert "hunter2pass" not in shown
    assert "unknown" in shown


@pytest.mark.parametrize(
    ("recipient", "text"),
    [
        ("spam@example.com", "550 5.7.1 Message rejected as spam"),
        ("user@example.com", "550 5.1.1 Unknown user in local mailbox table"),
        ("Mail@example.com", "the mail server refuses mail from here"),
        ("ref@example.com", "refused by reference 4"),
        ("ada@example.com", "the canadian adapter is away"),
        ("the.message@example.com", "the message was refused"),
        ("quarantine@example.com", "554 5.7.1 Message moved to quarantine"),
        ("junk@example.com", "550 classified as junk"),
        ("dmarc@example.com", "550 5.7.26 rejected (DMARC) by policy of example.com"),
        ("spamhaus@example.com", "554 5.7.1 blocked using 'spamhaus', see its list"),
        ("gateway@example.com", "the gateway refused it: verdict green"),
        ("green@example.com", "the gateway refused it: verdict green"),
        ("Invoice@example.com", "the INVOICE of your account was refused"),
        ("rose@example.com", "rose is over quota"),
        ("john@example.com", "mailbox full of John's mail"),
        ("451@example.com", "451 4.0.0 Chaos, as you asked"),
        ("550@example.com", "RCPT TO: 550 5.1.1 no such user"),
        ("5.1.1@example.com", "550-5.1.1 no such user"),
        ("421@example.com", "(421) user over quota"),
        ("10042@example.com", "452 4.3.1 10042 kB are free"),
        ("no-reply@example.com", "550 5.7.1 no-reply senders are refused"),
    ],
)
def test_a_word_that_happens_to_be_a_local_part_stays(recipient: str, text: str):
    """An operator reads why it was rejected; who it was for is not said by it."""
    assert redact(text, KEY, (recipient, "Message rejected")) == text


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ("ada.lovelace92@example.com", "no mailbox xada.lovelace92y here"),
        ("ada@example.com", "user Ada unknown"),
        ("ada@example.com", "<ada>: no such user"),
        ("ada92@example.com", "mailbox_ada92_full"),
        ("rose@example.com", "<rose> is over quota"),
        ("rose@example.com", "550 5.1.1 rose... User unknown"),
        ("rose@example.com", "Rose: no such user here"),
        ("rose@example.com", "no such user: rose"),
        ("rose@example.com", "user unknown: rose"),
        ("rose@example.com", "mailbox for rose is full"),
        ("rose@example.com", "recipient 'rose' refused"),
        ("rose@example.com", "'rose' is not a valid mailbox"),
        ("rose@example.com", "account (rose) disabled"),
        ("rose@example.com", "refused, to=rose, rcpt <rose>"),
        ("rose@example.com", "login=rose denied"),
        ("rose@example.com", "rose [at] example.com is away"),
        ("invoice-7@example.com", "invoice-7 is over quota"),
        ("10042@example.com", "550 5.1.1 10042: no such user"),
        ("10042@example.com", "user 10042 unknown"),
        ("451@example.com", "<451> is over quota"),
        ("spam@example.com", "spam@example.com is over quota"),
        ("Ada Lovelace", "mail of ada lovelace refused"),
        ("Your spam at Lovelace's", "subject: your spam at lovelace's"),
    ],
)
def test_what_means_somebody_goes(known: str, text: str):
    """A name, an address, a local part that cannot be a word, or stands as an address would."""
    shown = redact(text, KEY, (known,))
    assert MARK.search(shown)
    assert not re.search("ada|rose|invoice|lovelace|spam@|10042|<451>", shown, re.IGNORECASE)


def test_a_secret_goes_even_where_it_is_a_word():
    """A password may be the worst there is."""
    assert "spam" not in redact("rejected as spammy", KEY, secrets=("spam",))


def test_an_address_is_not_halved_by_the_cut():
    """An input cut in the middle of an address keeps neither half."""
    shown = redact("x " * 20 + "alice.in.wonderland@example.com", KEY, limit=50)
    assert "alice" not in shown
    assert shown.endswith("…")


def test_a_megabyte_is_no_work():
    """Only the bounded beginning of an endless text is looked at."""
    assert len(redact("a@" * 500_000, KEY)) <= 2000
    assert len(redact('"' * 500_000, KEY)) <= 2000


@settings(deadline=None)  # the machine may be busy
@given(
    st.lists(
        st.sampled_from(
            ["Ok:", "queued", "as", "4bXq3Z", "rose", "Rose.", "user", "1234567", "10042",
             "A1b" * 8, "2", "2.0.0", "1.2.3.4", "::1", "id=1tX", "12-34-56", "ſ", "a", "<",
             "(rose)", "K"]
        ),
        max_size=8,
    ),
    st.lists(st.sampled_from(["rose@y.example", "Rose", "10042@y", "a@y", "K", "queued as", ""])),
    st.lists(st.sampled_from(["4bXq3Z", "user", "", "hunter2"])),
)  # fmt: skip
def test_what_reads_as_an_ordinary_reply_is_redacted_as_all_else_is(
    words: list[str], known: list[str], secrets: list[str]
):
    """With an address behind it, which no short way takes, its words become what they become."""
    text = " ".join(words)
    long = redact(f"{text} | x@y.z", KEY, known, secrets=secrets)
    assert redact(text, KEY, known, secrets=secrets) == long.rpartition(" | ")[0].strip()
