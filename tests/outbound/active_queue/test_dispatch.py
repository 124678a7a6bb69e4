"""Dispatch: priorities, shares and widths, without a clock or a connection."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.outbound.active_queue.dispatch import STILL, Dispatch, Group, Line, Place
from relay.outbound.active_queue.right_of_way import RightOfWay

HIGH, NORMAL, BULK = range(3)


@dataclass(eq=False)
class Mail:
    """A job."""

    domain: str
    priority: int = NORMAL
    number: int = 0
    owner: Hashable = "one"


Found = list[tuple[Place[Mail, None], Mail]]


def dispatch(
    places: int = 32, full: int = 32, *, width: int = 32, bound: int | None = None
) -> tuple[Dispatch[Mail, None], Line[Mail, None]]:
    """A dispatch with one line."""
    one: Dispatch[Mail, None] = Dispatch(places, full, RightOfWay(), lambda _route, _now: bound)
    return one, one.add("route", None, width=width)


def put(
    one: Dispatch[Mail, None],
    line: Line[Mail, None],
    count: int,
    domain: str,
    priority: int = 1,
    owner: str = "one",
) -> None:
    """So many jobs for a destination; `#` in its name is their number."""
    for number in range(count):
        one.put(line, Mail(domain.replace("#", str(number)), priority, number, owner))


def domains(started: Found) -> Counter[str]:
    """How many of each destination were begun."""
    return Counter(job.domain for _, job in started)


def test_a_route_begins_with_four():
    """It has not shown yet what it can take."""
    one, line = dispatch(width=4)
    put(one, line, 20, "d#.example")
    assert len(one.start(0.0)) == 4
    assert one.start(0.0) == []


def test_each_answer_widens_by_one():
    """Whatever the answer says: who answers is there."""
    one, line = dispatch(width=4)
    put(one, line, 60, "d#.example")
    one.start(0.0)
    for _ in range(4):
        assert one.answered_well(line, "d0.example", 0.0)
    assert len(one.start(0.0)) == 4


def test_a_line_behind_deliveries_that_hang_widens_with_time():
    """It doubles with each spell in which nothing ended, up to what a route may have."""
    one, line = dispatch(width=4)
    put(one, line, 60, "d#.example")
    taken = [len(one.start(0.0))]
    for spell in range(1, 6):
        assert not one.widen((spell - 0.1) * STILL)
        one.widen((spell + 0.001) * STILL)
        taken.append(len(one.start(spell * STILL)))
    assert taken == [4, 4, 8, 13, 0, 0]  # the last three are kept


def test_nothing_widens_with_time_while_something_ends_or_a_gate_is_there():
    """Success widens what succeeds; a route in trouble opens by slow start alone."""
    one, line = dispatch(width=4)
    put(one, line, 60, "d#.example")
    one.start(0.0)
    one.answered_well(line, "d0.example", STILL)
    assert not one.widen(STILL + 0.01)
    one, line = dispatch(width=4, bound=2)
    put(one, line, 60, "d#.example")
    assert len(one.start(0.0)) == 2
    assert not one.widen(9.0)


def test_a_route_that_failed_begins_anew():
    """What it had earned is gone."""
    one, line = dispatch(width=32)
    one.troubled(line)
    put(one, line, 20, "d#.example")
    assert len(one.start(0.0)) == 4


def test_no_destination_has_more_than_half_while_others_wait():
    """However much there is for it and however early that came."""
    one, line = dispatch(width=16)
    put(one, line, 50, "many.example")
    put(one, line, 50, "few.example")
    assert domains(one.start(0.0)) == {"many.example": 8, "few.example": 8}


def test_a_destination_has_half_until_something_of_it_ends():
    """Also where nobody else waits, and others have widened the line; and anew after a rest."""
    one, line = dispatch(16, 16, width=4)
    put(one, line, 40, "hangs.example")
    hanging = one.start(0.0)
    assert len(hanging) == 4
    for _ in range(12):
        one.answered_well(line, "d.example", 0.0)
    hanging += one.start(0.0)
    assert len(hanging) == 8
    assert not one.answered_well(line, "d.example", 0.0)
    assert one.answered_well(line, "hangs.example", 0.0), "more may begin"
    assert not one.answered_well(line, "hangs.example", 0.0)
    hanging += one.start(0.0)
    assert len(hanging) == 14
    for place, _ in hanging:
        one.leave(place)
    assert len(one.start(0.0)) == 8


def test_a_destination_alone_leaves_room_for_others():
    """What comes later finds places, also when all that was before hangs."""
    one, line = dispatch()
    put(one, line, 100, "hangs.example")
    hanging = one.start(0.0)
    assert len(hanging) == 16
    one.answered_well(line, "hangs.example", 0.0)
    hanging += one.start(0.0)
    assert len(hanging) == 28
    put(one, line, 30, "d#.example")
    others = one.start(0.0)
    assert len(others) == 1
    done = 0
    while others:
        place, job = others.pop()
        assert job.domain != "hangs.example"
        done += 1
        following = one.next(place, 0.0)
        if following is not None:
            others.append((place, following))
    assert done == 30


def test_a_line_alone_leaves_room_for_other_lines():
    """A route that hangs is no other route's trouble."""
    one, line = dispatch()
    put(one, line, 100, "d#.example")
    assert len(one.start(0.0)) == 29
    other = one.add("other", None)
    put(one, other, 10, "e#.example")
    assert [place.line for place, _ in one.start(0.0)] == [other]


