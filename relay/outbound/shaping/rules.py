"""Traffic rules: how much a receiver is given at once, and what its replies mean for what follows.

A file of TOML (`RELAY_OUTBOUND__SHAPING`; docs/traffic.md has its reference) says for each provider
which MX hosts and recipient domains are its own, and for all of them together: connections, mails a
connection, mails in a time, and what a reply that fits a pattern asks for.  `Rules` is what was
read, `Rules.provider` finds whose rules a site has, `Rules.meaning` what a reply asks for, `Limits`
what is left of a rule while it is slowed.

Promises
- What is misspelt or cannot be used is a `ConfigError` that names the file and the line.
- A site is a provider's by its hosts only if all of its exchangers are: who names a provider's
  server beside one of their own cannot have replies of their own count for the provider.
- Suppressing takes a final refusal (5yz) of this recipient, and never one of policy (5.7.z, or
  words of it), which is about the sender, or for now; whatever else of a reply a rule fits.
- A reply is looked at for a time that does not depend on what it is (`reply_patterns`).

Fails: `parse` with `ConfigError`.

Pure; the caller reads the file.
"""

from __future__ import annotations

import re
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from relay.addresses import canonical_domain
from relay.errors import ConfigError
from relay.outbound.pacing.rate import Rate
from relay.outbound.shaping.reply_patterns import Pattern, compile_pattern
from relay.outbound.strict_tables import Wrong, check_keys, is_name, sentence
from relay.returns.law import may_be_gone
from relay.settings import duration
from relay.smtp.client import ABOUT_RECIPIENT, Outcome, Verdict

STEP = 60.0
"""Seconds in which several replies that ask to slow down are one: all were on their way already."""

LEAST_FACTOR = 1 / 64
"""What slowing down again and again leaves of a rule at least."""

WITHIN = 3600.0
"""Seconds in which `after` replies count together."""

LONGEST = 7 * 86_400.0
"""Seconds that a reply may slow or suspend for at most."""

_RATE = re.compile(r"(\d{1,9})\s*/\s*(s|m|min|h|hour|d|day)", re.ASCII)
_PER = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86_400.0}
_PER["day"] = _PER["d"]
_CODE = re.compile(r"[45](?:[0-9][0-9x]|xx)", re.ASCII)
_ENHANCED = re.compile(r"[45]\.(?:\d{1,3}\.(?:\d{1,3}|x)|x)", re.ASCII)


class Asks(StrEnum):
    """What a reply asks for."""

    SLOW = "slow"
    SUSPEND = "suspend"
    SUPPRESS = "suppress"


@dataclass(frozen=True, slots=True)
class ReplyRule:
    """What a reply of a kind asks for."""

    asks: Asks
    line: int
    """Where it stands in its file."""
    codes: tuple[str, ...] = ()
    """Of these codes, an `x` standing for any digit; empty: of any."""
    enhanced: str = ""
    """Of this enhanced status code, `4.7.x` for all of 4.7; empty: of any."""
    text: Pattern | None = None
    seconds: float = 0.0
    """For how long it is slowed or suspended."""
    factor: float = 1.0
    """What is left of connections and rate."""
    after: int = 1
    """Of so many within `WITHIN` seconds."""

    def fits(self, outcome: Outcome, whole: str | None = None) -> bool:
        """Whether an outcome is such a reply.

        `whole`: its text with what was left out of it that may forbid suppressing; None: nothing
        was.
        """
        if outcome.code is None or outcome.verdict is Verdict.DELIVERED:
            return False
        if self.codes and not any(_fits_code(code, outcome.code) for code in self.codes):
            return False
        if self.enhanced and not _fits_enhanced(self.enhanced, outcome.enhanced or ""):
            return False
        if self.asks is Asks.SUPPRESS and (
            outcome.phase not in ABOUT_RECIPIENT
            or outcome.code < 500
            or (outcome.enhanced or "").startswith("5.7.")
            # Neither a code nor a line of several is believed alone.
            or not may_be_gone(outcome.text if whole is None else whole)
        ):
            return False
        return self.text is None or self.text.found_in(outcome.text)


Given = TypeVar("Given", int, Rate)


def _least(one: Given | None, other: Given | None) -> Given | None:
    return min((each for each in (one, other) if each is not None), default=None)


