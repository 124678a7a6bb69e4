"""Texts from outside in PostgreSQL."""

import pytest

from relay.db.pool import Pool
from relay.db.text import like_pattern, storable


@pytest.mark.parametrize("text", ["", "plain", "n\x00l", "\ud800", "\udfff\x00", "ärger 😀"])
async def test_any_text_can_be_stored(any_pool: Pool, text: str):
    """What PostgreSQL refuses is replaced, all else is as it was."""
    kept = storable(text)
    assert await any_pool.fetch_value("SELECT %s::text", (kept,)) == kept
    assert (kept == text) is not bool(set(text) & {"\x00", "\ud800"})


@pytest.mark.parametrize("needle", ["%", "_", "\\", "100%", "a_b", "\\%"])
async def test_a_pattern_is_literal(any_pool: Pool, needle: str):
    """It finds the sub-string, in any case, and nothing else."""
    asked = "SELECT %s ILIKE %s"
    assert await any_pool.fetch_value(asked, (f"x{needle.upper()}y", like_pattern(needle)))
    assert not await any_pool.fetch_value(asked, ("x y", like_pattern(needle)))


def test_nothing_asks_for_nothing():
    """Without a needle there is no pattern."""
    assert like_pattern(None) is None
    assert like_pattern("") is None
