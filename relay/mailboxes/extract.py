"""Verification codes and links, found in the text of a message.  Pure.

A code is a short number, or letters and digits in capitals, that stands near a word which in
some language means "code".  Years, prices, telephone and order numbers are not codes.  When in
doubt there is none: an agent that types a wrong code is worse off than one that has to read.

All patterns are linear, and what they look at is bounded: neither text can cost more than a few
milliseconds.
"""

from __future__ import annotations

import html
import re

_TEXT_LIMIT = 20_000  # characters looked at for a code
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
# After a colon a code may follow without a space ("Code:123456").
_GLUED = re.compile(r"(?<=[:：是为])(?=[A-Z0-9])")

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
    re.VERBOSE | re.IGNORECASE,
)
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
    re.VERBOSE | re.IGNORECASE,
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
    re.VERBOSE | re.IGNORECASE,
)
_OTHER_UNIT = re.compile(
    r"\s*(?:usd|eur|gbp|dollars?|euros?|points?|minutes?|hours?|days?|seconds?|people|users?|"
    r"times|km|kg|items?|street|st\.|ave|road|%)\b",
    re.IGNORECASE,
)
# "code is 1234", "code: 1234", "code (valid 5 min): 1234": the number is what the word announces.
_ANNOUNCED = re.compile(
    r"""(?: [:=：]\s*[*_"'“]* | \b(?: is | es | est | ist | lautet | são | é | è | jest | är | er
        | on | use | enter | type | with | using | usa | utilise[rz]? | verwenden?[ ]sie )
        (?:[ ]now)? \s*[:=]?\s*[*_"'“]* | 是\s* | 为\s* | は\s* )$""",
    re.VERBOSE | re.IGNORECASE,
)
_YEAR = re.compile(r"(?:19|20)\d\d")
_ZONE = re.compile(r"(?:\d[ .()-]{0,2}|\+)$")  # more of a longer number, on the left
_ZONE_RIGHT = re.compile(r"[ .()-]{0,2}\d")


def find_code(subject: str, text: str) -> str | None:
    """The verification code that the message gives, or None.

    Groups of digits are joined (`123 456` is `123456`); codes with letters keep their hyphens.
    """
    best: tuple[float, str] | None = None
    for penalty, source in ((0.0, subject), (5.0, text[:_TEXT_LIMIT])):
        if not any(map(str.isdigit, source)) and "-" not in source:
            continue
        # Numbers inside a link are not for typing.
        spaced = _GLUED.sub(" ", _URL.sub(" ", source))
        for number, match in enumerate(_CANDIDATE.finditer(spaced)):
            if number >= _CANDIDATES:
                break
            cost = _cost(spaced, match)
            if cost is not None and (best is None or cost + penalty < best[0]):
                best = (cost + penalty, _spell(match))
    return best[1] if best else None


def _spell(match: re.Match[str]) -> str:
    if match["google"]:
        return match["google"]
    if match["split"]:
        return match["split"][:3] + match["split"][-3:]
    return match[0]


def _cost(text: str, match: re.Match[str]) -> float | None:
    """How little the candidate looks like a code (smaller is better); None if not at all."""
    start, end = match.span()
    before = _masked(text[max(0, start - _BEFORE) : start])
    after = _masked(text[end : end + _AFTER])
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

    words = list(_WORD.finditer(before))
    last = words[-1] if words else None
    distance: float
    if last is not None:
        between = before[last.end() :]
        sentences = len(re.findall(r"[.!?]\s+[^\s\d]", between))
        if not alone and sentences > 1:
            return None
        distance = len(between) + 40 * sentences
        if _OTHER_NUMBER.search(between[:-1] + " ") and not announced and not alone:
            return None
    else:
        follows = _WORD.search(rest)
        if follows is None or follows.start() > 40:
            return None
        # "123456 is your code": the word comes after, in the same sentence.
        if re.search(r"[.!?]\s", rest[: follows.start()]):
            return None
        distance = follows.start() + 20
        announced = bool(re.match(r"\s*(?:is|es|est|ist|-|–|—|:|är|é|è|jest)(?!\w)", rest))
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


def _masked(text: str) -> str:
    return _OTHER_CODE.sub(lambda m: " " * len(m[0]), text)


_URL = re.compile(r"""https?://[^\s<>"'`\\^{|}\x00-\x1f\x7f]+""", re.IGNORECASE)
_HREF = re.compile(
    r"""\bhref\s{0,9}=\s{0,9}(?:"([^"]{1,5000})"|'([^']{1,5000})'|([^\s"'<>]{1,5000}))""",
    re.IGNORECASE,
)
_ACTION = re.compile(
    r"verif|confirm|activat|valid|reset|recover|magic|sign-?up|sign-?in|log-?in|auth|token|invit|"
    r"bestaetig|aktivier|optin|opt-in|password|passwort|otp",
    re.IGNORECASE,
)
_CHORE = re.compile(r"unsubscri|opt-?out|preferences|privacy|abmeld|desuscri|terms", re.IGNORECASE)


def find_links(text: str, markup: str) -> list[str]:
    """The http and https links of a message, each once: those that look like an activation (or a
    confirmation, a reset, a log-in) first, otherwise in the order of the message."""
    found: dict[str, None] = {}
    for match in _HREF.finditer(markup):
        link = html.unescape(match[1] or match[2] or match[3]).strip()
        link = re.sub(r"[\r\n\t]", "", link)
        if link[:8].lower().startswith(("http://", "https://")):
            _add(found, link)
    for match in _URL.finditer(text):
        _add(found, _trimmed(match[0]))
    return sorted(found, key=lambda link: not is_action(link))  # stable: False before True


def is_action(link: str) -> bool:
    """Tell whether a link looks like one that confirms, activates, resets or logs in."""
    return _ACTION.search(link) is not None and _CHORE.search(link) is None


def _add(found: dict[str, None], link: str) -> None:
    if len(found) < _LINKS_LIMIT and len(link) <= _LINK_LENGTH and len(link) > len("https://"):
        found[link] = None


def _trimmed(link: str) -> str:
    """A link without the punctuation of the sentence around it; balanced brackets stay."""
    link = link[: _LINK_LENGTH + 1]
    while link:
        last = link[-1]
        unbalanced = (last == ")" and link.count("(") < link.count(")")) or (
            last == "]" and link.count("[") < link.count("]")
        )
        if last not in ".,;:!?*_~'\"»”’…。，" and not unbalanced:
            break
        link = link[:-1]
    return link
