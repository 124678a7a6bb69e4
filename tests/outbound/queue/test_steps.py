"""Steps as they are stored: what is packed here is what SQL reads out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from relay.db.pool import Pool
from relay.outbound.queue.steps import PHASES, pack

BEGAN = datetime(2026, 11, 21, 14, 17, 17, tzinfo=UTC)


async def read(pool: Pool, steps: bytes) -> Any:
    """Return the steps as `relay.outbound_attempts` shows them."""
    return await pool.fetch_value("SELECT relay.outbound_steps(%s, %s)", (steps, BEGAN))


async def test_every_phase_is_read_as_it_was_packed(any_pool: Pool):
    """Phase, code, instant and duration, to the microsecond; code 0 is none."""
    steps = [
        (phase, 0 if number == 0 else 200 + number, 100.0 + number, number / 1024)
        for number, phase in enumerate(PHASES)
    ]
    assert await read(any_pool, pack(steps, 100.0)) == [
        {
            "phase": phase,
            "code": code or None,
            "at": f"2026-11-21T14:17:{17 + number:02}.000000+00:00",
            "duration": int(took * 1e6) / 1e6,
        }
        for number, (phase, code, _, took) in enumerate(steps)
    ]


STEP = st.tuples(
    st.sampled_from(PHASES), st.integers(0, 599), st.floats(-1e9, 1e9), st.floats(0.0, 1e9)
)


@given(steps=st.lists(STEP, min_size=4, max_size=4), began_at=st.floats(-1e9, 1e9))
@example(steps=[("mail", 250, 1.0, 0.5)] * 3 + [("dot", 250, 2.0, 1.0)], began_at=0.5)
def test_four_steps_are_packed_as_each_of_them_is(steps, began_at):
    """The short cut of an ordinary delivery, with what fits and what is cut."""
    assert pack(steps, began_at) == b"".join(pack([step], began_at) for step in steps)


async def test_what_does_not_fit_is_cut_to_what_does(any_pool: Pool):
    """A step from before the start is at the start, a longer one takes the most there is."""
    first, last = await read(
        any_pool, pack([("rcpt", 250, 99.0, 0.0), ("dot", 250, 1e9, 1e9)], 100.0)
    )
    assert first["at"] == "2026-11-21T14:17:17.000000+00:00"
    assert last["at"] == "2026-11-21T15:28:51.967295+00:00"
    assert last["duration"] == (2**32 - 1) / 1e6
