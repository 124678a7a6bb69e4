"""What becomes of a submitted message's header: what goes, what comes, and what is asked for."""

import time
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.composing.message import MalformedMessage
from relay.outbound.submission.submitted import MAX_HEADER, MAX_LINES, Orders, Submitted, Trace

ID = UUID(int=7)
AT = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
TRACE = Trace("app.example", "192.0.2.1", "relay.example")
RECEIVED = (
    "Received: from app.example ([192.0.2.1])\r\n"
    f"\tby relay.example with ESMTPA id {ID};\r\n"
    "\tSun, 22 Nov 2026 12:00:00 +0000\r\n"
).encode()
DATED = b"Date: Sun, 22 Nov 2026 12:00:00 +0000\r\n"
NAMED = f"Message-ID: <{ID}@relay.example>\r\n".encode()


def prepared(raw: bytes) -> bytes:
    return Submitted(raw).prepared(TRACE, ID, AT)


def test_what_is_there_already_stays_as_it_is():
    """A Received field in front; not a byte of the rest is another, long and 8-bit ones too."""
    raw = (
        b"dAtE: whenever\r\nMessage-Id : <x@y>\r\nSubject:  two  spaces \r\n\tand a fold\r\n"
        b"X-Long: " + b"y" * 5000 + b"\r\n\xff\xfe: odd\r\nno field at all\r\n\r\n.\r\n\x00\xff\r\n"
    )
    assert prepared(raw) == RECEIVED + raw


def test_a_missing_date_and_message_id_are_added():
    """Behind the Received field; each only where it is missing."""
    rest = b"Subject: s\r\n\r\nDate: in the text\r\n"
    assert prepared(rest) == RECEIVED + DATED + NAMED + rest
    assert prepared(b"Date: x\r\n" + rest) == RECEIVED + NAMED + b"Date: x\r\n" + rest


@pytest.mark.parametrize(
    "bcc",
    [
        b"Bcc: eve@example.org\r\n",
        b"BCC : a@b,\r\n\tc@d\r\n \r\n e@f\r\n",
        b"bcc:\r\nResent-Bcc: x@y\r\n",
        b"this is no field\r\nBcc: eve@example.org\r\n",
    ],
)
def test_no_bcc_survives(bcc: bytes):
    """However it is spelt, folded and surrounded; in the text it is text."""
    front, rest = b"Date: d\r\nMessage-ID: <x@y>\r\n", b"To: a@b\r\n\r\nBcc: text\r\n"
    found = prepared(front + bcc + rest)
    kept = b"this is no field\r\n" if b"no field" in bcc else b""
    assert found == RECEIVED + front + kept + rest


def test_text_without_a_header_gets_one():
    """What begins with no field is all text, and stays so; also nothing, and an empty line."""
    for raw in (b"hello\r\nnote: x\r\n", b""):
        assert prepared(raw) == RECEIVED + DATED + NAMED + b"\r\n" + raw
    assert prepared(b"\r\nhello\r\n") == RECEIVED + DATED + NAMED + b"\r\nhello\r\n"


@pytest.mark.parametrize("field", [b"Bcc: a@b", b"X-Relay-Tag: x", b"From: a@b", b"Sender: a@b"])
def test_what_may_be_a_header_or_not_is_refused(field: bytes):
    """Readers would differ about who is a Bcc, and about whose mail it is."""
    with pytest.raises(MalformedMessage, match="begins with a line that is no header field"):
        Submitted(b"From somebody Sun Nov 22\r\n" + field + b"\r\n\r\nx\r\n")


def test_a_header_without_end_is_refused():
    """It is read to the last field, which takes time; so does each of its lines."""
    with pytest.raises(MalformedMessage, match=f"the header has over {MAX_HEADER} bytes"):
        Submitted(b"a: " + b"x" * MAX_HEADER + b"\r\n\r\n")
    for line in (b"a:\r\n", b"no field\r\n", b" x\r\n"):
        Submitted(b"To: a\r\n" + line * (MAX_LINES - 1) + b"\r\n" + line)
        with pytest.raises(MalformedMessage, match=f"the header has over {MAX_LINES} lines"):
            Submitted(b"To: a\r\n" + line * MAX_LINES + b"\r\n")


