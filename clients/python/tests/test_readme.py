"""What the README shows runs, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relay_client import Relay

_README = Path(__file__).parents[1] / "README.md"
_PROGRAMS = re.findall(r"<!-- run -->\n```python\n(.*?)```", _README.read_text("utf-8"), re.DOTALL)


# How many lines of each say what they print.
_PRINTS = (3, 0)


@pytest.mark.parametrize(("program", "prints"), list(zip(_PROGRAMS, _PRINTS)))
def test_a_program_runs(
    program: str, prints: int, relay: Relay, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With the relay in the environment; what its comments say is printed is printed."""
    monkeypatch.setenv("RELAY_URL", relay.url)
    monkeypatch.setenv("RELAY_TOKEN", str(relay.token))
    exec(compile(program, str(_README), "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    printed = re.findall(r"print\(.*\) +# (?!what receivers)(\S.*)", program)
    assert len(printed) == prints
    for line in printed:
        assert line in said


def test_there_are_programs() -> None:
    """One for `Relay`, one for `AsyncRelay`."""
    assert len(_PROGRAMS) == len(_PRINTS) == 2
