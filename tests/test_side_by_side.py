"""Two runs of pytest are one: what both said is there, and both end where one is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually_sync

ROOT = Path(__file__).parents[1]
_RUN = "import sys; from tests.side_by_side import run; sys.exit(run(sys.argv[1:2], sys.argv[2:3]))"
_WAITS = """
import time
from pathlib import Path
import pytest

@pytest.fixture
def noted():
    yield
    Path(__file__).with_suffix(".ended").touch()

def test_for_ever(noted):
    Path(__file__).with_suffix(".begun").touch()
    time.sleep(60)
"""


def _started(beside: Path, longer: Path) -> subprocess.Popen[str]:
    (beside.parent / "pytest.ini").touch()
    command = [sys.executable, "-c", _RUN, str(beside), str(longer)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("failing", [0, 1])
def test_either_run_that_fails_is_seen(tmp_path: Path, failing: int) -> None:
    """In the exit code and in what is said, the first run's last."""
    files = [tmp_path / "test_beside.py", tmp_path / "test_longer.py"]
    for number, file in enumerate(files):
        file.write_text(f"def test_it(): assert {number != failing}\n")
    with _started(*files) as process:
        said = process.communicate()[0]
    assert process.returncode == 1
    assert said.index("test_longer.py") < said.index("test_beside.py")
    assert said.count("1 passed") == said.count("1 failed") == 1


def test_what_ends_it_ends_both(tmp_path: Path) -> None:
    """Fixtures are torn down, so that what tests have started stops."""
    files = [tmp_path / "test_beside.py", tmp_path / "test_longer.py"]
    for file in files:
        file.write_text(_WAITS)
    with _started(*files) as process:
        for file in files:
            eventually_sync(file.with_suffix(".begun").exists, f"{file} is run")
        process.send_signal(signal.SIGTERM)
        said = process.communicate()[0]
    assert process.returncode == 2
    assert said.count("KeyboardInterrupt") >= 2
    assert all(file.with_suffix(".ended").exists() for file in files)
