"""The meter: what one node may send of what it has leased."""

import pytest

from relay.outbound.pacing.meter import Meter
from relay.outbound.pacing.shared_rates import Grant

ME = "me"


def test_the_meter_shares_what_was_leased_and_asks_again():
    """Unknown keys allow nothing until asked; unlimited ones anything; spent ones wait."""
    meter = Meter()
    lane = ("domain:y", "route:x")
    assert meter.share(lane, ME) == 0
    wants = meter.survey([(lane, ME)], 0.0)
    assert wants == {"route:x": 8, "domain:y": 8}
    meter.leased(wants, {"domain:y": Grant(3, 0.5)}, 0.0)
    assert meter.survey([(lane, ME)], 0.1) == {}
    assert meter.share(("route:x",), ME) is None
    assert meter.share(lane, ME) == 3
    assert meter.share(lane, ME) == 0  # promised already
    for _ in range(3):
        assert meter.room(lane)
        meter.spend(lane)
    assert not meter.room(lane)
    assert meter.survey([(lane, ME)], 0.4) == {}
    assert meter.next_at == 0.5
    assert meter.survey([(lane, ME)], 0.6) == {"domain:y": 8}
    meter.leased({"domain:y": 8}, {"domain:y": Grant(0, 2.0)}, 0.6)
    assert meter.survey([(lane, ME)], 1.5) == {"route:x": 8}
    assert meter.survey([(lane, ME)], 2.6) == {"route:x": 8, "domain:y": 8}
    assert meter.wait(lane, 2.0) == pytest.approx(0.6)
    meter.forget(70.0)
    assert meter.unknown(lane)


def test_lanes_of_one_rate_share_it():
    """Each gets its part, and what is over goes to the first."""
    meter = Meter()
    lanes = [("domain:y", "route:a"), ("domain:y", "route:b"), ("domain:z",)]
    keys = {key for lane in lanes for key in lane}
    meter.leased(dict.fromkeys(keys, 8), {"domain:y": Grant(7, 0.0)}, 0.0)
    assert meter.survey([(keys, ME) for keys in lanes], 0.1) == {}
    assert [meter.share(lane, ME) for lane in lanes] == [4, 3, None]


def test_owners_of_one_rate_share_it_whatever_their_domains():
    """A hundred domains of a provider are one owner's, one is another's: each has half; what one
    has no use for is there for the next claim."""
    meter = Meter()
    lanes = [(("site:big",), "many")] * 100 + [(("site:big",), "one")]
    meter.leased({"site:big": 64}, {"site:big": Grant(20, 0.0)}, 0.0)
    meter.survey(lanes, 0.1)
    shares = [meter.share(*lane) or 0 for lane in lanes]
    assert (shares[:11], sum(shares[:100]), shares[100]) == ([1] * 10 + [0], 10, 10)
    for _ in range(11):  # all of the first's, and one of the other's
        meter.spend(["site:big"])
    meter.survey(lanes[:100], 0.2)
    assert sum(meter.share(*lane) or 0 for lane in lanes[:100]) == 9


def test_what_is_left_of_a_slice_is_lost_and_an_overdraft_is_not():
    """A limit errs on the side of too little."""
    meter = Meter()
    wants = meter.survey([(("k",), ME)], 0.0)
    meter.leased(wants, {"k": Grant(5, 0.0)}, 0.0)
    meter.spend(["k"])
    assert meter.survey([(("k",), ME)], 0.9) == {}
    assert meter.survey([(("k",), ME)], 1.0) == {"k": 8}
    meter.leased(wants, {"k": Grant(5, 0.0)}, 1.0)
    for _ in range(7):
        meter.spend(["k"])
    meter.leased(wants, {"k": Grant(5, 0.0)}, 2.0)
    meter.survey([(("k",), ME)], 2.0)
    assert meter.share(("k",), ME) == 3


def test_a_node_asks_for_what_it_can_use():
    """Twice as much when all was used, less when some was not: the rest is for other nodes."""
    meter = Meter()
    now, asked = 0.0, []
    for used in (8, 16, 32, 20, 20, 0):
        ((key, want),) = meter.survey([(("k",), ME)], now).items()
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
    assert meter.share(("a",), ME) == 0
    assert meter.share(("c",), ME) is None
