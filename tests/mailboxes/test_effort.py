"""What is long to be laid out: turns of direction, held to a naive count, tags and styles."""

from __future__ import annotations

import html
import random
import unicodedata
from itertools import pairwise

import pytest

from relay.mailboxes.effort import (
    MOST_DEPTH,
    MOST_TAGS,
    MOST_TURNS,
    depth,
    is_long,
    is_too_deep,
    matches,
    turns,
)
from relay.mailboxes.pictures import placed

RIGHT = {"R", "AL"}
STRONG = RIGHT | {"L", "EN", "AN"}
LETTERS = [*"ab1 ,.-\t\n", "\u05d0", "\u05b0", "\u0627", "\u0661", "\u07ca", "\ufb21", "\U0001e900"]


def naive(text: str) -> int:
    """How often a letter from right to left follows one that is not, or begins the text."""
    kinds = [kind for one in text if (kind := unicodedata.bidirectional(one)) in STRONG]
    return sum(
        before not in RIGHT and kind in RIGHT for before, kind in pairwise(["L", *kinds])
    )  # fmt: skip


def shown(markup: str) -> str:
    """The page of a markup as it is sent."""
    return placed(markup, lambda _: None, lambda _: True, loaded=False)[0]


@pytest.mark.parametrize("seed", range(200))
def test_no_turn_is_missed(seed: int) -> None:
    """In a paragraph, across elements, and written as references."""
    chosen = random.Random(seed)
    text = "".join(chosen.choices(LETTERS, k=chosen.randrange(200)))
    for written in (
        text,
        "".join(f"&#{ord(one)};" if chosen.random() < 0.5 else one for one in text),
        "".join(f"<b>{one}</b>" if chosen.random() < 0.2 else one for one in text),
    ):
        assert turns(shown(f"<p>{written}</p>")) >= naive(text)


@pytest.mark.parametrize(
    "markup",
    [
        "<bdo dir=rtl>a</bdo>b", "<bdi>a</bdi>b", '<i dir="rtl">a</i>b', "<i DIR = rtl>a</i>b",
        "\u202ea\u202c", "&#x202e;a&#8236;", "&rlm;a", "\u2067a\u2069b",
        '<i style="unicode-bidi: bidi-override">a</i>b', "<i style='unicode\\-bidi:isolate'>a</i>b",
        "<i style='\\75nicode-bidi:embed'>a</i>b",
        "<i style='&#117;nicode-bidi:embed'>a</i>b",
    ],
)  # fmt: skip
def test_what_turns_letters_is_counted(markup: str) -> None:
    """Elements, attributes, controls and styles, each time."""
    assert turns(shown(f"<p>{markup * 100}</p>")) >= 100


def test_a_style_that_may_turn_text_turns_that_of_every_tag() -> None:
    """Wherever it stands: it may name any of them."""
    head = "<style>i{unicode-bidi:bidi-override;direction:rtl}</style>"
    assert turns(shown(head + "<p>" + "<i>a</i>b" * 500)) >= 500


def test_ordinary_mail_turns_seldom() -> None:
    """Of one language it is a turn a line or a tag, whatever its words."""
    assert turns(shown("<p>" + "word and 12, " * 5000)) == 0
    assert turns(shown("<p>" + "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd, " * 5000)) == 1
    row = '<tr><td style="color:red\\9">\u05e9\u05dc\u05d5\u05dd 12</td></tr>'
    assert turns(shown("<table>" + row * 200)) == 200
    assert turns(html.escape("<bdo>")) <= 1


def test_what_is_usual_is_not_long() -> None:
    """A newsletter of 3,000 tags and 500 rules; the same with too much of one thing is."""
    style = "<style>" + ".a{color:red}[class~=b]{margin:0}" * 250 + "</style>"
    body = "<td>\u05e9\u05dc\u05d5\u05dd</td>" * 900
    assert not is_long(shown(style + body + "<b>x</b>" * 600))
    for much in (
        "<b>x</b>" * (MOST_TAGS // 2 + 1),
        "<bdi>x</bdi>" * (MOST_TURNS + 1),
        "<style>" + "*{color:red}" * 10_000 + "</style>",
        "<style>i:has(~ b){color:red}</style>",
        "<style>i~b{color:red}</style>",
        "<style>i:nth-last-child(2n){color:red}</style>",
    ):
        assert is_long(shown(style + body + "<b>x</b>" * 700 + much)), much[:40]


def test_each_element_may_be_looked_at_for_each_rule() -> None:
    """And all of them for each, where a rule looks through siblings."""
    assert matches(shown("<style>b{top:0}i{top:0}</style><b></b>")) == 4 * 2
    assert matches(shown("<style>b:has(i){top:0}</style><b></b>")) == 4 + 4 * 4


@pytest.mark.parametrize(
    "one",
    [
        "a{",
        "a{/*}*/",
        "a{'}'",
        "a{\\}",
        "a{(}",
        "@media (color){",
        ":is(",
        "p{width:var(--a,",
        "p{width:var(--a,')'",
    ],
)
def test_no_depth_of_styles_is_missed(one: str) -> None:
    """Whatever only looks as if it closed something, and whatever stands in front."""
    for before in ("<style>", "<!--<style>'--><p><style>", "<!--<style>/*--><style>"):
        page = shown(before + one * (MOST_DEPTH + 1))
        assert is_too_deep(page), before
    inline = one.replace('"', "").replace("(", "&#40;").replace("{", "&lbrace;")
    assert is_too_deep(shown(f'<p style="{inline * (MOST_DEPTH + 1)}">x'))


def test_ordinary_styles_are_not_deep() -> None:
    """However many there are."""
    rule = (
        "@media (min-width:9px) and (color){.a{color:rgb(0,0,0)}#b{margin:calc(1px + (2px * 3))}}"
    )
    cell = '<td style="color:rgb(1,2,3);width:calc(100% - 2px)">a (b) c</td>'
    assert depth(shown(f"<style>{rule * 2000}</style>{cell * 4000}")) == 0
    named = ".a{font-family:'Arial'}"
    assert not is_too_deep(shown(f"<style>{named * 1000}</style>"))
