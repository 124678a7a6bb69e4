"""Composing: what is read back by an independent parser is what the author gave."""

import email
import email.policy
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from email.header import decode_header, make_header
from email.message import EmailMessage, MIMEPart

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.outbound.composing.compose import compose
from relay.outbound.composing.message import (
    Address,
    Attachment,
    MalformedMessage,
    Message,
    checked_address,
    parse_address,
)
from relay.smtp.client import Mail

PLAIN = Message(
    Address("noreply@example.org", "Relay"),
    (Address("alice@example.com"),),
    "Hello",
    text="One line\nand another\n",
)
AT = datetime(2026, 11, 20, 20, 0, 0, tzinfo=UTC)

# what a header may be made of; the rest is refused, which has its own tests
shown = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp", "Cs"]))
anything = st.text(max_size=60)
bodies = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=300)


def made_of(message: Message, *, id: str = "0192f0c1-aaaa", date: datetime = AT) -> Mail:
    return compose(message, id=id, date=date)


def read(*addresses: str) -> tuple[Address, ...]:
    """Addresses as callers write them."""
    return tuple(parse_address(text, f"to[{index}]") for index, text in enumerate(addresses))


def parsed(data: bytes) -> EmailMessage:
    found = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(found, EmailMessage)
    assert not found.defects
    return found


def content(part: MIMEPart) -> str:
    text = part.get_content()
    assert isinstance(text, str)
    return text.replace("\r\n", "\n")


def head(data: bytes) -> list[bytes]:
    """The names of the header's lines, as a reader that knows only bytes sees them."""
    lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    return [line.partition(b":")[0] for line in lines if line[:1] not in (b" ", b"\t")]


def assert_safe(data: bytes) -> None:
    """CRLF only, no long line, 7-bit, ends with CRLF."""
    assert data.endswith(b"\r\n")
    assert data.count(b"\r\n") == data.count(b"\r") == data.count(b"\n")
    assert max(map(len, data.split(b"\r\n"))) <= 998


def test_a_plain_message_is_plain():
    """Text alone makes one 7-bit part with the standard headers, in CRLF lines."""
    made = made_of(PLAIN)
    assert made.data == (
        b"From: Relay <noreply@example.org>\r\n"
        b"To: alice@example.com\r\n"
        b"Subject: Hello\r\n"
        b"Date: Fri, 20 Nov 2026 20:00:00 +0000\r\n"
        b"Message-ID: <0192f0c1-aaaa@example.org>\r\n"
        b"MIME-Version: 1.0\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Transfer-Encoding: 7bit\r\n"
        b"\r\n"
        b"One line\r\nand another\r\n"
    )
    assert (made.sender, made.recipients) == ("noreply@example.org", ("alice@example.com",))
    assert not made.smtputf8


def test_text_html_and_files_nest_as_readers_expect():
    """mixed holds alternative and the files; the contents come back unchanged."""
    files = (
        Attachment("plan.pdf", "application/pdf", bytes(range(256)) * 5),
        Attachment('a "quoted" näme.txt', "text/plain; charset=utf-8", "grüße".encode()),
        Attachment("名" * 80 + ".txt", "text/plain", b""),
    )
    made = made_of(replace(PLAIN, text="Grüße\n", html="<p>Grüße</p>\n", attachments=files))
    assert_safe(made.data)
    assert made.data.isascii()
    message = parsed(made.data)
    assert message.get_content_type() == "multipart/mixed"
    alternative, *attached = message.iter_parts()
    assert [part.get_content_type() for part in alternative.iter_parts()] == [
        "text/plain",
        "text/html",
    ]
    assert [content(part) for part in alternative.iter_parts()] == [
        "Grüße\n",
        "<p>Grüße</p>\n",
    ]
    assert [part.get_filename() for part in attached] == [file.filename for file in files]
    assert [part.get_payload(decode=True) for part in attached] == [f.content for f in files]
    again = made_of(replace(PLAIN, text="Grüße\n", html="<p>Grüße</p>\n", attachments=files))
    assert again.data == made.data


