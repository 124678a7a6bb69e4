"""The law of an outbound message, walked whole."""

import itertools
import re

import pytest

from relay.outbound.queue import states
from relay.outbound.queue.states import (
    FINISHED,
    NOT_BEGUN,
    REPORTS,
    TRANSITIONS,
    Cause,
    Forbidden,
    State,
    cause_of,
    next_state,
)
from relay.smtp.client import LAW, Phase, Seen, Verdict

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


def test_cancelled_is_final_and_what_was_sent_can_only_come_back():
    """A message that was called back is never touched again; of one that went out news may come."""
    final = {state for state in State if not any(s is state for s, _ in TRANSITIONS)}
    assert final == {State.CANCELLED}
    assert {cause for state, cause in TRANSITIONS if state is State.SENT} == {Cause.RETURNED}


def test_only_a_claimed_message_is_delivered():
    """Nothing but processing leads to sent, failed or bounced, so no delivery is made up; but what
    was sent may have bounced, and what is too old may have failed while it waited."""
    others = {(State.SENT, Cause.RETURNED), (State.QUEUED, Cause.EXHAUSTED)}
    for transition, after in TRANSITIONS.items():
        if after in {State.SENT, State.FAILED, State.BOUNCED} and transition not in others:
            assert transition[0] is State.PROCESSING


def test_what_comes_back_from_the_log_comes_by_hand():
    """A finished message is only ever queued again by RETRIED."""
    again = {c for (s, c), after in TRANSITIONS.items() if s in FINISHED and after not in FINISHED}
    assert again == {Cause.RETRIED}


def test_a_worker_may_report_what_leaves_processing_but_not_that_it_vanished():
    """A worker may report exactly what the law lets happen to a message that it holds."""
    assert {(State.PROCESSING, cause) for cause in REPORTS} == {
        pair for pair in TRANSITIONS if pair[0] is State.PROCESSING
    } - {(State.PROCESSING, Cause.LEASE_LOST)}
    assert set(REPORTS) >= NOT_BEGUN


def test_the_picture_in_the_header_is_the_table():
    """Every transition is drawn, and nothing is drawn that the table does not have."""
    assert states.__doc__ is not None
    drawn: dict[tuple[State, Cause], State] = {}
    before = ""
    for row in re.findall(r"^    (\w*) +([A-Z_, ]+[A-Z]) +(\w+)$", states.__doc__, re.MULTILINE):
        before = row[0] or before
        for cause in row[1].split(", "):
            pair = (State(before), Cause[cause])
            assert pair not in drawn
            drawn[pair] = State(row[2])
    assert drawn == TRANSITIONS


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize(("phase", "seen"), list(itertools.product(Phase, Seen)))
def test_what_a_reply_means_for_the_message(phase: Phase, seen: Seen, hold: bool, last: bool):
    """5xx bounces at RCPT, fails at MAIL, DATA and dot, defers before, but for the last attempt.

    The two laws together: that of the conversation, and that of the message.
    """
    verdict = LAW[phase][seen].verdict
    if verdict is None:
        return  # the conversation goes on
    state = next_state(State.PROCESSING, cause_of(verdict, last=last, hold_unknown=hold))
    again = State.FAILED if last else State.QUEUED
    if phase is Phase.DOT and seen is Seen.GOOD:
        assert state is State.SENT
    elif verdict is Verdict.UNKNOWN:
        assert phase is Phase.DOT
        assert state is (State.HELD if hold else again)
    elif seen is Seen.PERMANENT and phase is Phase.RCPT:
        assert state is State.BOUNCED
    elif seen is Seen.PERMANENT and phase in {Phase.MAIL, Phase.DATA, Phase.DOT}:
        assert state is State.FAILED
    else:
        assert state is again


def test_every_verdict_is_ruled():
    """Each verdict of a conversation means something for the message, and not the same."""
    causes = {verdict: cause_of(verdict, last=False, hold_unknown=True) for verdict in Verdict}
    assert len(set(causes.values())) == len(Verdict)
