"""AUTH as the server sees it: PLAIN and LOGIN (RFC 4954, 4616).

A mechanism is a generator: it yields challenges, is sent the answers, and returns user name and
password.  Base64 and lines are `decoded`'s and the session's; whether AUTH is offered at all, and
what a password is worth, is `relay.smtp.shared.SignIn`'s and the session's, too.

Fails with `ValueError`, whose text is a reply, for what the mechanism does not allow.

Pure.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Generator

Exchange = Generator[bytes, bytes, tuple[str, str]]

MALFORMED = "501 5.5.2 Malformed answer"
CANCELLED = "501 5.7.0 Authentication cancelled"


def plain() -> Exchange:
    """PLAIN: authorization identity, user name and password, between NULs."""
    parts = (yield b"").split(b"\0")
    if len(parts) != 3:
        raise ValueError(MALFORMED)
    return _text(parts[1]), _text(parts[2])


def login() -> Exchange:
    """LOGIN: one after the other."""
    user = yield b"Username:"
    password = yield b"Password:"
    return _text(user), _text(password)


MECHANISMS = {"PLAIN": plain, "LOGIN": login}


def decoded(line: bytes) -> bytes:
    """Return what the peer answered: base64, `*` to cancel, `=` for nothing at all."""
    if line == b"*":
        raise ValueError(CANCELLED)
    if line == b"=":
        return b""
    try:
        return base64.b64decode(line, validate=True)
    except binascii.Error:
        raise ValueError(MALFORMED) from None


def challenge(text: bytes) -> bytes:
    """Return the line that asks for an answer."""
    return b"334 %b\r\n" % base64.b64encode(text)


def _text(answer: bytes) -> str:
    try:
        text = answer.decode()
    except UnicodeDecodeError:
        raise ValueError(MALFORMED) from None
    if "\0" in text:
        raise ValueError(MALFORMED)
    return text
