"""The library of forms: what it may cost, whatever is sent to it."""

from __future__ import annotations

import sys
from types import FrameType

import pytest

from relay.returns.forms import named

SIZE = 48 * 1024
MOST = 1_000_000
"""Calls of functions: a tenth of a second, with what counts them."""


def mail(kind: bytes, body: bytes) -> bytes:
    """A mail by a mail server."""
    top = b"From: MAILER-DAEMON@x.example\nSubject: failure notice\nContent-Type: "
    return top + kind + b"\n\n" + body


def status(lines: bytes) -> bytes:
    """A delivery status, full of these lines."""
    kind = b"multipart/report; report-type=delivery-status; boundary=b"
    return mail(kind, b"--b\nContent-Type: message/delivery-status\n\n" + full(lines))


def full(lines: bytes) -> bytes:
    """As often as all that is looked at has room for them."""
    return lines * (SIZE // len(lines))


def calls(raw: bytes) -> int:
    """How many functions are called while a mail is read, those in C included."""
    count = 0

    def note(_frame: FrameType, event: str, _of: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        named(raw)
    finally:
        sys.setprofile(before)
    return count


SHAPES = {
    "fields": status(b"a:\n"),
    "empty lines": status(b"\n"),
    "blocks": status(b"a:\n\n"),
    "recipients": status(b"Final-Recipient: a@b.c\n\n"),
    "parts": mail(b"multipart/mixed; boundary=b", full(b"--b\n\n")),
    "messages": mail(
        b"multipart/mixed; boundary=b", full(b"--b\nContent-Type: message/x\n\na:\n\n")
    ),
    "nested": mail(b"message/rfc822", full(b"Content-Type: message/rfc822\n\n")),
    "some nested": mail(
        b"message/rfc822", b"Content-Type: message/rfc822\n\n" * 19 + full(b"a@b.c\n")
    ),
    "blank text": mail(b"text/plain", full(b"\n")),
    "addresses": mail(b"text/plain", full(b"<a@b.c>\n")),
    "returns": mail(b"text/plain", full(b"\r")),
    "top fields": b"From: MAILER-DAEMON@x.example\n" + full(b"a:\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_no_mail_costs_more_than_so_many_steps(shape: str):
    """Nothing that fills what is looked at does: it took 45 million before lines were counted."""
    named(mail(b"text/plain", b""))  # loads what it needs
    assert calls(SHAPES[shape]) < MOST


def test_what_stands_in_the_first_lines_is_read_however_much_follows():
    """A long mail is returned behind whom it is about."""
    raw = mail(b"text/plain", b"") + (
        b"  This message was created automatically by mail delivery software.\n"
        b"A message that you sent could not be delivered to one or more of its recipients.\n"
        b"The following addresses failed:\n\n  <gone@y.example>\n\n" + full(b"> quoted\n")
    )
    _, failed = named(raw)
    assert failed == {"gone@y.example"}
