"""The lane book: priorities, fair shares, floors."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.db.pool import Pool
from relay.outbound.pacing.meter import Meter
from relay.outbound.queue.lanes import (
    BULK,
    Ask,
    DueLane,
    Held,
    LaneBook,
    lane_of,
    most_for,
    spare_of_owners,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
OWNER, OTHER = UUID(int=1), UUID(int=2)


def book_of(*due_lanes: tuple[int, int], owner: UUID = OWNER) -> LaneBook:
    """A book in which these (lane, priority) of one owner are due."""
    book = LaneBook()
    found = [DueLane(lane, p, T0, f"d{lane}.example", owner) for lane, p in due_lanes]
    book.learn(found, book.mark())
    return book


def held_of(lanes: dict[int, int], owner: UUID = OWNER) -> Held:
    """So much of each lane of an owner is in the sender's hands."""
    return Held((lane, owner, count) for lane, count in lanes.items())


def serve(book: LaneBook, rounds: int, capacity: int, **kwargs) -> Counter[tuple[int, int]]:
    """Claim `rounds` times from lanes that never end, and count what each got."""
    served: Counter[tuple[int, int]] = Counter()
    for _ in range(rounds):
        plan = book.plan(capacity, T0, **kwargs)
        assert sum(ask.limit for ask in plan) <= capacity
        assert len({(a.lane, a.priority) for a in plan}) == len(plan)
        for ask in plan:
            assert ask.limit > 0
            served[ask.lane, ask.priority] += ask.limit
        book.took(plan, {(a.lane, a.priority): (a.limit, a.floor) for a in plan})
    return served


