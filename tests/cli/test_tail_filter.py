"""The filter and the renderer of `relay tail`, without a relay."""

import itertools
import json
import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.cli.tail import Renderer, Term, blocks, matching
from relay.log import Selection


def lines(*values: dict[str, object]) -> bytes:
    return b"".join(
        json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        for value in values
    )


def kept(stream: bytes, *terms: str) -> list[dict[str, object]]:
    found = matching([stream], [Term.parse(term) for term in terms])
    return [json.loads(line) for block in found for line in block]


A = {"event": "smtp.accepted", "size": 12, "peer": "::1", "ok": True}
B = {"event": "smtp.refused", "size": 120, "peer": "::1", "ok": False}


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ((), [A, B]),
        (("event=smtp.refused",), [B]),
        (("size=12",), [A]),
        (("ok=true",), [A]),
        (("peer=::1", "size=120"), [B]),
        (("event=~^smtp",), [A, B]),
        (("event=~^smtp", "size=~20$"), [B]),
        (("nothing=1",), []),
        (("event=smtp",), []),
        (("refused",), [B]),
        (("peer",), [A, B]),
        (("12",), [A, B]),
        (("true", "accepted"), [A]),
        (("Refused",), []),
        ((":",), [A, B]),
        ((",",), []),
        (("peer=smtp.accepted",), []),
    ],
)
def test_terms_select_lines(terms: tuple[str, ...], expected: list[dict[str, object]]) -> None:
    """A term compares the whole value as text, `~` searches in it, and several are ANDed."""
    assert kept(lines(A, B), *terms) == expected


@given(st.text(), st.text(), st.booleans())
def test_no_line_is_lost_to_the_search_of_bytes(key: str, value: str, ascii_only: bool) -> None:
    """Whatever the characters and however the line spells them, an equal value matches."""
    if not key or "=" in key or value.startswith("~"):
        return
    line = json.dumps({key: value}, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    term = Term.parse(f"{key}={value}")
    assert list(matching([line + b"\n"], [term])) == [[line]]


@given(st.text(min_size=1), st.text(), st.text(), st.booleans())
def test_a_text_is_found_however_the_line_spells_it(
    text: str, before: str, key: str, ascii_only: bool
) -> None:
    """In a value and in a name, at any depth."""
    if "=" in text:
        return
    term = Term.parse(text)
    for value in ({key: [before + text]}, {"a": {text + before: 1}}):
        line = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert list(matching([line + b"\n"], [term])) == [[line]]


PLAIN = st.text('abK"{},: 12\\\\', max_size=4)
VALUES = st.recursive(
    PLAIN | st.integers(0, 30) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN, inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(PLAIN, VALUES, max_size=4), st.data())
def test_what_the_bytes_prove_is_true(value: dict[str, object], data: st.DataObject) -> None:
    """A line that is not parsed because its bytes say enough would have matched when parsed."""
    pairs = [("a", "1"), ("K", "b"), ("1", "2")]
    pairs += [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in value.items() if k]
    field, text = data.draw(st.sampled_from(pairs))
    line = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    term = Term(field, text)
    if term.surely_matches(line):
        assert term.matches(json.loads(line))


def test_most_lines_are_proved_by_their_bytes() -> None:
    """The ordinary line, of strings and numbers, is not parsed in order to be found."""
    for term in ("event=smtp.refused", "size=120", "peer=::1"):
        assert Term.parse(term).surely_matches(lines(B).rstrip()), term
    assert not Term.parse("size=12").surely_matches(lines(B).rstrip())
    assert not Term.parse("event=~smtp").surely_matches(lines(B).rstrip())


@given(VALUES, PLAIN)
def test_the_relay_and_the_command_select_alike(value: object, text: str) -> None:
    """What the relay leaves out of a filtered log, the command would have left out too."""
    line: dict[str, object] = {"K": value}
    alike = Term("K", text).matches(json.loads(json.dumps(line)))
    assert (Selection(grep=f"K={text}")([line]) == [line]) == alike


@given(st.binary(), st.lists(st.integers(0, 60), max_size=8))
def test_chunks_are_joined_to_lines(stream: bytes, cuts: list[int]) -> None:
    """However the stream is cut, the blocks are the stream, and only the last may be unfinished."""
    places = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(places)]
    found = list(blocks(chunks))
    assert b"".join(found) == stream
    assert all(block.endswith(b"\n") for block in found[:-1])


@pytest.mark.parametrize("term", ["", "=x", "k=~("])
def test_a_malformed_term_is_a_usage_error(term: str) -> None:
    """A term without field, of nothing at all, or with a broken expression, is refused by name."""
    with pytest.raises(click.BadParameter):
        Term.parse(term)


def test_a_line_is_rendered_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local time to the millisecond, level, actor, event, then the other fields in order."""
    monkeypatch.setenv("TZ", "UTC")
    line = {
        "timestamp": "2026-11-20T19:46:12.123456Z",
        "level": "info",
        "event": "relay.ready",
        "actor": "relay",
        "http": "http://x",
        "words": "two words",
        "n": 3,
        "evil": "\x1b[2J",
    }
    text = Renderer(colour=False)(json.dumps(line))
    time_, rest = text.split(" ", 1)
    assert time_.endswith(":12.123")
    assert rest == (
        'info     relay      relay.ready http=http://x words="two words" n=3 evil=\\x1b[2J'
    )


def test_colour_marks_the_level() -> None:
    """On a terminal an error is red, and the text is the same without the codes."""
    line = lines({"timestamp": "x", "level": "error", "event": "e", "actor": "a", "k": 1}).decode()
    line = line.rstrip("\n")
    text = Renderer(colour=True)(line)
    assert "\x1b[31merror" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == Renderer(colour=False)(line)


def test_what_is_no_json_is_still_shown() -> None:
    """A line that cannot be parsed is shown as it is, harmless."""
    assert Renderer(colour=True).lines([b"\x1b]0;title\x07 \xff"]) == "\\x1b]0;title\\x07 \\xff\n"
