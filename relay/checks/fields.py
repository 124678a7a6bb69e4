"""The header fields of a message, byte for byte as they were signed, and its body.

Lines may end in CRLF or, as some ways lead mail in, in LF alone: both are CRLF from here on, which
is what was signed.  The header ends at the first empty line; a line in it that is no field has no
name, so nothing ever takes it for one.

Fails with `Oversize` for a header that is too large to be looked at.  Time is linear in the bytes.

Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_HEADER_BYTES = 1 << 20

_EMPTY_LINE = re.compile(rb"(?:\A|\n)\r?\n")


class Oversize(ValueError):
    """The header is larger than `MAX_HEADER_BYTES`."""


class Field(NamedTuple):
    """One header field."""

    name: bytes
    """In small letters; empty for what is no field."""
    raw: bytes
    """Name, colon and value, folded as it came, without the last CRLF."""

    @property
    def value(self) -> bytes:
        """What follows the colon, as it came."""
        return self.raw.partition(b":")[2]


def split(raw: bytes) -> tuple[list[Field], bytes]:
    """Return the fields of a message in their order, and its body with CRLF line ends."""
    blank = _EMPTY_LINE.search(raw, 0, MAX_HEADER_BYTES)
    if blank is None and len(raw) > MAX_HEADER_BYTES:
        raise Oversize(f"the header is larger than {MAX_HEADER_BYTES} bytes")
    header, body = (raw, b"") if blank is None else (raw[: blank.start()], raw[blank.end() :])
    fields: list[list[bytes]] = []
    for line in header.split(b"\n"):
        line = line.removesuffix(b"\r")
        if fields and line[:1] in (b" ", b"\t"):
            fields[-1].append(line)
        elif line:
            fields.append([line])
    return [_field(b"\r\n".join(lines)) for lines in fields], _with_crlf(body)


def _field(raw: bytes) -> Field:
    name, colon, _ = raw.partition(b":")
    name = name.rstrip(b" \t")
    printable = name.isascii() and not any(byte <= 32 or byte == 127 for byte in name)
    return Field(name.lower() if colon and printable else b"", raw)


def _with_crlf(body: bytes) -> bytes:
    if body.count(b"\n") == body.count(b"\r\n"):
        return body
    return body.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
