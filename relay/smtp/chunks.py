"""A message that comes by BDAT: chunks whose lengths are said beforehand (RFC 3030).

Its end is where the peer says, so no text can be taken for it, and no dot is stuffed.  It is text
all the same: BINARYMIME is not offered, so a CR or LF that stands alone is as wrong as it is behind
DATA (RFC 3030, section 3), and what would be refused there is refused here: whoever passes the
message on by DATA must not make two of it.

Its last line need not end in CRLF, and nothing is added here: what is kept is what came.  Only the
way out adds it (`relay.smtp.client.with_crlf`): DATA cannot say such a line (RFC 5321, 4.1.1.4).

Promises: memory is the text so far, at most `limit` bytes and one read; above it, or once it is
refused, nothing is kept.

Fails: never; what is wrong is an attribute.

Pure: no I/O.
"""

from __future__ import annotations

import re

SIZE = re.compile(r"([0-9]{1,15})(?: +(?i:(LAST)))?")
"""The argument of BDAT; groups: octets, and LAST or None."""


class ChunkedMessage:
    """One message; it is given octets as they come."""

    __slots__ = (
        "_buffer",
        "_crlfs",
        "_crs",
        "_dropping",
        "_ends_in_cr",
        "_lfs",
        "_limit",
        "received",
        "refused",
    )

    def __init__(self, limit: int) -> None:
        """`limit`: the most bytes that a message may have."""
        self._buffer = bytearray()
        self._limit = limit
        self._crs = self._lfs = self._crlfs = 0
        self._ends_in_cr = self._dropping = False
        self.received = 0
        """Octets so far."""
        self.refused = False
        """Whether a chunk was refused, and so the message."""

    @property
    def bare(self) -> bool:
        """Whether a CR or an LF stood alone; known when the last chunk has come."""
        return not self._crs == self._lfs == self._crlfs

    @property
    def too_large(self) -> bool:
        """Whether it is over the limit."""
        return self.received > self._limit

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._buffer)

    def add(self, octets: bytes) -> None:
        """Take the next octets."""
        self.received += len(octets)
        self._crs += octets.count(b"\r")
        self._lfs += octets.count(b"\n")
        self._crlfs += octets.count(b"\r\n") + (self._ends_in_cr and octets[:1] == b"\n")
        self._ends_in_cr = octets[-1:] == b"\r"
        if self.too_large:
            self.drop()
        elif not self._dropping:
            self._buffer += octets

    def drop(self) -> None:
        """Keep nothing, also not of what is still to come."""
        self._dropping = True
        self._buffer = bytearray()

    def take(self) -> bytes:
        """Return the message, and keep nothing."""
        buffer, self._buffer = self._buffer, bytearray()
        return bytes(buffer)
