"""What readers would find wrong with a message."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.checks.findings import GMAIL_CLIPS, MAX_SUPPORT, Finding, find, score
from relay.checks.markup import read

ONE_CLICK = [
    ("List-Unsubscribe", "<mailto:u@example.com>, <https://example.com/u>"),
    ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
]


def ids(html: str | None, text: str | None = "text") -> list[str]:
    return [finding.id for finding in find(ONE_CLICK, text, html)]


def test_nothing_to_find():
    """Plain text, and HTML that every client knows."""
    assert ids(None) == []
    assert ids("<p style='color: red'>Hello <b>you</b> <img src='cid:a' alt=''></p>") == []


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], ["no-list-unsubscribe"]),
        ([("list-unsubscribe", " ")], ["no-list-unsubscribe"]),
        ([("List-Unsubscribe", "<https://x.example/u>")], ["no-one-click-unsubscribe"]),
        (
            [("List-Unsubscribe", "<mailto:u@x.example>"), ONE_CLICK[1]],
            ["no-one-click-unsubscribe"],
        ),
        (ONE_CLICK, []),
    ],
)
def test_unsubscribing(headers, found):
    """By one click takes an https address and its twin (RFC 8058)."""
    assert [finding.id for finding in find(headers, "text", None)] == found


def test_html_alone():
    """Text that is blank is none."""
    assert ids("<p>a", None) == ["no-text-part"]
    assert ids("<p>a", " \n") == ["no-text-part"]


def test_size():
    """In bytes, over what Gmail shows."""
    assert ids("a" * GMAIL_CLIPS) == []
    assert ids("a" * (GMAIL_CLIPS + 1)) == ["clipped-by-gmail"]
    assert ids("\u00e9" * (GMAIL_CLIPS // 2 + 1)) == ["clipped-by-gmail"]


def test_images():
    """Those without alt, and those from elsewhere, backgrounds too."""
    html = (
        "<IMG SRC=https://a.example/x.png><img alt='' src='//a.example/y.gif'><img src='cid:z'>"
        '<td background="http://a.example/b.jpg" style="background-image: url(\'https://c\')">'
        "<!-- <img src=https://hidden> --><p title='<img src=https://no>'>"
    )
    markup = read(html)
    assert (markup.images, markup.without_alt, markup.remote) == (3, 2, 4)
    assert read(html * 2).remote == 8
    assert ids(html)[:2] == ["images-without-alt", "remote-images"]


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ("<div style='display:flex'>", "support-css-display-flex"),
        ('<div style="Display : FLEX !important">', "support-css-display-flex"),
        ("<style>.a { gap: 3px }</style>", "support-css-gap"),
        ("<style>@media x { a:hover { gap: 3px } }</style>", "support-css-gap"),
        ("<Style>/* { */ a{b:c}\n@font-face{}</Style >", "support-css-at-font-face"),
        ("<p style='width: calc(1px + 2px)'>", "support-css-unit-calc"),
        ("<p style='height: 3.5vh'>", "support-css-unit-vh"),
        ("<style>li::marker{}</style>", "support-css-pseudo-element-marker"),
        ("<video src=a>", "support-html-video"),
        ("<img src=a.webp?x=1 alt>", "support-image-webp"),
        ("<img src='data:image/png;base64,AAAA' alt>", "support-image-base64"),
        ("<p><svg/onload=x>", "support-html-svg"),
        ("<style>a{gap:1px", "support-css-gap"),
        ("<p style='gap:1px", None),
        ("<p>gap: 1px</p><!-- <video> --><script><video></script><title><video></title>", None),
        ("<p title='<video>'>", None),
    ],
)
def test_what_clients_ignore(html, found):
    """By element, attribute, property, value, rule, pseudo-class, function, unit and image."""
    expected = [found] if found else []
    assert [
        name for name in ids(html) if name.startswith("support-") and name in expected
    ] == expected
    if not found:
        assert ids(html) == []


def test_who_ignores_it():
    """It is told by name."""
    (finding,) = find(ONE_CLICK, "text", "<p style='display:flex'>")
    assert finding == Finding(
        "support-css-display-flex", "note", "display:flex: ignored by Outlook for Windows."
    )


HOSTILE = [
    *("<", "<a", "<a ", "<a b=", '<a b="', "<a b='", '<a "', "<a='", "<!--", "<style>", "</style"),
    *("<style>{", "<style>@", "<style>a:", "<style>/*", "<style>*/", "<p style='a:(", "<img src=."),
    *("<p style='a:1", "<p a a", "< ", "=", "<a =", "<style>a:b;", "<p style=a:b;c:d ", "<a \n"),
    *("<x" * 9, "<p/", "<style>a:b(", "<style>a:-"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_html(piece):
    """A megabyte of anything takes linear time."""
    tails = [piece * (1_000_000 // len(piece)), " " * 1_000_000, "1" * 1_000_000, "a" * 1_000_000]
    for html in (piece + tail for tail in tails):
        began = time.process_time()
        assert len(find([], "", html)) <= MAX_SUPPORT + 10
        assert time.process_time() - began < 3


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=5)), max_size=30).map("".join))
def test_never_raises(html):
    """Whatever the HTML is."""
    for finding in find([], None, html):
        assert finding.severity in {"error", "warning", "note"}


def test_score():
    """Ten for nothing to mend; each point has its reason; notes take one at most; never below 0."""
    good = {"spf": "pass", "dkim": "pass", "dmarc": "pass"}
    assert score([], good) == (10.0, ())
    note = Finding("n", "note", "")
    assert score([note], good) == (9.9, ("-0.1 n",))
    assert score([note] * 100, good).score == 9.0
    bad = {"spf": "fail", "dkim": "none", "dmarc": "fail"}
    found = score([Finding("w", "warning", ""), Finding("e", "error", "")], bad)
    assert found.score == 10 - 1.5 - 1 - 3 - 1 - 2
    assert found.reasons == (
        *("-1.5 SPF is fail", "-1 DKIM is none", "-3 DMARC is fail", "-1 w", "-2 e"),
    )
    assert score([Finding("e", "error", "")] * 9, bad).score == 0.0
    assert score([], {"spf": "none", "dkim": "pass", "dmarc": "pass"}).score == 10.0
