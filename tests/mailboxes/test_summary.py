"""The MIME reader: what it finds, and that nothing makes it raise or take long."""

import email.policy
import json
from email.message import EmailMessage

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.mailboxes.summary import (
    MAX_DEPTH,
    MAX_PARTS,
    clean,
    extract_attachment,
    fallback,
    summarise,
)
from tests.mailboxes.mail import read_row


def _message(**headers: str) -> EmailMessage:
    message = EmailMessage(policy=email.policy.SMTP)
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    return message


def test_reads_an_ordinary_message():
    """Sender, subject, headers and text of a plain message are found."""
    summary = summarise(
        b"From: Shop <noreply@shop.example>\r\n"
        b"Subject: Your code\r\n"
        b"X-Long: one\r\n two\r\n"
        b"\r\n"
        b"It is: 482913\r\nhttps://shop.example/verify?t=1\r\n"
    )
    assert summary.from_address == "noreply@shop.example"
    assert summary.subject == "Your code"
    assert summary.headers[2] == ["X-Long", "one two"]
    assert summary.body_text == "It is: 482913\nhttps://shop.example/verify?t=1\n"
    assert summary.body_html is None
    assert summary.links == ["https://shop.example/verify?t=1"]
    assert summary.attachments == []
    assert summary.error is None


@pytest.mark.parametrize("boundary", ["b", '"b"; x=y'])
def test_a_multipart_in_which_nothing_is_found_says_so(boundary):
    """Its boundary is nowhere, or ends it at once: nothing is shown, and the reason is."""
    for body in (b"--c\r\n\r\nYour code: 123456\r\n--c--\r\n", b"--b--\r\n", b""):
        head = f"Content-Type: multipart/mixed; boundary={boundary}\r\n\r\n"
        summary = summarise(head.encode() + body)
        assert summary.body_text is None
        assert summary.error == "a multipart without parts"


@pytest.mark.parametrize("text", ["", "\n", "\n \xa0\n\n"])
def test_a_blank_text_beside_html_is_none(text):
    """As Flask-Mail and Django send it: what is read, and where a code is found, is the HTML."""
    markup = "<p>Your code is <b>271828</b></p>\n"
    message = EmailMessage()
    message.set_content(text)
    alone = summarise(message.as_bytes())
    message.add_alternative(markup, subtype="html")
    both = summarise(message.as_bytes())
    assert (both.body_text, both.body_html, both.otp) == (None, markup, "271828")
    assert alone.body_text is not None
    assert alone.body_text.strip() == ""


def test_a_bracket_that_is_never_closed_is_no_part_of_an_address():
    """Whatever it opens."""
    assert summarise(b"From: Shop <a@b.example\r\n\r\n").from_address == "a@b.example"
    assert summarise(b"From: a@b.example>\r\n\r\n").from_address == "a@b.example"


def test_reads_what_the_standard_library_writes():
    """Alternatives, attachments and non-ASCII headers of `email` come out as they went in."""
    message = _message(From="Jürgen <j@x.example>", Subject="Grüße ✓ " * 12)
    message.set_content("Hällo\nYour code: 123456\n")
    message.add_alternative("<p>Hällo</p>", subtype="html")
    message.add_attachment(b"\0\1" * 500, maintype="application", subtype="pdf", filename="ü ✓.pdf")
    message.add_attachment(b"PNG", maintype="image", subtype="png", cid="<one@x>")
    raw = message.as_bytes()
    summary = summarise(raw)
    assert summary.from_address == "j@x.example"
    assert summary.subject == ("Grüße ✓ " * 12).strip()
    assert summary.body_text == "Hällo\nYour code: 123456\n"
    assert summary.body_html == "<p>Hällo</p>\n"
    assert summary.otp == "123456"
    assert summary.has_attachments
    assert summary.attachments == [
        {
            "index": 0,
            "filename": "ü ✓.pdf",
            "content_type": "application/pdf",
            "size": 1000,
            "content_id": None,
        },
        {
            "index": 1,
            "filename": "attachment-1.png",
            "content_type": "image/png",
            "size": 3,
            "content_id": "one@x",
        },
    ]
    assert extract_attachment(raw, 0) == ("ü ✓.pdf", "application/pdf", b"\0\1" * 500)
    assert extract_attachment(raw, 1) == ("attachment-1.png", "image/png", b"PNG")
    assert extract_attachment(raw, 2) is None


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("a@b.example", "a@b.example"),
        ("<a@b.example>", "a@b.example"),
        ('"Evil <x@y>" <a@b.example>', "a@b.example"),
        ("(x@y (nested)) a@b.example (comment)", "a@b.example"),
        ("One <a@b.example>, Two <c@d.example>", "a@b.example"),
        ('"john doe"@b.example', '"john doe"@b.example'),
        ('<"john"@b.example>', '"john"@b.example'),
        ("=?utf-8?q?=3Cx=40y=3E?= <a@b.example>", "a@b.example"),
        ("nobody", None),
        ("", None),
        ("(" * 500, None),
        ('"' * 501 + "a@b", None),
    ],
)
def test_takes_the_address_out_of_from(value, address):
    """The first mailbox's address counts; quoted strings and comments do not mislead."""
    assert summarise(f"From: {value}\r\n\r\n".encode()).from_address == address


