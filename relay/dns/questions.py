"""What is asked of the DNS, and what it answers: plain values, for those who ask without waiting.

A check of a message (`relay.checks`) is a generator that yields a `Question` and is sent an
`Answer`; whoever drives it may wait on sockets for it (`relay.dns.resolver`) or read a dictionary,
as tests do.

Promises: an answer tells apart what is not there (NXDOMAIN, no data), which is knowledge, from what
nobody could find out (`FAILED`), which is none.  Whether it is `secure` is what the server says of
it; whether that can be believed is another question (`Resolver.proof`).

Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Literal, NamedTuple, TypeVar

RecordType = Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "TLSA", "TXT"]

T = TypeVar("T")


class Question(NamedTuple):
    """A name (without the final dot; ASCII) and the type of its records."""

    name: str
    type: RecordType


class Status(enum.Enum):
    """What kind of answer it is."""

    FOUND = "found"
    """There are records."""
    NO_DATA = "no data"
    """The name exists, and has no record of the type."""
    NXDOMAIN = "nxdomain"
    """The name does not exist."""
    FAILED = "failed"
    """Nobody knows: servers failed (SERVFAIL, REFUSED), or said nothing in time."""


class Answer(NamedTuple):
    """The records of a name, in the order in which they came, CNAMEs followed.

    Each is text as a zone file has it, names without the final dot: `192.0.2.1`, `10 mx.example`.
    A TXT record is its strings joined, one character (U+0000 to U+00FF) for each byte.
    """

    status: Status
    records: tuple[str, ...] = ()
    detail: str = ""
    """Why it failed."""
    secure: bool = False
    """Whether the server says that it has validated all of it (DNSSEC; the AD bit)."""
    canonical: str = ""
    """The name that the CNAMEs led to, in small letters; empty: there were none."""

    @property
    def is_void(self) -> bool:
        """There is nothing, and that is certain."""
        return self.status in {Status.NXDOMAIN, Status.NO_DATA}


class Proof(NamedTuple):
    """Whether the servers validate what they answer (DNSSEC), with no network on its way."""

    validates: bool | None
    """None: no server said."""
    why: str = ""
    """Why not: `remote` (a server is not on this host), `unvalidated`, or `silent`."""
    server: str = ""
    """Which is it."""


def found(*records: str) -> Answer:
    """An answer with these records; none: no data."""
    return Answer(Status.FOUND if records else Status.NO_DATA, records)


NXDOMAIN = Answer(Status.NXDOMAIN)
FAILED = Answer(Status.FAILED, detail="no server answered")

Asking = Generator[Question, Answer, T]
"""Work that asks the DNS as it goes, and ends with a T."""

MAX_NAME = 253
"""Characters of a name, without the final dot."""
MAX_LABEL = 63


ROOT = ""
"""The name of the root."""


def is_name(name: str) -> bool:
    """Tell whether a name (without the final dot) can be asked for: ASCII, labels of 1 to 63."""
    return (
        len(name) <= MAX_NAME
        and name.isascii()
        and all(0 < len(label) <= MAX_LABEL for label in name.split("."))
    )
