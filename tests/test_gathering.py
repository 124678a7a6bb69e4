"""For how many a statement waits: for those of a crowd, and never for one or two."""

from __future__ import annotations

import heapq
import itertools
import math
import random

import pytest

from relay.gathering import ENOUGH, FEW, PATIENCE, SHARE, Gathering


def rounds(gathering: Gathering, came: int, count: int, now: float, every: float) -> list[int]:
    """What it says in so many rounds, `every` seconds apart, in each of which `came` come."""
    said = []
    for _ in range(count):
        said.append(gathering.least(now))
        gathering.taken(came, now)
        now += every
    return said


def test_a_crowd_is_looked_at_once_and_then_waited_for():
    """20 who come every 2 ms: once for all that come in time, then for three quarters of them."""
    said = rounds(Gathering(), 20, 600, 10.0, 0.002)
    looks = [number for number, least in enumerate(said) if least > 20]
    assert said[0] == 1
    assert len(looks) == 2, "soon, and a second later"
    assert looks[0] < 60
    assert set(said[looks[0] + 1 : looks[1]]) == {15}


def test_nobody_waits_where_enough_have_come_by_themselves():
    """However many more there are: of 80, 40 gather while a statement is under way."""
    assert max(rounds(Gathering(), 40, 600, 10.0, 0.002)) <= ENOUGH / SHARE + 1
    assert rounds(Gathering(), 40, 600, 10.0, 0.002)[-1] == ENOUGH


def test_few_senders_are_never_waited_for_for_long():
    """However fast they are: three that send on and on look like more, once a second."""
    said = rounds(Gathering(), FEW - 1, 2000, 0.0, 0.001)
    assert sum(least > 1 for least in said) <= 3


def test_little_mail_is_never_waited_for():
    """One at a time, below what could gather in time: not a single look."""
    slow = FEW / PATIENCE * 0.9
    assert set(rounds(Gathering(), 1, 5000, 0.0, 1 / slow)) == {1}


def test_a_crowd_that_has_gone_is_forgotten_at_once():
    """The next one alone waits in vain once, and nobody behind it."""
    gathering = Gathering()
    rounds(gathering, 20, 200, 0.0, 0.002)
    assert gathering.least(0.4) == 15
    gathering.taken(1, 0.405)
    assert set(rounds(gathering, 1, 20, 0.5, 0.2)) == {1}


class Stage:
    """One kind of statement: who waits for it, and who is being answered."""

    def __init__(self, takes: float) -> None:
        self.takes = takes  # s
        self.gathering = Gathering()
        self.waiting: list[int] = []
        self.is_busy = False
        self.least, self.until = 1, math.inf
        self.in_vain = 0


def by_turns(senders: int, seconds: float, seed: int) -> tuple[int, int]:
    """Senders who need two statements a message by turns; the messages, and waits in vain."""
    chance = random.Random(seed)
    stages = Stage(0.0009), Stage(0.0018)
    order = itertools.count()
    events: list[tuple[float, int, int, int | list[int]]] = []
    messages = 0

    def add(at: float, stage: int, what: int | list[int]) -> None:
        heapq.heappush(events, (at, next(order), stage, what))

    for sender in range(senders):
        add(chance.uniform(0, 0.02), 0, sender)
    while events[0][0] < seconds:
        now, _, number, what = heapq.heappop(events)
        stage = stages[number]
        if isinstance(what, list):  # who has been answered
            stage.is_busy = False
            messages += len(what) * number
            for place, sender in enumerate(what):
                way = 0.0001 + 0.00004 * place + chance.expovariate(2500)
                add(now + way, 1 - number, sender)
        elif what >= 0:
            stage.waiting.append(what)
        elif stage.until != now:  # a wait that was over before its time
            continue
        if stage.is_busy or not stage.waiting:
            continue
        if stage.until == math.inf:
            stage.least = stage.gathering.least(now)
        if len(stage.waiting) < stage.least and now < stage.until:
            if stage.until == math.inf:
                stage.until = now + PATIENCE
                add(stage.until, number, -1)
            continue
        stage.in_vain += stage.until == now
        stage.until, stage.is_busy = math.inf, True
        stage.gathering.taken(len(stage.waiting), now)
        took = stage.takes * chance.uniform(0.8, 1.3) + 0.00006 * len(stage.waiting)
        add(now + took, number, stage.waiting)
        stage.waiting = []
    return messages, sum(stage.in_vain for stage in stages)


@pytest.mark.parametrize("senders", [8, 12, 20, 40])
def test_senders_who_fall_apart_between_two_statements_wait_in_vain_only_now_and_then(senders):
    """Half of them may need the one, half the other; then none comes while either waits."""
    found = [by_turns(senders, 5.0, seed) for seed in range(5)]
    assert max(in_vain for _, in_vain in found) <= 5.0 * 2 * 11, "either looks ten times a second"
