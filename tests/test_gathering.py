"""For how many a statement waits: for those of a crowd, and never for one or two."""

from __future__ import annotations

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