@settings(deadline=None)  # the machine may be busy
@given(subject=shown.filter(lambda text: len(text) < 300), name=shown)
@example(subject="", name=" ")
def test_subject_and_names_come_back_as_given(subject: str, name: str):
    """Encoded words decode to what was given, and no encoded line is over 76 bytes."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    (sender,) = read(f'"{quoted}" <a@example.org>')
    assert sender == Address("a@example.org", name)
    made = made_of(replace(PLAIN, subject=subject, sender=sender))
    assert_safe(made.data)
    message = parsed(made.data)
    assert message["Subject"] == subject
    # Python 3.11.7's own reader of addresses puts spaces between adjacent encoded words.
    unfolded = made.data.partition(b"\r\nTo: ")[0].removeprefix(b"From:").replace(b"\r\n", b"")
    if not name.split():
        assert unfolded == b" a@example.org"
        return
    before, found, address = unfolded.decode().rpartition("<")
    assert (found, address) == ("<", "a@example.org>")
    before = before.strip()
    if before.startswith('"'):
        decoded = re.sub(r"\\(.)", r"\1", before[1:-1])
    else:
        decoded = str(make_header(decode_header(before)))
    assert decoded == " ".join(name.split())
    for line in made.data.split(b"\r\n"):
        assert len(line) <= 76 or b"=?" not in line


@settings(deadline=None)  # the machine may be busy
@given(text=bodies, html=st.none() | bodies)
def test_bodies_come_back_as_given(text: str, html: str | None):
    """Any text arrives, but for line ends, which become one kind, and one at the end."""
    made = made_of(replace(PLAIN, text=text, html=html))
    assert_safe(made.data)
    assert made.data.isascii()
    message = parsed(made.data)
    parts = list(message.iter_parts()) if html is not None else [message]
    for part, given_text in zip(parts, (text, html), strict=False):
        raw = part.get_payload(decode=True)
        assert isinstance(raw, bytes)
        wanted = re.sub("\r\n|\r|\n", "\n", given_text or "")
        wanted += "" if wanted.endswith("\n") else "\n"
        assert raw.decode().replace("\r\n", "\n") == wanted


INJECTIONS = (
    "x\r\nBcc: victim@example.com",
    "x\nBcc: victim@example.com",
    "x\rBcc: victim@example.com",
    "x\r\n\r\nbody",
    "x\u2028Bcc: v@example.com",
    "x\u0085Bcc: v@example.com",
    "x\0y",
    "\x0bBcc: v@example.com",
    "x\ud800",
)
FIELDS = (
    lambda bad: replace(PLAIN, subject=bad),
    lambda bad: replace(PLAIN, sender=Address("a@example.org", bad)),
    lambda bad: replace(PLAIN, sender=Address(f"a{bad}@example.org")),
    lambda bad: replace(PLAIN, sender=Address(f"a{bad}@example.org", "a")),
    lambda bad: replace(PLAIN, sender=read(f"{bad} <a@example.org>")[0]),
    lambda bad: replace(PLAIN, sender=read(f'"{bad}" <a@example.org>')[0]),
    lambda bad: replace(PLAIN, recipients=(Address(f"a@{bad}example.org"),)),
    lambda bad: replace(PLAIN, recipients=(*PLAIN.recipients, Address(f'"{bad}"@example.org'))),
    lambda bad: replace(PLAIN, recipients=read("a@example.org", f'"{bad}"@example.org')),
    lambda bad: replace(PLAIN, headers={"X-Note": bad}),
    lambda bad: replace(PLAIN, headers={f"X-{bad}": "x"}),
    lambda bad: replace(PLAIN, headers={"Reply-To": f"{bad} <a@example.org>"}),
    lambda bad: replace(PLAIN, headers={"List-Id": bad}),
    lambda bad: replace(PLAIN, headers={"References": f"<{bad}@x>"}),
    lambda bad: replace(PLAIN, headers={"List-Unsubscribe": f"<https://example.org/{bad}>"}),
    lambda bad: replace(PLAIN, attachments=(Attachment(bad, "text/plain", b""),)),
    lambda bad: replace(PLAIN, attachments=(Attachment("a", f"text/plain{bad}", b""),)),
    lambda bad: replace(PLAIN, attachments=(Attachment("a", f"text/plain; charset={bad}", b""),)),
)


@pytest.mark.parametrize("local", ['"a>b"', '"a<b"', '"a\\>b"', '"> SIZE=1 <"'])
def test_an_angle_bracket_in_quotes_is_refused(local: str):
    """A server that does not read quotes would find the end of the path in it."""
    address = f"{local}@example.org"
    for message in (
        replace(PLAIN, sender=Address(address)),
        replace(PLAIN, recipients=(Address(address),)),
        replace(PLAIN, recipients=(Address(address, "Ada"),)),
    ):
        with pytest.raises(MalformedMessage):
            made_of(message)
    with pytest.raises(MalformedMessage):
        read(f"Ada <{address}>")


@given(text=anything | st.builds("{}@{}".format, anything, anything))
def test_an_address_that_is_read_is_one_that_smtp_can_carry(text: str):
    """Whatever a caller writes: refused when it is read, or never again."""
    try:
        address = parse_address(text, "to")
    except MalformedMessage:
        return
    assert Mail("a@b", (address.address,), b"").recipients == (address.address,)
    assert checked_address(address, "to") == address


@pytest.mark.parametrize("space", ["\u2003", "\u3000", "\u2028"])
def test_a_space_of_another_script_is_no_letter_of_an_address(space: str):
    """SMTP cannot carry it outside quotes."""
    with pytest.raises(MalformedMessage):
        read(f"a{space}b@example.org")


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("bad", INJECTIONS)
def test_line_breaks_and_controls_are_refused_in_every_field(field, bad: str):
    """No field can start a header, whichever line break it tries."""
    with pytest.raises(MalformedMessage):
        made_of(field(bad))


@pytest.mark.parametrize("bad", INJECTIONS)
def test_an_id_that_no_header_can_hold_is_refused(bad: str):
    """The Message-ID is made of it."""
    with pytest.raises(MalformedMessage):
        made_of(PLAIN, id=f"id{bad}")


@settings(deadline=None)  # the machine may be busy
@given(st.data())
def test_no_field_ever_adds_a_header(data: st.DataObject):
    """Whatever the fields hold, the message is refused or has exactly the headers it should."""
    text = st.one_of(anything, shown, st.builds("".join, st.lists(st.sampled_from(
        ["\r", "\n", "a", " ", ":", "Bcc: x@y.z", "=?utf-8?q?=0D=0ABcc:?=", "<", ">", '"', ","]
    ))))  # fmt: skip
    try:
        message = replace(
            PLAIN,
            subject=data.draw(text),
            sender=Address("a@example.org", data.draw(text)),
            recipients=read("b@example.org", data.draw(text) + "<c@example.org>"),
            headers={"X-One": data.draw(text)},
        )
        made = made_of(message)
    except MalformedMessage:
        return
    names = [b"From", b"To", b"Subject", b"Date", b"Message-ID", b"X-One", b"MIME-Version"]
    names += [b"Content-Type", b"Content-Transfer-Encoding"]
    assert head(made.data) == names
    assert_safe(made.data)


def test_an_encoded_newline_stays_encoded():
    """What Python's own generator turns into a Bcc header is here a text like any other."""
    made = made_of(replace(PLAIN, subject="=?utf-8?q?Hi=0D=0ABcc:_v@example.com?="))
    assert b"Bcc" not in made.data
    assert parsed(made.data)["Subject"] == "=?utf-8?q?Hi=0D=0ABcc:_v@example.com?="