def test_high_has_places_when_all_others_are_taken():
    """And goes through a line that is full."""
    one, line = dispatch(width=8)
    put(one, line, 40, "d#.example", BULK)
    assert len(one.start(0.0)) == 8
    put(one, line, 6, "code.example", HIGH)
    assert domains(one.start(0.0)) == {"code.example": 4}
    one, line = dispatch()
    other = one.add("other", None, width=32)
    put(one, line, 100, "d#.example", BULK)
    put(one, other, 100, "e#.example", NORMAL)
    assert len(one.start(0.0)) == 30
    put(one, line, 6, "code.example", HIGH)
    assert domains(one.start(0.0)) == {"code.example": 1}


def test_a_place_that_high_mail_had_does_not_go_on_with_bulk():
    """Else the next code would find none."""
    one, line = dispatch()
    put(one, line, 100, "d#.example", BULK)
    one.start(0.0)
    put(one, line, 1, "code.example", HIGH)
    ((place, _),) = one.start(0.0)
    assert one.next(place, 0.0) is None
    one.leave(place)
    assert one.start(0.0) == []


@given(st.integers(0, 400))
@settings(deadline=None, max_examples=20)
def test_high_goes_first_and_bulk_one_in_twenty(ahead: int):
    """Whatever was there before."""
    one, line = dispatch(1, 1, width=1)
    put(one, line, 1000, "a.example", HIGH)
    put(one, line, ahead + 60, "b.example", BULK)
    ((place, job),) = one.start(0.0)
    served = [job.priority]
    while len(served) < 800:
        following = one.next(place, 0.0)
        assert following is not None
        served.append(following.priority)
    assert served[:19] == [HIGH] * 19
    assert served.count(BULK) == 800 // 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=60), st.data())
@settings(deadline=None, max_examples=60)
def test_every_job_is_begun_once_and_every_place_is_counted(jobs, data):
    """Whatever the order of ends, announcements and withdrawals."""
    one, line = dispatch(6, 6, width=2)
    for number, (domain, priority) in enumerate(jobs):
        one.put(line, Mail(domain, priority, number))
    begun: list[int] = []
    under_way: list[tuple[Place[Mail, None], Mail]] = []
    now = 0.0
    while len(begun) < len(jobs):
        now += STILL
        for place, job in one.start(now):
            begun.append(job.number)
            under_way.append((place, job))
        assert one.workers == line.workers == len(under_way) <= 6
        assert sum(line.busy(domain) for domain in "abc") == len(under_way)
        if not under_way:
            continue
        place, job = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
        following = one.next(place, now)
        if following is not None and data.draw(st.booleans()):
            one.put_back(place, following, job)
            following = None
        if following is None:
            one.leave(place)
        else:
            begun.append(following.number)
            under_way.append((place, following))
        one.answered_well(line, job.domain, now)
    assert sorted(begun) == list(range(len(jobs)))


class ByTheRules(Dispatch[Mail, None]):
    """A dispatch without the short cut."""

    def more_of_the_same(self, place: Place[Mail, None], now: float) -> None:
        """Leave it to the rules."""


