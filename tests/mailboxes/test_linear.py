"""What a mail costs to parse grows with its length and with nothing that it says.

The patterns are held by counted steps, the reader as a whole by CPU time against its own on half
the length, and by what plain mail of the same length takes.
"""

import random
import re
import string
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from relay.http.compat.mailpit import addresses
from relay.mailboxes import charsets, extract, summary
from relay.mailboxes.extract import find_code, find_links
from relay.mailboxes.summary import summarise
from tests.mailboxes.steps import Matcher

# These look at what stands around a candidate, at most 160 characters, never at a whole text.
WINDOWED = {"_OTHER_NUMBER", "_ANNOUNCED", "_ZONE", "_ZONE_RIGHT", "_OTHER_UNIT", "_YEAR"}
# These are tried at one place of a line or a header, not at each.
AT_ONE_PLACE = {
    *(summary._HEADER, summary._PARAMETER, summary._TYPE, extract._COPULA, addresses._INSIDE),
}
PATTERNS = {
    f"{module.__name__.rpartition('.')[2]}.{name}": pattern
    for module in (extract, summary, addresses)
    for name, pattern in vars(module).items()
    if isinstance(pattern, re.Pattern) and name not in WINDOWED
}
ATOMS = (
    *(
        "https://",
        "http",
        "href=",
        "href='",
        'href="',
        "=?",
        "=?a?q?",
        "?=",
        "?",
        "*",
        "<",
        "</",
        ">",
    ),
    *("<b", "<style", "code", "pin", "kod", "promo ", "verif", "sign-", "a", "A", "1", "1234", "é"),
    *("A1B-", "G-", " ", "\n", "\t", '"', "'", "\\", ";", "=", ":", ",", ".", "@", "&", "&#", "#"),
    *("(", ")", "[", "]", "$", "+", "-", "_", "/", "\xa0", "x=", "\r\n"),
)


