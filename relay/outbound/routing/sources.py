"""Sources: by what name and from which address mail leaves, for whose mail, and how much a day.

`RELAY_OUTBOUND__SOURCES` is a list of tables; docs/traffic.md has its reference.  `Sources.of`
finds the source of a sender's mail, `WarmUp.on` how much may leave by one that is new on a day.

Promises
- What is misspelt or cannot be used is a `ConfigError` that names the source and the key.
- A sender's own entry goes before that of their domain, and that before the source which is for
  everybody.
- Of a source that is warmed up no more leave within any 24 hours than the larger of the days that
  they lie in says, however many nodes there are: the burst is taken off the rate.

Fails: `parse` with `ConfigError`.

Pure; the day is given.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from relay.addresses import canonical_domain
from relay.errors import ConfigError
from relay.outbound.pacing.rate import Rate
from relay.outbound.strict_tables import Wrong, check_keys, is_name, sentence

NAME = "RELAY_OUTBOUND__SOURCES"
DAY = 86_400.0

_BURST = 10  # a tenth of a day's mail may go at once
_DAYS = re.compile(r"(\d{1,3})d", re.ASCII)
_MOST = 10**9


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many mails a day, as days pass."""

    steps: tuple[tuple[date, int], ...]
    """From each day on so many, in the order of the days."""
    start: date | None = None
    first: int = 0
    double_every: int = 0
    """Days."""
    until: int = 0
    """What is reached at last, and is no limit any more then."""

    def on(self, day: date) -> int | None:
        """How many may leave on a day; None: any number, as it is over."""
        if self.start is not None:
            doubled = max((day - self.start).days, 0) // self.double_every
            count = self.first * 2 ** min(doubled, 40)
            return count if count < self.until else None
        found = self.steps[0][1]
        for since, count in self.steps:
            if since <= day:
                found = count
        return found or None

    def rate(self, day: date) -> Rate | None:
        """The same as a rate."""
        count = self.on(day)
        if count is None:
            return None
        burst = max(count // _BURST, 1)
        return Rate(max(count - burst, 0.5) / DAY, float(burst))


@dataclass(frozen=True, slots=True)
class Source:
    """By what name and from which address mail leaves."""

    name: str
    ehlo: str | None = None
    """None: the relay's own name."""
    addresses: tuple[str, ...] = ()
    """One of IPv4, one of IPv6, or both; none: whatever the system chooses."""
    warm_up: WarmUp | None = None

    @property
    def rate_key(self) -> str:
        """The key of its rate."""
        return f"source:{self.name}"


@dataclass(frozen=True, slots=True)
class Sources:
    """All of them."""

    sources: tuple[Source, ...] = ()
    _by_sender: Mapping[str, Source] = field(default_factory=dict)
    _everybody: Source | None = None

    def of(self, sender: str) -> Source | None:
        """The source of a sender's mail (an address); None: it leaves as all mail does."""
        if not self.sources:
            return None
        address = sender.lower()
        found = self._by_sender.get(address)
        if found is None:
            found = self._by_sender.get(_domain_of(address))
        return found or self._everybody

    def of_domain(self, domain: str) -> tuple[Source | None, ...]:
        """The sources of the mail of a domain's senders; None among them: some leaves by none."""
        at = f"@{domain}"
        own = [source for sender, source in self._by_sender.items() if sender.endswith(at)]
        others = self._by_sender.get(domain, self._everybody)
        return tuple(dict.fromkeys([*own, others]))

    @property
    def warms_up(self) -> bool:
        """Whether any has a limit of mails a day."""
        return any(source.warm_up for source in self.sources)

    def named(self, name: str) -> Source | None:
        """The source of a name."""
        return next((source for source in self.sources if source.name == name), None)


def _domain_of(address: str) -> str:
    domain = address.rpartition("@")[2]
    try:
        return canonical_domain(domain)
    except ValueError:
        return domain


# Reading ------------------------------------------------------------------------------------------


def parse(listed: Sequence[Mapping[str, Any]]) -> Sources:
    """Return the sources that a setting lists.  Raises `ConfigError`."""
    sources: list[Source] = []
    by_sender: dict[str, Source] = {}
    everybody: Source | None = None
    for number, said in enumerate(listed, 1):
        name = said.get("name")
        where = f"source {number}" if not isinstance(name, str) else f"source {name!r}"
        try:
            source, senders = _source(said), _senders(said)
        except Wrong as error:
            says = sentence(str(error))
            raise ConfigError(f"{NAME}, {where}: {error.key}: {says}") from error
        taken = next((sender for sender in senders if sender in by_sender), None)
        wrong = ""
        if source.name in {one.name for one in sources}:
            wrong = "name: there is another of this name"
        elif taken is not None:
            wrong = f"senders: {taken} is {by_sender[taken].name}'s already"
        elif not senders and everybody is not None:
            wrong = f"senders: without them it is for all, as {everybody.name} is"
        if wrong:
            raise ConfigError(f"{NAME}, {where}: {wrong}.")
        by_sender.update(dict.fromkeys(senders, source))
        if not senders:
            everybody = source
        sources.append(source)
    return Sources(tuple(sources), by_sender, everybody)


def _source(said: Mapping[str, Any]) -> Source:
    check_keys(said, ["name", "ehlo", "addresses", "senders", "warm_up"])
    name = said.get("name")
    if not isinstance(name, str) or not is_name(name):
        raise Wrong("name", "it must be a name of a-z, 0-9, - and _")
    return Source(name, _ehlo(said), _addresses(said), _warm_up(said))


def _ehlo(said: Mapping[str, Any]) -> str | None:
    value = said.get("ehlo")
    if value is None:
        return None
    try:
        name = canonical_domain(value) if isinstance(value, str) else ""
    except ValueError as error:
        raise Wrong("ehlo", f"{value!r} is no name of a host ({error})") from error
    if "." not in name or name.startswith("["):
        raise Wrong("ehlo", f"{value!r} is no full name of a host, as mta1.example.com is")
    return name


def _addresses(said: Mapping[str, Any]) -> tuple[str, ...]:
    value = said.get("addresses", [])
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) for one in listed):
        raise Wrong("addresses", "it must be a list of IP addresses")
    found: dict[int, str] = {}
    for one in listed:
        try:
            address = ipaddress.ip_address(one)
        except ValueError:
            raise Wrong("addresses", f"{one!r} is no IP address") from None
        if address.is_unspecified or address.is_multicast:
            raise Wrong("addresses", f"from {one} nothing can be sent")
        if address.version in found:
            raise Wrong("addresses", f"a source has one of IPv{address.version} at most")
        found[address.version] = str(address)
    return tuple(found.values())


