"""What the README shows runs, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from relay_client import Relay

_README = Path(__file__).parents[1] / "README.md"
_PROGRAMS = re.findall(r"<!-- run -->\n```python\n(.*?)```", _README.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_program_runs(
    program: str, relay: Relay, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """With the relay in the environment; what its comments say is printed is printed."""
    monkeypatch.setenv("RELAY_URL", relay.url)
    monkeypatch.setenv("RELAY_TOKEN", str(relay.token))
    exec(compile(program, str(_README), "exec"), {"__name__": "readme"})
    said = capsys.readouterr().out
    for line in re.findall(r"print\(.*\) +# (\S.*)", program):
        if "what receivers" not in line:
            assert line in said


def test_there_are_programs() -> None:
    """One for each client."""
    assert len(_PROGRAMS) == 2
