"""Personal data taken out of text that others wrote, before it is stored, shown or logged.

Addresses, Message-IDs, IP addresses, phone numbers and other long numbers, tokens, and what
stands behind a URL's host become `<redacted:HASH>`.  HASH is keyed and stable: two lines about
the same address can be correlated by who holds the key and the logs, and by nobody undone.

Promises:
- No `@` survives, nor any of its disguises (`%40`, `=40`, `&#64;`, its full-width forms): whatever
  surrounds one is taken out as a whole, so no address survives however oddly it is written.
- Redacting twice changes nothing; the result has at most `limit` characters and one line.
- An address gives the same hash in any case, quoted or not, in angle brackets or not.
- Linear in the input, which is cut at `limit` first.

Fails: never.  What is taken for personal data and is not (a long queue id) is lost to the
reader; that is the side to err on.

Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterable

LIMIT = 2000
"""Characters kept, unless told otherwise."""

_MARK = r"<redacted:[0-9a-f]{10}>"
_AT = r"(?:[@\uff20\ufe6b]|%40|=40(?=[A-Z])|&#0*64;|&#x0*40;|&commat;)"
_PATTERN = re.compile(
    rf"(?P<done>{_MARK})"
    r"|(?P<url>[A-Za-z][A-Za-z0-9+.\-]{0,20}://[^\s<>\"]+)"
    rf"|(?P<address><?(?:\"[^\"<>]{{0,200}}\"|[^\s<>\"(),;:\[\]]{{0,300}}){_AT}"
    rf"(?:[^\s<>\"(),;]|{_AT})*>?)"
    r"|(?P<ip>(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3})?(?![\w:]))"
    r"|(?P<phone>\+?\d{7,}|\+\d{1,3}(?:[ .\-/()]{1,2}\d{1,5}){2,7}"
    r"|(?<![\w.\-])\(?\d{2,5}\)?(?:[ .\-/]\(?\d{2,5}\)?){2,5}(?![\w.\-]))"
    r"|(?P<token>(?<![\w\-+/=])(?=[A-Za-z_\-+/=]{0,80}\d)[A-Za-z0-9_\-+/=]{24,})",
    re.IGNORECASE,
)
_URL_PARTS = re.compile(r"([a-z][a-z0-9+.\-]*://)([^/?#]*)([^?#]*)(.*)", re.IGNORECASE | re.DOTALL)
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z.\-_]{0,24}[0-9]{0,2})*")
_PLAIN_HOST = re.compile(r"(?=[^@]*[a-z])[a-z0-9.\-]+(?::\d{1,5})?", re.IGNORECASE)


def correlation(value: str, key: bytes) -> str:
    """Return the 10 hexadecimal digits that stand for `value`: keyed, stable, without case."""
    value = unicodedata.normalize("NFKC", value).casefold().strip("<> \t")
    local, at, domain = value.rpartition("@")
    if at and len(local) >= 2 and local[0] == local[-1] == '"':
        local = re.sub(r"\\(.)", r"\1", local[1:-1])
    value = f"{local}{at}{domain}".rstrip(".!?'")
    return hmac.new(key, value.encode("utf-8", "replace"), hashlib.sha256).hexdigest()[:10]


def redact(text: str, key: bytes, known: Iterable[str] = (), *, limit: int = LIMIT) -> str:
    """Return `text` without personal data, in one line of at most `limit` characters.

    `known`: what is known to be personal here (the recipient, the subject, a password): it and,
    of an address, its local part are taken out wherever they stand, however they look.
    """
    text = _cut(_one_line(text[: 4 * limit]), limit)

    def mark(value: str) -> str:
        return f"<redacted:{correlation(value, key)}>"

    def replace(found: re.Match[str]) -> str:
        kind, value = found.lastgroup, found[0]
        if kind == "done":
            return value
        if kind == "url":
            return _url(value, mark)
        if kind == "ip":
            try:
                ipaddress.ip_address(value)
            except ValueError:
                return value if ":" in value else mark(value)
        return mark(value)

    words = sorted(_known(known), key=len, reverse=True)
    if words:
        pattern = "|".join(map(re.escape, words))
        text = re.sub(rf"(?P<done>{_MARK})|(?:{pattern})", replace, text, flags=re.IGNORECASE)
    # What a mark stands beside may itself be recognised only now; each round takes text away.
    while (fewer := _cut(_PATTERN.sub(replace, text), limit)) != text:
        text = fewer
    return text


def _one_line(text: str) -> str:
    """Controls and separators become spaces; what is invisible goes; spaces become single."""
    if not (text.isascii() and text.isprintable()):
        kept: list[str] = []
        for character in text:
            kind = unicodedata.category(character)
            if kind in {"Cc", "Zl", "Zp"}:
                kept.append(" ")
            elif kind not in {"Cf", "Cs"}:
                kept.append(character)
        text = "".join(kept)
    return " ".join(text.split())


def _cut(text: str, limit: int) -> str:
    """Shorten at a space, as half an address could not be told from a word."""
    if len(text) <= limit:
        return text
    shorter, space, _ = text[: limit - 1].rpartition(" ")
    return f"{shorter} …" if space else "…"


def _known(known: Iterable[str]) -> set[str]:
    words: set[str] = set()
    for value in known:
        value = _one_line(value)
        local = value.rpartition("@")[0]
        words |= {word for word in (value, local) if len(word) >= 3}
    return words


def _url(url: str, mark: Callable[[str], str]) -> str:
    """Keep scheme, host and a path of words; whatever else may say who somebody is."""
    found = _URL_PARTS.fullmatch(url)
    if found is None or not _PLAIN_HOST.fullmatch(found[2]):
        return mark(url)
    start, path, rest = found[1] + found[2], found[3], found[4]
    if not _PLAIN_PATH.fullmatch(path):
        return f"{start}/{mark(path + rest)}"
    return f"{start}{path}{rest[:1]}{mark(rest[1:])}" if len(rest) > 1 else url
