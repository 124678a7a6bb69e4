"""Who has the next turn for a handshake, and what others have between two."""

from __future__ import annotations

from relay.smtp.handshakes import Handshakes


def test_turns_go_round_the_peers():
    """One that asks for many waits for its own."""
    handshakes = Handshakes()
    first = [handshakes.turn("a") for _ in range(3)]
    other = handshakes.turn("b")
    late = handshakes.turn("c")
    order = [handshakes.next() for _ in range(5)]
    assert order == [first[0], other, late, first[1], first[2]]
    assert handshakes.next() is None