@pytest.mark.parametrize(
    "name", ["From", "To", "Bcc", "bcc", "Date", "Message-Id", "Content-Type", "MIME-Version"]
)
def test_the_relays_own_headers_cannot_be_given(name: str):
    """An author cannot replace, or add, the headers that the relay answers for."""
    with pytest.raises(MalformedMessage, match="cannot be given") as caught:
        made_of(replace(PLAIN, headers={name: "x@example.com"}))
    assert caught.value.field == f"headers[{name!r}]"


def test_the_headers_an_author_may_give_arrive():
    """Reply-To and References are checked for what they are; others are encoded where needed."""
    made = made_of(
        replace(
            PLAIN,
            headers={
                "Reply-To": '"Team, support" <help@example.org>, Jörg <j@example.org>',
                "References": "<1@example.org>  <2@example.org>",
                "X-Kampagne": "Frühling",
                "List-Id": "News <news.example.org>",
                "List-Unsubscribe": "<https://example.org/u?id=1&t=2>",
                "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
            },
        )
    )
    message = parsed(made.data)
    assert [str(box) for box in message["Reply-To"].addresses] == [
        '"Team, support" <help@example.org>',
        "Jörg <j@example.org>",
    ]
    assert message["References"] == "<1@example.org> <2@example.org>"
    assert message["X-Kampagne"] == "Frühling"
    assert message["List-Unsubscribe"] == "<https://example.org/u?id=1&t=2>"
    assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    with pytest.raises(MalformedMessage, match="twice"):
        made_of(replace(PLAIN, headers={"X-A": "1", "x-a": "2"}))


