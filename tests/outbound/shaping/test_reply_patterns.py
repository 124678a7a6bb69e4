"""Patterns of replies: what they find, and what is refused because looking could take long."""

import sys
from collections.abc import Callable

import pytest

from relay.outbound.shaping.reply_patterns import MOST_LOOKED_AT, compile_pattern


@pytest.mark.parametrize(
    ("source", "text", "found"),
    [
        ("rate limited", "421 Your IP has been Rate Limited", True),
        ("rate limited", "421 rate-limited", False),
        ("rate.limited", "421 rate-limited", True),
        (r"\[TSS?0[123]\]", "4.7.0 [TS02] deferred", True),
        (r"\[TSS?0[123]\]", "4.7.0 [TSS04] deferred", False),
        (
            "messages from .* temporarily deferred",
            "Messages from 192.0.2.1 temporarily deferred",
            True,
        ),
        ("messages from .* temporarily deferred", "temporarily deferred messages from", False),
        ("a.*b.*c", "xaxbxcx", True),
        ("a.*b.*c", "xcxbxax", False),
        ("(user|mailbox) (unknown|full)", "5.1.1 mailbox unknown", True),
        ("(user|mailbox) (unknown|full)", "5.1.1 mailbox empty", False),
        (r"IB\d{3}", "too many (IB007)", True),
        (r"x{2,3}y", "xy xxy", True),
        (r"a\.b\|c", "a.b|c", True),
        ("[^a-z]9", "a9", False),
        ("^no such user", "No such user here", True),
        ("^such user", "No such user here", False),
        (r"unavailable\.?$", "mailbox unavailable.", True),
        ("unavailable$", "mailbox unavailable for now", False),
        ("no.*user$", "no such user", True),
        (r"[\]x]1", "]1", True),
    ],
)
def test_finds_what_a_pattern_says(source: str, text: str, found: bool):
    """Without regard to case; the pieces between .* one behind the other."""
    assert compile_pattern(source).found_in(text) is found


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(a+)+b", "repeats without an end"),
        ("a*b", "repeats without an end"),
        ("a+", "repeats without an end"),
        ("b.*?a", "repeats nothing"),
        ("?a", "repeats nothing"),
        ("a??", "repeats a repetition"),
        ("a{1,2}{3}", "repeats a repetition"),
        ("a?" * 9 + "b", "more than 256 ways"),
        ("(a|b|c|d){5}x", "more than 256 ways"),
        ("(a{1,4}){1,5}x", "more than 256 ways"),
        ("a{70}", "above 64"),
        ("a{3,2}", "above 64"),
        ("a{x}", "no count"),
        ("(?=a)b", "has a (?"),
        (r"(a)\1", "backslash before what needs none"),
        (r"\z", "backslash before what needs none"),
        ("(a.*b)", ".* within parentheses"),
        (".*", "nothing beside a .*"),
        ("a.*", "nothing beside a .*"),
        (".*a", "nothing beside a .*"),
        ("(a", "does not close"),
        ("a)", "was not opened"),
        ("[a", "class of characters"),
        ("[]", "class of characters"),
        ("[z-a]", "is no pattern"),
        ("((((((a))))))", "too many parentheses"),
        ("a?", "in every text"),
        ("a|", "in every text"),
        ("", "1 to 300"),
        ("x" * 301, "1 to 300"),
        ("a\nb", "printable"),
    ],
)
def test_refuses_what_could_take_long_or_says_nothing(source: str, why: str):
    """When it is read, with the reason."""
    with pytest.raises(ValueError, match=r".") as caught:
        compile_pattern(source)
    assert why in str(caught.value)


def steps(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs."""
    count = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_a_text_without_an_end_is_looked_at_in_part():
    """What stands behind so many characters is not there; and a piece is searched for once."""
    pattern = compile_pattern("a.*b.*c.*d.*e")
    assert pattern.found_in("abcde")
    assert not pattern.found_in("x" * MOST_LOOKED_AT + "abcde")
    assert not compile_pattern("x$").found_in("x" * (MOST_LOOKED_AT + 1))
    few = steps(lambda: pattern.found_in("abcd" * 10))
    assert steps(lambda: pattern.found_in("abcd" * 100_000)) == few
