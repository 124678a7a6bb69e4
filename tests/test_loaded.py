"""Relays that are forks end, are waited for and are killed as processes of our own are."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
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


_STARTS = """
import sys, time
from pathlib import Path
from tests.relay_process import RelayProcess
relay = RelayProcess(Path(sys.argv[1]), env={"RELAY_DATABASE__URL": sys.argv[2]})
relay.start()
print(relay.pid, flush=True)
time.sleep(60)
"""


def test_a_fork_ends_with_who_started_it(tmp_path: Path, database_url: str) -> None:
    """However that ends: it stops as if it had been told to."""
    command = [sys.executable, "-c", _STARTS, str(tmp_path / "data"), database_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        fork = os.pidfd_open(int(parent.stdout.readline()))
        try:
            assert not select.select([fork], [], [], 0)[0]
            parent.kill()
            assert select.select([fork], [], [], 30)[0]
        finally:
            os.close(fork)
    assert "stopped" in (tmp_path / "data.log").read_text()
