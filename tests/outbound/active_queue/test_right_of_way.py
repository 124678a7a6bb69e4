"""The right of way: who gets it, and how it ends."""

from relay.outbound.active_queue.right_of_way import RightOfWay


def test_the_right_of_way_ends_by_itself_and_is_held_half_of_the_time_at_most():
    """High mail that hangs, or comes without end, stops nobody else."""
    way = RightOfWay()
    most = RightOfWay.MOST
    way.expect(0.0)
    assert way.held(0.9 * most)
    assert not way.held(1.01 * most)
    way.expect(1.1 * most)  # within the rest
    assert not way.held(1.1 * most)
    way.expect(2.1 * most)
    assert way.held(2.1 * most)
    assert way.nothing(2.2 * most)
    assert not way.held(2.2 * most)
    held = 0
    for step in range(1000):
        now = 10 * most + step / 1000
        way.arrived(step, now)
        held += way.held(now)
        way.ended(step, now + 0.0009)
    assert held <= 520
