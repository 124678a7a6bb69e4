"""Which servers take the mail of a domain: what the DNS says, as RFC 5321, 5.1 has it read.

`candidates` reads the answer about MX, `usable` those about addresses, `in_order` says which is
tried when, and `interleaved` which of its addresses.

What is found, and what follows:

| the DNS says                                       | the mail                                    |
|----------------------------------------------------|---------------------------------------------|
| exchangers with public addresses                   | goes to them, the least preference first,   |
|                                                    | equal ones in a new random order each time  |
| no MX, but an address (RFC 5321: the implicit MX)  | goes to the domain itself                   |
| the domain, or an exchanger, is a CNAME            | the alias is followed, as receivers expect  |
| one MX, of the root (RFC 7505: the null MX)        | bounces, 5.1.10                             |
| the domain does not exist (NXDOMAIN)               | bounces, 5.1.2                              |
| neither MX nor address                             | bounces, 5.1.2                              |
| exchangers, none of which has an address           | bounces, 5.4.4                              |
| addresses, none of which is public                 | bounces, 5.4.4, unless private ones may be  |
| some public addresses, some not                    | goes to the public ones                     |
| this relay among the exchangers                    | goes to those of less preference (RFC 5321, |
|                                                    | 5.1); there are none: bounces, 5.4.6        |
| SERVFAIL, REFUSED or nothing in time               | is deferred, 4.4.3, unless another          |
|                                                    | exchanger is usable without that answer     |
| more than `MOST_EXCHANGERS`                        | goes to the first of them                   |
| a name that is none (`[192.0.2.1]`, no LDH)        | bounces, 5.1.2; as an exchanger: is ignored |

Promises
- No address is `usable` that is not public, unless private ones are allowed: no connection can be
  made to another, for connections are made to these addresses and to no name.
- What is certain is told apart from what nobody could find out: only the first ever bounces.
- The work is bounded, whatever a stranger publishes.

Fails: never; why there is nowhere to go is an `Unreachable`.

Pure; the random source is given.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, zip_longest
from typing import NamedTuple

from relay.addresses import canonical_domain
from relay.dns.questions import Answer, Question, RecordType, Status, is_name
from relay.ssrf_guard import is_public

MOST_EXCHANGERS = 16
"""Exchangers of a domain that are looked at."""

MOST_ADDRESSES = 8
"""Addresses of an exchanger that are tried."""

FAMILIES: tuple[RecordType, RecordType] = ("AAAA", "A")

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_\-.]*[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"(?:.*\.)?[0-9]+", re.ASCII)


class Exchanger(NamedTuple):
    """A server that takes a domain's mail."""

    name: str
    """A-labels in small letters."""
    rank: int
    """0 for those of the least preference, 1 for the next, whatever the numbers in the DNS are."""
    addresses: tuple[str, ...] = ()


class Unreachable(NamedTuple):
    """There is nowhere to go with a domain's mail, for good or for now."""

    permanent: bool
    enhanced: str
    """The enhanced status code (RFC 3463)."""
    text: str
    """One sentence."""


def name_of(domain: str) -> str | Unreachable:
    """The name to ask for: A-labels in small letters."""
    try:
        name = canonical_domain(domain)
    except ValueError:
        name = ""
    if name.startswith("["):
        return Unreachable(True, "5.1.2", "an address literal is not delivered to")
    if not _is_host(name):
        return Unreachable(True, "5.1.2", "the domain is none that the DNS can know")
    return name


