"""What is made of a run that broke a promise: its plan on paper, fewer faults, one page."""

import json
from pathlib import Path

import pytest

from simulation import faults
from simulation.faults import Fault
from simulation.page import page, subject
from simulation.shrink import shrink, simplify


def test_a_plan_is_read_as_it_was_written() -> None:
    """A plan survives being printed and given again."""
    plan = [
        Fault(1.5, "partition", "n1", 3.25, party="db"),
        Fault(2.0, "clock", "n2", lasts=1.0, step=-0.5),
    ]
    assert faults.read(faults.written(plan)) == plan


def test_shrinking_leaves_what_matters() -> None:
    """Of many faults those are left without which nothing breaks."""
    plan = [Fault(float(at), "cut", "n1") for at in range(20)]
    needed = {plan[3], plan[17]}
    assert shrink(plan, lambda some: needed <= set(some)) == [plan[3], plan[17]]


@pytest.mark.parametrize(
    ("amid", "whose", "answers"), [(0.01, "client", 0), (0.002, "writer", 3), (0.0, "sender", 1)]
)
def test_what_is_left_becomes_plain_and_short(amid: float, whose: str, answers: int) -> None:
    """A fault that has to last for ten seconds, at any time, is left with little more."""
    fault = Fault(12.345, "failover", "", 80.0, away=30.0, amid=amid, whose=whose, answers=answers)
    (left,) = simplify([fault], lambda some: some[0].lasts >= 10.0)
    assert left == Fault(12.0, "failover", lasts=10.0)


def test_a_page_tells_what_happened(tmp_path: Path) -> None:
    """Shown are the lines that name the message, by its marker or its id, and the faults between;
    of one whose name begins alike nothing."""
    lines = [
        {"t": 1.0, "node": "world", "event": "fault.began", "kind": "cut"},
        {"t": 50.0, "node": "client1", "event": "mail.answered", "marker": "M-in-1"},
        {"t": 51.0, "node": "client1", "event": "mail.answered", "marker": "M-in-11"},
        {"t": 60.0, "node": "world", "event": "fault.began", "kind": "kill"},
        {"t": 70.0, "node": "n1.1", "event": "writer.stored", "id": "abc-1"},
    ]
    trace = tmp_path / "trace"
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sentence = "M-in-1: 250 was said, and it is not there"
    assert subject(sentence) == "M-in-1"
    said = page([sentence], [Fault(60.0, "kill", "n1", lasts=2.0)], trace, {"M-in-1", "abc-1"})
    assert sentence in said
    assert "60.000 kill n1 for 2 s" in said
    _, _, told = said.partition("what happened to M-in-1:\n")
    assert [line.split()[0] for line in told.splitlines()] == ["50.000", "60.000", "70.000"]
