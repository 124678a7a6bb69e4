"""SPF (RFC 7208): may this client send mail for this domain?

`check` is a generator: it yields what it has to ask the DNS and is sent the answers
(`relay.dns.questions`), so the whole of it is tested without a network, by the test suite that
was published with the RFC (`tests/checks/test_spf.py`).

Promises
- A record is read whole before any of it is believed: a syntax error anywhere is `permerror`.
- What a stranger's records can make us ask is bounded (RFC 7208, 4.6.4): 10 terms that ask, 10 MX
  hosts and 10 PTR names each, and 2 terms for which there is nothing ("void").  With the
  explanation that makes 1 + 10 * 11 + 12 questions at most.
- It never raises for what a record, an envelope or an answer holds.

Fails by `temperror` where the DNS gave no answer.

Where the RFC leaves a choice: a target name that cannot be asked for (an empty label, one over 63
bytes, anything but ASCII) matches nothing; a void look-up is counted once a term, for its own
question, so that an IPv6 client is not refused for hosts of an MX that have IPv4 only.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn
from urllib.parse import quote

from relay.addresses import a_labels
from relay.chance import time
from relay.checks.details import in_one_line, quoted
from relay.dns.questions import MAX_NAME, Answer, Asking, Question, RecordType, Status, is_name
from relay.ip import ip_address

MAX_TERMS = 10
"""Terms of all records together that may ask the DNS."""
MAX_VOID = 2
"""Terms of them for which there may be nothing."""
MAX_HOSTS = 10
"""Hosts of an MX, and names of an address, that are looked at."""
MAX_RECORD = 8192
"""Characters of a record, or of an explanation, that is read: what is longer is nobody's, and every
macro in it costs time."""
MAX_EXPLANATION = 500
"""Characters kept of what a domain says about a refusal."""

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_QUALIFIERS = {"+": "pass", "-": "fail", "~": "softfail", "?": "neutral"}

_VERSION = re.compile(r"v=spf1(?: |\Z)", re.IGNORECASE)
_MODIFIER = re.compile(r"([a-z][a-z0-9._-]*)=(.*)", re.IGNORECASE | re.DOTALL)
_DIRECTIVE = re.compile(r"([+?~-]?)([a-z][a-z0-9._-]*)(.*)", re.IGNORECASE | re.DOTALL)
_LENGTH = r"(0|[1-9][0-9]{0,2})"
_HOSTS = re.compile(rf"(?::(.+?))?(?:/{_LENGTH})?(?://{_LENGTH})?", re.DOTALL)
_NETWORK = re.compile(rf":([0-9a-f:.]+)(?:/{_LENGTH})?", re.IGNORECASE)

_MACRO = re.compile(r"%\{([slodiphvcrt])([0-9]*)(r?)([-.+,/_=]*)\}|%([%_-])", re.IGNORECASE)
_LITERAL = re.compile(r"[\x21-\x24\x26-\x7e]+")
_SPACED = re.compile(r"[\x20-\x24\x26-\x7e]+")
_TOP_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", re.IGNORECASE)
_ESCAPES = {"%": "%", "_": " ", "-": "%20"}


class Spf(NamedTuple):
    """What SPF says.

    `result`: none, neutral, pass, fail, softfail, temperror or permerror; `domain`: the sender's,
    empty where it is no name; `detail`: the reason in a sentence; `explanation`: what the domain
    says itself about a `fail`, or empty.
    """

    result: str
    domain: str
    detail: str
    explanation: str = ""


class _Ended(Exception):
    """The evaluation cannot go on: `result` is what it comes to."""

    def __init__(self, result: str, detail: str) -> None:
        super().__init__(detail)
        self.result = result
        self.detail = detail


def _permerror(detail: str) -> NoReturn:
    raise _Ended("permerror", detail)


class _Macro(NamedTuple):
    """One `%{…}`."""

    letter: str
    keep: int  # 0: all
    backwards: bool
    delimiters: str
    escaped: bool


_Text = Sequence[str | _Macro]


class _Mechanism(NamedTuple):
    """One directive: its result if it matches, and what makes it match."""

    result: str
    name: str
    text: str  # as it stands in the record
    target: _Text | None = None
    bits4: int = 32
    bits6: int = 128
    network: ipaddress.IPv4Network | ipaddress.IPv6Network | None = None


@dataclass
class _Record:
    mechanisms: list[_Mechanism] = field(default_factory=list)
    redirect: _Text | None = None
    explain: _Text | None = None


def check(
    client: str,
    helo: str,
    mail_from: str,
    *,
    receiver: str = "unknown",
    now: Callable[[], float] = time,
) -> Asking[Spf]:
    """Check the domain of an envelope's sender (of HELO, where that is empty) against a client.

    `client`: its IP address, IPv4 also as ::ffff:a.b.c.d; `mail_from`: without angle brackets;
    `receiver`: the name of this host, and `now` seconds since 1970, for explanations alone.
    ValueError: the client's is no address.
    """
    address = ip_address(client)
    local, _, domain = (mail_from or f"postmaster@{helo}").rpartition("@")
    domain = domain.removesuffix(".")
    if not domain.isascii():
        try:
            domain = a_labels(domain)
        except ValueError as error:
            return Spf("none", "", f"the domain {error}")
    if "." not in domain or not is_name(domain):
        return Spf("none", "", "there is no domain name to ask for")
    evaluation = _Evaluation(address, helo, local or "postmaster", domain, receiver, now)
    try:
        outcome = yield from evaluation.check_host(domain)
    except _Ended as ended:
        outcome = Spf(ended.result, domain, ended.detail)
    return outcome._replace(
        domain=domain,
        detail=in_one_line(outcome.detail),
        explanation=in_one_line(outcome.explanation, MAX_EXPLANATION),
    )


class _Evaluation:
    """One run of `check`: what all records have in common, and what was asked so far."""

    def __init__(
        self,
        client: _Address,
        helo: str,
        local: str,
        domain: str,
        receiver: str,
        now: Callable[[], float],
    ) -> None:
        self._client = client
        self._helo = helo
        self._local = local
        self._domain = domain
        self._receiver = receiver
        self._now = now
        self._terms = 0
        self._void = 0
        self._names: list[str] | None = None  # of the client, each of which leads back to it

    def check_host(self, domain: str, *, explains: bool = True) -> Asking[Spf]:
        """Evaluate the record of a domain (RFC 7208, 4); `_Ended` where it cannot be."""
        record = yield from self._record(domain)
        if record is None:
            return Spf("none", domain, f"{domain} publishes no SPF record")
        for mechanism in record.mechanisms:
            matches = yield from self._matches(mechanism, domain)
            if matches:
                explanation = ""
                if mechanism.result == "fail" and explains and record.explain is not None:
                    explanation = yield from self._explanation(record.explain, domain)
                said = f"{quoted(mechanism.text)} of {domain} matches {self._client}"
                return Spf(mechanism.result, domain, said, explanation)
        if record.redirect is None:
            return Spf("neutral", domain, f"nothing in the record of {domain} matches")
        self._count()
        target = yield from self._expand(record.redirect, domain)
        if not is_name(target):
            _permerror(f"{domain} redirects to {quoted(target)}, which is no name")
        result = yield from self.check_host(target, explains=explains)
        if result.result == "none":
            _permerror(f"{domain} redirects to {target}, which publishes no SPF record")
        return result

    def _record(self, domain: str) -> Asking[_Record | None]:
        answer = yield Question(domain, "TXT")
        if answer.status is Status.FAILED:
            raise _Ended("temperror", f"the SPF record of {domain}: {answer.detail}")
        records = [text for text in answer.records if _VERSION.match(text)]
        if not records:
            return None
        if len(records) > 1:
            _permerror(f"{domain} publishes {len(records)} SPF records")
        return _parse(records[0], domain)

    def _count(self) -> None:
        self._terms += 1
        if self._terms > MAX_TERMS:
            _permerror(f"more than {MAX_TERMS} terms ask the DNS")

    def _ask(self, name: str, kind: RecordType) -> Asking[Answer]:
        """The answer to a term's own question; a name that cannot be asked for has nothing."""
        if not is_name(name):
            return Answer(Status.NXDOMAIN)
        answer = yield Question(name, kind)
        if answer.is_void:
            self._void += 1
            if self._void > MAX_VOID:
                _permerror(f"more than {MAX_VOID} terms ask for what does not exist")
        return answer

    def _address_type(self) -> RecordType:
        return "A" if self._client.version == 4 else "AAAA"

    # ----------------------------------------------------------------- mechanisms

    def _matches(self, mechanism: _Mechanism, domain: str) -> Asking[bool]:
        name = mechanism.name
        if name == "all":
            return True
        if mechanism.network is not None:
            return self._client in mechanism.network
        self._count()
        target = domain
        if mechanism.target is not None:
            target = yield from self._expand(mechanism.target, domain)
        if name == "include":
            return (yield from self._includes(target))
        if name == "ptr":
            names = yield from self._client_names()
            return any(_is_within(found, target) for found in names)
        if name == "mx":
            return (yield from self._matches_mx(target, mechanism))
        answer = yield from self._ask(target, "A" if name == "exists" else self._address_type())
        if answer.status is Status.FAILED:
            raise _Ended("temperror", f"the addresses of {target}: {answer.detail}")
        if name == "exists":
            return bool(answer.records)
        return self._is_among(answer.records, mechanism)

    def _includes(self, target: str) -> Asking[bool]:
        if not is_name(target):
            _permerror(f"{quoted(target)}, which is included, is no name")
        result = yield from self.check_host(target, explains=False)
        if result.result == "none":
            _permerror(f"{target}, which is included, publishes no SPF record")
        return result.result == "pass"

    def _matches_mx(self, target: str, mechanism: _Mechanism) -> Asking[bool]:
        answer = yield from self._ask(target, "MX")
        if answer.status is Status.FAILED:
            raise _Ended("temperror", f"the MX records of {target}: {answer.detail}")
        if len(answer.records) > MAX_HOSTS:
            _permerror(f"{target} has more than {MAX_HOSTS} MX records")
        for record in answer.records:
            host = record.partition(" ")[2]
            if not is_name(host):  # "0 .": it takes no mail
                continue
            addresses = yield Question(host, self._address_type())
            if addresses.status is Status.FAILED:
                raise _Ended("temperror", f"the addresses of {host}: {addresses.detail}")
            if self._is_among(addresses.records, mechanism):
                return True
        return False

    def _is_among(self, addresses: Sequence[str], mechanism: _Mechanism) -> bool:
        bits = mechanism.bits4 if self._client.version == 4 else mechanism.bits6
        for text in addresses:
            try:
                network = ipaddress.ip_network((text, bits), strict=False)
            except ValueError:
                continue
            if self._client in network:
                return True
        return False

    def _client_names(self, *, counted: bool = True) -> Asking[list[str]]:
        """The names of the client that lead back to it (5.5); errors make them fewer."""
        if self._names is not None:
            return self._names
        self._names = []
        reverse = Question(self._client.reverse_pointer, "PTR")
        answer = (yield from self._ask(*reverse)) if counted else (yield reverse)
        for name in answer.records[:MAX_HOSTS]:
            if not is_name(name):
                continue
            addresses = yield Question(name, self._address_type())
            if str(self._client) in addresses.records:
                self._names.append(name)
        return self._names

    # --------------------------------------------------------- macros, explanations

    def _explanation(self, explain: _Text, domain: str) -> Asking[str]:
        """What the domain says to who was refused (6.2); nothing where anything is wrong."""
        try:
            target = yield from self._expand(explain, domain, counted=False)
            if not is_name(target):
                return ""
            answer = yield Question(target, "TXT")
            if len(answer.records) != 1 or len(answer.records[0]) > MAX_RECORD:
                return ""
            text = _macro_string(answer.records[0], spaces=True, explaining=True)
            said = yield from self._expand(text, domain, counted=False, shorten=False)
        except _Ended:
            return ""
        return said

    def _expand(
        self, text: _Text, domain: str, *, counted: bool = True, shorten: bool = True
    ) -> Asking[str]:
        """Expand macros (7.3); a name has labels cut off its left side until it is short enough."""
        parts = []
        for part in text:
            if isinstance(part, str):
                parts.append(part)
                continue
            value = yield from self._value(part.letter, domain, counted=counted)
            parts.append(_transform(value, part))
        expanded = "".join(parts)
        if not shorten:
            return expanded
        expanded = expanded.removesuffix(".")
        if len(expanded) > MAX_NAME:
            start = expanded.find(".", len(expanded) - MAX_NAME - 1)
            expanded = expanded[start + 1 :]
        return expanded

    def _value(self, letter: str, domain: str, *, counted: bool) -> Asking[str]:
        match letter:
            case "s":
                return f"{self._local}@{self._domain}"
            case "l":
                return self._local
            case "o":
                return self._domain
            case "d":
                return domain
            case "h":
                return self._helo
            case "i":
                return _dotted(self._client)
            case "c":
                return str(self._client)
            case "v":
                return "in-addr" if self._client.version == 4 else "ip6"
            case "r":
                return self._receiver
            case "t":
                return str(int(self._now()))
        if self._names is None and counted:
            self._count()
        names = yield from self._client_names(counted=counted)
        for fits in (
            lambda name: name.lower() == domain.lower(),
            lambda name: _is_within(name, domain),
            lambda _: True,
        ):
            for name in names:
                if fits(name):
                    return name
        return "unknown"