def test_orders_are_obeyed_and_taken_out():
    """Each of them, in any case."""
    rest = b"Date: d\r\nMessage-ID: <x@y>\r\n\r\ntext\r\n"
    raw = (
        b"X-Relay-Priority: High\r\nx-relay-send-at: 2026-12-01T00:00:00+01:00\r\n"
        b"X-RELAY-NOT-AFTER: 2026-12-02T00:00:00Z\r\nX-Relay-Idempotency-Key:  k 1 \r\n"
        b"X-Relay-Tag: receipts\r\n"
    )
    message = Submitted(raw + rest)
    assert message.orders == Orders(
        "high", datetime(2026, 11, 30, 23, tzinfo=UTC), datetime(2026, 12, 2, tzinfo=UTC),
        "k 1", "receipts",
    )  # fmt: skip
    assert message.prepared(TRACE, ID, AT) == RECEIVED + rest
    assert Submitted(rest).orders == Orders()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("X-Relay-Priority: urgent", "is high, normal or bulk"),
        ("X-Relay-Send-At: tomorrow", "is no instant"),
        ("X-Relay-Send-At: 2026-12-01T00:00:00", "is no instant"),
        ("X-Relay-Send-At: 1969-12-01T00:00:00Z", "is no instant"),
        ("X-Relay-Send-At: 0001-01-01T00:00:00+23:00", "is no instant"),
        ("X-Relay-Not-After: 12", "is no instant"),
        ("X-Relay-Idempotency-Key:", "has 1 to 255"),
        ("X-Relay-Idempotency-Key: " + "k" * 256, "has 1 to 255"),
        ("X-Relay-Tag: " + "t" * 101, "has 1 to 100"),
        ("X-Relay-Tag: a\tb", "has 1 to 100"),
        ("X-Relay-Tag: a\r\nX-Relay-tag: b", "is given twice"),
        ("X-Relay-Colour: red", "is no field that the relay knows"),
        (
            "X-Relay-Send-At: 2026-12-01T00:00:00Z\r\nX-Relay-Not-After: 2026-12-01T00:00:00Z",
            "must be later",
        ),
    ],
)
def test_what_cannot_be_obeyed_is_refused(fields: str, why: str):
    """Never passed over; the sentence names the field and repeats no value."""
    with pytest.raises(MalformedMessage, match=why) as caught:
        _ = Submitted(f"{fields}\r\n\r\n".encode()).orders
    assert "urgent" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "senders"),
    [
        ("From: Shop <a@shop.example>", ["a@shop.example"]),
        ("From: a@shop.example,\r\n =?utf-8?q?B?= <b@other.example>", None),
        ("From: a@x.example\r\nFROM: b@y.example", ["a@x.example", "b@y.example"]),
        ('From: "eve@evil.example" <a@shop.example>', ["eve@evil.example", "a@shop.example"]),
        ('From: "x y"@evil.example (a@shop.example)', None),
        ("From: a@[192.0.2.1]", ["a@[192.0.2.1]"]),
        ("To: a@shop.example", []),
        ("From: a@x.example\r\nSender: b@y.example", ["a@x.example", "b@y.example"]),
        ("From: =?utf-8?q?B=C3=B6rg?= <a@shop.example>", ["a@shop.example"]),
        ('From: "postmaster"@relay.example', None),
        ("From: postmaster (c) @relay.example", None),
        ("From: <@a.b:postmaster@relay.example>", None),
        ("From: postmaster@relay.example\0", None),
        ("From: =?utf-8?q?postmaster?=@relay.example", None),
        ("From: =?utf-8?q?ceo=40bank.example?=", None),
        ("From: ceo\uff20bank.example", None),
        ("From: \ufffd@bank.example", None),
        ("From: a@shop.example,\r\n\tb@shop.example", ["a@shop.example", "b@shop.example"]),
        ("From: Shop, Inc. <a@shop.example>", ["a@shop.example"]),
        ("From: a@shop.example (Shop)", ["a@shop.example"]),
        ("From: Team: a@shop.example, c@bank.example;", ["a@shop.example", "c@bank.example"]),
        ("From: a@shop.example .bank.example", None),
        ("From: <a@shop.example(c).bank.example>", None),
        ("From: <a@shop.example ((c)) .bank.example>", None),
        ("From: a@shop.example\r\n .bank.example", None),
        ("From: a@shop.example \u3002bank.example", None),
        ("From: ceo. a@shop.example", None),
        ("From: ceo.(c)a@shop.example", None),
        ("From: a@shop.example@bank.example", None),
        ('From: "a@shop.example"@bank.example', None),
        ("From: =?utf-8?q?ceo=40bank.example x?= <a@shop.example>", None),
        ("From: =?utf-8?q?ceo=40bank.example <a@shop.example>", None),
        ("From: =?utf-7?q?ceo+AEA-bank.example?= <a@shop.example>", None),
        ("From: =?nonsense?q?x?= <a@shop.example>", None),
        ("Subject: x\r\nFr\0om: c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\n\ufeffFrom: c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\n\xa0From: c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\nFrom\x0b: c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\nFrom\r\n : c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\nFrom\uff1a c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\n\uff26rom: c@bank.example\r\nFrom: a@shop.example", None),
        ("Subject: x\r\nno field\r\nFrom : a@shop.example", ["a@shop.example"]),
        ("Subject: x\r\n \r\nFrom: a@shop.example", ["a@shop.example"]),
        ("From: a@shop.example\r\n" + "From: c@bank.example\r\n" * 2, None),
        ("From: " + "x" * 10_000 + " <a@shop.example>", None),
    ],
)
def test_every_address_in_from_is_found(field: str, senders: list[str] | None):
    """Of names, comments and second fields, too; what cannot be told apart is said to be so."""
    if senders is None and "other.example" in field:
        senders = ["a@shop.example", "b@other.example"]
    if senders is None and field.endswith("c@bank.example\r\n"):
        senders = ["a@shop.example", "c@bank.example", "c@bank.example"]
    assert Submitted(f"{field}\r\n\r\n".encode()).senders == senders


