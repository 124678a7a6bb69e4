"""The timing of batches, on a clock of the test's own."""

from __future__ import annotations

import itertools
import math
import random

from relay.lifecycle.batching import LINGER, Adaptive, Batching, Fixed


class Table:
    """Rows that wait, and a collector that obeys a law; `out` is (instant, rows, reason)."""

    def __init__(self, law: Batching) -> None:
        self.law = law
        self.at = 0.0
        self.waiting = 0
        self.out: list[tuple[float, int, str]] = []

    def insert(self, rows: int, *, announced: bool = True) -> None:
        """Insert rows in one transaction: one wake-up, however many they are."""
        self.waiting += rows
        if announced:
            self.law.woken(self.at)
        self.settle()

    def settle(self) -> None:
        """Take batches while the law says so."""
        while (reason := self.law.decide(self.at, min(self.waiting, self.law.limit))) is not None:
            rows = min(self.waiting, self.law.limit)
            self.waiting -= rows
            reason = self.law.sent(rows, self.at, reason)
            if rows:
                self.out.append((round(self.at, 6), rows, reason))

    def run_until(self, at: float) -> None:
        """Let time pass, waking when the law asks to be."""
        while self.law.next_at <= at:
            self.at = max(self.at, self.law.next_at)
            self.settle()
        self.at = at


def test_the_documents_example():
    """Limit 3, timeout 5 s, five accounts: three at once, two after 5 s."""
    table = Table(Fixed(3, 5.0))
    table.run_until(100.0)
    for _ in range(5):
        table.insert(1)
    assert table.out == [(100.0, 3, "limit")]
    table.run_until(200.0)
    assert table.out == [(100.0, 3, "limit"), (105.0, 2, "timeout")]


def test_five_in_one_transaction_are_five():
    """A wake-up is a hint and no row: one notification, five rows, the same batches."""
    table = Table(Fixed(3, 5.0))
    table.insert(5)
    table.run_until(60.0)
    assert table.out == [(0.0, 3, "limit"), (5.0, 2, "timeout")]


def test_the_timeout_counts_from_the_first_wake_up():
    """Later wake-ups do not put it off."""
    table = Table(Fixed(10, 5.0))
    for second in range(5):
        table.run_until(float(second))
        table.insert(1)
    table.run_until(60.0)
    assert table.out == [(5.0, 5, "timeout")]


def test_what_a_full_batch_left_begins_to_wait_then():
    """Three of four go when the third comes; the fourth waits its own timeout."""
    table = Table(Fixed(3, 5.0))
    table.insert(1)
    table.run_until(2.0)
    table.insert(3)
    table.run_until(60.0)
    assert table.out == [(2.0, 3, "limit"), (7.0, 1, "timeout")]


def test_a_window_that_a_full_batch_emptied_is_closed():
    """The next wake-up opens its own window."""
    table = Table(Fixed(3, 5.0))
    table.insert(3)
    table.run_until(3.0)
    table.insert(1)
    table.run_until(60.0)
    assert table.out == [(0.0, 3, "limit"), (8.0, 1, "timeout")]


def test_what_is_queued_at_the_start_drains_at_once():
    """In batches of the limit, and so does what was missed while the connection was away."""
    for law in (Fixed(3, 5.0), Adaptive(3, 5.0)):
        table = Table(law)
        table.waiting = 7
        law.connected()
        table.settle()
        assert table.out == [(0.0, 3, "drain"), (0.0, 3, "drain"), (0.0, 1, "drain")]
        assert law.next_at == math.inf


def test_a_wake_up_that_nothing_stands_behind_is_forgotten():
    """Another collector was faster."""
    table = Table(Fixed(3, 5.0))
    table.insert(0)
    assert table.law.next_at == math.inf
    table.run_until(3.0)
    table.insert(1)
    table.run_until(60.0)
    assert table.out == [(8.0, 1, "timeout")]