class Limits(NamedTuple):
    """What a receiver is given; None: no limit of its own."""

    connections: int | None = None
    """At once, of one node."""
    messages: int | None = None
    """On one connection."""
    rate: Rate | None = None
    """Of all nodes together."""

    def least(self, other: Limits) -> Limits:
        """Of both, whatever is less; no limit is more than any."""
        return Limits(
            _least(self.connections, other.connections),
            _least(self.messages, other.messages),
            _least(self.rate, other.rate),
        )

    def slowed(self, factor: float) -> Limits:
        """These, while so much of them is left."""
        connections, rate = self.connections, self.rate
        if connections is not None:
            connections = max(int(connections * factor), 1)
        if rate is not None:
            rate = Rate(rate.rate * factor, max(rate.burst * factor, 1.0))
        return Limits(connections, self.messages, rate)


@dataclass(frozen=True, slots=True)
class Provider:
    """Who is given so much, and replies so."""

    name: str
    limits: Limits = Limits()  # noqa: RUF009 - it is immutable
    hosts: tuple[str, ...] = ()
    """Suffixes of names of MX hosts."""
    domains: tuple[str, ...] = ()
    """Recipient domains."""
    replies: tuple[ReplyRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Rules:
    """What a file says."""

    providers: tuple[Provider, ...] = ()
    default: Provider = Provider("")
    """What holds for each site that is no provider's."""
    _by_domain: Mapping[str, Provider] = field(default_factory=dict)
    _by_host: Mapping[str, Provider] = field(default_factory=dict)

    def of_domain(self, domain: str) -> Provider | None:
        """The provider that a recipient domain is said to be of."""
        return self._by_domain.get(domain.lower())

    def provider(self, domain: str, hosts: Sequence[str]) -> Provider | None:
        """The provider of a domain whose exchangers are `hosts`; None: `default` holds."""
        found = self.of_domain(domain)
        if found is not None or not self._by_host:
            return found
        providers = [self._of_host(host) for host in hosts]
        first = providers[0] if providers else None
        return first if all(each is first for each in providers) else None

    def named(self, name: str) -> Provider:
        """The provider of a name; `default` where there is none of it."""
        return next((each for each in self.providers if each.name == name), self.default)

    def meaning(
        self, provider: Provider, outcome: Outcome, whole: str | None = None
    ) -> ReplyRule | None:
        """The first rule, the provider's own before those for all, that fits a reply (`whole`: see
        `ReplyRule.fits`).
        """
        if outcome.code is None or outcome.verdict is Verdict.DELIVERED:
            return None
        rules = provider.replies
        if provider is not self.default:
            rules += self.default.replies
        return next((rule for rule in rules if rule.fits(outcome, whole)), None)

    @property
    def limits_rates(self) -> bool:
        """Whether anything has a rate."""
        return any(each.limits.rate for each in (*self.providers, self.default))

    def _of_host(self, host: str) -> Provider | None:
        labels = host.lower().rstrip(".").split(".")
        for at in range(len(labels)):
            found = self._by_host.get(".".join(labels[at:]))
            if found is not None:
                return found
        return None


class Counts:
    """How often each rule was met lately, where it takes more than one reply."""

    def __init__(self) -> None:
        self._met: dict[tuple[object, int], deque[float]] = {}

    def met(self, what: object, rule: ReplyRule, now: float) -> bool:
        """Note that a reply has fitted; True if there are enough of them."""
        if rule.after <= 1:
            return True
        if len(self._met) >= 10_000:
            self._met = {key: met for key, met in self._met.items() if met[-1] > now - WITHIN}
        met = self._met.setdefault((what, rule.line), deque(maxlen=rule.after))
        met.append(now)
        return len(met) == rule.after and met[0] > now - WITHIN


# Reading ------------------------------------------------------------------------------------------


def parse(text: str, name: str) -> Rules:
    """Return the rules that a file has; `name` is the file's, for what is wrong in it."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The traffic rules {name} are not valid TOML: {error}.") from error
    return _Reading(text, name).rules(table)


class _Reading:
    """One file that is read."""

    def __init__(self, text: str, name: str) -> None:
        self._keys = list(_keys(text.splitlines()))
        self._name = name

    def rules(self, table: dict[str, Any]) -> Rules:
        default = Provider("")
        providers: list[Provider] = []
        try:
            check_keys(table, ["default", "provider"])
        except Wrong as error:
            raise self._error((), error.key, str(error)) from error
        for key, value in table.items():
            if key == "default":
                default = self._provider("", value, ("default",))
            else:
                if not isinstance(value, dict):
                    raise self._error((), key, "providers are tables, as [provider.example]")
                providers += [
                    self._provider(each, said, ("provider", each)) for each, said in value.items()
                ]
        by_domain: dict[str, Provider] = {}
        by_host: dict[str, Provider] = {}
        for provider in providers:
            for key, names, known in (
                ("domains", provider.domains, by_domain),
                ("mx", provider.hosts, by_host),
            ):
                for one in names:
                    if one in known:
                        said = f"{one} is {known[one].name}'s already"
                        raise self._error(("provider", provider.name), key, said)
                    known[one] = provider
        return Rules(tuple(providers), default, by_domain, by_host)

    def _provider(self, name: str, said: Any, path: tuple[str, ...]) -> Provider:
        if not isinstance(said, dict):
            raise self._error(path[:-1], path[-1], "it must be a table")
        if name and not is_name(name):
            raise self._error(path, "", f"{name!r} is no name: it takes a-z, 0-9, - and _")
        known = ["connections", "messages", "rate", "replies", *(["mx", "domains"] if name else [])]
        try:
            check_keys(said, known)
            limits = Limits(
                _count(said, "connections", 10_000),
                _count(said, "messages", 1_000_000),
                _rate(said),
            )
            hosts, domains = _names(said, "mx"), _names(said, "domains")
            replies = _tables(said)
        except Wrong as error:
            raise self._error(path, error.key, str(error)) from error
        if name and not hosts and not domains:
            says = "it says neither mx nor domains, so nothing would be its own"
            raise self._error(path, "", says)
        rules = tuple(
            self._reply(one, (*path, "replies"), number) for number, one in enumerate(replies)
        )
        return Provider(name, limits, hosts, domains, rules)

    def _reply(self, said: dict[str, Any], path: tuple[str, ...], number: int) -> ReplyRule:
        try:
            return _reply(said, self._line(path, "", number))
        except Wrong as error:
            raise self._error(path, error.key, str(error), number) from error

    def _error(self, path: tuple[str, ...], key: str, says: str, number: int = 0) -> ConfigError:
        where = ".".join((*path, key) if key else path)
        line = self._line(path, key, number)
        said = sentence(says)
        return ConfigError(f"The traffic rules {self._name}, line {line}: {where}: {said}")

    def _line(self, path: tuple[str, ...], key: str, number: int = 0) -> int:
        """The line of a key in the number-th table of a path; that of its head if it has none."""
        head, tables, inside = 1, -1, not path
        for at, table, name in self._keys:
            if name is not None:
                if inside and name == key:
                    return at
                continue
            if not path and key and table[0] == key:
                return at
            tables += table == path
            inside = table == path and tables == number
            if inside:
                head = at
                if not key:
                    break
        return head


def _keys(lines: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...], str | None]]:
    """Each header (None) and key of a file: its line, and the path of the table that it is in."""
    path: tuple[str, ...] = ()
    for number, line in enumerate(lines, 1):
        if match := re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?", line):
            path = tuple(part.strip().strip("\"'") for part in match[1].split("."))
            yield number, path, None
        elif match := re.match(r"\s*([A-Za-z0-9_-]+|\"[^\"]+\"|'[^']+')\s*[=.]", line):
            yield number, path, match[1].strip("\"'")


def _reply(said: dict[str, Any], line: int) -> ReplyRule:
    check_keys(said, ["code", "enhanced", "text", "slow", "to", "suspend", "suppress", "after"])
    asks = [each for each in Asks if each in said]
    if len(asks) != 1:
        raise Wrong("", "a reply asks for one of slow, suspend and suppress")
    (what,) = asks
    codes = _codes(said)
    enhanced = said.get("enhanced", "")
    if not isinstance(enhanced, str) or (enhanced and not _ENHANCED.fullmatch(enhanced)):
        raise Wrong("enhanced", 'it must be a code as "4.7.28", or all of them as "4.7.x"')
    text = None
    if "text" in said:
        if not isinstance(said["text"], str):
            raise Wrong("text", "it must be a text")
        try:
            text = compile_pattern(said["text"])
        except ValueError as error:
            raise Wrong("text", str(error)) from error
    if not codes and not enhanced and text is None:
        raise Wrong("", "it says of no reply what it means: code, enhanced or text is missing")
    seconds, factor = 0.0, 1.0
    if what is Asks.SUPPRESS:
        if said["suppress"] is not True:
            raise Wrong("suppress", "it can only be true")
        if any(not code.startswith("5") for code in codes) or enhanced.startswith("4"):
            raise Wrong("suppress", "only what is refused for good (5yz) is suppressed")
        if enhanced.startswith("5.7"):
            raise Wrong("suppress", "5.7.z is about the sender, and suppresses nobody")
    else:
        seconds = _seconds(said, what)
    if what is Asks.SLOW:
        factor = said.get("to", 0.5)
        if isinstance(factor, bool) or not isinstance(factor, int | float):
            raise Wrong("to", "it must be a number")
        if not LEAST_FACTOR <= factor < 1:
            raise Wrong("to", f"what is left is at least {LEAST_FACTOR:g}, and less than 1")
    elif "to" in said:
        raise Wrong("to", "it says to what part something is slowed, and goes with slow")
    after = said.get("after", 1)
    if isinstance(after, bool) or not isinstance(after, int) or not 1 <= after <= 1000:
        raise Wrong("after", "it must be a number of replies, from 1 to 1000")
    return ReplyRule(what, line, codes, enhanced, text, seconds, float(factor), after)


def _tables(said: dict[str, Any]) -> list[dict[str, Any]]:
    replies = said.get("replies", [])
    if not isinstance(replies, list) or not all(isinstance(one, dict) for one in replies):
        raise Wrong("replies", "replies are tables, as [[provider.example.replies]]")
    return replies


def _codes(said: dict[str, Any]) -> tuple[str, ...]:
    value = said.get("code", ())
    listed = value if isinstance(value, list | tuple) else [value]
    codes = [str(each).lower() for each in listed if not isinstance(each, bool)]
    if len(codes) != len(listed) or not all(map(_CODE.fullmatch, codes)):
        raise Wrong("code", 'it must be a code of 4yz or 5yz, as 421 or "45x", or a list of them')
    return tuple(codes)


def _seconds(said: dict[str, Any], key: str) -> float:
    value = said[key]
    try:
        seconds = duration(value) if isinstance(value, str) else None
    except ValueError as error:
        raise Wrong(key, str(error)) from error
    if seconds is None or not 0 < seconds <= LONGEST:
        raise Wrong(key, 'it must be for how long, as "30m", and at most "7d"')
    return seconds


def _count(said: dict[str, Any], key: str, most: int) -> int | None:
    value = said.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Wrong(key, f"it must be a whole number from 1 to {most}")
    return value


def _rate(said: dict[str, Any]) -> Rate | None:
    value = said.get("rate")
    if value is None:
        return None
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) < 1:
        raise Wrong("rate", 'it must be how many mails in which time, as "20/s", "600/h" or "5/d"')
    rate = int(match[1]) / _PER[match[2]]
    return Rate(rate, max(rate, 1.0))


def _names(said: dict[str, Any], key: str) -> tuple[str, ...]:
    value = said.get(key, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Wrong(key, 'it must be a list of names, as ["example.com"]')
    names = []
    for one in value:
        try:
            name = canonical_domain(one.removeprefix("."))
        except ValueError as error:
            raise Wrong(key, f"{one!r} is no domain: {error}") from error
        if name.startswith("[") or (key == "mx" and "." not in name):
            raise Wrong(key, f"{one!r} is no domain of hosts")
        names.append(name)
    return tuple(dict.fromkeys(names))


def _fits_code(pattern: str, code: int) -> bool:
    return all(want in ("x", got) for want, got in zip(pattern, f"{code:03}", strict=True))


def _fits_enhanced(pattern: str, enhanced: str) -> bool:
    if pattern.endswith("x"):
        return enhanced.startswith(pattern[:-1])
    return enhanced == pattern
