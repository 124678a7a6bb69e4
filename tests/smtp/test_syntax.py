"""The bytes of commands and the codes of replies."""

from __future__ import annotations

import pytest

from relay.smtp.syntax import MAIL, RCPT, enhanced, foreign_reply


@pytest.mark.parametrize(
    ("line", "groups"),
    [
        (b"MAIL FROM:<a@b.example>", (b"a@b.example", b"", None)),
        (b"mail from: <A.b+c@b> ", (b"A.b+c@b", b"", None)),
        (b"MAIL FROM:<>", (None, b"", None)),
        (b"MAIL FROM:<a@b> SIZE=12 BODY=8bitmime", (b"a@b", b" SIZE=12 BODY=8bitmime", b"12")),
    ],
)
def test_an_ordinary_mail_is_understood_at_once(line, groups):
    """A plain address with SIZE and BODY, or none."""
    match = MAIL.fullmatch(line)
    assert match is not None
    assert match.groups() == groups


@pytest.mark.parametrize(
    "argument",
    ['"a b"@c', "<@x:a@b>", "<a..b@c>", "<a@b> NOTIFY=NEVER", "<a@[1.2.3.4]>", "<a@b\n>", "<ä@b>"],
)
def test_what_is_not_plain_is_left_to_the_parser(argument):
    """Quotes, routes, literals, Unicode and unknown parameters do not match."""
    assert MAIL.fullmatch(b"MAIL FROM:" + argument.encode()) is None
    assert RCPT.fullmatch(b"RCPT TO:" + argument.encode()) is None


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("250 OK", "250 2.0.0 OK"),
        ("250 2.1.0 OK", "250 2.1.0 OK"),
        ("503 Error: send HELO first", "503 5.5.1 Error: send HELO first"),
        ("552 Error: message size exceeds", "552 5.3.4 Error: message size exceeds"),
        ("354 go on", "354 go on"),
        ("450", "450 4.2.0"),
        ("499 odd", "499 4.0.0 odd"),
    ],
)
def test_every_reply_gets_an_enhanced_code(reply, expected):
    """A code that fits, unless there is one or it needs none."""
    assert enhanced(reply) == expected


@pytest.mark.parametrize(
    "reply",
    [
        None,
        250,
        "",
        "OK",
        "250-a",
        "354 go",
        "550 a\r\n250 b",
        "550 \x00",
        "999 x",
        "550 " + "x" * 600,
    ],
)
def test_what_is_no_reply_is_not_passed_on(reply):
    """Another's text is refused whole, never repaired."""
    assert foreign_reply(reply) is None