@pytest.mark.parametrize("seed", range(60))
def test_more_of_the_same_is_what_the_rules_would_give(seed: int):
    """Both ways give the same jobs to the same places, in the same order, and count alike."""
    rng = random.Random(seed)
    size = rng.choice([(32, 32), (32, 32), (16, 12), (12, 12), (6, 6), (2, 2)])
    routes, destinations = rng.choice(["x", "x", "xy"]), rng.choice(["a", "ab", "abc"])
    others = rng.choice([0.0, 0.0, 0.03, 0.2])  # how much is not normal mail of one owner
    steps = ["next"] * 30 + ["put back", "leave", "put", "put"]
    sides: list[tuple[Dispatch[Mail, None], RightOfWay, Found]] = []
    for made in (Dispatch[Mail, None], ByTheRules):
        way = RightOfWay()
        one = made(*size, way)
        for key in routes:
            one.add(key, None, width=4)
        sides.append((one, way, []))
    now, number = 0.0, 0
    for _ in range(1500):
        now += rng.choice([0.001, 0.01, 0.1])
        step, at = rng.choice(steps), rng.random()
        if rng.random() < 0.01:
            step = rng.choice(["trouble", "remove", "hold"])
        key = rng.choice(routes)
        batch = []
        for _ in range(rng.choice([1, 3, 40]) if step == "put" else 0):
            number += 1
            owner, priority = "one", NORMAL
            if rng.random() < others:
                owner, priority = rng.choice(["one", "two"]), rng.choice([HIGH, BULK, NORMAL])
            batch.append((rng.choice(destinations), priority, number, owner))
        seen = []
        for one, way, under_way in sides:
            got: list[int | None] = []
            for each in batch:
                one.put(one.lines[key], Mail(*each))
            if step == "trouble":
                one.troubled(one.lines[key])
            elif step == "remove":
                got += [job.number for job in one.remove(one.lines[key], "a")]
            elif step == "hold":
                way.expect(now)
            elif step != "put" and under_way:
                place, job = under_way.pop(int(at * len(under_way)))
                following = one.next(place, now) if step != "leave" else None
                got.append(None if following is None else following.number)
                one.answered_well(place.line, job.domain, now)
                if following is None:
                    one.leave(place)
                elif step == "put back":
                    one.put_back(place, following, job)
                    under_way.append((place, job))
                else:
                    under_way.append((place, following))
            under_way += one.start(now)
            lines = list(one.lines.values())
            counts = [(line.key, line.waits, line.workers, line.width) for line in lines]
            busy = [(d, line.busy(d)) for line in lines for d in destinations]
            held = [(o, line.held(o)) for line in lines for o in ("one", "two")]
            most = [one.most_of(line, o, now) for line in (*lines, None) for o in ("one", "two")]
            jobs = [(job.number, place.domain, place.owner, place.high) for place, job in under_way]
            seen.append(
                (got, jobs, counts, busy, held, most, one.in_the_way("one"), one.in_the_way("two"))
            )
        assert seen[0] == seen[1]


def test_a_line_alone_in_waiting_does_not_go_on_with_the_places_that_are_kept():
    """High mail has the last places: they come free again before others go on."""
    one, line = dispatch()
    put(one, one.add("other", None, width=32), 14, "b.example", owner="two")
    one.start(0.0)
    put(one, line, 14, "a.example", owner="one")
    place = one.start(0.0)[0][0]
    put(one, line, 4, "c.example", HIGH, owner="three")
    one.start(0.0)
    assert one.workers == 32
    put(one, line, 1, "a.example", owner="one")
    assert one.next(place, 0.0) is None


def put_for(
    one: Dispatch[Mail, None], line: Line[Mail, None], owner: str, count: int, domain: str
) -> None:
    """So many high jobs of an owner."""
    put(one, line, count, domain, HIGH, owner)


def owners(started: Found) -> Counter[Hashable]:
    """How many of each owner were begun."""
    return Counter(job.owner for _, job in started)


def test_high_mail_keeps_to_its_destination_s_half():
    """A destination that hangs does not take a line through its priority."""
    one, line = dispatch()
    put(one, line, 100, "hangs.example", HIGH)
    assert len(one.start(0.0)) == 16
    one.answered_well(line, "hangs.example", 0.0)
    assert len(one.start(0.0)) == 12
    put(one, line, 100, "hangs.example", HIGH)
    put(one, line, 2, "code.example", HIGH)
    assert domains(one.start(0.0)) == {"code.example": 1}


def test_no_owner_takes_a_line_whatever_the_priority_and_the_destinations():
    """Places are kept for others, more of them when others are there, and high mail of one's own
    finds one beside what is lower."""
    one, line = dispatch()
    put_for(one, line, "mallory", 60, "d#.example")
    assert len(one.start(0.0)) == 29
    put_for(one, line, "other", 5, "bank.example")
    (place, job), *_ = one.start(0.0)
    done = 0
    while job is not None:
        assert job.owner == "other"
        done += 1
        following = one.next(place, 0.1)
        if following is None:
            break
        job = following
    assert done == 3
    one, line = dispatch()
    put_for(one, line, "other", 1, "bank.example")
    put_for(one, line, "mallory", 60, "d#.example")
    assert owners(one.start(0.0)) == {"other": 1, "mallory": 28}


