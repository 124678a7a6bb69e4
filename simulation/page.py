"""One page about a run that broke a promise: what, under which faults, and what happened to it.

The time line is that of what the first broken promise was about: every line of the trace that names
it by its marker, its address or the id that the relay gave it, and the faults that were at work
between the first and the last of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulation.faults import Fault

FEWER = "with fewer faults: python -m "
"""What stands before the command that shrinks a plan, below the page."""
_LINES = 40
"""Of a time line; of a longer one the middle is left out."""
_PROMISES = 10
_AROUND = 30.0  # seconds before and after, in which faults are told of
_TURNS = {"fault.began", "fault.ended", "faults.over", "db.answer_lost", "db.log_failed"}
_TURNS |= {"node.started", "node.failed", "node.ended"}
_TURNS |= {"db.promoted"}  # the relay's own, from its log
_SUBJECT = re.compile(r"^[^\s:]+")


def subject(sentence: str) -> str:
    """Return the marker or the address that a broken promise is about."""
    found = _SUBJECT.match(sentence)
    return found.group() if found else ""


def page(violations: Sequence[str], faults: Sequence[Fault], trace: Path, names: set[str]) -> str:
    """Return what to read first.  `names`: of what the first violation is about."""
    lines = [f"broken: {sentence}" for sentence in violations[:_PROMISES]]
    if len(violations) > _PROMISES:
        lines.append(f"… and {len(violations) - _PROMISES} more")
    lines += ["", f"faults ({len(faults)}):", *(f"  {described(fault)}" for fault in faults)]
    if told := _cut([_line(line) for line in time_line(trace, names)]):
        lines += ["", f"what happened to {subject(violations[0])}:", *told]
    return "\n".join(lines)


def described(fault: Fault) -> str:
    """Return a fault in words."""
    words = [f"{fault.at:10.3f} {fault.kind}", fault.how and f"({fault.how})", fault.node]
    words.append(f"from {fault.party}" if fault.party else "")
    words.append(f"for {fault.lasts:g} s" if fault.lasts else "")
    words.append(f"by {fault.step:g} s" if fault.step else "")
    words.append(f"of {fault.share:.0%} of its connections" if fault.share else "")
    words.append(f"the standby away for {fault.away:g} s before" if fault.away else "")
    words.append(f"after {fault.after_bytes} bytes" if fault.after_bytes else "")
    if fault.answers:
        words.append(f"at answer {fault.answers} to {fault.whose}, and {fault.amid:g} s")
    elif fault.amid:
        words.append(f"{fault.amid:g} s after {fault.whose or 'anybody'} is busy")
    elif fault.whose:
        words.append(f"of {fault.whose}")
    return " ".join(word for word in words if word)


def time_line(trace: Path, names: set[str]) -> list[dict[str, Any]]:
    """Return the lines of a trace that name one of these, and the faults between them."""
    if not names:
        return []
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(names)))})(?![\w-])")
    told, turns = [], []
    with trace.open() as file:
        for line in file:
            if pattern.search(line):
                told.append(json.loads(line))
            elif (event := json.loads(line))["event"] in _TURNS:
                turns.append(event)
    if not told:
        return []
    began, ended = told[0]["t"] - _AROUND, told[-1]["t"] + _AROUND
    told += [turn for turn in turns if began <= turn["t"] <= ended]
    return sorted(told, key=lambda line: line["t"])


def _line(line: dict[str, Any]) -> str:
    more = " ".join(f"{k}={v}" for k, v in line.items() if k not in {"t", "node", "event"})
    return f"  {line['t']:10.3f} {line['node']:8} {line['event']} {' '.join(more.split())[:160]}"


def _cut(lines: Sequence[str]) -> list[str]:
    if len(lines) <= _LINES:
        return list(lines)
    half = _LINES // 2
    return [*lines[:half], f"  … {len(lines) - _LINES} lines …", *lines[-half:]]
