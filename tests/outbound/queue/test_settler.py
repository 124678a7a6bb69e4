"""The settler: what is recorded of a delivery, and what never is."""

import random
import re
from datetime import timedelta

import pytest

from relay.outbound.pacing.backoff import Schedule
from relay.outbound.queue.settler import Settler, ours
from relay.outbound.queue.states import Cause
from relay.outbound.queue.steps import pack
from relay.smtp.client import Outcome, Peer, Phase, Verdict
from tests.outbound.claims import AT, ID, claimed

LIFETIME = 5 * 86_400.0
SETTLER = Settler(
    lambda message: (
        Schedule.for_lifetime(60.0, LIFETIME) if message.upstream == "mx:" else Schedule(60.0, 3)
    ),
    redact_key=b"k" * 32,
    rng=random.Random(1),
)
EPOCH = AT.timestamp()


def test_a_delivery_is_recorded_step_by_step():
    """The opening's steps first, who was spoken to, and what was said, redacted."""
    opening = ((Phase.CONNECT, 220, 1.0, 0.5),)
    trace = ((Phase.MAIL, 250, 2.0, 0.25), (Phase.DOT, 250, 3.0, 0.125))
    outcome = Outcome(
        Verdict.DELIVERED, Phase.DOT, 250, "2.0.0", "taken, b@y.example", False, True, trace=trace
    )
    peer = Peer("mx.y.example[192.0.2.1]:25", "TLSv1.3")
    settled = SETTLER.settle(claimed(fence=4), outcome, 1.0, 3.0, opening, peer=peer, epoch=EPOCH)
    assert settled.steps == pack((*opening, *trace), 1.0)
    assert (settled.id, settled.fence, settled.cause, settled.delay) == (
        ID, 4, Cause.DELIVERED, 0.0,
    )  # fmt: skip
    assert (settled.phase, settled.code, settled.enhanced, settled.error) == (
        "dot", 250, "2.0.0", None,
    )  # fmt: skip
    assert (settled.began_at, settled.ended_at) == (1.0, 3.0)
    assert (settled.peer, settled.tls) == (peer.name, peer.tls)
    assert settled.reply is not None
    assert re.fullmatch(r"taken, <redacted:[0-9a-f]{10}>", settled.reply)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("Ok: queued as 4dKq3Z1xWb", "Ok: queued as 4dKq3Z1xWb"), ("", None), ("so " * 333, 500)],
)
def test_what_was_said_to_a_message_that_was_taken_is_kept(said: str, kept: str | int | None):
    """As long as it is short; nothing said is no reply."""
    outcome = Outcome(Verdict.DELIVERED, Phase.DOT, 250, None, said, False, True)
    reply = SETTLER.settle(claimed(), outcome, 1.0, 2.0, epoch=EPOCH).reply
    if isinstance(kept, int):
        assert reply is not None
        assert kept - 5 < len(reply) <= kept
    else:
        assert reply == kept


@pytest.mark.parametrize("verdict", [Verdict.DELIVERED, Verdict.FAILED])
def test_a_password_is_not_kept_by_who_repeats_it(verdict: Verdict):
    """Whether they take the message or not."""
    outcome = Outcome(verdict, Phase.DOT, 250, "2.0.0", "Hello user hunter2", False, True)
    settled = SETTLER.settle(claimed(), outcome, 1.0, 2.0, secrets=("hunter2",), epoch=EPOCH)
    assert "hunter2" not in f"{settled.reply} {settled.error}"
    assert "Hello user" in f"{settled.reply} {settled.error}"


def test_what_no_peer_said_is_one_step():
    """The deciding phase alone, at its end."""
    outcome = ours(Verdict.DEFERRED, Phase.CONNECT, "no route")
    settled = SETTLER.settle(claimed(), outcome, 1.0, 2.0, epoch=EPOCH)
    assert settled.steps == pack([(Phase.CONNECT, 0, 2.0, 0.0)], 1.0)
    assert (settled.code, settled.error) == (None, "no route")
    assert (settled.peer, settled.tls, settled.reply) == (None, None, None)