def test_what_a_sweep_finds_waits_for_its_announcement_only():
    """It has waited already: out after a moment, unless it turns out to be new."""
    table = Table(Fixed(3, 5.0))
    table.insert(1, announced=False)
    assert table.out == []
    table.law.found(table.at)
    table.run_until(0.3)
    assert table.out == []
    table.run_until(4.0)
    assert table.out == [(0.5, 1, "timeout")]
    table.insert(1, announced=False)
    table.law.found(table.at)
    table.run_until(4.2)
    table.insert(0)  # the announcement was on its way
    table.run_until(60.0)
    assert table.out[1:] == [(9.2, 1, "timeout")]


def test_a_sweep_does_not_shorten_an_open_window():
    """Announced rows keep the fixed timing."""
    table = Table(Fixed(3, 5.0))
    table.insert(1)
    table.run_until(1.0)
    table.law.found(table.at)
    table.run_until(60.0)
    assert table.out == [(5.0, 1, "timeout")]


def test_fixed_batches_keep_the_rule_whatever_comes():
    """No row waits over the timeout, and no batch is short unless its time has come."""
    rng = random.Random(4)
    for _ in range(50):
        limit, timeout = rng.randint(1, 12), rng.choice([0.0, 0.5, 5.0])
        table = Table(Fixed(limit, timeout))
        inserted: list[float] = []
        for _ in range(100):
            table.run_until(table.at + rng.expovariate(1.0))
            count = rng.randint(0, 5)
            inserted += [table.at] * count
            table.insert(count)
        table.run_until(table.at + 2 * timeout + 1)
        gone = iter(inserted)
        for at, rows, reason in table.out:
            ages = [at - next(gone) for _ in range(rows)]
            assert max(ages) <= timeout + 1e-5
            assert rows == limit if reason == "limit" else rows <= limit
        assert next(gone, None) is None


def test_adaptive_is_immediate_when_idle():
    """One account now and then is never kept waiting."""
    table = Table(Adaptive(10, 5.0))
    for step in range(100):
        table.run_until(step * 0.05)
        table.insert(1)
    assert [at for at, _, _ in table.out] == [round(step * 0.05, 6) for step in range(100)]
    assert {reason for _, _, reason in table.out} == {"drain"}


def test_adaptive_batches_grow_to_the_limit_under_load():
    """At 5,000 accounts a second, one by one, batches are full, and nothing waits 10 ms."""
    table = Table(Adaptive(10, 5.0))
    for step in range(5000):
        table.run_until(step * 0.0002)
        table.insert(1)
    late = table.out[len(table.out) // 2 :]
    assert sum(rows for _, rows, _ in late) / len(late) >= 9
    assert {reason for _, _, reason in late} >= {"limit", "timeout"}  # they waited for company
    gaps = [after[0] - before[0] for before, after in itertools.pairwise(late)]
    assert max(gaps) <= LINGER + 1e-6


def test_adaptive_wakes_a_caller_who_waits_for_each_letter_soon():
    """One who inserts the next as soon as the last has gone is not load."""
    table = Table(Adaptive(10, 5.0))
    waits = []
    for _ in range(500):
        began, count = table.at, len(table.out)
        table.insert(1)
        if len(table.out) == count:
            table.run_until(table.law.next_at)
        waits.append(table.at - began)
        table.run_until(table.at + 0.006)  # its letter is on its way
    assert sorted(waits)[len(waits) // 2] == 0
    assert max(waits) <= LINGER


def test_adaptive_goes_on_at_once_after_a_full_batch():
    """A thousand accounts in one transaction are a hundred batches without a pause."""
    table = Table(Adaptive(10, 5.0))
    table.run_until(1.0)
    table.insert(1000)
    assert table.out == [(1.0, 10, "limit")] * 100


def test_what_arrives_after_a_full_batch_is_not_the_drain_of_a_start():
    """Handed over at once under the same name, it leaves the start's drain as it was."""
    law = Adaptive(2, 5.0)
    law.woken(1.0)
    assert law.decide(1.0) == "drain"
    law.connected()  # again, while that batch is under way
    assert law.sent(1, 1.0, "drain") == "drain"
    assert law.decide(1.0) == "drain"
    assert law.next_at == -math.inf
    assert law.sent(0, 1.0, "drain") == "drain"
    assert law.decide(2.0) is None