def test_an_owner_whose_deliveries_stall_gets_no_more_than_half_while_others_wait():
    """What ends goes to others then, and to its owner again once nothing of theirs waits."""
    one, line = dispatch()
    put_for(one, line, "mallory", 16, "h#.example")
    one.start(0.0)
    put_for(one, line, "mallory", 40, "i#.example")
    put_for(one, line, "other", 20, "d#.example")
    others = one.start(line.stalled_after + 0.01)
    assert owners(others) == {"other": 16}
    begun = []
    for place, _ in others:
        following = one.next(place, line.stalled_after + 0.02)
        begun.append(None if following is None else following.owner)
        if following is None:
            one.leave(place)
    assert begun == ["other"] * 4 + [None] * 3 + ["mallory"] * 9


def test_an_owner_alone_has_all_that_there_was_however_much_stalls():
    """Nobody else is there to be kept a place for, but for the last three."""
    one, line = dispatch()
    put_for(one, line, "one", 16, "h#.example")
    one.start(0.0)
    put_for(one, line, "one", 40, "i#.example")
    assert len(one.start(9.0)) == 13
    one, line = dispatch()
    put(one, line, 60, "d#.example")
    assert len(one.start(0.0)) == 29


def test_an_owner_whose_deliveries_stall_is_to_hold_what_it_may_have_places_for():
    """No more than that, once half of the line has stalled: the rest is others' room."""
    one, line = dispatch(8, 8)
    put_for(one, line, "mallory", 12, "h#.example")
    put_for(one, line, "other", 2, "d#.example")
    assert owners(one.start(0.0))["mallory"] >= 4
    assert (line.held("mallory"), line.held("other")) == (12, 2)
    assert one.most_of(line, "mallory", line.stalled_after / 2) is None
    assert one.most_of(line, "mallory", line.stalled_after) == 7
    assert one.most_of(line, "other", line.stalled_after) is None


@pytest.mark.parametrize("priority", [HIGH, NORMAL, BULK])
@pytest.mark.parametrize("routes", [1, 2, 5])
def test_no_owner_takes_all_places_over_however_many_routes(priority: int, routes: int):
    """High mail of others finds one, and normal mail of others another."""
    one, line = dispatch()
    lines = [line, *(one.add(number, None, width=32) for number in range(1, routes))]
    for each in lines:
        put(one, each, 60, "h#.example", priority, "mallory")
    taken = len(one.start(0.0))
    assert taken == (29 if routes == 1 else 30)
    others = one.add("others", None)
    put(one, others, 1, "shop.example", NORMAL, "other")
    assert owners(one.start(9.0)) == {"other": 1}
    put(one, others, 3, "bank.example", HIGH, "other")
    found = one.start(9.0)
    assert set(owners(found)) == {"other"}
    put(one, others, 10, "bank.example", HIGH, "other")
    for number in range(10):
        place, job = found[0]
        assert (job.owner, job.priority) == ("other", HIGH)
        one.leave(place)
        found = one.start(9.0 + number)
        assert set(owners(found)) == {"other"}


def test_no_owner_takes_all_places_with_mail_of_two_priorities():
    """High mail of others finds one even where both hang, over three routes."""
    one, line = dispatch()
    put(one, line, 60, "h#.example", BULK, "mallory")
    put(one, one.add("second", None, width=32), 60, "i#.example", NORMAL, "mallory")
    assert len(one.start(0.0)) == 30
    put(one, one.add("third", None, width=32), 60, "j#.example", HIGH, "mallory")
    assert len(one.start(9.0)) == 1
    put(one, one.add("others", None), 3, "bank.example", HIGH, "other")
    assert owners(one.start(9.0)) == {"other": 1}


def test_an_owner_whose_route_hangs_has_a_place_for_another_route():
    """High mail that hangs over one route stops no high mail of the same owner over another."""
    one, line = dispatch()
    put_for(one, line, "one", 60, "h#.example")
    one.start(0.0)
    put_for(one, one.add("other", None), "one", 3, "bank.example")
    assert domains(one.start(9.0)) == {"bank.example": 1}


def test_an_owner_who_stalls_over_two_routes_begins_nothing_while_others_could():
    """What ends goes to others; but others who could not go stop nobody."""
    one, line = dispatch()
    second = one.add("second", None, width=32)
    put(one, line, 8, "h#.example", NORMAL, "mallory")
    put(one, second, 8, "i#.example", NORMAL, "mallory")
    assert len(one.start(0.0)) == 16
    third = one.add("third", None, width=32)
    put(one, third, 40, "j#.example", NORMAL, "mallory")
    others = one.add("others", None, width=0)
    put(one, others, 20, "d#.example", NORMAL, "other")
    now = line.stalled_after + 0.01
    ((place, _), *rest) = one.start(now)
    assert {place.owner, *(each.owner for each, _ in rest)} == {"mallory"}
    one.leave(place)
    others.width = 1
    assert owners(one.start(now)) == {"other": 1}


