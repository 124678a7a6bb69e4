"""The law of an outbound message, done to messages in PostgreSQL: every transition it has."""

from collections.abc import Awaitable, Callable

import pytest

from relay.outbound.admin import QueueAdmin, Wanted
from relay.outbound.bounces.returned import Returned
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.states import REPORTS, TRANSITIONS, Cause, Forbidden, State
from relay.returns.law import Finding, Kind
from tests.outbound.node import Node, lose, put, status

LOSSES = 3


class Case:
    """One message, a node that claims it, and an operator."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pool = node.pool
        self.admin = QueueAdmin(node.pool)
        self.claimed: Claimed | None = None
        self.hold_unknown = False

    async def queue(self) -> None:
        """Put the message into the queue."""
        (queued,) = await put(self.pool, "a@x.example", hold_unknown=self.hold_unknown)
        self.id = queued.id

    async def claim(self) -> None:
        """Lease it, as what it is now."""
        (self.claimed,) = await self.node.claim()

    async def report(self, cause: Cause) -> None:
        """Say as its worker what became of it."""
        assert self.claimed is not None
        assert await self.node.finish([self.claimed], cause, delay=3600.0) == {self.id}

    async def deadline_passes(self) -> None:
        """Its `not_after` is over."""
        await self.pool.execute(
            "UPDATE relay.outbound_due SET not_after = now() - interval '1 s' WHERE id = %s",
            (self.id,),
        )


async def in_state(case: Case, state: State, cause: Cause) -> None:
    """Bring the message into the state from which something is to happen."""
    case.hold_unknown = cause is Cause.UNCERTAIN
    await case.queue()
    if state is State.QUEUED:
        if cause in {Cause.RETRIED, Cause.FLUSHED}:  # of what was deferred only
            await case.claim()
            await case.report(Cause.DEFERRED)
        elif cause is Cause.QUARANTINED:
            for _ in range(LOSSES - 1):
                await case.claim()
                await lose(case.pool, case.id)
            await case.claim()
            await lose(case.pool, case.id)
    elif state is State.HELD:
        await case.admin.hold(case.id)
    else:
        await case.claim()
        if state is not State.PROCESSING:
            await case.report(next(c for c, after in REPORTS.items() if after is state))
    assert await status(case.pool, case.id) == state


async def claimed(case: Case) -> None:
    await case.claim()


async def reported(case: Case, cause: Cause) -> None:
    await case.report(cause)


async def expired(case: Case) -> None:
    await case.deadline_passes()
    assert await case.node.queue.expire() == 1


async def given_up(case: Case) -> None:
    (lane,) = [each.lane for each in (await case.node.queue.survey())[0]]
    case.node.queue.direct = True
    assert await case.node.queue.give_up([lane], 0.0, "connect: no answer") == 1


async def flushed(case: Case) -> None:
    assert await case.admin.flush() == 1


async def returned(case: Case) -> None:
    returns = Returned(case.pool, b"key")
    about = await returns.about(case.id)
    assert about is not None
    applied = await returns.apply(about, Finding(Kind.BOUNCED, "5.1.1", "no"))
    assert applied is not None
    assert applied.changed


async def lost(case: Case) -> None:
    await lose(case.pool, case.id)


async def quarantined(case: Case) -> None:
    assert (await case.node.look()).quarantined == [case.id]


Act = Callable[[Case], Awaitable[object]]
ACTS: dict[tuple[State, Cause], Act] = {
    (State.QUEUED, Cause.CLAIMED): claimed,
    (State.QUEUED, Cause.EXPIRED): expired,
    (State.QUEUED, Cause.EXHAUSTED): given_up,
    (State.QUEUED, Cause.QUARANTINED): quarantined,
    (State.QUEUED, Cause.FLUSHED): flushed,
    (State.PROCESSING, Cause.LEASE_LOST): lost,
    (State.HELD, Cause.EXPIRED): expired,
    (State.SENT, Cause.RETURNED): returned,
}
BY_HAND = {Cause.CANCELLED: "cancel", Cause.HELD: "hold", Cause.RETRIED: "retry"}


@pytest.mark.parametrize(("state", "cause"), list(TRANSITIONS))
async def test_each_transition_happens_in_the_database(node: Node, state: State, cause: Cause):
    """The statements lead where the table says, one transition at a time."""
    case = Case(node)
    await in_state(case, state, cause)
    if (state, cause) in ACTS:
        await ACTS[state, cause](case)
    elif cause in BY_HAND:
        assert await getattr(case.admin, BY_HAND[cause])(case.id) is TRANSITIONS[state, cause]
    else:
        await reported(case, cause)
    assert await status(case.pool, case.id) == TRANSITIONS[state, cause]


@pytest.mark.parametrize("cause", BY_HAND)
@pytest.mark.parametrize("state", State)
async def test_what_the_law_does_not_have_changes_nothing(node: Node, state: State, cause: Cause):
    """By hand, in whatever state: refused, and the message stays where it is."""
    if (state, cause) in TRANSITIONS:
        return
    case = Case(node)
    await in_state(case, state, cause)
    with pytest.raises(Forbidden):
        await getattr(case.admin, BY_HAND[cause])(case.id)
    assert await status(case.pool, case.id) == state


@pytest.mark.parametrize("cause", BY_HAND)
async def test_what_is_done_to_all_follows_the_same_law(node: Node, cause: Cause):
    """One message in each state: those change that the law lets, as many as were counted."""
    cases = {state: Case(node) for state in State}
    # What is queued comes last, as the others are claimed on their way.
    for state in sorted(State, key=lambda one: one is State.QUEUED):
        await in_state(cases[state], state, cause)
    admin = cases[State.QUEUED].admin
    lawful = {state for state in State if (state, cause) in TRANSITIONS}
    assert (await admin.count_matching(Wanted()))[cause] == len(lawful)
    for state in State:
        count = (await admin.count_matching(Wanted(status=state)))[cause]
        assert count == (state in lawful), state
    assert await admin.change_matching(cause, Wanted()) == len(lawful)
    for state, case in cases.items():
        wanted = TRANSITIONS.get((state, cause), state)
        assert await status(case.pool, case.id) == wanted, state


async def test_the_reaper_sets_aside_and_holds_as_a_claim_does(node: Node):
    """QUARANTINED and UNCERTAIN of lanes that nobody claims from."""
    often, unsure = Case(node), Case(node)
    await in_state(unsure, State.PROCESSING, Cause.UNCERTAIN)
    assert unsure.claimed is not None
    assert await node.queue.begin_data([(unsure.id, unsure.claimed.fence)]) == {unsure.id}
    await lose(node.pool, unsure.id)
    assert await status(node.pool, unsure.id) == State.PROCESSING
    await in_state(often, State.QUEUED, Cause.QUARANTINED)
    await node.queue.reap()
    assert await status(node.pool, often.id) == State.HELD
    assert await status(node.pool, unsure.id) == State.HELD


async def test_a_worker_whose_lease_is_over_may_report_until_somebody_claims_again(node: Node):
    """Seen as queued, it is processing still for whoever has its fence."""
    case = Case(node)
    await in_state(case, State.PROCESSING, Cause.DELIVERED)
    await lose(case.pool, case.id)
    assert await status(case.pool, case.id) == State.QUEUED
    await case.report(Cause.DELIVERED)
    assert await status(case.pool, case.id) == State.SENT
