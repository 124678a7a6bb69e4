"""Relays that are forks end, are waited for and are killed as processes of our own are."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.loaded import LoadedProcess
from tests.relay_process import RelayProcess


def test_a_fork_is_told_apart_by_nothing_that_a_test_asks(tmp_path: Path) -> None:
    """Its own arguments, environment and log; its exit code, or the signal that ended it."""
    wrong = RelayProcess(tmp_path / "wrong", env={"RELAY_LOG__LEVEL": "shouted"})
    right = RelayProcess(tmp_path / "right", arguments=("--only", "control"))
    assert wrong.spawn().wait(30) == 78
    assert "shouted" in wrong.log_tail()
    right.start()
    process = right.process
    assert isinstance(process, LoadedProcess)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert "smtp" not in right.run
    assert "shouted" not in right.log_tail()
    right.kill()
    assert process.poll() == -signal.SIGKILL
    assert right.start() > 0
    assert right.stop() == 0
