"""The bytes of commands and the codes of replies."""

from __future__ import annotations

import pytest

from relay.smtp.syntax import MAIL, RCPT, enhanced, foreign_reply


@pytest.mark.parametrize(
    ("argument", "groups"),
    [
        ("FROM:<a@b.example>", ("a@b.example", "", None)),
        ("from: <A.b+c@b> ", ("A.b+c@b", "", None)),
        ("FROM:<>", (None, "", None)),
        ("FROM:<a@b> SIZE=12 BODY=8bitmime", ("a@b", " SIZE=12 BODY=8bitmime", "12")),
    ],
)
def test_an_ordinary_mail_is_understood_at_once(argument, groups):
    """A plain address with SIZE and BODY, or none."""
    match = MAIL.fullmatch(argument)
    assert match is not None
    assert match.groups() == groups


@pytest.mark.parametrize(
    "argument",
    ['"a b"@c', "<@x:a@b>", "<a..b@c>", "<a@b> NOTIFY=NEVER", "<a@[1.2.3.4]>", "<a@b\n>", "<ä@b>"],
)
def test_what_is_not_plain_is_left_to_the_parser(argument):
    """Quotes, routes, literals, Unicode and unknown parameters do not match."""
    assert MAIL.fullmatch("FROM:" + argument) is None
    assert RCPT.fullmatch("TO:" + argument) is None


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
