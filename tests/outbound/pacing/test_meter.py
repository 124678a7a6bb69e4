"""The meter: what one node may send of what it has leased."""

import pytest

from relay.outbound.pacing.meter import Meter
from relay.outbound.pacing.shared_rates import Grant


def test_the_meter_shares_what_was_leased_and_asks_again():
    """Unknown keys allow nothing until asked; unlimited ones anything; spent ones wait."""
    meter = Meter()
    lane = ("domain:y", "route:x")
    assert meter.share(lane) == 0
    wants = meter.survey([lane], 0.0)
    assert wants == {"route:x": 8, "domain:y": 8}
    meter.leased(wants, {"domain:y": Grant(3, 0.5)}, 0.0)
    assert meter.survey([lane], 0.1) == {}
    assert meter.share(("route:x",)) is None
    assert meter.share(lane) == 3
    assert meter.share(lane) == 0  # promised already
    for _ in range(3):
        assert meter.room(lane)
        meter.spend(lane)
    assert not meter.room(lane)
    assert meter.survey([lane], 0.4) == {}
    assert meter.next_at == 0.5
    assert meter.survey([lane], 0.6) == {"domain:y": 8}
    meter.leased({"domain:y": 8}, {"domain:y": Grant(0, 2.0)}, 0.6)
    assert meter.survey([lane], 1.5) == {"route:x": 8}
    assert meter.survey([lane], 2.6) == {"route:x": 8, "domain:y": 8}
    assert meter.wait(lane, 2.0) == pytest.approx(0.6)
    meter.forget(70.0)
    assert meter.unknown(lane)


def test_lanes_of_one_rate_share_it():
    """Each gets its part, and what is over goes to the first."""
    meter = Meter()
    lanes = [("domain:y", "route:a"), ("domain:y", "route:b"), ("domain:z",)]
    keys = {key for lane in lanes for key in lane}
    meter.leased(dict.fromkeys(keys, 8), {"domain:y": Grant(7, 0.0)}, 0.0)
    assert meter.survey(lanes, 0.1) == {}
    assert [meter.share(lane) for lane in lanes] == [4, 3, None]


def test_what_is_left_of_a_slice_is_lost_and_an_overdraft_is_not():
    """A limit errs on the side of too little."""
    meter = Meter()
    wants = meter.survey([("k",)], 0.0)
    meter.leased(wants, {"k": Grant(5, 0.0)}, 0.0)
    meter.spend(["k"])
    assert meter.survey([("k",)], 0.9) == {}
    assert meter.survey([("k",)], 1.0) == {"k": 8}
    meter.leased(wants, {"k": Grant(5, 0.0)}, 1.0)
    for _ in range(7):
        meter.spend(["k"])
    meter.leased(wants, {"k": Grant(5, 0.0)}, 2.0)
    meter.survey([("k",)], 2.0)
    assert meter.share(("k",)) == 3


def test_a_node_asks_for_what_it_can_use():
    """Twice as much when all was used, less when some was not: the rest is for other nodes."""
    meter = Meter()
    now, asked = 0.0, []
    for used in (8, 16, 32, 20, 20, 0):
        ((key, want),) = meter.survey([("k",)], now).items()
        asked.append(want)
        meter.leased({key: want}, {key: Grant(want, 0.0)}, now)
        for _ in range(min(used, want)):
            meter.spend([key])
        now += 1.0
    assert asked == [8, 16, 32, 64, 20, 40]


def test_what_is_left_when_a_slice_is_over_is_to_be_given_back():
    """Once; what has no limit, or was spent, is nothing."""
    meter = Meter()
    meter.leased({"a": 8, "b": 8, "c": 8}, {"a": Grant(5, 0.0), "b": Grant(1, 3.0)}, 0.0)
    meter.spend(["a", "b"])
    assert meter.idle(0.9) == {}
    assert meter.idle(1.0) == {"a": 4}
    assert meter.idle(2.0) == {}
    assert meter.share(("a",)) == 0
    assert meter.share(("c",)) is None