def test_what_an_owner_may_hold_is_counted_over_all_routes():
    """Half of the places have stalled in two lines, of neither of them half."""
    one, line = dispatch(8, 8)
    second = one.add("second", None, width=8)
    put_for(one, line, "mallory", 2, "h#.example")
    put_for(one, second, "mallory", 2, "i#.example")
    one.start(0.0)
    put_for(one, second, "mallory", 8, "j#.example")
    assert one.in_the_way("mallory") == 12
    now = line.stalled_after
    assert one.most_of(line, "mallory", now) is None
    assert one.most_of(second, "mallory", now) is None
    assert one.most_of(None, "mallory", now / 2) is None
    assert one.most_of(None, "mallory", now) == 7


def test_what_waits_can_be_taken_out_by_destination_and_by_owner():
    """The rest keeps its order."""
    one, line = dispatch(2, 2, width=0)
    put_for(one, line, "a", 2, "x.example")
    put_for(one, line, "b", 2, "x.example")
    put_for(one, line, "a", 1, "y.example")
    assert len(one.remove(line, owner="a")) == 3
    assert [job.owner for job in line.jobs()] == ["b", "b"]
    put_for(one, line, "a", 1, "y.example")
    assert len(one.remove(line, "x.example")) == 2
    assert (line.waits, line.held("a"), line.held("b")) == (1, 1, 0)
    assert (one.in_the_way("a"), one.in_the_way("b")) == (1, 0)
    assert [job.domain for job in one.remove(line)] == ["y.example"]
    assert line.waits == 0


def test_lines_take_turns():
    """The one with more mail has no more of the places."""
    one, line = dispatch(8, 8)
    other = one.add("other", None, width=8)
    put(one, line, 100, "a#.example")
    put(one, other, 100, "b#.example", owner="other")
    started = Counter(place.line.key for place, _ in one.start(0.0))
    assert started == {"route": 4, "other": 4}


def test_a_place_goes_on_in_its_line_unless_another_line_waits():
    """Its connection is open."""
    one, line = dispatch(1, 1, width=1)
    put(one, line, 5, "a.example")
    ((place, _),) = one.start(0.0)
    assert one.next(place, 0.0) is not None
    other = one.add("other", None, width=1)
    put(one, other, 2, "b.example")
    turns = []
    for _ in range(4):
        assert one.next(place, 0.0) is None
        one.leave(place)
        ((place, _),) = one.start(0.0)
        turns.append(place.line.key)
    assert turns == ["route", "other", "route", "other"]


def test_what_stalls_is_known_by_what_is_usual():
    """A quarter of a second where nothing is known, four times as long as usual where it is."""
    _, line = dispatch()
    assert line.stalled_after == 0.25
    for _ in range(50):
        line.took(1.0)
    assert 3.9 < line.stalled_after <= 4.0


def test_nothing_lower_is_begun_while_high_mail_comes():
    """From when it is announced until it has ended; then the rest goes on."""
    one, line = dispatch()
    put(one, line, 50, "d#.example", BULK)
    way = one.right_of_way
    way.expect(0.0)
    assert one.start(0.0) == []
    one.put(line, Mail("code.example", HIGH))
    way.arrived("code", 0.01)
    ((place, job),) = one.start(0.01)
    assert job.priority == HIGH
    assert one.next(place, 0.02) is None
    assert way.ended("code", 0.03)
    assert len(one.start(0.03)) > 20


def grouped(most: int | None) -> tuple[Dispatch[Mail, None], list[Line[Mail, None]], Group]:
    """A dispatch with three lines that lead to one receiver, which is given so much."""
    one: Dispatch[Mail, None] = Dispatch(32, 32, RightOfWay())
    group = Group(lambda _now: most)
    lines = [one.add(name, None, width=8, group=group) for name in ("a", "b", "c")]
    return one, lines, group


def sites(count: int, *, places: int = 32) -> tuple[Dispatch[Mail, None], list[Line[Mail, None]]]:
    """A dispatch with so many lines to sites, of which nobody knows whether they answer."""
    one: Dispatch[Mail, None] = Dispatch(
        places, places, RightOfWay(), lambda key, _now: 8 if isinstance(key, int) else None
    )
    return one, [one.add(number, None, width=2, is_site=True) for number in range(count)]


