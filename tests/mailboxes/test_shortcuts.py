"""Every short cut of the MIME reader and of the finders gives what the long way gives."""

import random
import re
import string
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from relay.mailboxes import charsets, extract, summary
from tests.mailboxes import corpus, test_extract, test_linear

FOLDED = (
    *(extract._WORD, extract._OTHER_CODE, extract._OTHER_NUMBER, extract._OTHER_UNIT),
    *(extract._ANNOUNCED, extract._ACTION, extract._CHORE),
)
LETTERS = sorted({c for pattern in FOLDED for c in pattern.pattern if c.isalpha()})
EVERYTHING = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000))))
WORDS = (
    *test_linear.ATOMS,
    *(word for case in test_extract.CODES + test_extract.NO_CODES for word in case[1].split(" ")),
    *re.findall(r"\w{2,}", " ".join(pattern.pattern for pattern in FOLDED)),
    *("pın", "ſenha", "PİN", "ΚΩΔΙΚΌΣ", "Mã:", "КОД:", "HTTPS://Y/z?a=1", "(http://a/b)", "١٢٣٤"),
)


IN_ASCII = tuple(word for word in WORDS if word.isascii())


def _texts(seed: int, count: int = 400) -> list[str]:
    """Half of them in ASCII, which has short cuts of its own."""
    chosen = random.Random(seed)
    return [
        chosen.choice((" ", " ", "", "\n")).join(chosen.choices(words, k=chosen.randint(1, 30)))
        for words in (WORDS, IN_ASCII)
        for _ in range(count // 2)
    ]


def test_patterns_of_words_are_in_small_letters():
    """They see folded text: a capital would never be found."""
    assert [letter for letter in LETTERS if letter != letter.lower() and letter != "W"] == []


@pytest.mark.parametrize("letters", [LETTERS[n::4] for n in range(4)])
def test_folding_is_what_ignoring_case_does(letters):
    """Of all characters there are, those are folded to a letter which IGNORECASE takes for it."""
    folded = extract.folded(EVERYTHING)
    assert len(folded) == len(EVERYTHING)
    for letter in letters:
        ignoring = [match.start() for match in re.finditer(letter, EVERYTHING, re.IGNORECASE)]
        assert [match.start() for match in re.finditer(letter, folded)] == ignoring, letter


@pytest.mark.parametrize("seed", range(4))
def test_what_must_be_there_is_there(seed):
    """Where the quick look says no, the patterns find nothing; else they find the same."""
    for text in _texts(seed):
        folded = extract.folded(text)
        if extract._WORD.search(folded):
            assert extract._may_have_word(folded), text
        assert extract._masked(folded) == extract._OTHER_CODE.sub(
            lambda match: " " * len(match[0]), folded
        )
        assert extract._spaced(text) == extract._GLUED.sub(r"\1 ", text)
        _holds_to_all_candidates(text)
        spans = [match.span() for match in extract._URL.finditer(text)]
        assert [match.span() for match in extract._urls(text)] == spans
        assert extract._without_urls(text) == extract._URL.sub(" ", text)
        if not extract._may_have_code(text):
            spaced = extract._spaced(extract._without_urls(text))
            costs = [extract._cost(spaced, each) for each in extract._candidates(spaced)]
            assert not costs or {*costs} == {None}, text


def _holds_to_all_candidates(text: str) -> None:
    candidates = [match.span() for match in extract._CANDIDATE.finditer(text)]
    assert [match.span() for match in extract._candidates(text)] == candidates
    if candidates and len(text) > extract._SHORT:
        assert extract._may_have_code(text)


@settings(max_examples=1000, deadline=None)
@given(st.text(alphabet="AZ0129-Ga_ .,:/#+@$%\n", max_size=40))
@example("123-456")
@example("123 456")
@example("-ABC1")
@example("A1B-C2D-")
@example("G-123456 G-1234567")
def test_no_candidate_is_passed_over_in_ascii(text):
    """Of text in ASCII only the beginnings of runs are looked at, which are all there can be."""
    _holds_to_all_candidates(text)
    _holds_to_all_candidates(text + " x" * extract._SHORT)


@pytest.mark.parametrize("seed", range(2))
def test_attributes_are_found_in_any_spelling(seed):
    """The look for "href" in small ASCII letters misses none, and takes no other name for it."""
    chosen = random.Random(seed)
    pieces = ("href=", "HREF = ", "hReF=", "xhref=", "éhref=", "'http://a/b'", '"https://c/&amp;"')
    for _ in range(300):
        markup = "".join(chosen.choices((*pieces, " ", "<a ", ">", "é", "İ", "ſ"), k=12))
        written = [match[match.lastindex or 0] for match in extract._HREF.finditer(markup)]
        found = [extract.unescape(each).strip() for each in written if extract._is_web(each)]
        assert extract.find_links("", markup) == list(dict.fromkeys(found))


HEADER_PIECES = st.sampled_from(
    [
        *(b"A: b", b"Subject: =?utf-8?q?x?=", b"From: a@b", b"Content-Type: text/plain", b"X:"),
        *(b"\r\n", b"\r\n", b"\r\n", b"\n", b"\n", b"\r", b" ", b"\t", b"\r\n ", b"\n\t", b":"),
        *(
            b"Name",
            b"\r\n\t:",
            b"From x",
            b"\x00",
            b"\xc3\xa4",
            b"\x1c",
            b"\x0b",
            b"\r\n\r\n",
            b"\n\n",
            b"a b: c",
        ),
    ]
)


class TestRegularHeaders:
    """Headers that are as they should be are read at one go."""

    @settings(max_examples=1000, deadline=None)
    @given(st.lists(HEADER_PIECES, max_size=14).map(b"".join), st.integers(0, 5))
    @example(b"A: b\r\nName\r\n\t: c\r\n\r\n", 0)  # a colon, but not in the header's line
    @example(b" A: b\r\nC: d\r\n\r\n", 0)
    def test_reads_what_the_other_way_reads(self, raw, cut):
        """Whatever the bytes are: the same headers and the same beginning of the body, or none."""
        reader = summary._Reader(b"")
        reader.raw = raw
        end = max(0, len(raw) - cut)
        found = reader._regular_headers(0, end)
        if found is not None:
            assert found == reader._any_headers(0, end)
            assert not reader.faults

    def test_is_the_way_of_ordinary_mail(self):
        """Mail of the usual kinds goes this way."""
        for make in (corpus.plain, corpus.newsletter, corpus.with_attachment):
            assert summary._Reader(make(1)).regular

    @pytest.mark.parametrize(
        "raw",
        [
            b"A: b\r\n" * (summary.MAX_HEADERS + 1) + b"\r\n",
            b"A: " + b"x" * summary._REGULAR + b"\r\n\r\n",
            b"A: \xe4\r\n\r\n",
            b"A: \x00\r\n\r\n",
            b"A: b",
            b"\r\n",
            b"",
        ],
    )
    def test_leaves_alone_what_needs_care(self, raw):
        """Too many, too long, not ASCII, or without an end: line by line."""
        assert not summary._Reader(raw).regular


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([b"QUJD", b"Q", b"==", b"=", b"\r\n", b" ", b"-", b"\xff"])))
def test_the_size_of_base64_is_counted(pieces):
    """Without decoding: what is not of the alphabet is passed over, padding too."""
    body = b"".join(pieces)
    part = summary._leaf(body, 0, len(body), [], "application/pdf", {}, "")
    part.encoding = "base64"
    assert part.size() == len(part.content())


