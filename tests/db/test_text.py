"""Texts from outside in PostgreSQL."""

import pytest

from relay.db.pool import Pool
from relay.db.text import holds, like_pattern, sought, storable


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


_NEEDLES = (
    "Ärger mit der Straße",
    "%_\\_%" * 5,
    "1234567890.[a](b)*+?{2}^$|",
    "***=" * 8,
    "7" * 40,
)


@pytest.mark.parametrize("needle", [*_NEEDLES, "short", "%"])
async def test_needles_of_any_length_are_found_as_ilike_finds_them(any_pool: Pool, needle: str):
    """In any case, at any place, as they stand, and nowhere else."""
    for text in (
        needle, needle.upper(), f"a\n{needle.lower()}\nb", needle[:-1], needle[1:] + needle[:-1],
        needle.replace("_", "x"), "", None,
    ):  # fmt: skip
        found = await any_pool.fetch_row(
            f"SELECT {holds('%(text)s::text', 'needle', needle)}, %(text)s::text ILIKE %(pattern)s",
            {"text": text, "needle": sought(needle), "pattern": like_pattern(needle)},
        )
        assert found is not None
        assert found[0] is found[1], text


@pytest.mark.parametrize("needle", ["a" * 999 + "b", "1" * 17, "ä" * 200])
def test_long_needles_are_not_looked_for_anew_at_every_character(needle: str):
    """LIKE takes text times needle, which anybody can make much; an automaton takes the text."""
    assert "LIKE" not in holds("s.subject", "needle", needle)
    assert "LIKE" in holds("s.subject", "needle", needle[-16:])
