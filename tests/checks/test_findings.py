"""What readers would find wrong with a message."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.checks.findings import GMAIL_CLIPS, MAX_SUPPORT, Finding, find, score
from relay.checks.markup import read

DATED = [("Date", "Sun, 1 Nov 2026 08:00:00 +0000"), ("Message-ID", "<1@shop.example>")]
ONE_CLICK = [
    *DATED,
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
        (DATED, ["no-list-unsubscribe"]),
        ([*DATED, ("list-unsubscribe", " ")], ["no-list-unsubscribe"]),
        ([*DATED, ("List-Unsubscribe", "<https://x.example/u>")], ["no-one-click-unsubscribe"]),
        (
            [*DATED, ("List-Unsubscribe", "<mailto:u@x.example>"), ONE_CLICK[-1]],
            ["no-one-click-unsubscribe"],
        ),
        (ONE_CLICK, []),
    ],
)
def test_unsubscribing(headers, found):
    """By one click takes an https address and its twin (RFC 8058)."""
    assert [finding.id for finding in find(headers, "text", None)] == found


@pytest.mark.parametrize(("name", "found"), [("Date", "no-date"), ("Message-ID", "no-message-id")])
def test_what_every_message_has(name, found):
    """Date and Message-ID, in any case; what is blank is missing."""
    others = [field for field in ONE_CLICK if field[0] != name]
    assert [one.id for one in find(others, "text", None)] == [found]
    assert [one.id for one in find([*others, (name, " ")], "text", None)] == [found]
    assert find([*others, (name.upper(), "x")], "text", None) == []


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
    "html",
    [
        "<img src='https://a.example/open.php?u=1' width='1' height='1'>",
        "<img src='https://a.example/open.php?u=1' height='0px' width='0px'>",
        "<img src='https://a.example/open.php?u=1' style='border:0; Display : none'>",
    ],
)
def test_what_counts_readers_needs_no_alt(html):
    """Nobody sees it; but it is fetched."""
    assert ids(html)[0] == "remote-images"
    assert "images-without-alt" not in ids(html)
    assert "images-without-alt" in ids(html + "<img src='https://a.example/b' width='1'>")


def test_what_is_no_image():
    """Fonts are none, nor is what stands beside a style; backgrounds and marks of lists are."""
    html = (
        "<style>@font-face { font-family: A; src: url(https://a.example/a.woff2) }"
        "@import url(https://a.example/b.css); ul { list-style: url(https://a.example/c.png) }"
        "td { background: #fff URL('https://a.example/d.png') no-repeat }</style>"
    )
    assert read(html).remote == 2
    assert read("<noscript><img src=https://a.example/a alt></noscript>").remote == 1


def test_what_no_reader_misses():
    """Links in a new window, what a page would load ahead, and names within addresses."""
    assert ids("<a href='https://a.example/' target='_BLANK'>") == []
    assert ids("<a href='https://a.example/' target='shop'>") == ["support-html-target"]
    assert ids("<link rel='preconnect' href='https://a.example/'>") == []
    assert ids("<link rel='StyleSheet' href='https://a.example/'>") == ["support-html-link"]
    background = ids("<p style='background-image:url(cid:/10vw/calc(1)'>")
    assert background == ["support-css-background-image"]


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


# What newsletters are made of, by the builders that most use, and what is to be said of each.
PARTS = {
    "<!--[if mso]><noscript><xml><o:PixelsPerInch>96</o:PixelsPerInch></xml></noscript>"
    "<v:roundrect href='x'><img src='https://a.example/no'></v:roundrect><![endif]-->": set(),
    "<!--[if !mso]><!--><meta http-equiv='X-UA-Compatible' content='IE=edge'><!--<![endif]-->"
    "<title>News <img></title>": set(),
    "<style>#outlook a { padding:0 } table, td { border-collapse:collapse; mso-table-lspace:0pt }"
    " a[href^=tel] { color:inherit } img { -ms-interpolation-mode:bicubic; border:0 }</style>": {
        "support-html-style"
    },
    "<style>@media only screen and (max-width:480px) { .w { width:100% !important } }</style>": {
        "support-html-style",
        "support-css-at-media",
    },
    "<link href='https://fonts.example/css?family=Ubuntu:300,400' rel='stylesheet'><style>"
    "@import url(https://fonts.example/css?family=Ubuntu);</style>": {
        "support-html-link",
        "support-html-style",
        "support-css-at-import",
    },
    "<div style='display:none;font-size:1px;line-height:1px;color:#fff'>Preview</div>": {
        "support-css-display-none"
    },
    "<table role='presentation' width='100%' bgcolor='#ffffff'><tr><td align='center'"
    " style='padding:0 10px;font-family:Arial,sans-serif;mso-line-height-rule:exactly'>"
    "<h1 style='font-size:26px;margin:0'>Hello</h1><p>&euro;7.00 &mdash; <b>Mug</b></p>"
    "</td></tr></table>": set(),
    "<a href='https://shop.example/buy?a=1&b=2' target='_blank' style='display:inline-block;"
    "background:#414141;padding:10px 25px;border-radius:3px'>Buy</a>": {
        "support-css-border-radius"
    },
    "<a href='https://shop.example/'><img src='https://cdn.example/logo.png' width='564'"
    " alt='Shop' style='display:block;height:auto;max-width:1200px'></a>": {"remote-images"},
    "<img src='cid:logo' alt=''>": set(),
    "<img src='https://cdn.example/hero.jpg' width='600'>": {"remote-images", "images-without-alt"},
    "<td background='https://cdn.example/bg.jpg' valign='top'>": {"remote-images"},
    "<img src='https://t.example/open.php?u=1' height='1' width='1'>": {"remote-images"},
    "<script type='application/ld+json'>[{'@context': 'http://schema.org'}]</script>": set(),
    "<hr style='border:none;border-top:1px solid #ddd'><a href='mailto:help@shop.example'>Help</a>"
    "<a href='tel:+4930123'>030 123</a>": set(),
}


@pytest.mark.parametrize("number", range(30))
def test_newsletters(number):
    """Of each part what is true of it, and nothing else; a good one keeps its score."""
    chosen = random.Random(number)
    parts = chosen.sample(sorted(PARTS), chosen.randint(3, len(PARTS)))
    found = find(ONE_CLICK, "text", f"<html><body>{' '.join(parts)}</body></html>")
    assert {one.id for one in found} == set().union(*map(PARTS.__getitem__, parts))
    assert len({one.id for one in found}) == len(found)
    assert score(found, {}).score >= 9.0 - any("hero.jpg" in part for part in parts)


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
