"""Gates: trouble slows its own way down, success opens it again, and no pause is too long."""

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from relay.outbound.pacing.backoff import LONGEST_PAUSE
from relay.outbound.pacing.gates import ANY_ROUTE, PATIENCE, Gate, GateKey, Gates
from relay.outbound.pacing.held_back import Why


def gate(full: int = 32) -> Gate:
    """A gate with a unit of a minute."""
    return Gate(full, 60.0, random.Random(1))


def test_a_temporary_refusal_halves_the_window():
    """One busy mailbox does not stop a destination."""
    one = gate()
    assert not one.bad(0.0, plain=False)
    assert one.room(0.0) == 16


def test_refusals_alone_end_in_a_pause():
    """When nothing is left of the window, the gate is shut for a while."""
    one = gate()
    strikes = [one.bad(0.0, plain=False) for _ in range(6)]
    assert strikes == [False] * 5 + [True]
    assert one.room(0.0) == 0
    assert 0 < one.opens_at <= 60.0 / 16 * 1.2


def test_plain_trouble_shuts_at_once_and_counts_once():
    """What others meanwhile met of the same trouble is no second strike."""
    one = gate()
    assert one.bad(0.0, plain=True)
    assert not any(one.bad(0.1, plain=True) for _ in range(30))
    assert one.strikes == 1


def test_after_a_pause_one_probes_and_success_opens_by_doubling():
    """Slow start: one, then as many more as went well."""
    one = gate(8)
    one.bad(0.0, plain=True)
    now = one.opens_at
    rooms = []
    while not one.gone:
        rooms.append(one.room(now))
        for _ in range(one.room(now)):
            one.good()
    assert rooms == [1, 2, 4]
    assert one.strikes == 0


@given(st.lists(st.booleans(), max_size=60), st.floats(0.01, 1000))
def test_no_pause_exceeds_ten_units(answers, unit):
    """Whatever happens, in whatever order."""
    one = Gate(8, unit, random.Random(2))
    now = 0.0
    for good in answers:
        now = max(now, one.opens_at)
        if good:
            one.good()
        else:
            one.bad(now, plain=True)
        assert one.opens_at - now <= LONGEST_PAUSE * unit
        assert one.wait(now) <= LONGEST_PAUSE * unit * 1.01 + unit / 16


def test_a_destination_that_hangs_is_narrowed_and_not_struck():
    """It gets fewer at once, at once; each that ends well widens it."""
    one = gate(8)
    one.narrow(4, 0.0)
    one.narrow(6, 0.0)
    assert (one.room(0.0), one.strikes) == (4, 0)
    for _ in range(4):
        one.good()
    assert one.gone


def test_gates_stand_before_the_lanes_that_met_them_only():
    """An unknown lane may have anything; one whose gate is gone, too."""
    gates = Gates(4, 1.0, random.Random(1))
    one = gates.make(GateKey("a"))
    one.bad(0.0, plain=True)
    gates.before(7, one)
    assert gates.allowance(7, 0.0) == 0
    assert gates.allowance(8, 0.0) is None
    assert gates.next_opening(0.0) == one.opens_at
    for _ in range(4):
        one.good()
    assert gates.allowance(7, 100.0) is None
    gates.forget(100.0)
    assert not gates


def test_what_nobody_came_to_for_long_after_its_pause_is_forgotten():
    """Thousands of domains that were struck once cost nothing later; what is in use stays."""
    gates = Gates(4, 1.0, random.Random(1))
    for number in range(2000):
        one = gates.make(GateKey(number))
        one.bad(0.0, plain=number % 2 == 0)  # struck, or only narrowed
        gates.before(number, one)
    gates.make(GateKey(7)).busy = 1
    gates.forget(2.0 * LONGEST_PAUSE)
    assert len(gates) == 2000
    assert gates.allowance(3, 2.0 * LONGEST_PAUSE) == 2
    gates.make(GateKey(8)).bad(20.0, plain=True)
    gates.forget(2.0 * LONGEST_PAUSE + 1)
    assert len(gates) == 2
    assert gates.allowance(7, 21.0) is not None
    assert gates.allowance(8, 21.0) is not None
    assert gates.allowance(3, 21.0) is None


def test_who_asked_to_be_left_alone_is_until_then():
    """Whatever went well meanwhile, and an operator's flush; then one probes."""
    gates = Gates(8, 60.0, random.Random(1))
    key = GateKey("receiver")
    one = gates.make(key)
    one.suspend(7200.0, "421 not now")
    gates.before(1, one)
    one.good()
    gates.reopen()
    gates.forget(7000.0)
    assert gates.find(key) is one
    assert gates.allowance(1, 7199.0) == 0
    assert gates.next_opening(0.0) == 7200.0
    (standing,) = gates.statistics(200.0)
    assert (standing.opens_in, standing.reason) == (7000.0, "421 not now")
    assert gates.allowance(1, 7200.0) == 2
    gates.forget(7200.0 + 3 * LONGEST_PAUSE * 60.0)
    assert gates.find(key) is None