def _is_within(name: str, domain: str) -> bool:
    name, domain = name.lower(), domain.lower()
    return name == domain or name.endswith("." + domain)


def _dotted(address: _Address) -> str:
    if address.version == 4:
        return str(address)
    return ".".join(address.exploded.replace(":", "").upper())  # as the suite has it


def _transform(value: str, macro: _Macro) -> str:
    parts = re.split(f"[{re.escape(macro.delimiters or '.')}]", value)
    if macro.backwards:
        parts.reverse()
    text = ".".join(parts[-macro.keep :] if macro.keep else parts)
    return quote(text, safe="", errors="replace") if macro.escaped else text


# ------------------------------------------------------------------------- syntax


def _parse(text: str, domain: str) -> _Record:
    """Read a record whole (4.6.1, 12); `_Ended` with permerror if any of it is malformed."""
    if len(text) > MAX_RECORD:
        _permerror(f"the record of {domain} is longer than {MAX_RECORD} characters")
    record = _Record()
    for term in text.split(" ")[1:]:
        if not term:
            continue
        try:
            if modifier := _MODIFIER.fullmatch(term):
                _parse_modifier(record, modifier[1].lower(), modifier[2])
            else:
                record.mechanisms.append(_parse_directive(term))
        except (_Ended, ValueError) as error:
            raise _Ended(
                "permerror", f"{term[:100]!r} in the record of {domain}: {error}"
            ) from None
    return record