def test_what_a_silent_site_is_sent_takes_no_place():
    """However many there are and however long they say nothing: the places are all there."""
    one, lines = sites(50)
    for line in lines:
        put(one, line, 9, f"{line.key}.example")
    started = one.start(0.0)
    assert Counter(line.workers for line in lines) == {1: 50}
    assert (len(started), one.aside, one.workers) == (50, 50, 0)
    for now in (0.2, 0.4, 5.0, 60.0):
        one.step_aside(now)
        one.widen(now)
        assert one.start(now) == []
    busy = one.add("upstream", None, width=32)
    put(one, busy, 40, "d#.example", owner="two")
    assert len(one.start(60.0)) == 29


def test_a_silent_site_has_two_connections_while_fewer_stand_aside_than_there_are_places():
    """The lines take turns, so it is first each one and then some of them two."""
    one, lines = sites(20)
    for line in lines:
        put(one, line, 9, f"{line.key}.example")
    one.start(0.0)
    assert Counter(line.workers for line in lines) == {2: 12, 1: 8}
    assert one.aside == 32


def test_a_site_that_answers_goes_on_among_the_places():
    """Its connection does not stand aside any more, and it widens as all do."""
    one, (line,) = sites(1)
    put(one, line, 40, "a.example")
    places = one.start(0.0)
    assert (len(places), one.aside, one.workers) == (2, 2, 0)
    assert one.answered_well(line, "a.example", 0.1)
    assert one.next(places[0][0], 0.1) is not None
    assert (one.aside, one.workers) == (1, 1)
    assert len(one.start(0.1)) == 1
    assert (one.aside, one.workers, line.workers, line.aside) == (1, 2, 3, 1)
    for place, _ in places:
        one.leave(place)
    assert (one.aside, one.workers, line.workers, line.aside) == (0, 1, 1, 0)


def test_a_site_counts_as_silent_again_after_a_second():
    """Or after four times what its deliveries take; and begins with two connections again."""
    one, (line,) = sites(1)
    assert line.is_silent(0.0)
    for _ in range(6):
        one.answered_well(line, "a.example", 1.0)
    assert (line.width, line.is_silent(2.0), line.is_silent(2.1)) == (8, False, True)
    put(one, line, 40, "a.example")
    assert len(one.start(2.1)) == 2
    assert line.width == 2
    line.took(2.0)
    one.answered_well(line, "a.example", 3.0)
    assert (line.is_silent(10.9), line.is_silent(11.1)) == (False, True)


def slow_sites(count: int) -> tuple[Dispatch[Mail, None], list[Line[Mail, None]]]:
    """The same, where each has answered just now, after five seconds."""
    one, lines = sites(count)
    for line in lines:
        line.took(5.0)
        for _ in range(6):
            one.answered_well(line, f"{line.key}.example", 0.0)
    return one, lines


def test_what_goes_to_a_slow_site_takes_no_place():
    """As long as its deliveries take longer than a quarter of a second."""
    one, (line,) = slow_sites(1)
    put(one, line, 40, "a.example")
    places = one.start(0.0)
    assert (len(places), one.aside, one.slow_aside, one.workers) == (8, 8, 8, 0)
    assert one.next(places[0][0], 0.0) is not None
    assert (one.aside, one.slow_aside, one.workers) == (8, 8, 0)
    for _ in range(30):
        line.took(0.01)
    assert not line.is_slow
    assert one.next(places[0][0], 0.0) is not None
    assert (one.aside, one.slow_aside, one.workers) == (7, 7, 1)
    line.took(9.0)
    assert one.next(places[0][0], 0.0) is not None
    assert (one.aside, one.slow_aside, one.workers) == (8, 8, 0)


def test_slow_sites_leave_half_of_the_places_and_of_those_that_stand_aside():
    """Those who are not slow begin at once, and so do strangers."""
    one, lines = slow_sites(30)
    for number, line in enumerate(lines):
        put(one, line, 20, f"{line.key}.example", owner=str(number % 3))
    one.start(0.0)
    assert (one.slow_aside, one.slow, one.workers) == (128, 16, 16)
    assert {line.workers for line in lines} == {4, 5}
    stranger = one.add(99, None, width=2, is_site=True)
    put(one, stranger, 9, "s.example")
    quick = one.add("upstream", None, width=32)
    put(one, quick, 40, "d#.example", owner="two")
    assert Counter(place.line.key for place, _ in one.start(0.0)) == {99: 2, "upstream": 15}


def test_the_last_places_of_slow_sites_are_kept_for_other_owners_and_more_are_there_for_high_mail():
    """Who has half of those does not get the last two, of sixteen."""
    one, lines = slow_sites(30)
    for line in lines:
        put(one, line, 20, f"{line.key}.example")
    one.start(0.0)
    assert (one.slow_aside, one.slow) == (128, 14)
    put(one, lines[0], 5, "other.example", owner="other")
    assert owners(one.start(0.0)) == {"other": 2}
    put(one, lines[1], 2, "code.example", HIGH, owner="third")
    assert owners(one.start(0.0)) == {"third": 2}
    assert (one.slow, one.workers) == (18, 18)


