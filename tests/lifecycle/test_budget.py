"""Money as a rate, over months of a virtual clock."""

from __future__ import annotations

import math

import pytest

from relay.lifecycle.budget import (
    Budget,
    Saved,
    advance,
    allowance,
    month_of,
    spend,
    wait,
)
from tests.lifecycle.spending import Collector, instant, month_with_bursts

HUNDRED = Budget(monthly=100.0, per_thousand=0.10)


def test_the_documents_figures():
    """100 at 0.10 a thousand: a million letters a month, 0.38 a second, ten in about 26 s."""
    assert HUNDRED.letters == 1_000_000
    at = instant(2026, 6, 10)  # a month of 30 days
    assert HUNDRED.rate(at) == pytest.approx(0.38, abs=0.01)
    assert 10 / HUNDRED.rate(at) == pytest.approx(26, abs=0.5)


@pytest.mark.parametrize(("monthly", "price", "letters"), [(0.3, 0.1, 3000), (1, 3, 333)])
def test_a_budget_buys_whole_letters(monthly, price, letters):
    """Never a fraction, and none lost to binary fractions."""
    assert Budget(monthly, price).letters == letters


@pytest.mark.parametrize("seed", range(3))
def test_a_month_with_bursts_uses_the_budget_and_keeps_it(seed):
    """Quiet weeks, then bursts over what the month can pay: 98 % used at least, never over."""
    used, left_over = month_with_bursts(seed)
    assert left_over > 0  # there was work to the end
    assert 0.98 <= used <= 1.0 + 1e-9


def test_a_burst_spends_what_was_saved_at_once():
    """Ten quiet days pay for ten days' letters in one go, and then the rate holds."""
    start = instant(2026, 6, 1)
    collector = Collector(HUNDRED, start, limit=1000)
    collector.run_until(start)
    collector.run_until(start + 10 * 86400)
    collector.queued = 500_000
    collector.run_until(start + 10 * 86400 + 1e-3)
    assert sum(rows for _, rows in collector.sent) == pytest.approx(333_333, abs=2)
    before = len(collector.sent)
    collector.run_until(collector.at + 3600)
    after = sum(rows for _, rows in collector.sent[before:])
    assert after == pytest.approx(3600 * HUNDRED.rate(start), abs=3)


def test_nothing_is_saved_over_the_end_of_a_month():
    """A bill has months: each gets its own budget, however quiet the one before was."""
    collector = Collector(Budget(1.0, 0.10), instant(2026, 3, 1))
    collector.run_until(instant(2026, 3, 1))
    collector.run_until(instant(2026, 3, 31, 23, 59))
    collector.queued = 100_000
    for month in (4, 5, 6):
        collector.run_until(instant(2026, month, 1) + 0.001)
        collector.run_until(instant(2026, month + 1, 1) - 0.001)
    for month in (3, 4, 5, 6):
        assert 0.98 <= collector.cost(instant(2026, month, 2)) <= 1.0 + 1e-9


def test_an_installation_in_mid_month_has_saved_nothing():
    """It begins with one letter, not with half a month's."""
    at = instant(2026, 6, 16)
    assert allowance(HUNDRED, advance(HUNDRED, None, at)) == 1
    later = advance(HUNDRED, advance(HUNDRED, None, at), at + 100)
    assert allowance(HUNDRED, later) == 1 + math.floor(100 * HUNDRED.rate(at))


def test_restarts_and_many_nodes_share_one_state():
    """The state is a value: who reads it, and how often, changes nothing."""
    start = instant(2026, 6, 1)
    coarse = advance(HUNDRED, advance(HUNDRED, None, start), start + 86400)
    fine: Saved | None = None
    for step in range(0, 86401, 60):
        fine = advance(HUNDRED, fine, start + step)
    assert fine is not None
    assert fine.letters == pytest.approx(coarse.letters, rel=1e-9)


def test_a_clock_that_steps_back_earns_nothing():
    """What was earned once is not earned again, and a former month does not return."""
    at = instant(2026, 7, 1)
    state = spend(advance(HUNDRED, Saved(at - 10, 5.0, 999_000), at), 1)
    assert advance(HUNDRED, state, at - 3600) == state
    assert advance(HUNDRED, state, at) == state


def test_settings_that_change_never_exceed_the_month():
    """A budget that shrinks below what was spent stops; one that grows goes on to its own end."""
    start, end = month_of(instant(2026, 6, 1))
    state = Saved(start + 86400, 900.0, spent=600)
    small = Budget(0.05, 0.10)  # 500 letters
    assert allowance(small, state) == 0
    assert wait(small, state, limit=10, timeout=5.0) == end - state.at
    assert allowance(Budget(0.07, 0.10), state) == 100


def test_waiting_gathers_batches_where_the_rate_gives_them():
    """Slow: one letter as soon as it may go.  Fast: as many as the timeout brings, to the limit."""
    at = instant(2026, 6, 10)
    slow, fast = Budget(10.0, 0.10), Budget(10_000.0, 0.10)
    assert wait(slow, Saved(at, 0.0), limit=10, timeout=5.0) == pytest.approx(1 / slow.rate(at))
    assert wait(fast, Saved(at, 0.0), limit=10, timeout=5.0) == pytest.approx(10 / fast.rate(at))
    assert wait(fast, Saved(at, 10.0), limit=10, timeout=5.0) == 0


def test_one_letter_a_month():
    """The smallest budget: one at once, the next in the next month."""
    single = Budget(1.0, 1000.0)
    at = instant(2026, 12, 15)
    state = spend(advance(single, None, at), 1)
    assert wait(single, state, limit=10, timeout=5.0) == instant(2027, 1, 1) - at
    assert allowance(single, advance(single, state, instant(2026, 12, 31))) == 0
    assert allowance(single, advance(single, state, instant(2027, 1, 1))) == 1
