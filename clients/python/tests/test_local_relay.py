"""A relay that was started for tests: how it ends, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from plugin_runs import RUNS

from relay_client import RelayError
from relay_client._local_relay import (
    _OURS,
    Process,
    _runs,
    _watch,
    process_of,
    running,
    started,
    stop,
)


@pytest.mark.parametrize(
    ("command", "said", "unsaid"),
    [
        ("sh -c 'echo Usage: relay COMMAND; seq 999; echo tail'", "end in `up`?", "tail"),
        ("sh -c 'echo Usage: relay up; echo no option; exit 2' up", "no option", "end in"),
        ("sh -c 'echo no disk; exit 3'", "no disk\ndoes the command end in `up`?", "Usage"),
        ("sh -c 'echo no disk; exit 3' up", "no disk", "end in"),
    ],
)
def test_a_command_that_starts_no_relay(
    tmp_path: Path, command: str, said: str, unsaid: str
) -> None:
    """One that shows how it is called lacks `up`, as does one that ends at once, perhaps."""
    with pytest.raises(RelayError, match=r"^the relay ended as it started; ") as caught:
        started(tmp_path, command, os.getpid())
    assert said in str(caught.value)
    assert unsaid not in str(caught.value)


def test_a_relay_ends_with_a_run_that_was_killed(tmp_path: Path) -> None:
    """By CI, or by an editor, which let it stop nothing."""
    owner = subprocess.Popen(["sleep", "100"])
    assert started(tmp_path, RUNS, owner.pid) == {}
    process = running(tmp_path)
    assert process is not None
    assert started(tmp_path, "false", owner.pid) == {}, "it runs already"
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while _runs(process) or (tmp_path / "data").exists():
        assert time.monotonic() < deadline, f"process {process} is left, or its data"
        time.sleep(0.05)


def test_who_watched_one_run_leaves_the_next_its_data(tmp_path: Path) -> None:
    """In the same folder, begun before it was seen that the owner of the one has gone."""
    owner = subprocess.Popen(["sleep", "100"])
    started(tmp_path, RUNS, owner.pid)
    watch, first = _OURS[-1], running(tmp_path)
    assert first is not None
    watch.send_signal(signal.SIGSTOP)
    stop(tmp_path, first)
    assert not (tmp_path / "data").exists()
    owner.kill()
    owner.wait()
    started(tmp_path, RUNS, os.getpid())
    watch.send_signal(signal.SIGCONT)
    watch.wait(20)
    second = running(tmp_path)
    assert second != first
    assert (tmp_path / "data" / "run" / "relay.json").exists()
    assert second is not None
    stop(tmp_path, second)


def test_a_relay_that_nobody_reaps_has_stopped(tmp_path: Path) -> None:
    """Its parent was a worker, and the first process of a container looks after nobody."""
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    began = time.monotonic()
    stop(tmp_path, process_of(ended.pid))
    assert time.monotonic() - began < 5.0
    ended.wait()


def test_whoever_has_the_number_of_a_relay_that_ended_is_let_alone(tmp_path: Path) -> None:
    """By who stops it, and by who watches; its data goes all the same."""
    with subprocess.Popen(["sleep", "100"]) as stranger:
        owner = subprocess.Popen(["sleep", "100"])
        started(tmp_path, RUNS, owner.pid)
        relay, watch = running(tmp_path), _OURS[-1]
        assert relay is not None
        earlier = Process(stranger.pid, str(int(process_of(stranger.pid).began) - 1))
        stop(tmp_path, earlier, keep=True)
        watch.kill()
        os.kill(relay.pid, signal.SIGKILL)
        (tmp_path / "pid").write_text(f"{earlier.pid} {earlier.began}")
        _watch(owner.pid, earlier, tmp_path / "data", tmp_path / "pid")
        owner.kill()
        owner.wait()
        assert _OURS[-1].wait(60) == 0
        assert not (tmp_path / "data").exists()
        assert stranger.poll() is None
        stranger.kill()