@pytest.mark.parametrize(
    ("markup", "attached"),
    [
        ('<img src="cid:one@x">', False),
        ("<img src=CID:one@x>", False),
        ("<p style='background:url(cid:one%40x)'>", False),
        ('<img src="cid:one@x.example">', True),
        ("<p>one@x</p>", True),
    ],
)
def test_a_picture_that_the_html_shows_is_no_attachment(markup, attached):
    """It is listed as one, by its index; but nothing came along with the message."""
    message = _message()
    message.set_content(markup, subtype="html")
    message.add_related(b"PNG", maintype="image", subtype="png", cid="<one@x>")
    summary = summarise(message.as_bytes())
    assert len(summary.attachments) == 1
    assert summary.has_attachments is attached
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf")
    assert summarise(message.as_bytes()).has_attachments


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("Ann Example <a@b.example>", "Ann Example"),
        ('"Example, Ann \\"A\\"" <a@b.example>', 'Example, Ann "A"'),
        ("=?utf-8?q?J=C3=BCrgen?= =?utf-8?q?_M?= <a@b.example>", "Jürgen M"),
        ('"=?utf-8?b?w6TDtg==?=" <a@b.example>', "äö"),
        ("株式会社 <a@b.example>", "株式会社"),
        ("first@b.example, Second <a@b.example>", "Second"),
        ("first@b.example, Second, Inc. <a@b.example>", "Second, Inc."),
        ("Shop, Inc. <a@b.example>", "Shop, Inc."),
        ("=?utf-8?q?M=C3=BCller,_Anna?= <a@b.example>", "Müller, Anna"),
        ("Ann <a@b.example>, Bob <c@d.example>", "Ann"),
        ("a@b.example <a@b.example>", "a@b.example"),
        ('"" <a@b.example>', None),
        ('"One\tTwo\x07" <a@b.example>', "One Two"),
        ("<a@b.example>", None),
        ("a@b.example", None),
        ("a@b.example (Ann)", None),
        ("N" * 3000 + " <a@b.example>", "N" * 200),
        ("", None),
    ],
)
def test_takes_the_senders_name_out_of_from(value, name):
    """What stands before the first address in brackets, decoded, on one line, cut."""
    assert summarise(f"From: {value}\r\n\r\n".encode()).from_name == name


@pytest.mark.parametrize(
    ("encoded", "decoded"),
    [
        ("=?utf-8?b?w6TDtg==?=", "äö"),
        ("=?ISO-8859-1?Q?=E4_=F6?= end", "ä ö end"),
        ("=?utf-8?q?=C3?= =?utf-8?q?=A4?=", "ä"),
        ("a =?utf-8?q?b?= c =?utf-8?q?d?=", "a b c d"),
        ("=?koi8-r?b?8NLJ18XU?=", "Привет"),
        ("=?nonsense?q?=C3=A4?=", "ä"),
        ("=?zlib?b?eJw=?=", None),
        ("=?utf-8?q?a=0D=0ABcc:_x?=", "a  Bcc: x"),
        ("=?utf-8?b?!!!?=", ""),
        ("=?utf-8?q?open", "=?utf-8?q?open"),
        ("=?utf-8?q?=00x?=", "x"),
    ],
)
def test_decodes_encoded_words(encoded, decoded):
    """RFC 2047 words are decoded; what cannot be is shown as well as possible, on one line."""
    subject = summarise(f"Subject: {encoded}\r\n\r\n".encode()).subject
    assert subject is not None
    if decoded is not None:
        assert subject == decoded
    assert "\n" not in subject


