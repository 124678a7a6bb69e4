"""Arrays as statement parameters, in PostgreSQL's binary form.

Each function returns a value to be passed for a `%b` of the array type it is named after.  None is
NULL.

Why beside psycopg's own lists: those ask every element for its type and its dumper, and escape
every text, 1.2 µs an element where this takes 0.13; for the batches of the queue, of twenty
columns, that was longer than the statement.  `tests/db/test_arrays.py` holds one way to the other;
`python -m tests.bench queue` is where it pays.

Fails with `struct.error` or `AttributeError` for elements of another type: a bug.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import psycopg

_HEAD = struct.Struct(">iiIii")  # dimensions, flags (1: NULLs), element type, length, lower bound
_NULL = struct.pack(">i", -1)
_INT2 = struct.Struct(">ih").pack
_INT8 = struct.Struct(">iq").pack
_FLOAT4 = struct.Struct(">if").pack
_FLOAT8 = struct.Struct(">id").pack
_LENGTH = struct.Struct(">i").pack
_TRUE, _FALSE = struct.pack(">i?", 1, True), struct.pack(">i?", 1, False)
_SIXTEEN = struct.pack(">i", 16)


TEXT, BYTEA, ONE_UUID, BOOLEAN, SMALLINT, DOUBLE = 25, 17, 2950, 16, 21, 701
UUIDS, BIGINTS, TEXTS, BYTEAS, BOOLEANS = 2951, 1016, 1009, 1001, 1000
SMALLINTS, DOUBLES, REALS = 1005, 1022, 1021
"""Types of parameters (OIDs), for a `relay.db.connection.Statement`."""


class Array:
    """An array that is in binary form already."""

    __slots__ = ("data", "oid")

    def __init__(self, oid: int, element: int, parts: list[bytes]) -> None:
        self.oid = oid
        count = len(parts)
        head = _HEAD.pack(1, 1, element, count, 1) if count else _HEAD.pack(0, 0, element, 0, 0)
        self.data = (head if count else head[:12]) + b"".join(parts)


def uuids(values: Sequence[UUID]) -> Array:
    """uuid[]; no NULLs."""
    return Array(2951, 2950, [_SIXTEEN + value.bytes for value in values])


def uuids_of(values: Sequence[bytes]) -> Array:
    """uuid[], of the sixteen bytes of each; no NULLs."""
    return Array(2951, 2950, [_SIXTEEN + value for value in values])


def bigints(values: Sequence[int]) -> Array:
    """bigint[]; no NULLs."""
    return Array(1016, 20, [_INT8(8, value) for value in values])


def smallints(values: Sequence[int | None]) -> Array:
    """smallint[]."""
    return Array(1005, 21, [_NULL if value is None else _INT2(2, value) for value in values])


def doubles(values: Sequence[float | None]) -> Array:
    """double precision[]."""
    return Array(1022, 701, [_NULL if value is None else _FLOAT8(8, value) for value in values])


def reals(values: Sequence[float | None]) -> Array:
    """real[]."""
    return Array(1021, 700, [_NULL if value is None else _FLOAT4(4, value) for value in values])


def booleans(values: Sequence[bool]) -> Array:
    """boolean[]; no NULLs."""
    return Array(1000, 16, [_TRUE if value else _FALSE for value in values])


def texts(values: Sequence[str | None]) -> Array:
    """text[]."""
    written: dict[str | None, bytes] = {None: _NULL}  # most columns hold the same again and again
    for value in set(values):
        if value is not None:
            raw = value.encode()
            written[value] = _LENGTH(len(raw)) + raw
    return Array(1009, 25, [written[value] for value in values])


def byteas(values: Sequence[bytes | None]) -> Array:
    """bytea[]."""
    return Array(1001, 17, [_NULL if v is None else _LENGTH(len(v)) + v for v in values])


class _Dumper(psycopg.adapt.Dumper):
    format = psycopg.pq.Format.BINARY

    def get_key(self, obj: Array, format: psycopg.adapt.PyFormat) -> Any:
        return (self.cls, obj.oid)

    def upgrade(self, obj: Array, format: psycopg.adapt.PyFormat) -> _Dumper:
        dumper = _Dumper(Array)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Array) -> bytes:
        return obj.data


psycopg.adapters.register_dumper(Array, _Dumper)
