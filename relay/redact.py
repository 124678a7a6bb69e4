"""Personal data taken out of text that others wrote, before it is stored, shown or logged.

Addresses, Message-IDs, IP addresses, phone numbers and other long numbers, tokens, and what
stands behind a URL's host become `<redacted:HASH>`.  HASH is keyed and stable: two lines about
the same address can be correlated by who holds the key and the logs, and by nobody undone.

Promises:
- No `@` survives, nor any of its disguises (`%40`, `=40`, `&#64;`, its full-width forms): whatever
  surrounds one is taken out as a whole, so no address survives however oddly it is written.
- Of what is known to be personal (a recipient's local part, a name, a subject) nothing is left
  either where it cannot be an ordinary word: it holds letters and a digit, a dot, a hyphen,
  anything else, or is a phrase of more than words that every mail server says.  One plain word
  (rose, invoice, quarantine) or number (10042) is taken out where it stands as an address would: in
  angle brackets, right after `user`, `mailbox`, `to=` and their like, in quotes or parentheses
  beside one of them, or at the beginning with one behind it (`rose: no such user`).  Elsewhere it
  stays, so that the reason can be read; what reads as a reply's code (451, 5.1.1) goes in angle
  brackets only.  A secret is taken out wherever it stands.
- Redacting twice changes nothing; the result has at most `limit` characters and one line.
- An address gives the same hash in any case, quoted or not, in angle brackets or not.
- Linear in the input, which is cut at `limit` first.

Fails: never.  What is taken for personal data and is not (a long queue id) is lost to the
reader; that is the side to err on.  A name that is one plain word or number and stands in a
sentence as any word does (`rose is over quota`) is not told from a word, and stays.

Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable

LIMIT = 2000
"""Characters kept, unless told otherwise."""

COMMON = frozenset(
    """
    a abuse accept acceptable accepted accepting access according account accounts action active
    address addresses admin administrator after again all allowed an and any are as at
    attachment attempt attempts authenticated authentication available bad banned because been
    before billing blacklist blacklisted block blocked blocklist body bounce bounced bulk busy
    but by can cannot certificate check checks client closed closing code command complaint
    complete completed config configuration confirm connect connection connections contact
    content could current daemon data database day days deferred delay delayed delete deleted
    delivered delivering delivery denied destination details detected did different directory
    disabled discarded disk dns do does domain domains done down due during email emails empty
    enabled encryption end error errors exceed exceeded exceeds exist exists expired external
    fail failed fails failure feedback file filter filtered finance for forbidden forged format
    found from full further get go going good greeting greylist greylisted greylisting has have
    header headers hello help here high host hostmaster hosts hour hours how if ignored in
    inactive incoming infected info information insufficient internal into invalid is issue it
    its job jobs just later length limit limited limits line lines list listed lists load local
    locked login logs long lookup loop low mail mailbox mailboxes mailer mailing mails main
    malformed malware many marketing maximum may me media memory message messages method minute
    minutes missing more moved must name names network new news newsletter no noreply normal not
    notice notification now number of off office offline ok on one only open operation option or
    order orders other our out outgoing over owner pass password path pending per permanent
    permission permitted phishing please policy poor port possible post postmaster present press
    privacy problem process processing program prohibited protected protection protocol provide
    provided queue queued quota rate read reached reason receive received receiver recipient
    recipients record redirect refer refuse refused registered reject rejected rejecting
    rejection relay relaying remote remove removed reply report reports reputation request
    requested require required requires reset resolve resource resources response restricted
    result retry return returned reverse root route sales score second seconds secure security
    see send sender senders sending sent server service services session set shop should shut
    site size slow smtp software some spam spammer spammy spf stack start state status stop
    storage store subject subscribe success such support suspended suspicious system team
    temporarily temporary test text than that the their them then there they this thread
    throttled ticket time timed timeout times tls to today token too traffic transaction
    transfer transient trouble trusted try trying type unable unauthenticated unavailable under
    unexpected unknown unlisted unsolicited unsubscribe until up update usage use used user
    username users using valid verification verified verify via violation virus visit wait
    waiting warning was we web webmaster welcome were when which while will with without word
    work wrong year yet you your
    """.split()  # noqa: SIM905 - a table of words, to be read as one
)
"""Words of which mail servers' replies are made, and the names of roles: they mean nobody."""

