"""The words of SMTP: which bytes a command may hold, and the enhanced code of every reply.

`MAIL` and `RCPT` match what nearly every client sends: a plain address and at most SIZE and BODY.
What they do not match goes to aiosmtpd's general parser.

Promises: an address that matched holds nothing but letters, digits and the marks of a dot-atom,
and `enhanced` gives every reply that should have one a code of RFC 2034, and alters no other.

Pure.

Why two readers: the general parser takes 67 us for a MAIL and 73 us for a RCPT, where these take 4
and 9; that is a third of an accepted message (`make bench`, ingest).  tests/smtp/test_session.py
holds the one to the other.
"""

from __future__ import annotations

import re

from relay.addresses import ATEXT, DOMAIN

_ADDRESS = rf"[{ATEXT}]+(?:\.[{ATEXT}]+)*@{DOMAIN}".encode()

_MAIL = (
    rb"(?i:MAIL FROM): ?<(%b)?>"
    rb"((?i:(?: SIZE=([0-9]{1,15}))?(?: BODY=(?:7BIT|8BITMIME))?)) ?" % _ADDRESS
)
_RCPT = rb"(?i:RCPT TO): ?<(%b)> ?" % _ADDRESS

MAIL = re.compile(_MAIL)
"""A MAIL command; groups: the address (None for the null reverse-path), all parameters,
and the value of SIZE."""

RCPT = re.compile(_RCPT)
"""A RCPT command; group: the address."""

MAIL_LINE = re.compile(_MAIL + rb"\r\n")
"""`MAIL` with its CRLF, where more may follow."""

RCPT_LINE = re.compile(_RCPT + rb"\r\n")
"""`RCPT` likewise."""

POSTMASTER = re.compile(r"(?i:TO): ?<(postmaster)> ?", re.IGNORECASE)
"""The one recipient that needs no domain (RFC 5321, 4.5.1)."""

FOREIGN_SIZE = re.compile(r"(?i: SIZE=)[^ ]*[^\x00-\x7f]")
"""Digits to `str.isdigit` and none to `int`: aiosmtpd takes the one for the other."""

_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"@[^"]+')  # an address with its quotes closed

HTTP_VERBS = frozenset({"GET", "POST", "PUT", "HEAD", "OPTIONS", "CONNECT", "PATCH", "DELETE"})
"""What a browser says that was talked into opening this port."""

_ENHANCED = {
    "211": "2.0.0",
    "214": "2.0.0",
    "221": "2.0.0",
    "250": "2.0.0",
    "252": "2.5.2",
    "421": "4.3.2",
    "450": "4.2.0",
    "451": "4.3.0",
    "452": "4.3.1",
    "500": "5.5.2",
    "501": "5.5.4",
    "502": "5.5.1",
    "503": "5.5.1",
    "504": "5.5.4",
    "521": "5.3.2",
    "530": "5.7.0",
    "535": "5.7.8",
    "550": "5.7.1",
    "551": "5.1.6",
    "552": "5.3.4",
    "553": "5.1.3",
    "554": "5.7.1",
    "555": "5.5.4",
}
_HAS_CODE = re.compile(r"[245]\.[0-9]{1,3}\.[0-9]{1,3}(?: |$)")
_REPLY = re.compile(r"[245][0-5][0-9](?: [^\x00-\x1f\x7f]*)?")
MAX_REPLY_BYTES = 510


def enhanced(reply: str) -> str:
    """Return a one-line reply with the enhanced status code of RFC 2034 that fits it."""
    code, text = reply[:3], reply[4:]
    if code[:1] not in "245" or _HAS_CODE.match(text):
        return reply
    fitting = _ENHANCED.get(code, f"{code[:1]}.0.0")
    return f"{code} {fitting} {text}".rstrip()


def is_sound(address: str, path: str, rest: str) -> bool:
    """Whether the general parser was right to see `address` in front of `rest`, in this path.

    That is the email package's: it forgives and it has faults.
    """
    # It decodes encoded words: to control characters, to surrogates that nothing can store.
    if not address.isprintable():
        return False
    # It closes the brackets and the quotes that nobody closed.
    if path.startswith("<") and not path[: len(path) - len(rest)].rstrip().endswith(">"):
        return False
    if '"' in address and not _QUOTED.fullmatch(address):
        return False
    # Allowed in quotes (RFC 5321, 4.1.2), and read as the end of the path by so many programs
    # behind us that it is an attack on them rather than an address.
    return address == "<>" or not ("<" in address or ">" in address)


def foreign_reply(reply: object) -> str | None:
    """Return another's reply as one line that is safe to send, or None when it is no reply.

    Another's: from an operator's filter.  Only 2xx, 4xx and 5xx make sense there; control
    characters (and so CR and LF, which would forge further replies) are refused, not repaired.
    """
    if not isinstance(reply, str) or not _REPLY.fullmatch(reply) or not reply.isprintable():
        return None
    line = enhanced(reply)
    return line if len(line.encode()) <= MAX_REPLY_BYTES else None