def _parse_modifier(record: _Record, name: str, value: str) -> None:
    if name == "redirect":
        if record.redirect is not None:
            _permerror("redirect is there twice")
        record.redirect = _domain_spec(value)
    elif name == "exp":
        if record.explain is not None:
            _permerror("exp is there twice")
        record.explain = _domain_spec(value)
    else:
        _macro_string(value, explaining=True)  # of unknown ones the syntax counts, too


def _parse_directive(term: str) -> _Mechanism:
    match = _DIRECTIVE.fullmatch(term)
    if match is None:
        _permerror("neither a mechanism nor a modifier")
    qualifier, name, rest = match[1], match[2].lower(), match[3]
    made = _Mechanism(_QUALIFIERS[qualifier or "+"], name, term)
    if name == "all":
        if rest:
            _permerror("all takes nothing")
        return made
    if name in {"include", "exists"} or (name == "ptr" and rest):
        if not rest.startswith(":"):
            _permerror(f"{name} takes a colon and a name")
        return made._replace(target=_domain_spec(rest[1:]))
    if name == "ptr":
        return made
    if name in {"a", "mx"}:
        return _parse_hosts(made, rest)
    if name in {"ip4", "ip6"}:
        return _parse_network(made, rest)
    _permerror("an unknown mechanism")


