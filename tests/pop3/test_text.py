"""Messages on their way: dots doubled, and cut for TOP, wherever the pieces are cut."""

from __future__ import annotations

import io
import poplib
import random
from typing import Any

import pytest

from relay.pop3.text import Stuffing, Top


def pieces(raw: bytes, size: int) -> list[bytes]:
    """A message in pieces of so many bytes."""
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def sent(raw: bytes, size: int) -> bytes:
    """A message as it is sent."""
    stuffing = Stuffing()
    return b"".join(map(stuffing.feed, pieces(raw, size))) + stuffing.end()


def top(raw: bytes, lines: int, size: int) -> bytes:
    """What TOP shows of a message."""
    cut = Top(lines)
    shown = b""
    for piece in pieces(raw, size):
        shown += cut.feed(piece)
        if cut.done:
            break
    return shown


def read_strictly(data: bytes) -> bytes:
    """What a client reads for whom only CR LF ends a line."""
    end = data.index(b"\r\n.\r\n") + 2 if not data.startswith(b".\r\n") else 0
    assert data[end:] == b".\r\n", "nothing follows the first end that it sees"
    text = data[:end].replace(b"\r\n..", b"\r\n.")
    return text[1:] if text.startswith(b"..") else text


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"a\r\n",
        b".\r\n",
        b"..\r\n.\r\n.a\r\n",
        b"Subject: s\r\n\r\n.dots\r\n..two\r\nno.dot\r\n.\r\n",
        b"\r\n.\r\n\r\n.\r\n",
    ],
)
def test_what_ends_its_lines_well_is_what_it_was(raw, size):
    """Byte for byte, once the doubled dots are taken away."""
    assert read_strictly(sent(raw, size)) == raw


def test_a_message_without_a_last_line_end_gets_one():
    """The line with the dot stands alone."""
    assert sent(b"a", 10) == b"a\r\n.\r\n"
    assert sent(b"a\n", 10) == b"a\n\r\n.\r\n"
    assert sent(b"a\r", 10) == b"a\r\r\n.\r\n"


def test_nothing_in_a_message_passes_for_its_end():
    """Whatever bare line ends stand before a dot: a client that takes any line end sees none."""
    chance = random.Random(7)
    for _ in range(3000):
        raw = bytes(chance.choices(b".\r\na", k=chance.randint(0, 12)))
        data = sent(raw, chance.randint(1, 5))
        assert data.endswith(b"\r\n.\r\n") or data == b".\r\n"
        read_strictly(data)
        client: Any = poplib.POP3.__new__(poplib.POP3)
        client.file = io.BytesIO(b"+OK\r\n" + data)
        client._debugging = 0
        client._getlongresp()
        assert client.file.read() == b"", (raw, "it read to the true end")


MAIL = b"A: 1\r\nB: 2\r\n\r\none\r\n.two\r\n\r\nfour\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(
    ("lines", "end"),
    [(0, b"\r\n\r\n"), (1, b"one\r\n"), (2, b".two\r\n"), (3, b".two\r\n\r\n"), (9, b"four\r\n")],
)
def test_top_shows_the_header_and_so_many_lines(size, lines, end):
    """Of the body; all of it where it has no more."""
    assert top(MAIL, lines, size) == MAIL[: MAIL.index(end) + len(end)]


@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_top_of_odd_messages(size):
    """No header, no body, no end of the header, and bare line ends."""
    assert top(b"\r\nx\r\ny\r\n", 1, size) == b"\r\nx\r\n"
    assert top(b"A: 1\r\n", 1, size) == b"A: 1\r\n"
    assert top(b"A: 1\n\nx\ny\n", 1, size) == b"A: 1\n\nx\n"
    assert top(b"", 5, size) == b""
