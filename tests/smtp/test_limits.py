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


def test_the_budget_is_never_overdrawn():
    """What does not fit takes nothing."""
    budget = Budget(10)
    assert budget.take(7)
    assert not budget.take(4)
    assert budget.take(3)
    budget.give(10)
    assert budget.used == 0


def test_the_budget_holds_two_messages_at_least():
    """However large a message may be."""
    assert SmtpLimits().buffered_bytes == 64 * 1024 * 1024
    assert SmtpLimits(max_message_bytes=10**9).buffered_bytes == 2 * 10**9
    assert SmtpLimits(max_buffered_bytes=5).buffered_bytes == 5
