"""Answers in the manner of other programs."""

from __future__ import annotations

from typing import Any

import pytest
import quart_trio

from relay.http.compat.answers import pieces_of_list
from relay.http.operations import json_response


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        [{"a": [1, {"b": "ä"}]}, None, "\ud800"],
        {"total": 2, "tags": ["x"], "messages": [{"ID": "1", "To": []}, {"ID": "2"}], "n": {}},
    ],
)
async def test_what_is_written_entry_by_entry_is_the_same(value: Any) -> None:
    """As what is written at one go."""
    async with quart_trio.QuartTrio(__name__).app_context():
        assert b"".join(pieces_of_list(value)) == await json_response(value).get_data()