def test_high_mail_to_slow_sites_leaves_a_quarter_of_the_places():
    """However much of it there is, whosever it is; and no more of it may wait than as much."""
    one, lines = slow_sites(30)
    assert (one.room_to_wait(HIGH), one.room_to_wait(NORMAL)) == (24, 16)
    for number, line in enumerate(lines):
        put(one, line, 20, f"{line.key}.example", HIGH, owner=str(number % 3))
    one.start(0.0)
    assert (one.slow_aside, one.slow, one.workers) == (128, 24, 24)
    assert (one.room_to_wait(HIGH), one.room_to_wait(NORMAL)) == (0, 0)
    quick = one.add("upstream", None, width=32)
    put(one, quick, 40, "d#.example", owner="two")
    assert Counter(place.line.key for place, _ in one.start(0.0)) == {"upstream": 7}


def test_a_turn_at_slow_sites_ends_where_others_wait_for_it():
    """Else who came first would have their room for as long as it has mail."""
    one, lines = slow_sites(20)
    for line in lines[:16]:
        put(one, line, 20, f"{line.key}.example")
    first = one.start(0.0)
    assert one.slow_aside == 128
    assert one.next(first[0][0], 0.0) is None, "another line has what waits, too"
    put(one, lines[16], 1, "late.example", owner="late")
    begun: Found = []
    for place, _ in first[:17]:
        assert one.next(place, 0.0) is None
        one.leave(place)
        begun += one.start(0.0)
    assert "late.example" in {job.domain for _, job in begun}


def test_what_hangs_at_slow_sites_is_slow_no_more():
    """It stands aside as all that hangs, and others may be slow meanwhile."""
    one, lines = slow_sites(20)
    for number, line in enumerate(lines):
        put(one, line, 20, f"{line.key}.example", owner=str(number % 3))
    one.start(0.0)
    assert (one.slow_aside, one.aside, one.slow) == (128, 128, 16)
    now = lines[0].stalled_after
    one.step_aside(now)
    assert (one.slow_aside, one.aside, one.slow, one.workers) == (0, 144, 0, 0)
    for line in lines:
        one.answered_well(line, f"{line.key}.example", now)
    one.start(now)
    assert (one.aside, one.slow_aside) == (160, 16), "eight of each line"


def test_the_last_that_may_stand_aside_are_kept():
    """For other owners first, and then for high mail."""
    one, lines = sites(400)
    for line in lines[:300]:
        put(one, line, 1, "h.example", owner="mallory")
    one.start(0.0)
    assert one.aside == 192
    for line in lines[300:380]:
        put(one, line, 1, "d.example", owner="other")
    assert owners(one.start(0.0)) == {"other": 32}
    for line in lines[380:]:
        put(one, line, 1, "code.example", HIGH, owner="other")
    assert owners(one.start(0.0)) == {"other": 20}
    put(one, lines[0], 1, "code.example", HIGH, owner="mallory")
    assert one.start(0.0) == []
    assert one.workers == 0


def test_a_site_that_has_answered_once_is_risked_a_place_for():
    """Where so many stand aside that nobody else begins; one connection, until it has failed."""
    one, lines = sites(300)
    known, unknown = lines[-1], lines[-2]
    one.answered_well(known, "k.example", 0.0)
    assert one.forget(known.key)
    for line in lines[:200]:
        put(one, line, 1, "h.example")
    one.start(9.0)
    known = one.add(known.key, None, width=2, is_site=True)
    put(one, known, 3, "k.example")
    put(one, unknown, 3, "u.example")
    ((place, job),) = one.start(9.0)
    assert (job.domain, one.workers, one.aside) == ("k.example", 1, 192)
    one.troubled(known)
    one.leave(place)
    assert one.start(9.0) == []


def test_what_has_stalled_gives_its_place_away():
    """Of one line no more than there are places; its line counts its connections as before."""
    one, line = dispatch()
    put(one, line, 60, "d#.example")
    first = one.start(0.0)
    assert (len(first), one.workers) == (29, 29)
    one.step_aside(line.stalled_after - 0.01)
    assert one.aside == 0
    now = line.stalled_after
    one.step_aside(now)
    assert (one.aside, one.workers, line.workers, line.aside) == (29, 0, 29, 29)
    assert one.in_the_way("one") == 31
    assert one.start(now) == []  # of its line the last three are kept
    others = one.add("others", None, width=32)
    put(one, others, 60, "e#.example", owner="two")
    assert len(one.start(now)) == 29
    one.answered_well(line, "d0.example", now)
    assert one.next(first[0][0], now) is not None
    assert (one.aside, one.workers) == (28, 30)
    assert one.next(first[1][0], now) is None, "the last places are kept for others"
    one.leave(first[1][0])
    assert (one.aside, one.workers) == (27, 30)


