"""Verification codes and links, found in the text of a message.  Pure.

A code is a short number, or letters and digits in capitals, that stands near a word which in
some language means "code".  Years, prices, telephone and order numbers are not codes.  When in
doubt there is none: an agent that types a wrong code is worse off than one that has to read.

Time is linear in the length of the texts, whatever they say: no pattern can begin again inside what
it has just looked through, no loop measures a text anew for each character that it drops, and what
is looked at around a candidate is of a fixed size.  `tests/mailboxes/test_linear.py` counts steps.

And it is little, for what must be there is looked for first, by the cheapest means: "://" before a
link, two characters before a candidate, a piece of a word for a code before the words.  Patterns of
words are in small letters and see the text `folded`: with IGNORECASE each costs several times that.
`tests/mailboxes/test_shortcuts.py` holds each short cut to the long way.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from itertools import chain
from urllib.parse import quote

from relay.unseen import UNSEEN

_TEXT_LIMIT = 20_000  # characters looked at for a code
_SHORT = 4096  # characters, in which words for a code are looked for before any candidate
_LINKS_LIMIT = 200
_LINK_LENGTH = 4096
_CANDIDATES = 40
_BEFORE, _AFTER = 160, 60  # characters around a candidate in which the word may stand

_CANDIDATE = re.compile(
    r"""
    (?<![\w.,@/\\#=&?%+$€£¥₹№:;-])  (?:
        G-(?P<google>\d{6})
      | (?P<split>\d{3}[ \u00a0-]\d{3})
      | (?P<digits>\d{4,8})
      | (?P<mixed>[A-Z0-9]{3,5}(?:-[A-Z0-9]{3,5}){1,2} | (?=[A-Z0-9]*[0-9])[A-Z0-9]{4,10})
    ) (?! \w | [-/@%€$£¥₹] | [.,:]\d | [ \u00a0][€$£¥₹] )
    """,
    re.VERBOSE,
)
# How every candidate begins.  Sought by its first character, ten times as fast as `_CANDIDATE`.
_START = re.compile(r"[A-Z\d](?=[A-Z\d-][A-Z\d])")
# Likewise, and what may not stand before it is looked at second, for the sake of long runs.
_BEGIN = re.compile(r"[A-Z\d](?<![\w.,@/\\#=&?%+$€£¥₹№:;-].)(?=[A-Z\d-][A-Z\d])", re.DOTALL)
# And in ASCII by no pattern, a fifth of the cost: where a run of these begins, which has three.
_IN_RUNS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_RUNS = bytes(ord("A") if byte in _IN_RUNS else ord(" ") for byte in range(256))
_RUN = b"AAA"
# After a colon a code may follow without a space ("Code:123456").
_GLUED = re.compile(r"([:：是为])(?=[A-Z0-9])")
_GLUED_ASCII = re.compile(r":(?=[A-Z0-9])")

# The letters that IGNORECASE takes for others, of those in the patterns, and that `lower` does not.
_ALIKE = {
    ord(letter): other
    for letter, other in {
        "İ": "i", "ı": "i", "ſ": "s", "ϰ": "κ", "\u0345": "ι", "\u1fbe": "ι", "ᲁ": "д", "ᲂ": "о"
    }.items()
}  # fmt: skip
_UNLIKE = re.compile("[İıſϰ\u0345\u1fbeᲁᲂ]")

_WORD = re.compile(
    r"""
    \b(?: (?:[\w]*(?:code|kode|kodu|kood|codice|código|codigo|codi|cód\.|cod|kod|kód|koodi)s?)
        | otp | pin | 2fa | mfa | tan | passcode | verif\w* | one[ -]time | einmal\w* | clave
        | contraseña | senha | vérif\w* | bestätig\w* | potwierdz\w* | confirmation[ ]number
        | security[ ]number | login[ ]number
        | код\w* | пароль | κωδικ\w* | รหัส\w* | mã )\b
    | 验证码 | 驗證碼 | 校验码 | 校驗碼 | 动态码 | 認証コード | 認証番号 | 確認コード | コード
    | 인증 | 코드 | קוד | رمز | कोड
    """,
    re.VERBOSE,
)
# "Enter 123456 to confirm": what is to be typed is a code, though nothing calls it one.
_TYPED = re.compile(r"""\b(?:enter|type)[ ]{1,3}[*_"'“]{0,3}$""")
_TO_CONFIRM = re.compile(r"""[*_"'”]{0,3}[ ]{1,3}to[ ]confirm\b""")
# One of these is in whatever `_WORD` or `_TO_CONFIRM` matches; those in ASCII if it is that.  First
# what is in much other text, too: the look at the others is spared there.
_PIECES_ASCII = (
    *("cod", "time", "tan", "pin", "number", "verif", "kod", "kood", "otp", "2fa", "mfa", "einmal"),
    *("clave", "senha", "potwierdz", "to confirm"),
)
_PIECES = (
    *_PIECES_ASCII,
    *("cód", "kód", "contraseñ", "vérif", "bestätig", "код", "парол", "κωδικ", "รหัส", "mã"),
    *("验证码", "驗證碼", "校验码", "校驗碼", "动态码", "認証", "コード", "인증", "코드"),
    *("קוד", "رمز", "कोड"),
)
# And of these in what `_OTHER_CODE` does.
_PIECES_OTHER = ("cod", "kod", "cód", "pin")
# Words that contain "code" and mean something else.
_OTHER_CODE = re.compile(
    r"""
    \b(?: promo\w* | discount | coupon | voucher | gift | zip | postal | post | country | area
        | error | status | source | product | tracking | booking | reservation | reference | bar
        | qr | dress | referral | exit | http | sort | tax | swift | branch | vendor | item
        | response | invite | offer | color | colour | rabatt | gutschein | aktions | bestell
        | código[ ]postal | code[ ]postal | code[ ]promo )[ -]?(?:code|kode|código|codigo)s?\b
    | \bcode[ ](?:postal|promo)\b | \bc[óo]digo[ ](?:postal|promocional|de[ ]descuento)\b
    | \b(?:de|en|un)?cod(?:e[rd]s?|ing)\b | \bpin(?:terest|ned|ning)\b
    """,
    re.VERBOSE,
)
# What a number is when one of these stands right before it.
_OTHER_NUMBER = re.compile(
    r"""
    (?: \b(?: order | invoice | total | amount | sum | price | ref(?:erence)? | ticket | case
        | phone | tel | telephone | call | fax | mobile | zip | account | acct | customer | item
        | sku | page | room | flight | version | build | since | in | by | of | until | before
        | (?:e )?copyright | bestell\w* | rechnung\w* | kunden\w* | pedido | factura | commande
        | facture | numéro[ ]de[ ]commande | usd | eur | gbp | chf | jpy | rs
        | jan\w* | feb\w* | mar\w* | apr\w* | may | june? | july? | aug\w* | sep\w* | oct\w*
        | nov\w* | dec\w* | at | po[ ]box | ending[ ]in )
        (?: [ ] (?:no|number|id|is|nr|num) )? | © | \(c\) | [#№$€£¥₹+] )
    [\s.:#№°-]* $
    """,
    re.VERBOSE,
)
_OTHER_UNIT = re.compile(
    r"\s*(?:usd|eur|gbp|dollars?|euros?|points?|minutes?|hours?|days?|seconds?|people|users?|"
    r"times|km|kg|items?|street|st\.|ave|road|%)\b"
)
# "code is 1234", "code: 1234", "code (valid 5 min): 1234": the number is what the word announces.
_ANNOUNCED = re.compile(
    r"""(?: [:=：]\s*[*_"'“]* | \b(?: is | es | est | ist | lautet | são | é | è | jest | är | er
        | on | use | enter | type | with | using | usa | utilise[rz]? | verwenden?[ ]sie )
        (?:[ ]now)? \s*[:=]?\s*[*_"'“]* | 是\s* | 为\s* | は\s* )$""",
    re.VERBOSE,
)
_SENTENCE = re.compile(r"[.!?]\s+[^\s\d]")  # begins
_FULL_STOP = re.compile(r"[.!?]\s")
_COPULA = re.compile(r"\s*(is|es|est|ist|-|–|—|:|är|é|è|jest)(?!\w)")
_YEAR = re.compile(r"(?:19|20)\d\d")
_ZONE = re.compile(r"(?:\d[ .()-]{0,2}|\+)$")  # more of a longer number, on the left
_ZONE_RIGHT = re.compile(r"[ .()-]{0,2}\d")


def find_code(subject: str, text: str) -> str | None:
    """The verification code that the message gives, or None.

    Groups of digits are joined (`123 456` is `123456`); codes with letters keep their hyphens.
    """
    best: tuple[float, str] | None = None
    for penalty, source in ((0.0, subject), (5.0, text[:_TEXT_LIMIT])):
        if not _may_have_code(source):
            continue
        # Numbers inside a link are not for typing.
        spaced = _spaced(_without_urls(source))
        for number, match in enumerate(_candidates(spaced)):
            if number >= _CANDIDATES:
                break
            cost = _cost(spaced, match)
            if cost is not None and (best is None or cost + penalty < best[0]):
                best = (cost + penalty, _spell(match))
    return best[1] if best else None


def folded(text: str) -> str:
    """`text` in small letters, of the same length: equal where IGNORECASE takes it for equal."""
    if not text.isascii() and _UNLIKE.search(text):
        text = text.translate(_ALIKE)
    return text.lower()


def _may_have_code(text: str) -> bool:
    """Whether there is a word for a code, if it is short, and the beginning of a candidate, where
    to look for that costs less than what it spares."""
    if len(text) <= _SHORT and not _may_have_word(folded(text)):
        return False
    return text.isascii() or _START.search(text) is not None


def _runs(text: str) -> bytes:
    """Text in ASCII with "A" for each capital, digit and hyphen, and a space for all else."""
    return text.encode().translate(_RUNS)


def _spaced(text: str) -> str:
    """`text` with a space between a colon and a code that follows it."""
    return _GLUED_ASCII.sub(": ", text) if text.isascii() else _GLUED.sub(r"\1 ", text)


def _candidates(text: str) -> Iterator[re.Match[str]]:
    """What `_CANDIDATE.finditer` gives."""
    if text.isascii():
        yield from _candidates_of_runs(text)
        return
    end = 0
    for start in _BEGIN.finditer(text):
        if start.start() >= end:
            match = _CANDIDATE.match(text, start.start())
            if match is not None:
                end = match.end()
                yield match


def _candidates_of_runs(text: str) -> Iterator[re.Match[str]]:
    """The same, of text in ASCII: none begins within a run, where something of the run stands
    before it."""
    runs = _runs(text)
    start = runs.find(_RUN)
    while start >= 0:
        match = _CANDIDATE.match(text, start)
        if match is not None:
            yield match
        end = runs.find(b" ", start if match is None else match.end())
        start = runs.find(_RUN, end) if end >= 0 else -1


def _without_urls(text: str) -> str:
    """`text` with a space for each link."""
    kept: list[str] = []
    position = 0
    for match in _urls(text):
        kept.append(text[position : match.start()])
        position = match.end()
    return " ".join((*kept, text[position:])) if kept else text


def _spell(match: re.Match[str]) -> str:
    if match["google"]:
        return match["google"]
    if match["split"]:
        return match["split"][:3] + match["split"][-3:]
    return match[0]


def _cost(text: str, match: re.Match[str]) -> float | None:
    """How little the candidate looks like a code (smaller is better); None if not at all."""
    start, end = match.span()
    before = folded(text[max(0, start - _BEFORE) : start])
    as_written = text[end : end + _AFTER]
    after = folded(as_written)
    if not (_may_have_word(before) or _may_have_word(after)):
        return None
    before, after = _masked(before), _masked(after)
    same_line = before.rpartition("\n")[2]
    rest = after.partition("\n")[0]
    alone = not same_line.strip(" \t*_>|") and not rest.strip(" \t*_.|")
    announced = bool(_ANNOUNCED.search(same_line))
    if not match["google"] and (
        _ZONE.search(same_line)
        or _ZONE_RIGHT.match(rest)
        or _OTHER_UNIT.match(rest)
        or (not announced and _OTHER_NUMBER.search(same_line))
    ):
        return None

    last: re.Match[str] | None = None
    for last in _WORD.finditer(before):  # noqa: B007 - the last of them is what counts
        pass
    distance: float
    if last is not None:
        between = before[last.end() :]
        sentences = len(_SENTENCE.findall(between))
        if not alone and sentences > 1:
            return None
        distance = len(between) + 40 * sentences
        if not announced and not alone and _OTHER_NUMBER.search(between[:-1] + " "):
            return None
    else:
        follows = _WORD.search(rest)
        confirms = _TO_CONFIRM.match(rest) if _TYPED.search(same_line) else None
        follows = confirms or follows
        if follows is None or follows.start() > 40:
            return None
        # "123456 is your code": the word comes after, in the same sentence.
        if _FULL_STOP.search(rest[: follows.start()]):
            return None
        distance = follows.start() + 20
        copula = _COPULA.match(rest)
        announced = confirms is not None or (
            copula is not None and as_written[slice(*copula.span(1))] == copula[1]
        )
    strong = alone or announced
    if (
        match["digits"]
        and _YEAR.fullmatch(match["digits"])
        and not (alone or (announced and last is not None))
    ):
        return None
    if match["mixed"] and not strong and not (last is not None and len(before[last.end() :]) <= 3):
        return None
    if match["mixed"] and match["mixed"].isalpha() and "-" not in match["mixed"]:
        return None
    cost = distance - (60 if strong else 0)
    digits = match["digits"]
    if digits and len(digits) != 6:
        cost += 8
    if match["mixed"]:
        cost += 12
    return cost


def _may_have_word(text: str) -> bool:
    for piece in _PIECES_ASCII if text.isascii() else _PIECES:  # noqa: SIM110 - at half of any's cost
        if piece in text:
            return True
    return False


def _masked(text: str) -> str:
    """`text` with spaces for what only sounds like a word for a code."""
    if any(piece in text for piece in _PIECES_OTHER):
        return _OTHER_CODE.sub(lambda m: " " * len(m[0]), text)
    return text


_URL = re.compile(r"""[hH][tT][tT][pP][sS]?://[^\s<>"'`\\^{|}\x00-\x1f\x7f]+""")
_HREF = re.compile(
    r"""\b[hH][rR][eE][fF]\s{0,9}=\s{0,9}"""
    r"""(?:"([^"]{1,5000})"|'([^']{1,5000})'|([^\s"'<>]{1,5000}))"""
)
_ACTION = re.compile(
    r"verif|confirm|activat|valid|reset|recover|magic|sign-?up|sign-?in|log-?in|auth|token|invit|"
    r"bestaetig|aktivier|optin|opt-in|password|passwort|otp"
)
_WEB = ("http://", "https://")
_BREAKS = re.compile(r"[\r\n\t]")
# What a link has percent-encoded, as browsers do it: what ends it where it is read in a text, what
# drives a terminal, and what turns the direction of a text or is not seen in it.
_ENCODED = re.compile(
    rf"""[{UNSEEN} "<>`\xa0\u1680\u2000-\u200a\u200c\u200d\u2028\u2029\u202f\u205f\u3000]"""
)
_ENDS_A_SENTENCE = frozenset(".,;:!?*_~'\"»”’…。，")
_MAY_BE_TRIMMED = _ENDS_A_SENTENCE | set(")]")
# No character has a number of eight digits; zeros in front are nobody's spelling.
_LONG_REFERENCE = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")
_CHORE = re.compile(r"unsubscri|opt-?out|preferences|privacy|abmeld|desuscri|terms")


def find_links(text: str, markup: str) -> list[str]:
    """The http and https links of a message, each once: those that look like an activation (or a
    confirmation, a reset, a log-in) first, otherwise in the order of the message.

    At most `_LINKS_LIMIT` of at most `_LINK_LENGTH` characters; what follows is not looked at.
    """
    found: dict[str, None] = {}
    for link in chain(_hrefs(markup), map(_link_of, _urls(text))):
        if len("https://") < len(link) <= _LINK_LENGTH:
            found[link] = None
            if len(found) == _LINKS_LIMIT:
                break
    if len(found) < 2:
        return list(found)
    return sorted(found, key=lambda link: not is_action(link))  # stable: False before True


def unescape(text: str) -> str:
    """`text` with its character references resolved, as `html.unescape` does.

    That raises on a number of thousands of digits, and is slow with one of hundreds.
    """
    references = text.count("&")
    if not references:
        return text
    if references == text.count("&amp;"):
        return text.replace("&amp;", "&")
    if "&#" in text:
        text = _LONG_REFERENCE.sub("\ufffd", text)
    # What HTML of mail is full of: each that `html` resolves is a call of Python's.
    return html.unescape(text.replace("&nbsp;", "\xa0").replace("&zwnj;", "\u200c"))


def in_ascii(text: str) -> bytes:
    """`text` with a byte a character, in small letters, "?" for all that is not ASCII.

    To look for tags and attributes: that is a tenth of what a pattern costs that ignores case.
    """
    return text.encode("ascii", "replace").lower()


def _urls(text: str) -> Iterator[re.Match[str]]:
    """What `_URL.finditer` gives."""
    end = 0
    found = text.find("://")
    while found >= 0:
        for start in (found - len("https"), found - len("http")):
            match = _URL.match(text, start) if start >= end else None
            if match is not None:
                yield match
                end = match.end()
                break
        found = text.find("://", max(end, found + 1))


def _hrefs(markup: str) -> Iterator[str]:
    lowered = in_ascii(markup) if markup else b""
    found = lowered.find(b"href")
    while found >= 0:
        match = _HREF.match(markup, found)
        if match is None:
            found = lowered.find(b"href", found + 1)
            continue
        found = lowered.find(b"href", match.end())
        written = match[match.lastindex or 0]
        # Anything but http can be an image of a megabyte: the scheme is looked at first.
        if written.startswith(_WEB) or _is_web(unescape(written[:100]).lstrip()):
            link = _as_browsers_read(unescape(written).strip())
            if link.startswith(_WEB) or _is_web(link):
                yield link


def _as_browsers_read(link: str) -> str:
    """A link of markup with what browsers change in it: none may be read otherwise elsewhere.

    Line breaks and tabs are dropped, and a backslash before "?" and "#" is a slash (WHATWG's URL
    standard): `https://evil.example\\@shop.example/` is at evil.example.
    """
    link = _BREAKS.sub("", link)
    if "\\" in link:
        end = min(at for at in (link.find("?"), link.find("#"), len(link)) if at >= 0)
        link = link[:end].replace("\\", "/") + link[end:]
    return _encoded(link)


def _encoded(link: str) -> str:
    return _ENCODED.sub(lambda match: quote(match[0]), link)


def _is_web(link: str) -> bool:
    return _BREAKS.sub("", link[:32])[:8].lower().startswith(_WEB)


def is_action(link: str) -> bool:
    """Tell whether a link looks like one that confirms, activates, resets or logs in."""
    link = folded(link)
    return _ACTION.search(link) is not None and _CHORE.search(link) is None


def _link_of(match: re.Match[str]) -> str:
    link = _trimmed(match[0])
    return link if link.isascii() else _encoded(link)


def _trimmed(link: str) -> str:
    """A link without the punctuation of the sentence around it; balanced brackets stay.

    The brackets are counted once, and one that is dropped is taken off the count.
    """
    if link[-1] not in _MAY_BE_TRIMMED:
        return link
    surplus = {
        ")": link.count(")") - link.count("("),
        "]": link.count("]") - link.count("["),
    }
    end = len(link)
    while end:
        last = link[end - 1]
        if surplus.get(last, 0) > 0:
            surplus[last] -= 1
        elif last not in _ENDS_A_SENTENCE:
            break
        end -= 1
    return link[:end]