_MARK = r"<redacted:[0-9a-f]{10}>"
_AT = r"(?:[@\uff20\ufe6b]|%40|=40(?=[A-Z])|&#0*64;|&#x0*40;|&commat;)"
_PATTERN = re.compile(
    rf"(?P<done>{_MARK})"
    r"|(?P<url>[A-Za-z][A-Za-z0-9+.\-]{0,20}://[^\s<>\"]+)"
    rf"|(?P<address><?(?:\"[^\"<>]{{0,200}}\"|[^\s<>\"(),;:\[\]]{{0,300}}){_AT}"
    rf"(?:[^\s<>\"(),;]|{_AT})*>?)"
    r"|(?P<ip>(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w])"
    r"|(?<![\w:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3})?(?![\w:]))"
    r"|(?P<phone>\+?\d{7,}|\+\d{1,3}(?:[ .\-/()]{1,2}\d{1,15}){2,7}"
    r"|(?<![\w.\-])\(?\d{2,5}\)?(?:[ .\-/]\(?\d{2,5}\)?){2,5}(?![\w.\-]))"
    r"|(?P<token>(?<![\w\-+/=])(?=[A-Za-z_\-+/=]{0,80}\d)[A-Za-z0-9_\-+/=]{24,})",
    re.IGNORECASE,
)
# What stands beside a bare local part when it is meant as one.
_WHOSE = (
    r"(?:users?|username|mailbox(?:es)?|inbox|maildir|recipients?|accounts?|address(?:es)?"
    r"|login|logname|uid|o?rcpt|mailto)"
)
_BEFORE = (
    rf"(?<![^\W_]){_WHOSE}(?:\s(?:name|id|named))?(?:(?:\s?[=:/]\s?|\s)[\"'`(<\[]?|[(<\[])"
    rf"|(?<![^\W_]){_WHOSE}\s(?:unknown|not found|does not exist)(?:\s?[:=]\s?|\s)[\"'`(<\[]?"
    r"|(?<!\w)(?:mailbox|inbox)\s(?:for|of)\s[\"'`(<\[]?"
    r"|(?<!\w)(?:to|from)\s?[=:]\s?[\"'`(<\[]?"
)
_NEXT = rf"(?:\s(?:is|no|not|a|an|such|valid|unknown|invalid|known|local)){{0,4}}\s{_WHOSE}\b"
_AFTER_QUOTES = rf"[\"'`)\]][:,.]{{0,3}}{_NEXT}"
_AT_START = r"^(?:\d{3}[ \-])?(?:\d\.\d{1,3}\.\d{1,3}\s)?"
_AFTER_START = rf"\s?(?::|\.\.\.|,|-){_NEXT}"
# What a bare local part may be and yet say nothing of anybody: a number, the code of a reply.
_NUMBER = re.compile(r"[0-9]{1,6}")
_CODE = re.compile(r"[245][0-9]{2}|[245](?:\.[0-9]{1,3}){2}")
_JOINS = re.compile(r"[\s.+_\-]+")
# Words of letters, and one with digits at most (`Ok: queued as 4bXq3Z`): nothing that `_PATTERN`
# could find.
_WORD = r"[A-Za-z]{1,23}[.,:;!]?"
_QUIET = re.compile(
    rf"(?:{_WORD} )*+(?:{_WORD}(?![^ ])|(?![A-Za-z0-9]{{0,23}}[0-9]{{7}})[A-Za-z0-9]{{1,23}})"
    rf"(?: {_WORD})*+"
)
_SPELT_AT = r"\s?[\[(]\s?at\s?[\])]"
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


