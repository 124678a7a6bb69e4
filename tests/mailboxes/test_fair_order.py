"""Who is parsed next: the quiet before the busy, one each in turn, in groups that fit."""

import random
from uuid import uuid4

from relay.mailboxes.fair_order import GROUP, GROUP_BYTES, OLDEST_EVERY, FairOrder, Waiting

A, B, C = b"a", b"b", b"c"


def _mail(mailbox: bytes, count: int, size: int = 2000) -> list[Waiting]:
    return [Waiting(uuid4().bytes, mailbox, size) for _ in range(count)]


def test_the_order_of_arrival_holds_while_nobody_is_busy():
    """One mailbox's mail comes in its order, from either end."""
    waiting = _mail(A, 100, size=100)
    assert FairOrder().choose(waiting, 0.0) == waiting[:GROUP]
    assert FairOrder().choose(waiting, 0.0, newest=True) == waiting[: -GROUP - 1 : -1]


def test_whoever_had_least_comes_first():
    """A mailbox that cost much lately is behind those that did not, and in turn with its like."""
    order = FairOrder()
    order.charge(A, 2.0)
    order.charge(B, 1.0)
    mail = _mail(A, 2), _mail(B, 2), _mail(C, 2)
    waiting = [*mail[0], *mail[1], *mail[2]]
    chosen = order.choose(waiting, 0.0)
    assert [one.mailbox_id for one in chosen] == [C, B, A, C, B, A]
    assert [one for one in chosen if one.mailbox_id == A] == mail[0]


def test_what_is_small_goes_before_heavy_mail_of_mailboxes_that_are_all_new():
    """A code is next, whichever came first, also when its mailbox had one before."""
    heavy = [Waiting(uuid4().bytes, uuid4().bytes, 61_000) for _ in range(20)]
    (code,) = _mail(A, 1, size=200)
    for newest in (False, True):
        for waiting in ([*heavy, code], [code, *heavy]):
            order = FairOrder()
            order.charge(A, 0.002)
            assert order.choose(waiting, 0.0, newest=newest)[0] == code


def test_what_has_waited_longest_has_its_turn():
    """However much that is smaller comes all the time."""
    order, oldest = FairOrder(), Waiting(uuid4().bytes, A, 20_000_000)
    groups = [
        order.choose(
            [oldest, *(Waiting(uuid4().bytes, uuid4().bytes, 200) for _ in range(99))], 0.0
        )
        for _ in range(OLDEST_EVERY)
    ]
    assert [oldest in group for group in groups] == [False] * (OLDEST_EVERY - 1) + [True]
    assert groups[-1] == [oldest]


def test_what_was_had_is_forgotten():
    """Half of it a second, and then all of it."""
    order = FairOrder()
    order.charge(A, 1.0)
    order.choose([], 1.0)
    assert order.had(A) == 0.5
    order.choose([], 1.5)
    assert order.had(A) == 0.5
    order.choose([], 100.0)
    assert order.had(A) == 0.0


def test_groups_fit():
    """A group stays within its number and bytes, unless its one message is larger."""
    chosen = random.Random(1)
    for _ in range(200):
        sizes = [chosen.choice((100, 3000, 60_000, 160_000, 25_000_000)) for _ in range(150)]
        waiting = [Waiting(uuid4().bytes, chosen.choice((A, B, C)), size) for size in sizes]
        while waiting:
            group = FairOrder().choose(waiting, 0.0, newest=chosen.random() < 0.5)
            assert 1 <= len(group) <= GROUP
            assert len(group) == 1 or sum(one.size for one in group) <= GROUP_BYTES
            waiting = [one for one in waiting if one not in group]