def _hostile(seed: str, count: int) -> Iterator[tuple[str, str, str]]:
    """A beginning, what is repeated, an end: with these, quadratic patterns show themselves."""
    chosen = random.Random(seed)
    yield from (("", atom, "") for atom in chosen.sample(ATOMS, count // 2))
    for _ in range(count - count // 2):
        unit = "".join(chosen.choices(ATOMS, k=chosen.randint(1, 3)))
        yield chosen.choice(ATOMS), unit, chosen.choice((*ATOMS, ""))


def _steps(pattern: re.Pattern[str], text: str) -> int:
    matcher = Matcher(pattern)
    matcher.spans(text, once=pattern in AT_ONE_PLACE)
    return matcher.steps


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_steps_in_proportion(name):
    """Twice the text takes twice the steps, whatever is repeated in it."""
    for begin, unit, end in _hostile(name, 16):
        number = 100 // len(unit) + 1
        small = _steps(PATTERNS[name], begin + unit * number + end)
        large = _steps(PATTERNS[name], begin + unit * number * 2 + end)
        assert large <= 2.5 * small + 200, (begin, unit, end)


@pytest.mark.parametrize("pattern", [r"(?:a|aa)+b", r"\s*x", r"<[^>]*y>", r"[ab]*c"])
def test_the_count_shows_a_pattern_that_is_not_linear(pattern):
    """The counter itself: each of these looks again at what it has looked through."""
    text = {"<": "<", "\\": " "}.get(pattern[0], "a")
    small, large = (_steps(re.compile(pattern), text * n) for n in (12, 24))
    assert large > 3 * small


@pytest.mark.parametrize("name", PATTERNS)
def test_the_counter_matches_as_python_does(name):
    """Its spans are those of `re`, so it tries what `re` tries."""
    pattern = PATTERNS[name]
    if isinstance(pattern.pattern, bytes):
        pattern = re.compile(pattern.pattern.decode("latin-1"), re.DOTALL)
    chosen = random.Random(name)
    for _ in range(60):
        text = "".join(chosen.choices((*ATOMS, *string.ascii_lowercase), k=12))
        assert Matcher(pattern).spans(text) == [match.span() for match in pattern.finditer(text)]


def _seconds(work: Callable[[], object]) -> float:
    """CPU time of the thread, the least of three: what others do on the machine does not count."""
    spent = []
    for _ in range(3):
        began = time.thread_time()
        work()
        spent.append(time.thread_time() - began)
    return min(spent)


def _html(body: str) -> str:
    return f"Content-Type: text/html\r\n\r\n{body}"


GENERATORS: dict[str, Callable[[int], str]] = {
    "brackets after a scheme": lambda n: "\n" + ("https://" + ")" * 4000 + "\n") * (n // 4008),
    "one link of brackets": lambda n: "\nhttps://" + ")]" * (n // 2),
    "one link of dots": lambda n: "\nhttps://x" + "." * n,
    "many links": lambda n: "\n" + "".join(f"https://x/{i}]). " for i in range(n // 16)),
    "the same link": lambda n: "\n" + "https://x/).\n" * (n // 13),
    "long links in HTML": lambda n: _html(("<a href='" + "y" * 4900 + "'>") * (n // 4911)),
    "references": lambda n: _html("&ab" * (n // 3)),
    "a number of many digits": lambda n: _html("&#" + "1" * n),
    "hexadecimal numbers": lambda n: _html(("<a href='http://&#x" + "1" * 981) * (n // 1000)),
    "styles": lambda n: _html("<style></style" * (n // 14)),
    "open tags": lambda n: _html("<b " * (n // 3)),
    "candidates for a code": lambda n: "\ncode " + "ABCD-1234 1234 " * (n // 15),
    "signs before a number": lambda n: "\ncode " + "#" * n + " 1234",
    "ats": lambda n: "From: " + "@" * n + "\r\n",
    "a long local part": lambda n: "From: " + "a" * n + "\r\n",
    "encoded words": lambda n: "Subject: " + "=?utf-8?q?a?= " * (n // 14) + "\r\n",
    "charsets": lambda n: "Subject: " + "".join(f"=?x{i}?q?a?=" for i in range(n // 12)) + "\r\n",
    "headers": lambda n: "A: b\r\n" * (n // 6),
    "sections": lambda n: "Content-Type: text/plain"
    + "".join(f";\r\n n*{i}*=a" for i in range(n // 12))
    + "\r\n\r\n",
    "quotes": lambda n: "Content-Type: text/plain;" + 'a="\\' * (n // 4) + "\r\n\r\n",
    "boundaries": lambda n: "Content-Type: multipart/mixed; boundary=a\r\n\n" + "\n--a" * (n // 4),
    "almost boundaries": lambda n: "Content-Type: multipart/mixed; boundary=" + "a" * 60
    + "\r\n\r\n" + ("\n--" + "a" * 59) * (n // 62),
    "quoted-printable": lambda n: "Content-Transfer-Encoding: quoted-printable\r\n\r\n"
    + "= \t=\r\n" * (n // 6),
}  # fmt: skip


@pytest.mark.parametrize("name", GENERATORS)
def test_a_message_takes_time_in_proportion(name):
    """Four times the message takes about four times the CPU time, and never far more than others.

    Sixteen times would be quadratic.
    """
    make = GENERATORS[name]
    small, large = make(50_000).encode(), make(200_000).encode()
    plain = b"\n" + b"The quick brown fox, see https://x.example/a . Thanks\r\n" * (
        len(large) // 56
    )
    usual = _seconds(lambda: summarise(plain))
    taken = _seconds(lambda: summarise(large))
    assert taken < 9 * _seconds(lambda: summarise(small)) + usual
    assert taken < 40 * usual


def test_every_link_that_is_not_shown_is_not_looked_at():
    """After the limit of links nothing is trimmed any more."""
    text = "".join(f"https://x.example/{n}\n" for n in range(200))
    more = ("https://" + ")" * 4000 + "\n") * 500
    alone = _seconds(lambda: find_links(text, ""))
    assert len(find_links(text + more, "")) == 200
    assert _seconds(lambda: find_links(text + more, "")) < 5 * alone + 0.01


def test_numbers_of_thousands_of_digits_are_read():
    """A character reference without end is one unreadable character, as it is to a browser."""
    markup = f"<a href='https://x.example/?&#{'1' * 4500};'>Your code is &#{'9' * 9000}; 482913</a>"
    found = summarise(_html(markup).encode())
    assert found.otp == "482913"
    assert found.links == ["https://x.example/?\ufffd"]


@pytest.mark.parametrize("codec", sorted(set(charsets.CODECS.values())))
def test_every_character_set_reads_every_byte(codec):
    """No bytes make a known character set raise, and none costs more than its length."""
    name = next(name for name, known in charsets.CODECS.items() if known == codec)
    chosen = random.Random(codec)
    for unit in (b"\xff", b"\x80", b"\x1b$B", b"~{", b"+AGE-", b"\x00\xd8", chosen.randbytes(999)):
        small, large = unit * (20_000 // len(unit)), unit * (80_000 // len(unit))
        charsets.decode(large, name)
        taken = _seconds(partial(charsets.decode, large, name))
        assert taken < 9 * _seconds(partial(charsets.decode, small, name)) + 0.005


def test_names_of_character_sets_are_those_of_the_table():
    """Case and punctuation of a name do not matter; what is no character set of mail is unknown."""
    known = {
             "UTF-8": "utf-8", "utf_8": "utf-8", "ISO-8859-1": "cp1252", "'latin1'": "cp1252",
             "Shift_JIS": "cp932", "GB2312": "gb18030", "ks_c_5601-1987": "cp949",
             "windows-1251": "cp1251", "KOI8-R": "koi8-r", "unicode-1-1-utf-7": "utf-7",
             }  # fmt: skip
    assert {name: charsets.codec_of(name) for name in known} == known
    for name in ("", "rot13", "zlib", "idna", "punycode", "unicode_escape", "utf8" * 20, "x\x00"):
        assert charsets.codec_of(name) is None


def test_codes_are_sought_within_bounds():
    """However many candidates and words there are, a search for a code ends soon."""
    usual = _seconds(lambda: find_code("", "Your code is 482913. Thanks, and goodbye.\n" * 500))
    for unit in ("code 1234 order ", "pin #### 1234 ", "verification 12345 ", "code: A1B2-C3D4 "):
        text = unit * 2000
        assert _seconds(partial(find_code, text, text)) < 50 * usual
