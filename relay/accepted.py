"""A message that is to be stored here: where it came from, and what became of it, as SMTP, HTTP and
the loop are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple
from uuid import UUID

Why = Literal["unknown", "expired", "over_quota", "filter"]
"""Why a recipient is refused: no such address; its mailbox is over, or was deleted; it is full; the
operator's filter wants it so."""


class Origin(NamedTuple):
    """The SMTP client that brought a message from elsewhere: its IP address, and its HELO."""

    client: str
    helo: str


@dataclass(frozen=True)
class Accepted:
    """The message ids that are durable now, by recipient.

    A recipient that is missing was unknown or expired when the row was to be written, or is among
    the `full`: its mailbox holds what its plan allows, and may take the message later.
    `captured`: a mailbox was made for it, or had been, since it is for others' domains.
    `error` is set when nothing is known to be stored and the sender should try again.
    """

    stored: dict[str, UUID]
    error: str | None = None
    full: frozenset[str] = frozenset()
    captured: bool = False
