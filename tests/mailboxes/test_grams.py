"""Filters of runs of bytes: nothing that matches is passed over, and little else is let through."""

from __future__ import annotations

import random

import pytest

from relay.mailboxes.grams import folded, holds, make_filter, probes, runs

TEXTS = (
    "Your order 4711 has been shipped.",
    "Straße, ÉCOLE, İstanbul, ΣΊΣΥΦΟΣ, мир, 鈴木さん, 🎉 party",
    "x",
    "",
    "line\r\nline\n\nline",
)


def filter_of(*texts: str) -> bytes:
    """The filter of some texts, as the parser's child makes it."""
    return make_filter(runs("\n\n\n".join(texts)))


def test_every_part_of_a_text_passes_in_any_case() -> None:
    """Of whatever length, at whatever place."""
    made = filter_of(*TEXTS)
    for text in TEXTS:
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + 40) + 1):
                part = text[start:end]
                # Not upper() of what becomes two letters: no database takes those for equal.
                for needle in (part, part.lower(), part.upper(), part.swapcase()):
                    if len(needle) == len(part):
                        assert holds(made, probes(needle)), needle


def test_what_a_database_takes_for_equal_is_folded_alike() -> None:
    """One character is one character, and all its cases are the same."""
    for code in range(0x20, 0x3000):
        letter = chr(code)
        for other in (letter.lower(), letter.upper()):
            if len(other) == 1:
                assert folded(letter) == folded(other), letter
    assert folded("I") == folded("ı") == folded("İ") == folded("i")


@pytest.mark.parametrize(("length", "at_most"), [(2, 0.1), (3, 0.05), (4, 0.05), (8, 0.005)])
def test_what_is_not_there_seldom_passes(length: int, at_most: float) -> None:
    """The share of needles of letters that no text has."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghijklm", k=rng.randint(2, 9))) for _ in range(20_000)]
    made = filter_of(*(" ".join(words[at : at + 300]) for at in range(0, 20_000, 300)))
    needles = ["".join(rng.choices("nopqrstuvwxyz", k=length)) for _ in range(2000)]
    passed = sum(holds(made, probes(needle)) for needle in needles)
    assert passed / len(needles) <= at_most


def test_what_passes_one_filter_by_chance_seldom_passes_the_next() -> None:
    """Though they have most words in common."""
    rng = random.Random(5)
    common = " ".join("".join(rng.choices("abcdefghijklm", k=9)) for _ in range(300))
    made = [filter_of(common, "".join(rng.choices("nopqrst", k=20 * n))) for n in range(30)]
    for _ in range(2000):
        needle = "".join(rng.choices("uvwxyz", k=4))
        assert sum(holds(one, probes(needle)) for one in made) < 10, needle


def test_several_needles_must_all_be_there() -> None:
    """A sender and a subject; none asks for nothing."""
    made = filter_of("ada@example.org", "Reset your password")
    assert holds(made, probes("ada@", "password"))
    assert not holds(made, probes("ada@", "invoice"))
    assert probes(None, "") == []
    assert holds(made, probes(None, "ADA@"))


@pytest.mark.parametrize("count", [1, 50, 64, 256, 5000])
def test_a_filter_has_the_bits_that_are_asked_for_and_no_others(count: int) -> None:
    """However many of them are made at once."""
    rng = random.Random(count)
    words = [
        "".join(rng.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=4)) for _ in range(count)
    ]
    made = make_filter({int.from_bytes(word.encode(), "little") for word in words})
    wanted = bytearray(len(made))
    for word in words:
        for length in range(1, 5):
            for place in probes(word[:length]):
                place %= 8 * len(made)
                wanted[place >> 3] |= 1 << (place & 7)
    assert made == wanted


def test_a_word_is_folded_as_in_its_text() -> None:
    """What divides words is the same before and after, so a needle's words are those of a text."""
    letters = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    word = "".join(letter for letter in letters if not letter.isspace())
    assert folded(word).decode().split() == [folded(word).decode()]
    spaces = "".join(filter(str.isspace, letters))
    assert folded(spaces).decode() == spaces


def test_a_filter_is_bounded() -> None:
    """However much text: then it lets everything through, and nothing is passed over."""
    rng = random.Random(2)
    text = "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(200_000))
    made = filter_of(text)
    assert len(made) <= 256 * 1024
    assert holds(made, probes(text[1000:1030]))
