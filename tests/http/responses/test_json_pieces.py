"""JSON in pieces: the same as at one go, and others have their turn in between."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from relay.http.operations import json_bytes
from relay.http.responses.json_pieces import PIECE, in_turns, json_pieces


@pytest.mark.parametrize(
    "value",
    [
        None,
        "ä",
        [],
        {},
        [{"a": [1, {"b": "ä"}]}, None, "\ud800"],
        [{"body": '\x01\\"ä€😀\ud800' * PIECE, "none": None, "all": [], "read": True, "n": 1}],
        {"total": 2, "tags": ["x"], "messages": [{"ID": "1", "To": []}, {"ID": "2"}], "n": {}},
        [{"links": ["x"] * (PIECE + 1), "headers": {"a": ["b", "c"]}, "to": ""}, {}, {"a": "b"}],
    ],
)
def test_the_pieces_are_the_whole(value: Any) -> None:
    """Whatever is in it; and none is longer than a piece of a text can become."""
    pieces = list(json_pieces(value))
    assert b"".join(pieces) == json_bytes(value)
    assert max(map(len, pieces)) <= 6 * PIECE


def test_what_is_long_deep_inside_is_in_pieces_too() -> None:
    """Texts of objects in objects, and in lists of those."""
    value = {"Raw": {"To": []}, "MIME": {"Parts": [{"Body": "\x01" * 3 * PIECE, "MIME": None}]}}
    pieces = list(json_pieces(value, deep=True))
    assert b"".join(pieces) == json_bytes(value)
    assert max(map(len, pieces)) <= 6 * PIECE


def test_a_list_is_made_as_it_is_written() -> None:
    """Nothing of the second entry before the first is taken."""
    made = []

    def entries() -> Any:
        for number in range(2):
            made.append(number)
            yield number

    pieces = json_pieces(entries())
    assert [next(pieces), next(pieces), list(made)] == [b"[", b"0", [0]]
    assert b"".join(pieces) == b",1]"
    made.clear()
    pieces = json_pieces({"total": 2, "all": entries()})
    while not made:
        next(pieces)
    assert made == [0]
    assert b"".join(pieces) == b"0,1]}"


async def test_others_have_their_turn_between_the_pieces() -> None:
    """After each slice; not before it is over."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for slice_, least, most in ((0.0, 90, 110), (60.0, 0, 0)):
            turns = 0
            async for _ in in_turns(iter([b"x"] * 100), slice_):
                pass
            assert least <= turns <= most
        nursery.cancel_scope.cancel()
