"""A message's HTML, written anew: its pictures, and nothing else that loads; in linear time."""

from __future__ import annotations

import time

import pytest

from relay.mailboxes.pictures import MOST, MOST_PLACED, placed

UNTOLD = " referrer-policy(no-referrer)"


def shown(markup: str, *, loaded: bool = True) -> str:
    """What becomes of `markup`."""
    return placed(
        markup,
        lambda part: f"/part/{part}" if part != "none@x" else None,
        lambda url: "//relay" not in url,
        loaded=loaded,
    )[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('<img src="cid:a@b" alt=x>', '<img src="/part/a@b" alt="x">'),
        ("<IMG/SRC=CID:a%40b>", '<img src="/part/a@b">'),
        ("<img src='http://x/?a&amp;b'>", '<img src="http://x/?a&amp;b">'),
        ("<img src='ht\ntp://x/a b '>", '<img src="http://x/a b">'),
        ("<td background=//x/y>", '<td background="//x/y">'),
        ('<img srcset="http://x/1 1x, http://x/2 2x">', '<img src="http://x/1">'),
        ("<img src=cid:a srcset='http://x/1 1x'>", '<img src="/part/a">'),
        (
            "<source media='(prefers-color-scheme:dark)' srcset='cid:a 1x, //y 2x'>",
            "<source media='(prefers-color-scheme:dark)' srcset=\"/part/a\">",
        ),
        (
            "<p style=\"background:url('http://x/a')\">",
            f'<p style="background:url(&quot;http://x/a&quot;{UNTOLD})">',
        ),
        (
            "<style>p{background:URL( cid:a )}</style>",
            '<style>p{background:url("/part/a")}</style>',
        ),
        (
            "<style>p{background:#fff u\\72l(http://x/?a&b)}</style>",
            f'<style>p{{background:#fff url("http://x/?a\\26 b"{UNTOLD})}}</style>',
        ),
        ("<p title=\"<img src='http://x/'>\">", "<p title=\"<img src='http://x/'>\">"),
        ("src=http://x/ &lt;img src=http://x/>", "src=http://x/ &lt;img src=http://x/>"),
        ("<a href=http://x/>a</a>", '<a href="http://x/">a</a>'),
        ("<svg><a xlink:href=http://x/>", '<svg><a xlink:href="http://x/">'),
        ("<img src=data:,>", '<img src="data:,">'),
        ("1 < 2 <3", "1 &lt; 2 &lt;3"),
        ("<!DOCTYPE html><p>x</P >", "<!DOCTYPE html><p>x</p>"),
        ('<p class="md:w-1/2" a.b=c>', '<p class="md:w-1/2" a.b="c">'),
        (
            "<style media='(width<9px)'><!-- p{a:b} --></style>",
            "<style media='(width<9px)'>  p{a:b}  </style>",
        ),
        ("<textarea><b></textarea>", "<textarea>&lt;b></textarea>"),
        ('<svg><rect fill="url(#a)"/></svg>', '<svg><rect fill="url(#a)"/></svg>'),
        (
            "<meta name=color-scheme content='light only;x'>",
            '<meta name="color-scheme" content="light only">',
        ),
    ],
)
def test_pictures_have_their_places(before: str, after: str) -> None:
    """In attributes and styles, however written; what asks for nothing stays."""
    assert shown(before) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("<!-- <img src=http://x/> -->", ""),
        ("<title><img src=http://x/></title>", ""),
        ("<script>'<img src=http://x/>'</script>", ""),
        ('<img src="http://unclosed', ""),
        ("<img src=/own><img src=http://relay/a>", "<img><img>"),
        ("<img src=http:\\\\x/><img src=http://a@x/><img src=http:x>", "<img><img><img>"),
        ("<img src=a src=http://x/>", "<img>"),
        ("<img attributionsrc=http://x/ lowsrc=//x referrerpolicy=unsafe-url>", "<img>"),
        ("<meta name=referrer content=unsafe-url><base href=http://x/><link href=//x>", ""),
        ("<picture><source srcset=http://x/><img></picture>", "<picture><source><img></picture>"),
        (
            "<source media='(prefers-color-scheme:dark)' srcset=/own src=http://x/>",
            "<source media='(prefers-color-scheme:dark)'>",
        ),
        ("<video poster=http://x/ src=http://x/></video>", "<video></video>"),
        ("<input src=http://x/><body onload=x ping=x>", "<input><body>"),
        (
            "<svg><image href=http://x/ /><use xlink:href=//x#a /><use href=#a />",
            '<svg><image/><use/><use href="#a"/>',
        ),
        ("<svg><set attributeName=href to=http://x/><rect mask=url(x)>", "<svg><set><rect>"),
        ("<div background=http://x/>", "<div>"),
        (
            "<style>@import 'x';@import url(http://x/)</style>",
            "<style>@x-import 'x';@x-import none</style>",
        ),
        ("<style>@font-face{src:url(http://x/)}</style>", "<style>@font-face{src:none}</style>"),
        ("<p style='mask:url(http://x/);--a:url(//x)'>", '<p style="mask:none;--a:none">'),
        (
            "<p style='background:image-set(\"//x\" 1x, url(//x) 2x) red'>",
            '<p style="background:none red">',
        ),
        ("<p style='background:\\69mage-set(var(--a) 1x)'>", '<p style="background:none">'),
        ("<p style='mask:url(data:,)'>", '<p style="mask:none">'),
        ("<p style='background:url(//x \"b)'>", '<p style="background:none">'),
        ("<style>a{b:'</style><p>", "<style>a{b:'</style><p>"),
        ("<svg><style>&lt;image href=//x></style>", "<svg><style> lt;image href=//x></style>"),
        (
            "<svg><style>a\\<p>\\<link rel=preconnect>",
            "<svg><style>a\\3c p>\\3c link rel=preconnect>",
        ),
        ("<svg><style>\\&#117;rl(//x)</style>", "<svg><style>\\26 #117;rl(//x)</style>"),
        ("<template shadowrootmode=closed><a href=//x>", '<x-template><a href="//x">'),
    ],
)
def test_nothing_else_loads(before: str, after: str) -> None:
    """Whatever a browser would fetch, follow or run is written without its address."""
    made, count = placed(before, lambda _: "/part", lambda url: "//relay" not in url, loaded=True)
    assert made == after
    assert count == 0