def test_a_long_from_takes_no_time():
    """Its words are read once, not from each letter on."""
    began = time.process_time()
    for word in ("a", "a@", "=?", "=?a?q?", "(", "a@b (", "a@b ", " ."):
        _ = Submitted(f"From: {word * (200_000 // len(word))}\r\n\r\n".encode()).senders
        _ = Submitted(f"From: {word * (9_000 // len(word))}\r\n\r\n".encode()).senders
    assert time.process_time() - began < 3


def test_the_subject_is_decoded_for_lists():
    """Encoded words, raw UTF-8, what is malformed, and no control character."""
    for field, subject in (
        ("=?utf-8?q?Gr=C3=BC=C3=9Fe?=\r\n you", "Grüße you"),
        ("roh: ü", "roh: ü"),
        ("=?nonsense?q?x?=", "=?nonsense?q?x?="),
        ("=?utf-8?q?a=0D=0AX:_b?=", "aX: b"),
        ("x" * 5000, "x" * 2000),
    ):
        assert Submitted(f"Subject: {field}\r\n\r\n".encode()).subject == subject
    assert Submitted(b"Subject: \xff\r\n\r\n").subject == "\ufffd"


def test_a_message_said_again_is_recognised():
    """Whatever Date and Message-ID it is given then; anything else makes it another."""
    raw = b"Date: 1\r\nTo: x@y\r\nMessage-ID: <1@a>\r\n\r\ntext\r\n"
    digest = Submitted(raw).digest("a@b", ["c@d", "e@f"])
    again = raw.replace(b"Date: 1", b"Date: 23").replace(b"<1@a>", b"<2@a>")
    assert Submitted(again).digest("a@b", ["e@f", "c@d"]) == digest
    for other in (raw.replace(b"text", b"test"), raw.replace(b"x@y", b"x@z")):
        assert Submitted(other).digest("a@b", ["c@d", "e@f"]) != digest
    assert Submitted(raw).digest("a@c", ["c@d", "e@f"]) != digest
    assert Submitted(raw).digest("a@b", ["c@d"]) != digest


@given(st.lists(st.sampled_from([b"a: b", b"Bcc: c", b" d", b"e", b"", b"\tf", b"X-Relay-Tag: g"])))
def test_only_fields_that_go_are_missing(lines: list[bytes]):
    """Whatever comes: the lines that are left are those that came, in their order."""
    raw = b"".join(line + b"\r\n" for line in lines)
    try:
        found = prepared(raw)
    except MalformedMessage:
        return
    left = found.removeprefix(RECEIVED + DATED + NAMED).split(b"\r\n")
    head = left[: left.index(b"")] if b"" in left else left
    assert not any(line.startswith((b"Bcc", b"X-Relay")) for line in head)
    came = iter([b"", *raw.split(b"\r\n")])  # perhaps behind an empty line of ours
    assert all(line in came for line in left)


def test_a_trace_says_how_and_nothing_that_was_not_checked():
    """TLS, UTF-8 and IPv6 have their spellings; a name that is none is not repeated."""
    field = Trace("evil\r\nX: y", "2001:db8::1", "r", encrypted=True, utf8=True).field(ID, AT)
    assert field.startswith(b"Received: from unknown ([IPv6:2001:db8::1])\r\n")
    assert b"with UTF8SMTPSA id" in field
    assert b"X: y" not in field


@pytest.mark.parametrize(
    ("fields", "optional"),
    [
        (b"TLS-Required: No\r\n", True),
        (b"tls-required:\r\n no\r\n", True),
        (b"TLS-Required: Yes\r\n", False),
        (b"TLS-Required: No\r\nTLS-Required: No\r\n", False),  # more than one is none (RFC 8689, 3)
        (b"X-TLS-Required: No\r\n", False),
    ],
)
def test_tls_may_be_said_to_be_optional(fields: bytes, optional: bool):
    """By the one field of RFC 8689, which goes on with the message."""
    submitted = Submitted(fields + b"Subject: Hi\r\n\r\nTLS-Required: No\r\n")
    assert submitted.tls_optional is optional