def _parse_hosts(made: _Mechanism, rest: str) -> _Mechanism:
    match = _HOSTS.fullmatch(rest)
    if match is None:
        _permerror(f"{made.name} takes a name and lengths of prefixes")
    target, bits4, bits6 = match.groups()
    made = made._replace(bits4=int(bits4 or 32), bits6=int(bits6 or 128))
    if made.bits4 > 32 or made.bits6 > 128:
        _permerror("the prefix is too long")
    return made if target is None else made._replace(target=_domain_spec(target))


def _parse_network(made: _Mechanism, rest: str) -> _Mechanism:
    match = _NETWORK.fullmatch(rest)
    if match is None:
        _permerror(f"{made.name} takes a network")
    if made.name == "ip4":
        four = ipaddress.IPv4Network((match[1], int(match[2] or 32)), strict=False)
        return made._replace(network=four)
    six = ipaddress.IPv6Network((match[1], int(match[2] or 128)), strict=False)
    return made._replace(network=six)


def _domain_spec(text: str) -> _Text:
    """Parse a name with macros in it: it ends in a macro, or in a dot and a top-level label."""
    parts = _macro_string(text)
    if not parts:
        _permerror("a name is missing")
    if not text.endswith(("}", "%%", "%_", "%-")):
        _, dot, label = text.removesuffix(".").rpartition(".")
        if not dot or not _TOP_LABEL.fullmatch(label) or label.isdigit():
            _permerror("the name has no top-level domain")
    return parts


def _macro_string(text: str, *, spaces: bool = False, explaining: bool = False) -> _Text:
    parts: list[str | _Macro] = []
    literal = _SPACED if spaces else _LITERAL
    at = 0
    while at < len(text):
        if match := literal.match(text, at):
            parts.append(match[0])
        elif match := _MACRO.match(text, at):
            parts.append(_macro(match, explaining=explaining))
        else:
            _permerror("a character or a macro that cannot stand there")
        at = match.end()
    return parts


def _macro(match: re.Match[str], *, explaining: bool) -> str | _Macro:
    letter, digits, backwards, delimiters, escape = match.groups()
    if escape is not None:
        return _ESCAPES[escape]
    if letter in "crtCRT" and not explaining:
        _permerror(f"%{{{letter}}} stands in explanations alone")
    if digits and not digits.strip("0"):
        _permerror("a macro that keeps no label")
    # More labels than a name can have are all of them.
    keep = min(int(digits[-9:]), 1000) if digits else 0
    return _Macro(letter.lower(), keep, bool(backwards), delimiters, letter.isupper())
