"""Characters that nobody sees: each is in the table, and whoever uses it leaves none."""

import re
import sys
import unicodedata
from urllib.parse import quote

import pytest

from relay.cli import output
from relay.http.responses.downloads import disposition
from relay.mailboxes.extract import find_links
from relay.mailboxes.summary import summarise
from relay.unseen import CONTROLS, NO_WIDTH, TURNS, UNSEEN

JOINERS = "\u200c\u200d"
SIGNS = re.compile(
    "[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd\U00013430-\U0001343f]"
)
"""Format characters that are seen, or that arrange the signs of a script."""
EVERY = [chr(code) for code in range(sys.maxunicode + 1)]


def test_controls_and_format_characters_are_in_the_table():
    """All of them, whatever Unicode knows by now, but for joiners and the signs of scripts."""
    unseen = re.compile(f"[{UNSEEN}]")
    missing = {
        character
        for character in EVERY
        if unicodedata.category(character) in {"Cc", "Cf"} and not unseen.match(character)
    }
    assert {character for character in missing if not SIGNS.match(character)} == set(JOINERS)


def test_what_turns_a_text_is_what_unicode_says_turns_one():
    """The marks, embeddings, overrides and isolates of UAX #9, and nothing else."""
    kinds = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    marks = {"\u061c", "\u200e", "\u200f"}
    turns = {character for character in EVERY if unicodedata.bidirectional(character) in kinds}
    assert set(re.findall(f"[{TURNS}]", "".join(EVERY))) == turns | marks


@pytest.mark.parametrize(
    "character",
    ["\x1b", "\x9b", "\u202e", "\u2066", "\u061c", "\xad", "\u180e", "\u200b", "\u206a", "\ufeff",
     "\U000e0041"],
)  # fmt: skip
def test_whoever_shows_a_text_of_a_strangers_leaves_none(character: str):
    """Dropped from names and addresses, spelt in links and on terminals."""
    assert sum(bool(re.match(f"[{part}]", character)) for part in (CONTROLS, TURNS, NO_WIDTH)) == 1
    raw = f"From: Ba{character}nk <x{character}y@evil.example>\n\nhi".encode()
    summary = summarise(raw)
    assert (summary.from_address, summary.from_name) == ("xy@evil.example", "Bank")
    assert disposition(f"a{character}b") == disposition("ab")
    link = f"https://a.example/{character}b"
    assert find_links("", f'<a href="{link}">x</a>') == [f"https://a.example/{quote(character)}b"]
    assert output.safe(f"a{character}b") == "a" + character.encode("unicode-escape").decode() + "b"