@pytest.mark.parametrize("character", ["\x1b", "\x9b", "\u202e", "\u2066", "\u061c", "\u200b"])
def test_an_address_and_its_name_turn_no_text(character):
    """Neither controls nor what would have them read backwards is in From's address and name."""
    raw = f"From: Ba{character}nk <x{character}elpmaxe@evil.example>\n\nhi".encode()
    summary = summarise(raw)
    assert (summary.from_address, summary.from_name) == ("xelpmaxe@evil.example", "Bank")


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ('attachment; filename="../../etc/cron.d/x"', "x"),
        ('attachment; filename="C:\\\\dir\\\\y.txt"', "y.txt"),
        ("attachment; filename*=utf-8''%e2%82%ac%20rates.pdf", "€ rates.pdf"),
        ("attachment; filename*0*=utf-8''%e2%82; filename*1*=%ac; filename*2=.pdf", "€.pdf"),
        ('attachment; filename="=?utf-8?q?=C3=A4.pdf?="', "ä.pdf"),
        ('attachment; filename=".."', "attachment-0.txt"),
        ('attachment; filename="a\x01b\u202egpj.exe"', "abgpj.exe"),
        ("attachment", "attachment-0.txt"),
        ('attachment; filename="unclosed', "unclosed"),
        ("attachment; filename=" + "x" * 5000 + ".pdf", "x" * 146 + ".pdf"),
    ],
)
def test_names_of_attachments_are_bare(disposition, name):
    """No directory, control or direction character survives in a file name, nor a long one."""
    summary = summarise(f"Content-Disposition: {disposition}\r\n\r\nbody".encode())
    assert [a["filename"] for a in summary.attachments] == [name]


@pytest.mark.parametrize(
    ("headers", "body", "text"),
    [
        ("text/plain; charset=iso-8859-1", b"\xe4", "ä"),
        ("text/plain; charset=utf-8", b"\xe4", "\ufffd"),
        ("text/plain; charset=nonsense", "ä".encode(), "ä"),
        ("text/plain; charset=us-ascii", b"\xe4", "ä"),
        ("text/plain", "ä".encode(), "ä"),
        ("text/plain; charset=gb2312", "中".encode("gb18030"), "中"),
        ("text/plain; charset=idna", b"x", "x"),
        ("rubbish", b"x", "x"),
        ("", b"a\x00b", "ab"),
        ("text/plain; charset=utf-16", b"\x00\xd8", "\ufffd"),
    ],
)
def test_decodes_text(headers, body, text):
    """Declared character sets are honoured; a wrong or missing one costs letters at most."""
    assert summarise(f"Content-Type: {headers}\r\n\r\n".encode() + body).body_text == text


def test_undoes_transfer_encodings():
    """base64 and quoted-printable are decoded, leniently."""
    assert summarise(b"Content-Transfer-Encoding: BASE64\r\n\r\naGVs\r\nbG8").body_text == "hello"
    assert (
        summarise(b"Content-Transfer-Encoding: quoted-printable\r\n\r\na=3D=\r\nb").body_text
        == "a=b"
    )


def test_reads_a_message_without_headers():
    """A text that has no header at all is all body."""
    summary = summarise(b"hello world\r\n")
    assert (summary.headers, summary.body_text) == ([], "hello world\n")
    assert summarise(b"").body_text == ""


def test_finds_the_code_in_html():
    """A message in HTML only is searched as a reader sees it."""
    body = b"<style>p{margin:1234}</style><p>Your code is</p><h1><b>77</b><i>12</i>03</h1>"
    assert summarise(b"Content-Type: text/html\r\n\r\n" + body).otp == "771203"


def test_a_forwarded_message_is_an_attachment():
    """message/rfc822 is not descended into."""
    raw = (
        b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nsee\r\n"
        b"--b\r\nContent-Type: message/rfc822\r\n\r\nSubject: inner\r\n\r\nbody\r\n--b--\r\n"
    )
    summary = summarise(raw)
    assert summary.body_text == "see"
    assert [(a["filename"], a["size"]) for a in summary.attachments] == [("attachment-0.eml", 22)]


def _nested(levels: int) -> bytes:
    return b"".join(
        b"Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%d\r\n" % (n, n)
        for n in range(levels)
    )


def _parts(count: int) -> bytes:
    return b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n\r\nx\r\n" * count


