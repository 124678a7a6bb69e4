"""What the README shows runs, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from plugin_runs import SENDS, run_pytest

from relay_client import Relay

_README = Path(__file__).parents[1] / "README.md"


def _marked(mark: str) -> list[str]:
    """What stands below a mark in the README."""
    block = rf"<!-- {mark} -->\n```python\n(.*?)```"
    return re.findall(block, _README.read_text("utf-8"), re.DOTALL)


_PROGRAMS = _marked("run")
# How many lines of each say what they print.
_PRINTS = (3, 0)
_RUN = "anyio.run(main)"
# As it stands there, on asyncio, and on Trio, too, as it says.
_ON_TRIO = [
    one.replace(_RUN, 'anyio.run(main, backend="trio")') for one in _PROGRAMS if _RUN in one
]


@pytest.mark.parametrize(
    ("program", "prints"), [*zip(_PROGRAMS, _PRINTS), *((one, 0) for one in _ON_TRIO)]
)
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
    assert len(_ON_TRIO) == 1


_SIGN_UP = """
async def sign_up(address, server):
    put(server, address, "Your code is 271828")
"""


def test_an_asynchronous_test_runs(inner: pytest.Pytester) -> None:
    """Below what stands for the application, on asyncio and on Trio."""
    (shown,) = _marked("test")
    inner.makepyfile(SENDS + _SIGN_UP + shown)
    run_pytest(inner, "-W", "error").assert_outcomes(passed=2)
