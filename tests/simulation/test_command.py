"""The simulation as a command: what it takes, and that it goes without leaving anything."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from relay.cli import simulate as command
from simulation import faults
from simulation.command import command as again_with
from simulation.command import parsed
from simulation.faults import Fault

PLAN = [Fault(40.0, "failover", lasts=3.0, away=25.0), Fault(90.0, "disk", how=faults.LOG)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--faults earthquake",
            "there is no fault 'earthquake'; there are kill",
        ),
        ("--faults kill,earthquake", "there is no fault 'earthquake'"),
        ("--faults ''", "there is no fault ''"),
        ("--faults kill,all", "'all' stands alone"),
        ("--days nan", "nan is no number of days"),
        ("--days inf", "inf is not in the range"),
        ("--nodes 0", "0 is not in the range"),
        ("--plan x", "it is not a list of faults in JSON"),
        ("""--plan '[{"at": 1, "kind": "earthquake"}]'""", "it is not a list of faults in JSON"),
        ("""--plan '[{"kind": "kill"}]'""", "it is not a list of faults in JSON"),
    ],
)
def test_what_cannot_be_simulated_is_said(words: str, said: str) -> None:
    """With a sentence, before anything is begun."""
    result = CliRunner().invoke(command.simulate, ["--seed", "1", *shlex.split(words)])
    assert result.exit_code == 2
    assert said in result.output


def simulation(*words: str) -> subprocess.Popen[str]:
    """Begin a simulation of its own, which would last for long."""
    return subprocess.Popen(
        [sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_a_trace_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """No promise was broken, so the code is another."""
    process = simulation("simulation", "1", "--trace", str(tmp_path / "none" / "trace"))
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output == f"the trace cannot be written to {tmp_path}/none/trace: {os.strerror(2)}\n"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where simulations put what they need: their servers' sockets need a short name."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


@pytest.mark.parametrize("sign", [signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_it_goes_without_leaving_anything(sign: signal.Signals, place: Path) -> None:
    """Neither its servers nor its directory, when it is told to stop, or its terminal is closed;
    what one leaves that is killed the next takes away."""
    process = simulation("simulation", "1", "--days", "1")
    output = told(process, sign, place, 1)
    if sign is signal.SIGKILL:
        assert list(place.iterdir())
        output, _ = simulation("simulation", "1", "--days", "0.0001", "--nodes", "1").communicate()
        assert '"violations": 0' in output
    else:
        assert process.returncode == 130
        assert output == ""
    assert list(place.iterdir()) == []
    assert servers(place) == []


def told(process: subprocess.Popen[str], sign: signal.Signals, place: Path, serving: int) -> str:
    """Tell it something once so many servers are there; what it has said when all have closed."""
    try:
        while len(servers(place)) < serving:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(sign)
        return process.communicate(timeout=30)[0]
    finally:
        process.terminate()
        process.wait(30)


def servers(place: Path) -> list[bytes]:
    """The command lines of the servers in a directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes()
        except OSError:
            continue
        if os.fsencode(f"{place}/") in line and b"postgres" in line:
            found.append(line)
    return found


def test_many_end_together(place: Path) -> None:
    """Who runs many seeds is told to stop, and so are those that run; no other is begun."""
    process = simulation("simulation.many", "--days", "1")
    output = told(process, signal.SIGINT, place, 2)
    assert process.returncode == 130
    assert output == ""
    assert list(place.iterdir()) == []
    assert servers(place) == []


def test_the_command_and_the_faults_agree() -> None:
    """The command names the faults that there are; it may not load them."""
    assert command.KINDS == faults.KINDS


@pytest.mark.parametrize("kinds", [(), ("disk",), faults.KINDS])
def test_what_a_page_says_to_run_is_what_was_run(kinds: tuple[str, ...]) -> None:
    """Without faults, too."""
    options = parsed(["7", "--days", "0.01", "--nodes", "2", "--faults", faults.named(kinds)])
    again = parsed(shlex.split(again_with(options, PLAN)))
    assert vars(again) == vars(options) | {"plan": PLAN}


def test_a_fault_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With those that are."""
    with pytest.raises(SystemExit):
        parsed(["7", "--faults", "kill,earthquake"])
    assert "there is no fault 'earthquake'; there are kill, freeze" in capsys.readouterr().err
