r"""SMTP replies, read from a peer that may be broken or hostile.

`ReplyReader` takes bytes cut anyhow and gives back whole replies, single or multi-line
(RFC 5321, 4.2), with the enhanced status code of RFC 2034 where there is one.

Promises:
- Memory and work are bounded by `ReplyLimits`, whatever the peer sends: an endless line, endless
  continuation lines, a gigabyte without a line end.
- The code decides, never the text: text beyond what is kept is read over, text that is not UTF-8
  is decoded with replacement, and no control character leaves this module.
- The result does not depend on how the bytes were cut.

Fails with `NotAReply` on what is no reply, and on one that does not end.  After it the stream has
no known position, so the reader must not be used again but for `begun`.

A line may end in a bare LF, and a reply be long.  Some servers do that, and a 250 to the final dot
that is not understood costs its recipient a second copy.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_TEXT = 1000
"""Characters of a reply's text that are kept."""

_LINE = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\r\n]*))?\r?\n")
_HEAD = re.compile(rb"([2-5][0-9][0-9])([ -])([^\r\n]*)")
_REST = re.compile(rb"[^\r\n]*(\r?\n)?")
_GROUP = re.compile(
    rb"(25[0-9])(?: [^\r\n]{0,500})?\r\n"
    rb"(25[0-9])(?: [^\r\n]{0,500})?\r\n"
    rb"(354)(?: [^\r\n]{0,500})?\r\n"
)
_TAKEN = re.compile(
    rb"250 (2\.[0-9]{1,3}\.[0-9]{1,3}) ([!-~](?:[ -~]{0,500}[!-~])?)\r?\n",
)
_ENHANCED = re.compile(r"([245]\.[0-9]{1,3}\.[0-9]{1,3})(?:\s+|$)")
_UNFIT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


class NotAReply(ValueError):
    """The peer sent something that is no SMTP reply, or one without an end."""


@dataclass(frozen=True)
class ReplyLimits:
    """How much of a reply is kept, and how long one may be; bytes with line ends.

    A line has at most 512 bytes (RFC 5321, 4.5.3.1.5); how many lines a reply may have, nobody
    says.  Lines are bounded beside bytes, as the shortest cost as much time as the longest.
    """

    kept_line_bytes: int = 4096
    kept_lines: int = 128
    kept_bytes: int = 65_536
    max_lines: int = 1000
    max_bytes: int = 512_000


class Reply:
    """One reply: its code, and its text when somebody asks for it."""

    __slots__ = ("_lines", "code")

    def __init__(self, code: int, lines: tuple[bytes, ...]) -> None:
        """`lines`: the text of each line, without code, separator and line end."""
        self.code = code
        self._lines = lines

    @property
    def lines(self) -> tuple[str, ...]:
        """The text of each line, decoded, with no control characters in it."""
        return tuple(_clean(line) for line in self._lines)

    def parsed(self) -> tuple[str | None, str]:
        """Return the enhanced status code, if the first line has one of the reply's own class,
        and the text of all lines without codes, in one line of at most `MAX_TEXT` characters.
        """
        enhanced = None
        parts: list[str] = []
        length = 0
        for line in self._lines:
            part = _clean(line)
            code = _ENHANCED.match(part)
            if code is not None:
                if not parts and int(code[1][0]) == self.code // 100:
                    enhanced = code[1]
                part = part[code.end() :]
            parts.append(part)
            length += len(part) + 1
            if length > MAX_TEXT:
                break
        return enhanced, " ".join(filter(None, parts))[:MAX_TEXT]

    @property
    def enhanced(self) -> str | None:
        """The enhanced status code."""
        return self.parsed()[0]

    @property
    def text(self) -> str:
        """The text without codes."""
        return self.parsed()[1]

    @property
    def challenge(self) -> bytes:
        """The first line's text as it came (what AUTH puts into a 334)."""
        return self._lines[0]

    def __repr__(self) -> str:
        return f"Reply({self.code}, {self.text!r})"


def _clean(line: bytes) -> str:
    text = line.decode("utf-8", "replace")
    if not text.isprintable():
        text = _UNFIT.sub(" ", text)
    return text.strip()