def candidates(
    domain: str, answer: Answer, own: Collection[str]
) -> tuple[Exchanger, ...] | Unreachable:
    """The exchangers that a domain names, best first, without their addresses.

    `answer`: about the domain's MX; `own`: names of this relay, in small letters.
    """
    if answer.status is Status.FAILED:
        return Unreachable(False, "4.4.3", f"the domain's MX cannot be asked for: {answer.detail}")
    if answer.status is Status.NXDOMAIN:
        return Unreachable(True, "5.1.2", "the domain does not exist")
    if answer.status is Status.NO_DATA:
        found = [(0, domain)]
    else:
        records = [_record(record) for record in answer.records]
        if all(name == "." for _, name in records):
            return Unreachable(True, "5.1.10", "the domain takes no mail (a null MX)")
        found = sorted({(number, name) for number, name in records if _is_host(name)})
        if not found:
            return Unreachable(True, "5.4.4", "none of the domain's exchangers has a usable name")
    mine = min((number for number, name in found if name in own), default=None)
    if mine is not None:
        found = [(number, name) for number, name in found if number < mine]
        if not found:
            said = "mail for the domain would come back to this relay: RELAY_SMTP__DOMAINS lacks it"
            return Unreachable(True, "5.4.6", said)
    once: dict[str, int] = {}
    for number, name in found:
        once.setdefault(name, number)
    ranks = {number: rank for rank, number in enumerate(sorted(set(once.values())))}
    listed = (Exchanger(name, ranks[number]) for name, number in once.items())
    return tuple(listed)[:MOST_EXCHANGERS]


def questions(exchangers: Iterable[Exchanger]) -> list[Question]:
    """What to ask for the addresses of exchangers."""
    return [Question(one.name, family) for one in exchangers for family in FAMILIES]


def usable(
    named: Collection[Exchanger],
    answers: Mapping[Question, Answer],
    *,
    implicit: bool,
    private: bool,
) -> tuple[Exchanger, ...] | Unreachable:
    """Those of the named exchangers that have addresses to connect to, with these.

    `answers`: to all `questions`; `implicit`: it is the domain itself, for want of MX; `private`:
    whether addresses may be private ones.
    """
    found: list[Exchanger] = []
    hidden = False
    failure = ""
    for one in named:
        families = []
        for family in FAMILIES:
            answer = answers[Question(one.name, family)]
            if answer.status is Status.FAILED:
                failure = failure or _for_now(one, family, answer)
            allowed = [each for each in answer.records if private or is_public(each)]
            hidden = hidden or len(allowed) < len(answer.records)
            families.append(allowed)
        if addresses := interleaved(*families):
            found.append(one._replace(addresses=addresses))
    if found:
        return tuple(found)
    if failure:
        return Unreachable(
            False, "4.4.3", f"no address of the domain's servers is known: {failure}"
        )
    if hidden:
        return Unreachable(True, "5.4.4", "the domain's servers have no public address")
    if implicit:
        return Unreachable(True, "5.1.2", "the domain has neither MX nor address")
    return Unreachable(True, "5.4.4", "none of the domain's exchangers has an address")


def unanswered(
    named: Collection[Exchanger],
    found: Collection[Exchanger],
    answers: Mapping[Question, Answer],
) -> str:
    """Why one of the named exchangers is not among those that were found, where that may change:
    the DNS does not say its addresses; empty: there is none."""
    usable_names = {one.name for one in found}
    for one in named:
        if one.name in usable_names:
            continue
        for family in FAMILIES:
            answer = answers[Question(one.name, family)]
            if answer.status is Status.FAILED:
                return _for_now(one, family, answer)
    return ""


def _for_now(one: Exchanger, family: RecordType, answer: Answer) -> str:
    return f"{one.name} has no {family} for now: {answer.detail}"


def interleaved(*families: Iterable[str]) -> tuple[str, ...]:
    """Addresses in the order in which they are raced (RFC 8305, 4): the families in turn."""
    turns = chain.from_iterable(zip_longest(*families))
    return tuple(each for each in dict.fromkeys(turns) if each is not None)[:MOST_ADDRESSES]


def in_order(
    exchangers: Iterable[Exchanger], failed: Collection[str], rng: random.Random
) -> list[Exchanger]:
    """Exchangers in the order in which they are tried now; those that `failed` lately last."""
    # The stable sort keeps what was shuffled within a rank.
    shuffled = list(exchangers)
    rng.shuffle(shuffled)
    return sorted(shuffled, key=lambda one: (one.name in failed, one.rank))


def _record(text: str) -> tuple[int, str]:
    preference, _, name = text.partition(" ")
    return int(preference), name.lower()


def _is_host(name: str) -> bool:
    """Whether a server can be called so: no address, nothing that a log or TLS could misread."""
    return is_name(name) and _HOST.fullmatch(name) is not None and _NUMBER.fullmatch(name) is None