@pytest.mark.parametrize("encoding", ["", "base64", "quoted-printable", "8bit", "x-unknown"])
def test_the_size_is_that_of_the_content(encoding):
    """Whatever the transfer encoding."""
    for raw in (b"", b"a=3D=\r\nb\r\n", b"QUJDREVGRw==\r\n", bytes(range(256))):
        part = summary._leaf(raw, 0, len(raw), [], "application/pdf", {}, "")
        part.encoding = encoding
        assert part.size() == len(part.content())


@pytest.mark.parametrize("seed", range(3))
def test_tags_are_taken_out_in_one_pass(seed):
    """As three patterns one after the other do, where no tag is open in front of another."""
    chosen = random.Random(seed)
    tags = (
        *("<p>", "</P>", "<br>", "<BR/>", "<b>", "</b>", "<br_>", "<bé>", "<span a='b'>", "<td>"),
        *("</span>", "</h1>", "<!-- x -->", "<!DOCTYPE html>", "<>", "</>", "< b>", "</ p>", ">"),
        *("&nbsp;", "&amp;nbsp;", "&zwnj;", "&lt;", "&#49;", "&#x32;", "&euro", "&", "\xa0"),
    )
    for _ in range(300):
        markup = "".join(chosen.choices((*tags, " ", "\t", "\n", "a", "1"), k=30))
        text = summary._LINE_END_TAG.sub("\n", markup)
        text = summary._TAG.sub(" ", summary._INLINE_TAG.sub("", text))
        text = re.sub(r"[ \t\xa0]+", " ", extract.unescape(text))
        lines = [line.strip() for line in text.split("\n")]
        assert summary.text_of(markup) == "\n".join(filter(None, lines))


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a<!-- <b>x</b> -->b", "a b"),  # what was open ends where the tags in it have gone
        ("a<b<i>r>b", "a b"),
        ("a < b", "a < b"),
        ("İ<STYLE>x</STYLE>y", "İy"),  # a letter whose small form is longer
        ("<styles>x</styles>", "x"),
        ("<styleé>x", "x"),
        ("<script>a</script ><p>b</p><style>c</style", "b"),
        ("<Head>x</HEAD>y<script>z", "y"),
    ],
)
def test_shows_of_odd_markup_what_a_reader_may_see(markup, text):
    """Comments, open tags, names that only begin like those of elements without text."""
    assert summary.text_of(markup) == text


@pytest.mark.parametrize("value", [" ".join(pair) for pair in pairwise(string.punctuation)])
def test_quotes_are_masked_as_character_by_character(value):
    """The pattern for quoted strings, where there are no comments and no escapes."""
    value = value.replace("(", "").replace("\\", "") + '"a" <b@c> "d'
    assert summary._mask(value) == summary._mask(value + "(")[:-1]


@pytest.mark.parametrize("name", sorted(set(charsets.CODECS.values())))
def test_only_character_sets_of_unicode_give_half_characters(name):
    """The texts of the others need no look for lone surrogates."""
    known = next(label for label, codec in charsets.CODECS.items() if codec == name)
    chosen = random.Random(name)
    halves = False
    for unit in (
        b"\xed\xa0\x80",
        b"\x00\xd8A\x00",
        b"\xd8\x00\x00A",
        b"+2AA-",
        chosen.randbytes(9999),
    ):
        text = charsets.decode(unit, known)
        halves |= bool(re.search("[\ud800-\udfff]", text))
    assert not halves or charsets.gives_halves(known)