class ReplyReader:
    """Cuts a stream of bytes into replies."""

    __slots__ = (
        *("_buffer", "_code", "_kept", "_limits", "_lines", "_long", "_position", "_read"),
        "_taken",
    )

    def __init__(self, limits: ReplyLimits) -> None:
        self._limits = limits
        self._buffer = b""
        self._position = 0
        self._code = b""
        self._lines: list[bytes] = []
        self._long: re.Match[bytes] | None = None  # how a line begins whose end is still to come
        self._kept = 0  # bytes in `_lines`
        self._read = 0  # lines of this reply that were read
        self._taken = 0  # bytes of them

    @property
    def pending(self) -> bool:
        """Whether bytes are held that belong to no reply given out yet."""
        return self._position < len(self._buffer) or self._taken > 0

    @property
    def begun(self) -> Reply | None:
        """The lines so far of a reply whose end did not come: they have its code.

        None where less than a line has come (or more than is kept of one), and after what is no
        reply.
        """
        lines = [(self._code, text) for text in self._lines]
        if self._long is not None:
            lines.append((self._long[1], self._long[3]))
        if len({code for code, _ in lines}) != 1:
            return None
        return Reply(int(lines[0][0]), tuple(text for _, text in lines))

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._position < len(self._buffer):
            self._buffer = self._buffer[self._position :] + data
        else:
            self._buffer = data
        self._position = 0

    def next_group(self) -> tuple[int, int, int] | None:
        """Return the codes of three replies at once if MAIL, RCPT and DATA were all welcome.

        None takes nothing: then `next` reads what is there.
        """
        found = _GROUP.match(self._buffer, self._position)
        if found is None or self._lines:
            return None
        self._position = found.end()
        return int(found[1]), int(found[2]), int(found[3])

    def next_taken(self) -> tuple[str, str] | None:
        """Return enhanced code and text if the next reply is an ordinary 250.

        None takes nothing: then `next` reads what is there.
        """
        found = _TAKEN.match(self._buffer, self._position)
        if found is None or self._lines:
            return None
        self._position = found.end()
        return found[1].decode(), found[2].decode()

    def next(self) -> Reply | None:
        """Return the next whole reply, None when more bytes are needed, or raise NotAReply."""
        found = _LINE.match(self._buffer, self._position)
        if (
            found is not None
            and not self._taken
            and found[2] != b"-"
            and found.end() - self._position <= self._limits.kept_line_bytes
        ):
            self._position = found.end()
            return Reply(int(found[1]), (found[3] or b"",))  # the ordinary reply
        return self._next_of_many()

    def _next_of_many(self) -> Reply | None:
        while True:
            line = self._line() if self._long is None else self._end_of_long()
            if line is None:
                self._count(len(self._buffer) - self._position, taken=False)
                return None
            code, separator, text = line.groups()
            if self._lines and code != self._code:
                raise self._nonsense("the lines of one reply have different codes")
            self._code = code
            self._keep(text or b"")
            if separator != b"-":
                reply = Reply(int(code), tuple(self._lines))
                self._lines = []
                self._kept = self._read = self._taken = 0
                return reply
            self._read += 1
            if self._read == self._limits.max_lines:
                raise NotAReply(f"a reply has over {self._limits.max_lines:,} lines")

    def _line(self) -> re.Match[bytes] | None:
        """Take a line; or, of one too long to be kept, the beginning, and then its end."""
        start = self._position
        found = _LINE.match(self._buffer, start)
        if found is not None:
            self._take_to(found.end())
            return found
        if self._buffer.find(b"\n", start) >= 0:
            raise self._nonsense("a line is no SMTP reply")
        if len(self._buffer) - start <= self._limits.kept_line_bytes:
            return None
        self._long = _HEAD.match(self._buffer, start, start + self._limits.kept_line_bytes)
        if self._long is None:
            raise self._nonsense("a line is no SMTP reply")
        self._take_to(self._long.end())
        return self._end_of_long()

    def _end_of_long(self) -> re.Match[bytes] | None:
        """Read over what is not kept of a line; return how it began when it has ended."""
        found = _REST.match(self._buffer, self._position)
        assert found is not None, "nothing at all matches, too"
        self._take_to(found.end())
        if found[1] is not None:
            head, self._long = self._long, None
            return head
        if self._buffer[self._position :] not in (b"", b"\r"):
            raise self._nonsense("a line is no SMTP reply")
        return None

    def _take_to(self, end: int) -> None:
        self._count(end - self._position)
        self._position = end

    def _count(self, more: int, *, taken: bool = True) -> None:
        """Hold a reply to its greatest length, counted in bytes that came, taken or not."""
        if self._taken + more > self._limits.max_bytes:
            raise NotAReply(f"a reply has over {self._limits.max_bytes:,} bytes")
        if taken:
            self._taken += more

    def _keep(self, text: bytes) -> None:
        limits = self._limits
        text = text[: min(limits.kept_line_bytes - 4, limits.kept_bytes - self._kept)]
        if len(self._lines) < limits.kept_lines:
            self._lines.append(text)
            self._kept += len(text)

    def _nonsense(self, why: str) -> NotAReply:
        """What came is no reply, so that the lines before it are none either."""
        self._lines, self._long = [], None
        return NotAReply(why)