@pytest.mark.parametrize(("turn", "cause"), [(1, Cause.DEFERRED), (3, Cause.EXHAUSTED)])
def test_the_next_attempt_is_by_how_many_there_were(turn: int, cause: Cause):
    """n² units, give or take a fifth; after the last there is none."""
    settled = SETTLER.settle(
        claimed(turn=turn), ours(Verdict.UNKNOWN, Phase.DOT, "broke off"), 1.0, 2.0, epoch=EPOCH
    )
    assert settled.cause is cause
    assert settled.delay == 0.0 or 48.0 <= settled.delay <= 72.0
    assert (settled.delay > 0) is (cause is Cause.DEFERRED)


@pytest.mark.parametrize(
    ("turn", "age", "cause", "units"),
    [
        (7, 3600.0, Cause.DEFERRED, 49),
        (8, 3600.0, Cause.DEFERRED, 60),
        (125, LIFETIME - 1.0, Cause.DEFERRED, 60),
        (2, LIFETIME, Cause.EXHAUSTED, 0),
        (1, 2 * LIFETIME, Cause.DEFERRED, 1),
        (10_000, 0.0, Cause.EXHAUSTED, 0),
    ],
)
def test_what_goes_directly_is_tried_for_its_lifetime(
    turn: int, age: float, cause: Cause, units: int
):
    """Each hour at last; the first failure after it ends it, but never the first of all."""
    message = claimed(turn=turn, upstream="mx:", created_at=AT - timedelta(days=30))
    outcome = ours(Verdict.DEFERRED, Phase.CONNECT, "refused")
    settled = SETTLER.settle(message, outcome, age - 1.0, age, epoch=EPOCH)
    assert settled.cause is cause
    assert 48.0 * units <= settled.delay <= 72.0 * units


def test_what_may_have_been_taken_is_tried_again_ever_more_rarely():
    """By each route: a copy an hour for five days would be 125 of them."""
    outcome = ours(Verdict.UNKNOWN, Phase.DOT, "no answer")
    message = claimed(turn=20, upstream="mx:")
    settled = SETTLER.settle(message, outcome, 1.0, 2.0, epoch=EPOCH)
    assert settled.cause is Cause.DEFERRED
    assert 0.8 * 400 <= settled.delay / 60.0 <= 1.2 * 400


def test_an_attempt_is_judged_by_the_route_that_it_took():
    """Who gives mail of a day that went directly to an upstream has one attempt there."""
    outcome = ours(Verdict.DEFERRED, Phase.CONNECT, "refused")
    causes = [
        SETTLER.settle(claimed(turn=30, upstream=url), outcome, 1.0, 86_400.0, epoch=EPOCH).cause
        for url in ("mx:", "smtps://up.example:465", None)
    ]
    assert causes == [Cause.DEFERRED, Cause.EXHAUSTED, Cause.EXHAUSTED]


def test_neither_addresses_nor_subject_nor_password_are_recorded():
    """Whatever of them a peer repeats."""
    said = "no b@y.example and Ada Lovelace by hunter2hunter2 about Quarterly Figures"
    outcome = Outcome(Verdict.BOUNCED, Phase.RCPT, 550, "5.1.1", said, False, True)
    settled = SETTLER.settle(
        claimed(recipient_name="Ada Lovelace", subject="Quarterly Figures"),
        outcome,
        1.0,
        2.0,
        secrets=("hunter2hunter2",),
        epoch=EPOCH,
    )
    assert settled.cause is Cause.REFUSED
    assert settled.error is not None
    assert settled.error.startswith("550 5.1.1 no ")
    for word in ("b@y", "Lovelace", "hunter2", "Quarterly Figures"):
        assert word not in settled.error
