"""The law of an outbound message, walked whole."""

import itertools

import pytest

from relay.outbound.states import (
    FINISHED,
    NOT_BEGUN,
    OUTCOMES,
    PHASES,
    TRANSITIONS,
    Cause,
    Forbidden,
    State,
    Verdict,
    cause_of,
    next_state,
)

EVERY = list(itertools.product(State, Cause))


@pytest.mark.parametrize(("state", "cause"), EVERY)
def test_each_pair_of_state_and_cause_is_either_in_the_law_or_forbidden(state: State, cause: Cause):
    """What the table has, happens; everything else raises and says what was asked."""
    if (state, cause) in TRANSITIONS:
        assert next_state(state, cause) is TRANSITIONS[state, cause]
    else:
        with pytest.raises(Forbidden) as caught:
            next_state(state, cause)
        assert (caught.value.state, caught.value.cause) == (state, cause)


def test_every_state_can_be_reached_from_queued_and_every_cause_occurs():
    """There is no state and no cause that only exists on paper."""
    reached = {State.QUEUED}
    while more := {after for (s, _), after in TRANSITIONS.items() if s in reached} - reached:
        reached |= more
    assert reached == set(State)
    assert {cause for _, cause in TRANSITIONS} == set(Cause)


def test_sent_and_cancelled_are_final_and_the_rest_can_still_move():
    """A message that went out, or was called back, is never touched again."""
    final = {state for state in State if not any(s is state for s, _ in TRANSITIONS)}
    assert final == {State.SENT, State.CANCELLED}


def test_only_a_claimed_message_is_delivered():
    """Nothing but processing leads to sent, failed or bounced, so no delivery is made up."""
    for (state, _), after in TRANSITIONS.items():
        if after in {State.SENT, State.FAILED, State.BOUNCED}:
            assert state is State.PROCESSING


def test_what_comes_back_from_the_log_comes_by_hand():
    """A finished message is only ever queued again by RETRIED."""
    assert {cause for (state, cause) in TRANSITIONS if state in FINISHED} == {Cause.RETRIED}


def test_the_outcomes_of_a_worker_are_the_causes_that_leave_processing():
    """A worker may report exactly what the law lets happen to a message that it holds."""
    assert {(State.PROCESSING, cause) for cause in OUTCOMES} == {
        pair for pair in TRANSITIONS if pair[0] is State.PROCESSING
    }
    assert set(OUTCOMES) >= NOT_BEGUN


@pytest.mark.parametrize("turn", [1, 9, 10, 11])
@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(("verdict", "phase"), list(itertools.product(Verdict, PHASES)))
def test_what_a_delivery_means_for_its_message(verdict: Verdict, phase: str, hold: bool, turn: int):
    """5xx bounces at RCPT, fails at MAIL, DATA and dot, defers before; the tenth is the last."""
    cause = cause_of(verdict, phase, turn=turn, max_attempts=10, hold_unknown=hold)
    state = next_state(State.PROCESSING, cause)
    again = State.FAILED if turn >= 10 else State.QUEUED
    expected = {
        Verdict.DELIVERED: State.SENT,
        Verdict.TEMPORARY: again,
        Verdict.UNKNOWN: State.HELD if hold else again,
        Verdict.PERMANENT: {
            "rcpt": State.BOUNCED,
            "mail": State.FAILED,
            "data": State.FAILED,
            "dot": State.FAILED,
        }.get(phase, again),
    }
    assert state is expected[verdict]


def test_a_phase_that_does_not_exist_is_refused():
    """A misspelt phase would otherwise be taken for one of the message's own."""
    with pytest.raises(ValueError, match="not a phase"):
        cause_of(Verdict.PERMANENT, "recipient", turn=1, max_attempts=10)