def test_international_addresses():
    """A domain becomes its A-label; only a local part outside ASCII needs SMTPUTF8."""
    made = made_of(replace(PLAIN, recipients=read("bob@bücher.example")))
    assert (made.recipients, made.smtputf8) == (("bob@xn--bcher-kva.example",), False)
    made = made_of(replace(PLAIN, recipients=(Address("jörg@bücher.example"),)))
    assert (made.recipients, made.smtputf8) == (("jörg@xn--bcher-kva.example",), True)
    assert "To: jörg@xn--bcher-kva.example\r\n".encode() in made.data
    # Not strasse.example, which may be somebody else's.
    for text in ("a@straße.example", "a@STRAẞE.example"):
        assert parse_address(text, "to").address == "a@xn--strae-oqa.example"
    with pytest.raises(MalformedMessage, match="no domain name"):
        parse_address("a@a\u200db.example", "to")


@pytest.mark.parametrize(
    ("text", "address", "name"),
    [
        ("a@b", "a@b", ""),
        (" <A.b@B.Example> ", "A.b@b.example", ""),
        ('"Last, First" <a@b>', "a@b", "Last, First"),
        ('"a \\"b\\"" <a@b>', "a@b", 'a "b"'),
        ('"alice"@b', "alice@b", ""),
        ('"a b"@b', '"a b"@b', ""),
        ("x@[192.0.2.1]", "x@[192.0.2.1]", ""),
    ],
)
def test_the_forms_of_an_address(text: str, address: str, name: str):
    """Each form in which callers write an address is read for what it means."""
    box = parse_address(text, "to")
    assert (box.address, box.name) == (address, name)


@pytest.mark.parametrize(
    "text",
    ["", "a", "a@", "@b", "a@b@c", "a b@c", "a@b c", "a@-b", "a@b..c", ".a@b", "a..b@c", "a@b>",
     "x <a@b> y", "<<a@b>>", "a@b, c@d", '"x <a@b>', "g: a@b;", "a@" + "b" * 64,
     "a" * 65 + "@b", "<>", "a(c)@b"],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_name(text: str):
    """A malformed address is an error that names its field."""
    with pytest.raises(MalformedMessage, match=r"^to\[0\] "):
        made_of(replace(PLAIN, recipients=(Address(text),)))
    with pytest.raises(MalformedMessage, match=r"^to\[0\] "):
        read(text)


def test_a_boundary_never_occurs_in_a_part():
    """A text that holds the boundary of its own message makes the relay choose another."""
    first = made_of(replace(PLAIN, html="<p>x</p>"))
    boundary = re.search(rb'boundary="([^"]+)"', first.data)
    assert boundary is not None
    planted = f"--{boundary[1].decode()}--\nafter\n"
    message = parsed(made_of(replace(PLAIN, text=planted, html="<p>x</p>")).data)
    plain, html = message.iter_parts()
    assert content(plain) == planted
    assert content(html) == "<p>x</p>\n"


def test_long_lines_are_encoded_and_time_zones_kept():
    """A line of over 998 characters is no 7-bit line; a date keeps its offset."""
    zone = timezone(timedelta(hours=5, minutes=30))
    made = made_of(replace(PLAIN, text="x" * 999), date=AT.astimezone(zone))
    assert b"Date: Sat, 21 Nov 2026 01:30:00 +0530\r\n" in made.data
    assert max(map(len, made.data.split(b"\r\n"))) <= 76
    assert content(parsed(made.data)) == "x" * 999 + "\n"
    with pytest.raises(MalformedMessage, match=r"^date "):
        made_of(PLAIN, date=AT.replace(tzinfo=None))


@pytest.mark.parametrize(
    "kind", ["", "text", "text/", "message/rfc822", "multipart/mixed", "a/b;x"]
)
def test_what_is_no_media_type_is_refused(kind: str):
    """An attachment's type is one that may be sent as base64."""
    with pytest.raises(MalformedMessage, match=r"^attachments\[0\]\.content_type "):
        made_of(replace(PLAIN, attachments=(Attachment("f", kind, b""),)))
