"""What one stranger, and all together, may take."""

from __future__ import annotations

import pytest

from relay.smtp.limits import Budget, Gate, SmtpLimits, peer_key


def test_the_gate_counts_in_all_and_by_peer():
    """Each cap has its own refusal, and who leaves makes room."""
    gate = Gate(SmtpLimits(max_connections=3, max_connections_per_peer=2))
    assert gate.enter("a") is None
    assert gate.enter("a") is None
    assert (gate.enter("a") or "").startswith("421 4.7.0")
    assert gate.enter("b") is None
    assert (gate.enter("c") or "").startswith("421 4.3.2")
    gate.leave("a")
    assert gate.enter("c") is None
    assert gate.open == 3


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
def test_a_peer_is_an_address_or_a_subscriber(host, key):
    """IPv6 is counted by /64, and IPv4 in IPv6 is IPv4."""
    assert peer_key(host) == key


LIMITS = SmtpLimits(max_buffered_bytes=100, slow_after=10.0, slow_rate=2)


class Message:
    """One that says when it is forgotten."""

    def __init__(self, budget: Budget, began: float) -> None:
        self.forgotten = 0
        self.share = budget.share(began, self.forget)

    def forget(self) -> None:
        """Its text is dropped."""
        self.forgotten += 1


def test_the_budget_is_never_overdrawn():
    """What does not fit is forgotten whole, and what it had is for the others."""
    budget = Budget(LIMITS)
    one, two, three = (Message(budget, 0.0) for _ in range(3))
    one.share.grow(70, 1.0)
    two.share.grow(20, 1.0)
    assert budget.used == 90
    two.share.grow(31, 1.0)
    assert (two.share.lost, two.forgotten, budget.used) == (True, 1, 70)
    two.share.grow(5, 1.0)
    assert (two.share.lost, two.forgotten, budget.used) == (True, 1, 70)
    three.share.grow(30, 1.0)
    assert not three.share.lost
    for message in (one, two, three, three):
        message.share.end()
    assert budget.used == 0


def test_slow_messages_make_room_for_others():
    """The slowest first, no more of them than needed, and only if it helps."""
    budget = Budget(LIMITS)
    slowest, slow, fast = (Message(budget, 0.0) for _ in range(3))
    slowest.share.grow(20, 1.0)
    slow.share.grow(30, 1.0)
    fast.share.grow(45, 1.0)
    late = Message(budget, 20.0)
    late.share.grow(60, 20.0)  # the slow ones would give 50, which with 5 is too little
    assert late.share.lost
    assert not slowest.share.lost
    later = Message(budget, 20.0)
    later.share.grow(25, 20.0)
    assert not later.share.lost
    assert (slowest.share.lost, slowest.forgotten) == (True, 1)
    assert not slow.share.lost
    assert budget.used == 100
    slow.share.grow(31, 20.0)  # it is the slowest itself
    assert slow.share.lost
    assert not fast.share.lost
    assert budget.used == 70


def test_what_is_new_or_whole_makes_no_room():
    """A message has its time, and one that is being stored keeps its place."""
    budget = Budget(LIMITS)
    new, whole = Message(budget, 11.0), Message(budget, 0.0)
    new.share.grow(10, 12.0)
    whole.share.grow(1, 20.0)
    whole.share.keep()
    late = Message(budget, 20.0)
    late.share.grow(95, 21.0)
    assert late.share.lost
    assert not new.share.lost
    assert not whole.share.lost


def test_the_budget_holds_two_messages_at_least():
    """However large a message may be."""
    assert SmtpLimits().buffered_bytes == 64 * 1024 * 1024
    assert SmtpLimits(max_message_bytes=10**9).buffered_bytes == 2 * 10**9
    assert SmtpLimits(max_buffered_bytes=5).buffered_bytes == 5
