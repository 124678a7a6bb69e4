"""A maildrop: the messages of a mailbox as they were at sign-in, by number.

Twenty bytes a message: a session of a mailbox with 100,000 messages holds 2 MB, and not a hundred
times that in objects.

Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from uuid import UUID

RECORD = 20
"""Bytes that a message takes: its id, and its size as a number of 32 bits, big-endian."""

_SIZES = struct.Struct(">16xI")


class Maildrop:
    """The messages of one session, numbered from 1, the oldest first."""

    def __init__(self, records: bytes) -> None:
        """`records`: one of `RECORD` bytes for each message."""
        self._records = records
        self._deleted: set[int] = set()
        self._octets: int = sum(size for (size,) in _SIZES.iter_unpack(records))
        self._deleted_octets = 0

    def __len__(self) -> int:
        """How many there are, those marked as deleted too."""
        return len(self._records) // RECORD

    @property
    def count(self) -> int:
        """How many are not marked as deleted."""
        return len(self) - len(self._deleted)

    @property
    def octets(self) -> int:
        """The sum of their sizes."""
        return self._octets - self._deleted_octets

    def holds(self, number: int) -> bool:
        """Whether there is such a message, and it is not marked."""
        return 1 <= number <= len(self) and number not in self._deleted

    def numbers(self) -> Iterator[int]:
        """Yield those of all that are not marked."""
        return (number for number in range(1, len(self) + 1) if number not in self._deleted)

    def id(self, number: int) -> UUID:
        """The message's id."""
        at = (number - 1) * RECORD
        return UUID(bytes=self._records[at : at + 16])

    def size(self, number: int) -> int:
        """The message's bytes."""
        at = (number - 1) * RECORD
        return int.from_bytes(self._records[at + 16 : at + RECORD])

    def delete(self, number: int) -> None:
        """Mark a message that is there."""
        self._deleted.add(number)
        self._deleted_octets += self.size(number)

    def reset(self) -> None:
        """Take all marks away."""
        self._deleted.clear()
        self._deleted_octets = 0

    def deleted(self) -> Sequence[UUID]:
        """The ids of those that are marked."""
        return [self.id(number) for number in sorted(self._deleted)]
