"""Whose message it is: the one domain that From shows (RFC 5322, 3.4 and 3.6.2).

The first half of DMARC; `relay.checks.dmarc` has the other.  This reads the message, so it runs
where it may be killed, in the parser.

Promises
- From counts only where there is one field with one address in it: a message with more is one that
  readers may show in different ways.
- Linear in the field, and it never raises for what that holds.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relay.addresses import a_labels
from relay.checks.fields import Field
from relay.dns.questions import is_name

# A piece of an address list: one character that may mean something, or a run of others.
_PIECE = re.compile(r'[()<>,;:@"\[\]\\]|[^()<>,;:@"\[\]\\]+')


class Author(NamedTuple):
    """The domain of From, as A-labels in small letters; or why there is none."""

    domain: str = ""
    error: str = ""


def author(fields: Sequence[Field]) -> Author:
    """Read the one domain of From."""
    found = [one for one in fields if one.name == b"from"]
    if len(found) != 1:
        return Author(error=f"there are {len(found)} From fields" if found else "there is no From")
    value = found[0].value.replace(b"\r\n", b"").decode("utf-8", "replace")
    domains = list(_domains(value))
    if len(domains) != 1:
        return Author(error=f"From holds {len(domains)} addresses" if domains else "From is empty")
    domain = domains[0]
    if not domain.isascii():
        try:
            domain = a_labels(domain)
        except ValueError as error:
            return Author(error=f"the domain of From {error}")
    domain = domain.removesuffix(".").lower()
    if not is_name(domain) or not re.fullmatch(r"[a-z0-9._-]+", domain):
        return Author(error="From holds no address with a domain name")
    return Author(domain)


def _domains(value: str) -> Iterator[str]:
    """The domain of each address in a list (RFC 5322, 3.4); empty for one that has none."""
    mailbox = _Mailbox()
    for piece in _words(value):
        if piece == "<":
            if mailbox.angled:
                yield mailbox.domain()
            mailbox = _Mailbox(angled=True, inside=True)
        elif piece == ">":
            mailbox.inside = False
        elif piece in {",", ";"} and not mailbox.inside:
            if mailbox.is_there():
                yield mailbox.domain()
            mailbox = _Mailbox()
        elif piece == ":":
            mailbox.pieces.clear()  # the name of a group, or a route
        elif mailbox.inside or not mailbox.angled:
            mailbox.pieces.append(piece)
    if mailbox.is_there():
        yield mailbox.domain()


def _words(value: str) -> Iterator[str]:
    """The pieces of an address list without its comments; strings and literals are one each."""
    depth = 0  # of comments
    ends = ""  # what closes the string or literal at hand
    held: list[str] = []
    escaped = False
    for match in _PIECE.finditer(value):
        piece = match[0]
        if escaped:
            escaped = False
            if ends:
                held.append(piece)
        elif piece == "\\":
            escaped = True
        elif depth:
            depth += {"(": 1, ")": -1}.get(piece, 0)
        elif ends:
            held.append(piece)
            if piece == ends:
                yield "".join(held)
                ends, held = "", []
        elif piece == "(":
            depth = 1
        elif piece in {'"', "["}:
            ends, held = {'"': '"', "[": "]"}[piece], [piece]
        else:
            yield piece
    if ends:
        yield "".join(held)


@dataclass
class _Mailbox:
    """What was read of one address: of `Name <local@domain>` what is between the brackets."""

    pieces: list[str] = field(default_factory=list)
    angled: bool = False
    inside: bool = False

    def is_there(self) -> bool:
        return self.angled or any(piece.strip() for piece in self.pieces)

    def domain(self) -> str:
        """What follows the last @ that something stands before; white space there means nothing."""
        if "@" not in self.pieces:
            return ""
        last = len(self.pieces) - 1 - self.pieces[::-1].index("@")
        if not "".join(self.pieces[:last]).strip():
            return ""
        return "".join("".join(self.pieces[last + 1 :]).split())
