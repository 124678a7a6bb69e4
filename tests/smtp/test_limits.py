"""What one stranger, and all together, may take."""

from __future__ import annotations

from relay.smtp.limits import SmtpLimits, part_of


def test_the_budget_holds_two_messages_at_least():
    """However large a message may be."""
    assert SmtpLimits().buffered_bytes == 64 * 1024 * 1024
    assert SmtpLimits(max_message_bytes=10**9).buffered_bytes == 2 * 10**9
    assert SmtpLimits(max_buffered_bytes=5).buffered_bytes == 5


def test_of_what_a_peer_may_guess_each_process_has_a_part():
    """Its sessions may be anywhere, and all other limits are as they were."""
    part = part_of(SmtpLimits(), 4)
    assert (part.free_misses, part.misses_forgotten) == (25, 0.25)
    assert part.max_connections == SmtpLimits().max_connections