@given(capacity=st.integers(1, 200), lanes=st.integers(1, 90))
@settings(deadline=None, max_examples=40)
def test_lanes_of_one_priority_get_equal_shares(capacity: int, lanes: int):
    """Whatever the room and the number of lanes, no lane gets ahead by more than two turns."""
    book = book_of(*((lane, 1) for lane in range(lanes)))
    served = serve(book, 60, capacity)
    fair = sum(served.values()) / lanes
    quantum = -(-capacity // min(lanes, 64))
    assert all(abs(served[lane, 1] - fair) <= 2 * quantum for lane in range(lanes))


@given(capacity=st.integers(1, 200), lanes=st.lists(st.integers(1, 300), min_size=1, max_size=40))
@settings(deadline=None, max_examples=40)
def test_owners_of_one_priority_get_equal_shares(capacity: int, lanes: list[int]):
    """To however many domains each of them writes, none gets ahead by more than two turns."""
    book = LaneBook()
    numbers = iter(range(sum(lanes)))
    of = {next(numbers): UUID(int=owner) for owner, count in enumerate(lanes) for _ in range(count)}
    for lane, owner in of.items():
        book.wake(DueLane(lane, 1, T0, f"d{lane}.example", owner))
    served = Counter[UUID]()
    for (lane, _), count in serve(book, 60, capacity).items():
        served[of[lane]] += count
    fair = served.total() / len(lanes)
    quantum = -(-capacity // len(lanes))
    assert all(abs(served[owner] - fair) <= 2 * quantum for owner in of.values())


def test_an_owner_who_comes_behind_thousands_of_lanes_of_another_is_in_the_next_claim():
    """Also where every lane of the other one asks for all that there is."""
    book = book_of(*((lane, 1) for lane in range(3000)))
    serve(book, 3, 40)
    book.wake(DueLane(9999, 1, T0, "d9999.example", OTHER))
    assert asked(book.plan(40, T0))[9999] == 20
    assert (9999, "d9999.example") in [each[:2] for each in book.due(T0)][:2]


def test_what_an_owner_leaves_of_its_share_goes_to_the_others():
    """Who is alone gets all, and who asks for little takes nothing from who asks for more."""
    book = book_of(*((lane, 1) for lane in range(10)))
    assert sum(asked(book.plan(40, T0)).values()) == 40
    book.wake(DueLane(99, 1, T0, "d99.example", OTHER))
    plan = book.plan(40, T0, lambda lane, *_: 3 if lane == 99 else None)
    assert asked(plan)[99] == 3
    assert sum(asked(plan).values()) == 40


def test_an_owner_whose_mail_does_not_end_leaves_room_for_the_next_one():
    """To however many domains it is, of each of which little is in hand."""
    book = book_of(*((lane, 1) for lane in range(100)))
    plan = book.plan(56, T0, spare=16)
    held = held_of(asked(plan))
    assert sum(held.lanes.values()) == sum(held.owners.values()) == 48
    assert book.plan(8, T0, spare=16, held=held) == []
    book.wake(DueLane(999, 1, T0, "d999.example", OTHER))
    assert asked(book.plan(8, T0, spare=16, held=held)) == {999: 3}
    for lane in range(100):
        held.left(lane, 99)
    assert held.lanes == held.owners == {}


@given(capacity=st.integers(1, 100))
@settings(deadline=None, max_examples=40)
def test_bulk_gets_one_in_twenty_and_high_most(capacity: int):
    """With all three priorities full, high goes first and bulk never starves."""
    served = serve(book_of((1, 0), (2, 1), (3, 2)), 100, capacity)
    total = sum(served.values())
    assert total == 100 * capacity
    assert served[3, 2] >= total // 20 - 1
    assert served[2, 1] >= total // 20 - 1
    assert served[1, 0] >= total * 0.85


def test_bulk_does_not_starve_where_rates_are_asked_for():
    """However many lanes of higher priority are due, the meter gets to know bulk's."""
    book = book_of(*((lane, 1) for lane in range(300)), (999, 2))
    meter = Meter()
    wants = meter.survey((((domain,), owner) for _, domain, owner in book.due(T0)), 0.0)
    meter.leased(wants, {}, 0.0)
    meter.survey((((domain,), owner) for _, domain, owner in book.due(T0)), 0.0)
    served = serve(book, 20, 100, allowance=lambda _, domain, owner: meter.share((domain,), owner))
    assert served[999, 2] == sum(served.values()) // 20


def test_bulk_alone_gets_everything():
    """A guarantee is no limit."""
    assert serve(book_of((3, 2)), 10, 50) == {(3, 2): 500}


def test_a_throttled_lane_is_not_asked_for_and_the_others_get_its_room():
    """Its backlog costs nothing, and it does not hold anyone up."""
    book = book_of((1, 0), (1, 1), (2, 1), (3, 1))
    served = serve(
        book, 10, 30, allowance=lambda _, domain, __: 0 if domain == "d1.example" else 10**6
    )
    assert served[1, 0] == served[1, 1] == 0
    assert served[2, 1] == served[3, 1] == 150


def test_an_allowance_is_an_upper_bound_and_leaves_the_rest_to_others():
    """A destination that may have three now gets three."""
    book = book_of((1, 1), (2, 1))
    plan = book.plan(
        100, T0, allowance=lambda _, domain, __: 3 if domain == "d1.example" else 10**6
    )
    assert {ask.lane: ask.limit for ask in plan} == {1: 3, 2: 97}


def test_room_that_a_limited_high_lane_cannot_use_goes_to_normal():
    """Throttling high mail to one destination does not idle the senders."""
    book = book_of((1, 0), (2, 1))
    plan = book.plan(
        100, T0, allowance=lambda _, domain, __: 5 if domain == "d1.example" else 10**6
    )
    assert {ask.lane: ask.limit for ask in plan} == {1: 5, 2: 95}


def test_room_kept_for_high_is_filled_by_nothing_else():
    """Bulk gets what is beyond it; high gets all, less what the others are guaranteed."""
    book = book_of((1, 2))
    assert [ask.limit for ask in book.plan(30, T0, kept=20)] == [10]
    assert book.plan(20, T0, kept=20) == []
    book.wake(DueLane(2, 0, T0, "d2.example", OWNER))
    served = serve(book, 100, 20, kept=20)
    assert served[2, 0] >= 100 * 18
    assert served[1, 2] >= 100 * 20 // 20 - 1
    some = book.plan(40, T0, kept=20, allowance=lambda lane, *_: 5 if lane == 2 else 10**6)
    assert sum(ask.limit for ask in some if ask.lane == 1) <= 20


def asked(plan: list[Ask]) -> dict[int, int]:
    """How many of each lane."""
    return {ask.lane: ask.limit for ask in plan}


@pytest.mark.parametrize(
    ("free", "spare", "held", "most"),
    [
        (48, 16, 0, 32),  # as much as without spare room
        (48, 0, 0, 48),
        (20, 16, 28, 4),  # room that became free is anybody's
        (16, 16, 32, 0),  # all that a lane gets by itself
        (16, 16, 0, 10),  # the next one leaves some
        (6, 16, 0, 4),
        (2, 16, 0, 1),
        (1, 16, 0, 1),  # who has nothing gets one, to the last
        (1, 16, 1, 0),
        (0, 16, 0, 0),
        (-3, 16, 0, 0),
    ],
)
def test_a_lane_has_no_more_of_the_spare_room_than_twice_what_it_leaves(
    free: int, spare: int, held: int, most: int
):
    """And all of the rest."""
    assert most_for(free, spare, held) == most


@pytest.mark.parametrize("priority", [0, 1, BULK])
def test_a_lane_whose_mail_does_not_end_leaves_room_for_the_next_ones(priority: int):
    """One after the other stalls, and each leaves some; only what ends makes more room.

    Eight are for who has nothing in hand, and these lanes are one owner's."""
    book = book_of((1, priority))
    assert asked(book.plan(56, T0, spare=16)) == {1: 32}
    assert asked(book.plan(24, T0, spare=16, held=held_of({1: 32}))) == {}
    book.wake(DueLane(2, priority, T0, "d2.example", OWNER))
    assert asked(book.plan(24, T0, spare=16, held=held_of({1: 32}))) == {2: 10}
    book.wake(DueLane(3, priority, T0, "d3.example", OWNER))
    assert asked(book.plan(14, T0, spare=16, held=held_of({1: 32, 2: 10}))) == {3: 4}
    assert asked(book.plan(10, T0, spare=16, held=held_of({1: 32, 2: 10, 3: 4}))) == {}
    assert asked(book.plan(28, T0, spare=16, held=held_of({1: 28, 2: 10, 3: 4}))) != {}


def test_a_lane_alone_is_never_slowed_by_spare_room():
    """Whatever of it ends, it has as much in hand as it would without."""
    book, rng = book_of((1, 1)), Random(1)
    held, spare, room = 0, 16, 32
    for _ in range(1000):
        free = room + spare + spare_of_owners(spare) - held
        for ask in book.plan(free, T0, spare=spare, held=held_of({1: held})):
            held += ask.limit
        assert held == room
        held -= rng.randrange(held + 1)


def test_two_that_come_at_once_leave_some_of_the_room():
    """Beside what other owners find: where one would leave a third, two leave a seventh."""
    plan = book_of((1, 1), (2, 1)).plan(56, T0, spare=16)
    assert asked(plan) == {1: 28, 2: 13}


def test_lanes_that_may_have_no_more_hide_no_other():
    """However many of them are before it in turn."""
    book = book_of(*((lane, 1) for lane in range(200)), (999, 1))
    held = dict.fromkeys(range(200), 20)
    assert asked(book.plan(14, T0, spare=16, held=held_of(held))) == {999: 4}


def test_high_mail_leaves_the_others_what_they_are_guaranteed_of_any_room():
    """Also where what is free is no more than is kept and spare."""
    book = book_of((1, 0), (2, 1))
    given = Counter[int]()
    for _ in range(60):
        given += Counter(asked(book.plan(10, T0, kept=16, spare=16, held=held_of({2: 3}))))
        book.took([], {})
    assert given[2] >= 60 * 10 // 20 - 1


def test_what_high_mail_leaves_is_shared_as_the_room_without_it():
    """A lane of lower priority takes no spare room by way of what high mail did not need."""
    book = book_of((1, 0), (2, 1))
    plan = book.plan(72, T0, kept=16, spare=16, allowance=lambda lane, *_: 4 if lane == 1 else None)
    assert asked(plan) == {1: 4, 2: 29}  # of 44


def test_the_floor_follows_what_was_claimed_and_a_short_claim_ends_the_due_lane():
    """The next claim begins where the last one ended; an empty lane is not asked for again."""
    book = book_of((1, 1))
    later = T0 + timedelta(seconds=5)
    at = T0 + timedelta(seconds=60)
    plan = book.plan(10, at)
    assert plan == [Ask(1, 1, T0, 10, "d1.example", OWNER)]
    book.took(plan, {(1, 1): (10, later)})
    plan = book.plan(10, at)
    assert plan == [Ask(1, 1, later, 10, "d1.example", OWNER)]
    book.took(plan, {(1, 1): (9, later)})
    assert book.plan(10, at) == []


def test_a_wake_up_lowers_the_floor_also_while_a_claim_or_a_survey_is_under_way():
    """What arrives between question and answer is not forgotten."""
    book = book_of((1, 1))
    at = T0 + timedelta(seconds=60)
    plan = book.plan(10, at)
    book.wake(DueLane(1, 1, T0 - timedelta(seconds=9), "d1.example", OWNER))
    book.took(plan, {(1, 1): (3, T0)})
    assert book.plan(10, at) == [Ask(1, 1, T0 - timedelta(seconds=9), 10, "d1.example", OWNER)]

    book = book_of((1, 1))
    plan = book.plan(10, at)
    book.wake(DueLane(1, 1, T0 + timedelta(seconds=1), "d1.example", OWNER))
    book.took(plan, {(1, 1): (0, T0)})
    assert book.plan(10, at) != []

    mark = book.mark()
    book.wake(DueLane(7, 2, T0, "d7.example", OWNER))
    book.learn([], mark)
    assert [ask.lane for ask in book.plan(10, at)] == [7]


def test_two_claims_under_way_at_once_lose_nothing():
    """The one that finds the end early does not hide what the other one left."""
    book = book_of((1, 1))
    at, later = T0 + timedelta(seconds=60), T0 + timedelta(seconds=5)
    first, second = book.plan(10, at), book.plan(10, at)
    book.took(second, {})
    book.took(first, {(1, 1): (10, later)})
    assert book.plan(10, at) == [Ask(1, 1, later, 10, "d1.example", OWNER)]


def test_what_is_due_later_is_not_asked_for_but_known():
    """The claimer sleeps until the next due time."""
    book = book_of((1, 1))
    book.wake(DueLane(2, 1, T0 + timedelta(hours=1), "d2.example", OWNER))
    assert [ask.lane for ask in book.plan(10, T0)] == [1]
    assert book.next_due(T0) == T0 + timedelta(hours=1)
    assert book.next_due(T0 + timedelta(hours=2)) is None
    assert book.next_due(T0, slice(1)) is None  # nothing high


def test_no_room_and_no_work_are_an_empty_plan():
    """Neither is an error."""
    assert book_of((1, 1)).plan(0, T0) == []
    assert LaneBook().plan(10, T0) == []


@pytest.mark.parametrize("domain", ["example.com", "xn--bcher-kva.example", "münchen.example"])
async def test_python_and_sql_number_a_lane_alike(any_pool: Pool, domain: str):
    """relay.send and the relay put mail for one destination into one lane."""
    owner = uuid4()
    assert lane_of(owner, domain) == await any_pool.fetch_value(
        "SELECT relay.outbound_lane(%s, %s)", (owner, domain)
    )
    for sender in (None, uuid4()):
        assert lane_of(owner, domain, sender) == await any_pool.fetch_value(
            "SELECT relay.outbound_lane(%s, %s, %s)", (owner, domain, sender)
        )
