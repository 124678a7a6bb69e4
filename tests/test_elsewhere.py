"""On a system that is not Linux: one sentence from whatever is started."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.__main__ import ELSEWHERE, main

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
def test_the_program_says_so_and_ends(platform: str, capsys: pytest.CaptureFixture[str]):
    """Every command of it, doctor too, as a mistake in the configuration."""
    with pytest.raises(SystemExit) as ended:
        main(platform)
    assert ended.value.code == 78
    assert capsys.readouterr().err == f"relay: {ELSEWHERE}\n"


def test_it_says_so_before_it_loads_what_is_not_there():
    """Not even the command line is imported."""
    script = (
        "import sys; from relay.__main__ import main\n"
        "try: main('win32')\n"
        "except SystemExit: print(sorted(m for m in sys.modules if m.startswith('relay')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"['relay', 'relay.__main__']\n"


def test_make_says_so_before_it_installs_anything(tmp_path: Path):
    """A bare clone, where `uname` says something else."""
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    for name in ("Makefile", "pyproject.toml", "requirements.run.lock", "requirements.lock"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "run"],
        cwd=tmp_path,
        # Not as a part of the `make` that runs the tests.
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("Relay runs on Linux only")
    assert not (tmp_path / ".venv").exists()