BOMBS = {
    "1,000 nested multiparts": _nested(1000),
    "brackets": b"From: " + b"(" * 500,
    "a megabyte of brackets": b"From: " + b"(" * 2**20,
    "100,000 parts": _parts(100_000),
    "100,000 empty parts": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    + b"--b\r\n" * 100_000,
    "16,000 addresses": b"To: " + b", ".join(b"a%d@b.example" % n for n in range(16_000)),
    "a malformed Message-ID": b"Message-ID: <@>\r\nReferences: <\r\n\r\n",
    "400,000 headers": b"A: b\r\n" * 400_000,
    "one endless header": b"A: " + b"x" * 5_000_000,
    "endless folding": b"A: b\r\n" + b" c\r\n" * 400_000,
    "parameters": b"Content-Type: text/plain;" + b'a="' * 50_000,
    "encoded words": b"Subject: " + b"=?utf-8?q?" * 50_000,
    "boundaries in a line": b"Content-Type: multipart/mixed; boundary=a\r\n\r\n"
    + b"--a" * 2_000_000,
    "near boundaries": b"Content-Type: multipart/mixed; boundary=a\r\n\r\n" + b"--ax\r\n" * 500_000,
    "open tags": b"Content-Type: text/html\r\n\r\n" + b"<" * 4_000_000,
    "open styles": b"Content-Type: text/html\r\n\r\n" + b"<style" * 500_000,
    "open attributes": b"Content-Type: text/html\r\n\r\n" + b"href='" * 500_000,
    "one boundary at all levels": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n"
    * 1000,
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_end_within_the_limits(bomb):
    """What breaks other readers is read up to a cap, and can be stored."""
    summary = summarise(b"Subject: still here\r\n" + BOMBS[bomb])
    assert summary.subject == "still here"
    assert len(summary.attachments) <= MAX_PARTS
    assert json.loads(read_row(summary.as_row())["details"] or "")["headers"] == summary.headers


def test_says_what_was_cut_off():
    """A partial summary carries the reason."""
    assert summarise(_parts(100_000)).error == f"more than {MAX_PARTS} parts"
    assert f"deeper than {MAX_DEPTH}" in str(summarise(_nested(1000)).error)
    assert summarise(b"A: " + b"x" * 2**20).error == "the headers were cut off"


def test_falls_back_to_the_headers():
    """Without parsing the body, sender and subject are known all the same."""
    summary = fallback(b"From: a@b.example\r\nSubject: s\r\n\r\n" + b"x" * 10**6, "too much")
    assert (summary.from_address, summary.subject) == ("a@b.example", "s")
    assert (summary.body_text, summary.error) == (None, "too much")


def test_cleans_what_postgresql_refuses():
    """NULs and lone surrogates never reach a text column."""
    assert clean("a\x00b\ud800c") == "ab?c"


PIECES = st.sampled_from(
    [
        b"From: ",
        b"Subject: ",
        b"Content-Type: multipart/mixed; boundary=b\r\n",
        b"Content-Type: text/html; charset=utf-16\r\n",
        b"Content-Disposition: attachment; filename*0*=x'y'%ff%00\r\n",
        b"Content-Transfer-Encoding: base64\r\n",
        b"Content-Transfer-Encoding: quoted-printable\r\n",
        b"\r\n",
        b"\n",
        b"--b\r\n",
        b"--b--",
        b"=?utf-8?q?=00=ff?=",
        b"=?utf-7?b?+2AA?=",
        b'"',
        b"(",
        b"\\",
        b"<a@b>",
        b"\x00",
        b"\xff\xfe",
        b" code: 123456 ",
        b"https://x/\xed\xa0\x80",
        b"&#xD800;&#0;<a href='http://x/&#xdfff;'>",
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=30))
def test_never_raises(pieces):
    """Any bytes give a summary that PostgreSQL can store, and its attachments can be had."""
    raw = b"".join(pieces)
    summary = summarise(raw)
    stored = read_row(summary.as_row())
    assert "\\u0000" not in (stored["details"] or "")
    assert not [c for c, v in stored.items() if v and "\x00" in v and c != "has_attachments"]
    for attachment in summary.attachments:
        found = extract_attachment(raw, attachment["index"])
        assert found is not None
        assert (found[0], len(found[2])) == (attachment["filename"], attachment["size"])
        assert "/" not in found[0]