def test_what_has_no_place_is_marked() -> None:
    """Its attribute goes; each address counts once."""
    markup = (
        '<img src="http://x/1"><img src="http://x/1"><img src=cid:none@x><td background=http://x/2>'
        "<p style='background:url(http://x/3)'>"
    )
    made, count = placed(markup, lambda part: None, lambda url: True, loaded=False)
    assert count == 3
    assert "http" not in made
    assert "cid:" not in made
    assert made.count("data-blocked") == 4
    assert "background:none" in made
    many = "".join(f"<img src=http://x/{n}>" for n in range(MOST + 5))
    assert shown(many).count("http:") == MOST


@pytest.mark.parametrize("place", ["/" * 200, None])
@pytest.mark.parametrize(
    "piece",
    [
        "<img src=cid:a>",
        "<style>a{background:url(cid:a)}</style>",
        "<p style=background:url(cid:a)>",
    ],
)
def test_a_page_grows_by_so_much_at_most(piece: str, place: str | None) -> None:
    """However often it names a picture, which may be shown elsewhere or nowhere."""
    markup = piece * (200_000 // len(piece))
    made, _ = placed(markup, lambda _: place, lambda _: False, loaded=True)
    assert len(made) < 2 * len(markup) + MOST_PLACED * 250
    assert place is None or made.count(place) == MOST_PLACED


@pytest.mark.parametrize(
    "piece",
    [
        '<a "', "<a \"<a '\" '", "<", "<p ", "<p a=", "<!--", "<style>", "<p style='url(a' ",
        '<img srcset="a,', "aa ,", "<img src=x ", " ", "url(", '<p style="url( ', "\\", "'", "/*",
        "image-set(", "u\\",
    ],
)  # fmt: skip
def test_hostile_markup_takes_linear_time(piece: str) -> None:
    """A megabyte of what an attacker would try, in less than it takes to notice."""
    for begin, end in (
        ("", ""),
        ("<style>@", ""),
        ('<p style="url(', ""),
        ('<img srcset="', ' ">'),
    ):
        started = time.process_time()
        shown(begin + piece * (1_000_000 // len(piece)) + end)
        assert time.process_time() - started < 3.0
