"""Arrays in binary form: the server reads what psycopg's own way would have sent."""

import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

from relay.db import arrays
from relay.db.pool import Pool

LONG = "ü€😀" * 5000

CASES: list[tuple[str, Callable[[Any], arrays.Array], Sequence[Any]]] = [
    ("uuid", arrays.uuids, [UUID(int=0), UUID(int=2**128 - 1), uuid4()]),
    ("bigint", arrays.bigints, [0, -1, 2**63 - 1, -(2**63)]),
    ("smallint", arrays.smallints, [0, None, -(2**15), 2**15 - 1]),
    ("double precision", arrays.doubles, [0.1, None, -math.inf, 1e308]),
    ("real", arrays.reals, [0.5, None, math.inf, -0.25]),
    ("boolean", arrays.booleans, [True, False, True]),
    ("text", arrays.texts, ["", None, 'quote " and \\ and ,{}', "NULL", LONG, "", "a\nb"]),
    ("bytea", arrays.byteas, [b"", None, bytes(range(256)), b"x" * 100_000]),
]


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(("element", "pack", "values"), CASES, ids=[case[0] for case in CASES])
async def test_the_server_reads_what_psycopg_would_have_sent(
    pool: Pool,
    element: str,
    pack: Callable[[Any], arrays.Array],
    values: Sequence[Any],
    empty: bool,
):
    """Equal to the same list given to psycopg, in the server and back here."""
    given = [] if empty else list(values)
    row = await pool.fetch_row(
        f"SELECT %b::{element}[] IS NOT DISTINCT FROM %s::{element}[], %b::{element}[]",
        (pack(given), given, pack(given)),
    )
    assert row == (True, given)


async def test_an_array_goes_where_its_type_goes(pool: Pool):
    """The type is known without a cast."""
    names = await pool.fetch(
        "SELECT * FROM unnest(%b, %b)", (arrays.texts(["a"]), arrays.bigints([1]))
    )
    assert names == [("a", 1)]
