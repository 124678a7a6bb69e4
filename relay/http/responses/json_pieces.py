"""JSON of much mail, written piece by piece, so that nobody waits for all of it.

`json.dumps` keeps the interpreter to itself until it has ended, in another thread too: what a
stranger's mail holds would stand in everybody's way for as long as it takes.

Promises
  * The pieces together are `json_bytes` of the whole.
  * No piece is of more than `PIECE` characters of a text, nor of more than one message.
  * `in_turns` gives way to all others after each `SLICE`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any

import trio

from relay.chance import monotonic
from relay.http.operations import json_bytes

PIECE = 64 * 1024
"""Characters of a text that are written at once."""
SLICE = 0.001
"""Seconds for which pieces are written before others have their turn."""


def json_pieces(value: Any, *, deep: bool = False) -> Iterator[bytes]:
    """The bytes of `json_bytes(value)`: of a list entry by entry, of what is long in pieces.

    A list may be anything that is gone through once, also as a value of an object itself, and is
    made as it is written.  What is long are texts and lists of an object itself; `deep`: of objects
    in it, too.
    """
    if isinstance(value, str) and len(value) > PIECE:
        yield b'"'
        for at in range(0, len(value), PIECE):
            yield json_bytes(value[at : at + PIECE])[1:-1]
        yield b'"'
    elif isinstance(value, dict) and (
        any(map(_branches, value.values())) if deep else sum(map(_length, value.values())) > PIECE
    ):
        before = b"{"
        for name, one in value.items():
            yield before + json_bytes(name) + b":"
            yield from json_pieces(one, deep=deep)
            before = b","
        yield b"}"
    elif isinstance(value, Iterable) and not isinstance(value, (str, dict)):
        before = b"["
        for one in value:
            yield before
            yield from json_pieces(one, deep=deep)
            before = b","
        yield b"[]" if before == b"[" else b"]"
    else:
        yield json_bytes(value)


async def in_turns(pieces: Iterator[bytes], slice_: float = SLICE) -> AsyncGenerator[bytes, None]:
    """The same pieces, others having their turn in between."""
    began = monotonic()
    for piece in pieces:
        yield piece
        if monotonic() - began >= slice_:
            await trio.lowlevel.checkpoint()
            began = monotonic()


def _length(value: Any) -> int:
    if isinstance(value, (str, list, dict)):
        return len(value)
    return PIECE + 1 if isinstance(value, Iterable) else 1  # nobody knows, of what is yet to come


def _branches(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) > PIECE
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(one, dict) for one in value[:1])
    )
