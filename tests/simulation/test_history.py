"""What the judge excuses, and what it does not."""

import pytest

from simulation.history import Copy, History, Refusal, Trouble

TO = "a@one.example"


def excused(first: Copy, second: Copy, *troubles: Trouble) -> bool:
    """Whether a second copy is, with these troubles."""
    return History(troubles=list(troubles)).excused(first, second)


def test_a_second_copy_needs_an_excuse() -> None:
    """Without trouble there is none; where the answer was lost, or the server did something odd on
    that connection, there is one."""
    first, second = Copy("M", TO, 100.0, node="n1"), Copy("M", TO, 105.0, node="n2")
    assert not excused(first, second)
    assert excused(Copy("M", TO, 100.0, told=False, node="n1"), second)
    assert excused(Copy("M", TO, 100.0, node="n1", plain=False), second)


@pytest.mark.parametrize(
    ("trouble", "is_one"),
    [
        (Trouble("kill", 101.0, 103.0, "n1"), True),
        (Trouble("kill", 101.0, 103.0, "n2"), False),
        (Trouble("kill", 90.0, 95.0, "n1"), False),
        (Trouble("cut", 99.5, 199.5, "n1"), True),
        (Trouble("freeze", 30.0, 104.0, "n2"), True),
        (Trouble("partition", 99.0, 104.0, "n1", "db"), True),
        (Trouble("partition", 99.0, 104.0, "n1", "mx2"), True),
        (Trouble("partition", 99.0, 104.0, "n1", "client1"), False),
        (Trouble("partition", 99.0, 104.0, "n1", "hooks.example"), False),
        (Trouble("kill", 90.0, 99.25, "n1"), True),
        (Trouble("kill", 90.0, 98.75, "n1"), False),
        (Trouble("kill", 106.0, 110.0, "n1"), False),
        (Trouble("freeze", 30.0, 104.0, "n3"), False),
        (Trouble("freeze", -60.0, -54.0, "n2"), True),
        (Trouble("freeze", -60.0, -56.0, "n2"), False),
        (Trouble("database", 99.0, 174.0), False),
        (Trouble("database", 99.0, 174.5), True),
        (Trouble("database", 20.0, 99.25), True),
        (Trouble("database", 20.0, 98.75), False),
        (Trouble("peer", 99.0, 199.0), False),
    ],
)
def test_who_was_held_up_is_excused(trouble: Trouble, is_one: bool) -> None:
    """Whoever brought the first copy may have had no time to put that down; who was kept from the
    relay's clients alone had."""
    first, second = Copy("M", TO, 100.0, node="n1"), Copy("M", TO, 105.0, node="n2")
    assert excused(first, second, trouble) == is_one


def test_who_was_stopped_goes_on_with_what_it_had_begun() -> None:
    """A second copy by a node that was frozen has an excuse where its server had heard of it before
    the node went on, and none where it was begun after that."""
    first, frozen = Copy("M", TO, 100.0, node="n1"), Trouble("freeze", 30.0, 104.0, "n2")
    assert excused(first, Copy("M", TO, 105.0, node="n2", began=103.5), frozen)
    assert not excused(first, Copy("M", TO, 105.0, node="n2", began=104.5), frozen)


def test_the_last_to_deliver_decides() -> None:
    """A copy that was taken after a refusal to somebody else, by whom nothing held up, is what
    became of the message; one before it, or of a node that was killed then, is not."""
    copy = Copy("M", TO, 100.0, node="n2")
    history = History(refusals=[Refusal(TO, 40.0, "n1")])
    assert history.refused(TO)
    assert history.overruled([copy], TO) is copy
    assert history.overruled([Copy("M", TO, 30.0, node="n2")], TO) is None
    history.troubles.append(Trouble("kill", 100.2, 110.0, "n2"))
    assert history.overruled([copy], TO) is None