def test_a_suspension_can_be_lifted_and_another_pause_reopened():
    """Of a gate of one place, too, whose window is always whole."""
    gates = Gates(1, 60.0, random.Random(1))
    one = gates.make(GateKey("receiver"))
    one.suspend(100.0, "421 not now")
    assert not one.gone
    gates.forget(50.0)
    assert one.room(50.0) == 0
    one.lift()
    assert one.room(50.0) == 1
    one.bad(50.0, plain=True)
    assert one.room(50.0) == 0
    gates.reopen()
    assert one.room(50.0) == 1


def test_owners_take_turns_at_a_gate():
    """Who was turned away goes before who comes after him, though he comes later; and no longer
    than he may be expected."""
    gates = Gates(4, 1.0, random.Random(1))
    one = gates.make(GateKey("a"))
    one.bad(0.0, plain=True)
    opened = one.opens_at
    gates.before(7, one, "much")
    gates.before(8, one, "little")
    one.turn_away("little", opened)
    assert (gates.allowance(7, opened), gates.allowance(8, opened)) == (0, 1)
    one.had_turn("little")
    one.turn_away("little", opened)  # another of his
    one.turn_away("much", opened)
    assert (gates.allowance(7, opened), gates.allowance(8, opened)) == (1, 0)
    one.good()  # two may go
    assert (gates.allowance(7, opened), gates.allowance(8, opened)) == (2, 1)
    over = gates.next_opening(opened)
    assert over is not None
    assert over > opened
    assert gates.allowance(8, over + 0.01) == 2
    assert gates.next_opening(opened) is None


def test_an_owner_is_told_of_what_holds_back_his_own_mail_alone():
    """And of what was replied to others' the code; the administrator of all, and whose it is."""
    gates = Gates(8, 60.0, random.Random(1))
    met: dict[str, Any] = {"met": "rcpt: 451", "replied": "rcpt: 451 too busy for ada", "met_by": 1}
    shared, of_two = gates.make(GateKey("r", "x.test")), gates.make(GateKey(ANY_ROUTE, owner=2))
    shared.bad(0.0, plain=True, **met)
    of_two.narrow(1, 0.0, Why.NO_ROOM)
    gates.before(7, shared, 1, "x.test")
    gates.before(8, shared, 3, "x.test")

    def told(owner: int | None, domain: str | None = None) -> set[tuple[Any, ...]]:
        found = gates.statistics(1.0, owner, domain)
        return {(one.route, one.why, one.owner, one.reason) for one in found}

    assert told(None) == {
        ("r", Why.DEFERRING, None, met["replied"]),
        (ANY_ROUTE, Why.NO_ROOM, 2, None),
    }
    assert told(1) == {("r", Why.DEFERRING, None, met["replied"])}
    assert told(2) == {(ANY_ROUTE, Why.NO_ROOM, 2, None)}
    assert told(3, "x.test") == {("r", Why.DEFERRING, None, "rcpt: 451")}
    assert told(3, "y.test") == told(4) == set()


def test_a_route_and_what_is_claimed_of_it_are_one():
    """What failed says more than that it is waited for; a first look at a site is no wait."""
    gates = Gates(8, 60.0, random.Random(1))
    claims = gates.make(GateKey.for_claims("site"))
    claims.bound(2, 0.0, Why.SILENT)
    claims.busy = 1
    assert gates.statistics(0.5) == []
    claims.awaits(Why.HANGING, "dot: no answer", 0.0)
    (one,) = gates.statistics(2.0)
    assert one.why is Why.NO_ROOM  # it may answer yet
    (one,) = gates.statistics(PATIENCE)
    assert (one.route, one.why, one.held_for, one.reason) == (
        *("site", Why.HANGING, PATIENCE, "dot: no answer"),
    )
    gates.make(GateKey("site")).bad(9.0, plain=True, why=Why.SILENT, met="connect: no answer")
    (one,) = gates.statistics(10.0)
    assert (one.why, one.reason, one.strikes) == (Why.SILENT, "connect: no answer", 1)
    assert one.held_for == 10.0  # it has waited since before the first failure


def test_a_cap_is_told_of_where_it_is_reached():
    """A domain with as many deliveries as it may have; not one with fewer."""
    gates = Gates(8, 60.0, random.Random(1), cap=2)
    one = gates.make(GateKey("r", "x.test"))
    one.busy = 1
    assert gates.statistics(0.0) == []
    one.busy = 2
    (told,) = gates.statistics(0.0)
    assert (told.why, told.reason) == (
        Why.LIMITED, "2 connections at most; RELAY_OUTBOUND__DOMAIN_CONNECTIONS",
    )  # fmt: skip


def test_a_suspension_that_is_over_is_told_of_no_more():
    """By its time, and when it was ended before; though one delivery goes first, to see."""
    gates = Gates(8, 60.0, random.Random(1))
    one = gates.make(GateKey("receiver"))
    one.suspend(100.0, "421 not now", 0.0)
    assert [each.why for each in gates.statistics(99.0)] == [Why.SUSPENDED]
    assert gates.statistics(100.0) == []
    one.suspend(200.0, "421 not now", 100.0)
    one.lift()
    assert gates.statistics(101.0) == []
    assert one.room(101.0) == 1
