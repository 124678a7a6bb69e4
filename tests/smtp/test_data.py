"""The end of DATA, whatever the bytes and however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.smtp.data import DataDecoder, whole_message

WIRE = st.lists(
    st.sampled_from([b"\r", b"\n", b".", b"a", b"\x00", b"\xff", b"\r\n", b"\r\n.", b"\r\n.."]),
    max_size=14,
).map(b"".join)


def reference(wire: bytes) -> tuple[bytes, bool, bytes]:
    """The message, whether it holds a bare CR or LF, and what follows, the slow way."""
    lines: list[bytes] = []
    while True:
        line, _, wire = wire.partition(b"\r\n")
        if line == b".":
            break
        lines.append(line)
    text = b"".join(line.removeprefix(b".") + b"\r\n" for line in lines)
    return text, any(b"\r" in line or b"\n" in line for line in lines), wire


@given(WIRE, st.sampled_from([b"", b"QUIT\r\n", b".\r\n"]), st.data())
def test_any_cutting_decodes_as_the_reference_does(body, rest, data):
    """Text, bare line ends, size and what follows do not depend on the chunks."""
    wire = body + b"\r\n.\r\n" + rest
    text, bare, after = reference(wire)
    message, strict = DataDecoder(1000), DataDecoder(5)
    at = 0
    while not message.done:
        step = data.draw(st.integers(1, 9))
        message.feed(wire[at : at + step])
        strict.feed(wire[at : at + step])
        at += step
    unread = wire[at:]
    assert (message.rest + unread, message.bare, message.size) == (after, bare, len(text))
    assert message.take() == text
    assert (strict.done, strict.bare, strict.size) == (True, bare, len(text))
    assert strict.too_large == (len(text) > 5)
    assert strict.rest + unread == after


@given(WIRE, st.sampled_from([b"", b"DATA\r\n"]), st.sampled_from([b"", b"QUIT\r\n", b".\r\n"]))
def test_a_message_that_comes_whole_is_what_the_decoder_makes_of_it(body, before, after):
    """Text and end; what has no end, a bare CR or LF or a dot in front is left to the decoder."""
    wire = body + b"\r\n.\r\n" + after
    message = DataDecoder(1000)
    message.feed(wire)
    ordinary = not message.bare and not wire.startswith(b".")
    found = whole_message(before + wire, len(before))
    assert (found is not None) == ordinary
    if found is not None:
        text, end = found
        assert (text, (before + wire)[end:]) == (message.take(), message.rest)
    cut = before + wire[: len(body) + 4]
    if b"\r\n.\r\n" not in cut:
        assert whole_message(cut, len(before)) is None


@pytest.mark.parametrize(
    ("wire", "text"),
    [
        (b".\r\n", b""),
        (b"\r\n.\r\n", b"\r\n"),
        (b"..\r\n.\r\n", b".\r\n"),
        (b".a\r\n..\r\n.\r\n", b"a\r\n.\r\n"),
    ],
)
def test_dots(wire, text):
    """A first line's dot counts, a lone dot ends, a doubled one is one."""
    message = DataDecoder(100)
    assert message.feed(wire)
    assert message.take() == text


def test_a_message_over_the_limit_is_not_kept():
    """What is held stays small while the end is looked for."""
    message = DataDecoder(100)
    for _ in range(1000):
        assert not message.feed(b"x" * 1000)
        assert message.held <= 10
    assert message.too_large
    assert message.feed(b"\r\n.\r\nNOOP\r\n")
    assert (message.rest, message.size) == (b"NOOP\r\n", 1_000_002)


def test_nothing_is_kept_of_a_message_that_was_dropped():
    """Neither what came before nor what comes after; its size is still known."""
    message = DataDecoder(1_000_000)
    assert not message.feed(b"x" * 1000)
    message.drop()
    for _ in range(100):
        assert not message.feed(b"x" * 1000)
        assert message.held <= 10
    assert message.feed(b"\r\n.\r\nNOOP\r\n")
    assert (message.rest, message.size, message.too_large) == (b"NOOP\r\n", 101_002, False)


def test_the_limit_counts_what_is_stored():
    """A message of exactly the limit fits, its stuffed dots not counted."""
    for size, too_large in ((99, False), (100, False), (101, True)):
        message = DataDecoder(100)
        message.feed(b".." + b"x" * (size - 3) + b"\r\n.\r\n")
        assert (message.size, message.too_large) == (size, too_large)
