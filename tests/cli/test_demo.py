"""`relay demo`: the real thing, from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.cli.demo import STEPS, Stage, Step, Unexpected, perform
from tests.cli.command import RELAY, cli, environment
from tests.eventually import eventually_sync


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for temporary files, of a name so short that the demo stays in it."""
    with tempfile.TemporaryDirectory(prefix="relay-test-") as name:
        yield Path(name)


def _remains(scratch: Path) -> list[str]:
    """Return what the demo left behind: files, and processes that work there."""
    found = [str(path) for path in scratch.iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(scratch):
                found.append(f"process {process.name}")
        except OSError:
            continue
    return found


def test_everything_arrives_and_nothing_is_left(scratch: Path) -> None:
    """Every step is ok with its time, the code is 0, and no file or process remains."""
    done = cli("demo", "--json", timeout=110, env={"TMPDIR": str(scratch)}, cwd=scratch)
    outcomes = json.loads(done.stdout)
    assert [item["step"] for item in outcomes if not item["ok"]] == [], outcomes
    assert len(outcomes) == len(STEPS)
    assert all(item["seconds"] >= 0 for item in outcomes)
    assert done.returncode == 0
    assert _remains(scratch) == []


def test_settings_of_the_user_are_not_used(tmp_path: Path, scratch: Path) -> None:
    """Neither a broken setting nor the user's own data directory reaches the demonstration."""
    own = tmp_path / "own"
    own.mkdir()
    done = cli(
        "demo",
        timeout=110,
        env={
            "TMPDIR": str(scratch),
            "RELAY_DATA_DIR": str(own),
            "RELAY_DATABASE__URL": "postgresql://127.0.0.1:9/none",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(b"\nok") == len(STEPS)
    assert list(own.iterdir()) == []


def test_an_interrupt_cleans_up(scratch: Path) -> None:
    """Ctrl-C and SIGTERM in the middle stop the relay and remove everything."""
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        process = subprocess.Popen(
            [*RELAY, "demo"],
            env=environment(TMPDIR=str(scratch)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

        def at_work(process: subprocess.Popen[bytes] = process) -> list[Path]:
            assert process.poll() is None
            return list(scratch.glob("relay-demo-*/data/postgres/*"))

        eventually_sync(at_work, "it is in the middle", within=60.0, every=0.01)
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=90)
        assert process.returncode == code
        assert b"Traceback" not in said
        assert _remains(scratch) == []


def test_a_failed_step_ends_the_story() -> None:
    """The steps after one that failed are not reached, and its reason is kept."""

    def fails(_: Stage) -> str:
        raise Unexpected("it did not come")

    steps = (
        Step("a", "one", lambda _: "fine"),
        Step("a", "two", fails),
        Step("b", "three", lambda _: "never"),
    )
    with subprocess.Popen(["true"]) as process:
        outcomes = perform(Stage(Path("/nonexistent"), process), steps)
    assert [(o.ok, o.detail, o.seconds is None) for o in outcomes] == [
        (True, "fine", False),
        (False, "it did not come", False),
        (False, "not reached", True),
    ]