def test_a_line_is_stuck_when_all_that_it_may_have_has_stalled():
    """It is widened then if somebody is there, for it may be single mails that hang."""
    one, (line,) = sites(1)
    put(one, line, 1, "a.example")
    one.start(0.0)
    assert not one.is_stuck(line, 9.0), "there is room for another"
    put(one, line, 1, "a.example")
    one.start(0.0)
    assert (one.is_stuck(line, 0.2), one.is_stuck(line, 0.3)) == (False, True)
    assert not one.widen_stuck(line, 0.3), "nobody was reached"
    one.opened(line)
    assert [one.widen_stuck(line, 0.3) for _ in range(3)] == [True, True, False]
    assert line.width == 8, "as the gate has it"
    assert not one.is_stuck(line, 0.3)


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_what_stands_aside_is_counted(seed: int):
    """Whatever answers, stalls, is put back and leaves, in whatever order."""
    rng = random.Random(seed)
    one, lines = sites(6, places=4)
    lines.append(one.add("upstream", None, width=4))
    under_way: Found = []
    now = 0.0
    for number in range(300):
        now += rng.choice([0.01, 0.1, 0.4, 2.0])
        line = rng.choice(lines)
        put(one, line, rng.choice([0, 1, 4]), rng.choice("ab"), rng.choice([HIGH, NORMAL]), "one")
        if rng.random() < 0.3:
            one.step_aside(now)
        if under_way and rng.random() < 0.7:
            place, job = under_way.pop(rng.randrange(len(under_way)))
            if rng.random() < 0.6:
                place.line.took(rng.choice([0.01, 2.0]))
                one.answered_well(place.line, job.domain, now)
            else:
                one.troubled(place.line)
            following = one.next(place, now)
            if following is not None and rng.random() < 0.3:
                one.put_back(place, following, job)
                following = job
            if following is None:
                one.leave(place)
            else:
                under_way.append((place, following))
        under_way += one.start(now)
        aside = [place for place, _ in under_way if place.aside]
        assert (one.aside, one.workers) == (len(aside), len(under_way) - len(aside))
        assert one.workers <= one.places
        assert one.aside <= one.most_aside
        slow = Counter(place.aside for place, _ in under_way if place.slow)
        assert (one.slow_aside, one.slow) == (slow[True], slow[False])
        for line in lines:
            assert line.workers == sum(place.line is line for place, _ in under_way)
            assert line.aside == sum(place.line is line for place in aside)
        assert one.in_the_way("one") == one.workers + sum(line.waits for line in lines), number


def test_lines_of_one_receiver_have_no_more_than_it_is_given():
    """Together; and each of them something."""
    one, lines, group = grouped(4)
    for line in lines:
        put(one, line, 20, "d#.example")
    started = one.start(0.0)
    assert len(started) == group.workers == 4
    assert {place.line.key for place, _ in started} == {"a", "b", "c"}
    # It goes on in its line, as every line has something.
    place, _ = started[0]
    assert one.next(place, 0.0) is not None
    assert group.workers == 4
    one.leave(place)
    assert group.workers == 3
    assert len(one.start(0.0)) == 1
    one, lines, group = grouped(None)
    for line in lines:
        put(one, line, 20, "d#.example")
    assert len(one.start(0.0)) == 24


def test_a_line_that_has_no_connection_gets_its_turn():
    """However much waits in the others of its receiver."""
    one, lines, group = grouped(1)
    for line in lines:
        put(one, line, 20, "d#.example")
    ((place, _),) = one.start(0.0)
    turns = []
    for _ in range(6):
        assert one.next(place, 0.0) is None
        one.leave(place)
        assert group.workers == 0
        ((place, _),) = one.start(0.0)
        turns.append(str(place.line.key))
    assert sorted(turns) == ["a", "a", "b", "b", "c", "c"]


def test_who_is_given_less_now_begins_nothing_until_there_is_room():
    """What is under way goes on."""
    given = [4]
    one: Dispatch[Mail, None] = Dispatch(32, 32, RightOfWay())
    line = one.add("a", None, width=8, group=Group(lambda _now: given[0]))
    put(one, line, 20, "d#.example")
    started = one.start(0.0)
    given[0] = 2
    assert [one.next(place, 0.0) for place, _ in started[:2]] == [None, None]
    for place, _ in started[:2]:
        one.leave(place)
    assert one.start(0.0) == []
    assert one.next(started[2][0], 0.0) is not None