def redact(
    text: str,
    key: bytes,
    known: Collection[str] = (),
    *,
    secrets: Collection[str] = (),
    limit: int = LIMIT,
) -> str:
    """Return `text` without personal data, in one line of at most `limit` characters.

    `known`: what is known to be personal here (the recipient, the subject): it and, of an address,
    its local part are taken out, in any case, unless they are made of words that mean nobody; one
    plain word only where it stands as an address would.
    `secrets` (a password): taken out wherever they stand, whatever they look like.
    """
    if len(text) <= limit and _untouched(text, known, secrets):
        return text
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

    def replace_word(found: re.Match[str]) -> str:
        word = found["word"]
        if word is None:
            return found[0]
        start, end = (place - found.start() for place in found.span("word"))
        return found[0][:start] + mark(word) + found[0][end:]

    anywhere, words = _known(known, secrets, text)
    if anywhere:
        pattern = "|".join(re.escape(value) for value in anywhere)
        text = re.sub(rf"(?P<done>{_MARK})|(?:{pattern})", replace, text, flags=re.IGNORECASE)
    for word in words:
        for pattern in _in_address_context(word):
            text = re.sub(rf"(?P<done>{_MARK})|{pattern}", replace_word, text, flags=re.IGNORECASE)
    # What a mark stands beside may itself be recognised only now; each round takes text away.
    while (fewer := _cut(_PATTERN.sub(replace, text), limit)) != text:
        text = fewer
    return text


def _untouched(text: str, known: Iterable[str], secrets: Collection[str]) -> bool:
    """Whether a text is so plain that nothing of it is to be taken out; False says nothing.

    The short way, for what servers say to mail that they take: each delivery has such a text.  Held
    to the long way by tests/test_redact.py; pays in `python -m tests.bench outbound`.
    """
    if _QUIET.fullmatch(text) is None:
        return False
    whole = "|".join(known)
    # What is found with other spaces, quotes or letters than it is written in is left to that.
    if not whole.isascii() or not whole.isprintable() or "  " in whole or '"' in whole:
        return False
    lowered = text.lower()
    for value in whole.lower().split("|"):
        part = value.rpartition("@")[0] or value
        if len(part) >= 3 and part.strip() in lowered:
            return False
    return not secrets or all(value.isascii() and value.lower() not in lowered for value in secrets)


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


def _known(known: Iterable[str], secrets: Iterable[str], text: str) -> tuple[list[str], list[str]]:
    """What is to be taken out wherever it stands, and plain words and numbers, longest first.

    What cannot be found in `text` is left out, as each of them would be compiled.
    """
    lowered = text.lower() if text.isascii() else None

    def absent(value: str) -> bool:
        # Outside ASCII, letters without case match others than those they are lowered to.
        return lowered is not None and value.isascii() and value.lower() not in lowered

    anywhere: set[str] = set()
    words: set[str] = set()
    for value in filter(None, map(_one_line, known)):
        local = value.rpartition("@")[0].strip('"')
        if absent(local or value):
            continue
        for part in (value, local):
            if len(part) < 3 or absent(part):
                continue
            pieces = filter(None, _JOINS.split(part.casefold()))
            if all(piece in COMMON for piece in pieces):
                continue
            plain = part.isalpha() or _NUMBER.fullmatch(part) or _CODE.fullmatch(part)
            (words if plain else anywhere).add(part)
    for value in map(_one_line, secrets):
        if len(value) >= 3 and not absent(value):
            anywhere.add(value)
    return sorted(anywhere, key=len, reverse=True), sorted(words, key=len, reverse=True)


def _in_address_context(word: str) -> Iterable[str]:
    """Expressions that find a plain word, as the group `word`, where an address would stand."""
    named = rf"(?P<word>(?!redacted:){re.escape(word)})"
    yield rf"<{named}>"
    if _CODE.fullmatch(word):
        return  # `RCPT TO: 550 no such user` says it of the reply
    yield rf"(?:{_BEFORE}){named}(?!\w)"
    yield rf"[\"'`(\[]{named}{_AFTER_QUOTES}"
    yield rf"{_AT_START}{named}{_AFTER_START}"
    yield rf"(?<!\w){named}{_SPELT_AT}"


def _url(url: str, mark: Callable[[str], str]) -> str:
    """Keep scheme, host and a path of words; whatever else may say who somebody is."""
    found = _URL_PARTS.fullmatch(url)
    if found is None or not _PLAIN_HOST.fullmatch(found[2]):
        return mark(url)
    start, path, rest = found[1] + found[2], found[3], found[4]
    if not _PLAIN_PATH.fullmatch(path):
        return f"{start}/{mark(path + rest)}"
    return f"{start}{path}{rest[:1]}{mark(rest[1:])}" if len(rest) > 1 else url
