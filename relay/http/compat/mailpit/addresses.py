"""Whom a mail names: the addresses of decoded header fields, and who got it without a name.  Pure.

The encoded words of a name are decoded by now, so that a comma in a name looks like one between two
addresses: what has no address behind it belongs to the name of the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from relay.mailboxes.mails import Mail

_MOST = 1000  # addresses of a field
_LONGEST = 32 * 1024  # characters of it that are looked at
# It fits wherever it is tried, so nothing is tried twice: whoever wrote the field may have made it
# long.  A quote that nobody closes reaches to the end.
_FOUND = re.compile(r'(?P<name>(?:"(?:[^"\\]|\\.?)*"?|[^<>"])*)(?:<(?P<address>[^<>]*)>|[<>]|\Z)')
# Of a name from its first quote on; tried there alone, where `_FOUND` has found the closing one.
_INSIDE = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_WORD = re.compile(r"[^\s,;:<>\"()]+")
_QUOTED = re.compile(r"\\(.)", re.DOTALL)


class Address(NamedTuple):
    """A name, which may be empty, and an address."""

    name: str
    address: str


def addresses(values: Iterable[str]) -> list[Address]:
    """Return the addresses of header fields, in order."""
    found: list[Address] = []
    left = _LONGEST
    for value in values:
        for address in _of(value[:left]):
            if len(found) == _MOST:
                return found
            found.append(address)
        left -= min(left, len(value))
    return found


def bcc_of(mail: Mail) -> list[Address]:
    """Return Mailpit's Bcc: whom the header names, and the recipients that none names.

    These are left out where not all was read that the headers say: they may be named there.
    """
    named = {name: mail.values(name) for name in ("to", "cc", "bcc")}
    found = {name: addresses(values) for name, values in named.items()}
    if mail.is_cut or any(
        len(found[name]) == _MOST or sum(map(len, values)) > _LONGEST
        for name, values in named.items()
    ):
        return found["bcc"]
    said = {one.address.lower() for some in found.values() for one in some}
    return found["bcc"] + [Address("", one) for one in mail.recipients if one.lower() not in said]


def _of(value: str) -> Iterator[Address]:
    for match in _FOUND.finditer(value):
        if match["address"] is None:
            yield from (Address("", bare[0]) for bare in _bare(match["name"]))
            continue
        name, at = match["name"], 0
        if '"' not in name:
            # What stands before it with an address of its own is another one.
            for bare in _bare(name):
                yield Address("", bare[0])
                at = bare.end()
        if match["address"].strip():
            yield Address(_plain(name[at:]), match["address"].strip())


def _bare(text: str) -> Iterator[re.Match[str]]:
    """Words with an @ inside."""
    return (word for word in _WORD.finditer(text) if "@" in word[0][1:-1])


def _plain(name: str) -> str:
    """A display name without its quotes, and without the group before it (`Team: Ada`)."""
    name = name.strip().lstrip(",; ")
    quote = name.find('"')
    if quote < 0:
        return name.rpartition(":")[2].strip()
    inside = _INSIDE.match(name, quote)
    return _QUOTED.sub(r"\1", inside[1] if inside else name.replace('"', "")).strip()
