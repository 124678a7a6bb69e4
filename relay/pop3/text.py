"""Messages as POP3 sends them: dots doubled, and for TOP cut behind some lines.

Promises:
- A message whose lines end with CR LF, as all have that came by SMTP, is what it was, byte for
  byte, once its reader has taken the doubled dots away (RFC 1939, 3).
- No message ends before its end, for readers either that take a bare LF or CR for the end of a
  line: a dot behind any of these is doubled, so nothing in it can pass for our next reply.

Pure.
"""

from __future__ import annotations

import re

_HEADER_END = re.compile(rb"\n\r?\n")


class Stuffing:
    """Doubles the dots of one message, which comes in pieces."""

    def __init__(self) -> None:
        self._at_start = True  # behind a line end, if a bare one
        self._tail = b"\r\n"  # the last two bytes

    def feed(self, piece: bytes) -> bytes:
        """Return a piece as it is sent."""
        if not piece:
            return piece
        stuffed = piece.replace(b"\n.", b"\n..").replace(b"\r.", b"\r..")
        if self._at_start and piece.startswith(b"."):
            stuffed = b"." + stuffed
        self._tail = (self._tail + piece[-2:])[-2:]
        self._at_start = self._tail[-1:] in {b"\r", b"\n"}
        return stuffed

    def end(self) -> bytes:
        """Return what follows the message: a line end, if it has none, and the line with a dot."""
        return b".\r\n" if self._tail == b"\r\n" else b"\r\n.\r\n"


class Top:
    """Cuts one message, which comes in pieces, behind its header and some lines of its body."""

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._in_header = True
        # The last two bytes; a message that begins with an empty line has no header.
        self._tail = b"\n"
        self.done = False
        """Whether nothing more of the message is wanted."""

    def feed(self, piece: bytes) -> bytes:
        """Return what is wanted of a piece."""
        header = b""
        if self._in_header:
            joined = self._tail + piece
            found = _HEADER_END.search(joined)
            if found is None:
                self._tail = joined[-2:]
                return piece
            end = found.end() - len(self._tail)
            header, piece = piece[:end], piece[end:]
            self._in_header = False
        if self._left:
            parts = piece.split(b"\n", self._left)
            if len(parts) <= self._left:
                self._left -= len(parts) - 1
                return header + piece
            piece = piece[: len(piece) - len(parts[-1])]
        else:
            piece = b""
        self.done = True
        return header + piece