def _senders(said: Mapping[str, Any]) -> list[str]:
    value = said.get("senders", [])
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise Wrong("senders", "it must be a list of addresses and domains")
    senders = []
    for one in value:
        local, at, domain = one.rpartition("@")
        try:
            domain = canonical_domain(domain)
        except ValueError as error:
            raise Wrong("senders", f"{one!r} is no address and no domain ({error})") from error
        senders.append(f"{local.lower()}@{domain}" if at and local else domain)
    return list(dict.fromkeys(senders))


def _warm_up(said: Mapping[str, Any]) -> WarmUp | None:
    value = said.get("warm_up")
    if value is None:
        return None
    if isinstance(value, Mapping):
        check_keys(value, ["start", "first", "double_every", "until"], "warm_up.")
        start = _day(value.get("start"), "warm_up.start")
        first, until = (_number(value.get(key), f"warm_up.{key}") for key in ("first", "until"))
        every = value.get("double_every", "1d")
        match = _DAYS.fullmatch(every) if isinstance(every, str) else None
        if match is None or int(match[1]) < 1:
            raise Wrong("warm_up.double_every", 'it must be days, as "1d"')
        if until <= first:
            raise Wrong("warm_up.until", "it must be more than first")
        return WarmUp((), start, first, int(match[1]), until)
    steps = []
    if not isinstance(value, list | tuple) or not value:
        raise Wrong("warm_up", "it must be a table, or a list of days with their mails")
    for one in value:
        if not isinstance(one, list | tuple) or len(one) != 2:
            raise Wrong("warm_up", 'each is a day and its mails, as ["2026-11-01", 50]')
        least = 0 if one is value[-1] else 1
        steps.append((_day(one[0], "warm_up"), _number(one[1], "warm_up", least)))
    days = [day for day, _ in steps]
    if days != sorted(set(days)):
        raise Wrong("warm_up", "the days must follow on each other")
    return WarmUp(tuple(steps))


def _day(value: object, key: str) -> date:
    try:
        if isinstance(value, str):
            return date.fromisoformat(value)
    except ValueError:
        pass
    raise Wrong(key, 'it must be a day, as "2026-11-01"')


def _number(value: object, key: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
        raise Wrong(key, "it must be a whole number of mails")
    return value
