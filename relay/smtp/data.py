r"""The end of DATA, found exactly: CRLF . CRLF and nothing else.

`whole_message` reads an ordinary message that has come in one piece.
`DataDecoder` takes what arrives after 354 in chunks of any size and says where the message
ends, what it was before dot-stuffing (RFC 5321, 4.5.2), and whether it held a CR or an LF that
was not part of a CRLF.

Promises:
- The result does not depend on how the bytes were cut into chunks.
- A bare CR or LF never ends a message and never starts a line; such a message is read to its
  real end and reported as `bare`, so that it is refused once.  Servers that disagreed about
  `LF.LF`, `LF.CRLF`, `CR.CR` and their kin are what SMTP smuggling lives on.
- Memory: at most `limit` bytes of decoded text, its stuffed dots and one chunk.  Past `limit`
  the text is dropped and only the end is looked for.

Fails: never; what is wrong with a message is an attribute of the decoder.

Pure: no I/O.  Every scan is one C call over the new bytes only, so a message of n bytes costs
O(n) however it is cut.
"""

from __future__ import annotations

END = b"\r\n.\r\n"
_TAIL = len(END) - 1
"""The number of bytes at the end of what has arrived that may yet belong to the final dot."""


def whole_message(data: bytes, at: int) -> tuple[bytes, int] | None:
    """Return the message that begins at `at`, and where what follows its final dot begins.

    None: it has not come whole, or is out of the ordinary in any way, and a `DataDecoder` must
    read it.  What is returned is what that would make of it: tests/smtp/test_data.py; it pays in
    `python -m tests.bench ingest`.
    """
    # Where no line begins with a dot, the first that does is the end.
    end = data.find(b"\r\n.", at)
    stuffed = data[end + 3 : end + 5] != b"\r\n"
    if stuffed:
        end = data.find(END, at)
    if end < 0:
        return None
    text = data[at : end + 2]
    lines = text.count(b"\r\n")
    if text.count(b"\n") != lines or text.count(b"\r") != lines or text[0] == 46:  # b"."
        return None
    if stuffed:
        text = text.replace(b"\r\n.", b"\r\n")
    return text, end + len(END)


class DataDecoder:
    """Reads one message; feed it chunks until it is `done`."""

    __slots__ = (
        "_buffer",
        "_counted",
        "_crlfs",
        "_crs",
        "_dots",
        "_dropped",
        "_dropping",
        "_lfs",
        "_limit",
        "done",
        "received",
        "rest",
        "too_large",
    )

    def __init__(self, limit: int) -> None:
        """`limit`: the most bytes a message may have, dots unstuffed."""
        # The CRLF that ended the DATA command: a dot right after it starts a line.
        self._buffer = bytearray(b"\r\n")
        self._counted = 2
        self._dropped = -2  # that CRLF is no part of the message
        self._dropping = False
        self._limit = limit
        self._crs = self._lfs = self._crlfs = self._dots = 0
        self.done = False
        """Whether the final dot was seen."""
        self.too_large = False
        """Whether the message is over the limit; its text was dropped."""
        self.received = 0
        """Bytes of the message on the wire so far, its final dot included."""
        self.rest = b""
        """What came behind the final dot: the next commands of the pipeline."""

    @property
    def bare(self) -> bool:
        """Whether a CR or an LF stood alone in the message."""
        return not self._crs == self._lfs == self._crlfs

    @property
    def size(self) -> int:
        """Bytes of the message read so far, dots unstuffed, text dropped or not."""
        return self._dropped + self._counted - self._dots

    @property
    def held(self) -> int:
        """Bytes of text in memory."""
        return len(self._buffer)

    def feed(self, chunk: bytes) -> bool:
        """Take the next bytes and return `done`."""
        buffer = self._buffer
        buffer += chunk
        self.received += len(chunk)
        end = buffer.find(END, max(self._counted - _TAIL, 0))
        if end >= 0:
            self.done = True
            self.rest = bytes(buffer[end + len(END) :])
            self.received -= len(self.rest)
            del buffer[end + 2 :]  # the message keeps the CRLF of its last line
            self._count(len(buffer))
        else:
            self._count(len(buffer) - _TAIL)
        if self.size > self._limit:
            self.too_large = self._dropping = True
        if self._dropping:
            self._forget()
        return self.done

    def drop(self) -> None:
        """Forget the text, also what is still to come; only the end is looked for."""
        self._dropping = True
        self._forget()

    def _forget(self) -> None:
        keep = max(self._counted - 2, 0)  # a dot's meaning hangs on the two bytes before it
        del self._buffer[:keep]
        self._dropped += keep
        self._counted -= keep

    def take(self) -> bytes:
        """Return the message once it is `done`, as it was before dot-stuffing, and keep nothing:
        while it is being stored, it is in memory once."""
        buffer, self._buffer = self._buffer, bytearray()
        if self._dots:
            buffer = buffer.replace(b"\r\n.", b"\r\n")
        return bytes(memoryview(buffer)[2:])

    def _count(self, stop: int) -> None:
        """Count what decides about the bytes up to `stop`, each of them once."""
        start = self._counted
        if stop <= start:
            return
        buffer = self._buffer
        self._crs += buffer.count(b"\r", start, stop)
        self._lfs += buffer.count(b"\n", start, stop)
        # A pair, or a dot that starts a line, counts where its last byte stands.
        self._crlfs += buffer.count(b"\r\n", start - 1, stop)
        self._dots += buffer.count(b"\r\n.", start - 2, stop)
        self._counted = stop
