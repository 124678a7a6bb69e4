"""The README's five minutes, typed into a shell as they stand; and that it stays short."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.db.cluster import binaries
from tests.docs.pages import README, ROOT, blocks
from tests.relay_process import RelayProcess

DEADLINE = 120.0  # s for all of it
PYTHON = ROOT / "clients" / "python"
_SHAPES = (  # what is another one each time
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\b[a-z]{5}(?:-[a-z]{5}){3}@", "BOX@"),
    (r'(?<=":")(?:rs_|[A-Z0-9@]|20)[^"]*|(?<=":")…', "VALUE"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d\d:\d\d:\d\d\.\d{3}", "TIME"),
    (r"seconds=[\d.]+|\d+ ms", "DURATION"),
    (r" +", " "),
)


def _commands() -> list[tuple[str, list[str]]]:
    """Return each command of the section, and the lines that are shown as its output."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(README.read_text()):
        if block.heading != "Five minutes":
            continue
        typing = False
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
                typing = True
            elif typing and found[-1][0].endswith(("\\", "|")):
                found[-1] = f"{found[-1][0]}\n{line}", []
            else:
                typing = False
                found[-1][1].append(line)
    return found


def _shape(line: str) -> str:
    for pattern, word in _SHAPES:
        line = re.sub(pattern, word, line)
    return line.strip()


def test_the_five_minutes_are_as_they_are_told(tmp_path: Path) -> None:
    """Every command runs as it stands, but for the ports, and prints what is shown."""
    commands = _commands()
    assert len(commands) > 15
    bin_dir = binaries(18)
    assert bin_dir is not None
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    with RelayProcess(tmp_path / "var") as relay:
        script = ["set -eo pipefail"]
        for at, (command, _) in enumerate(commands):
            script += [command, f"echo @@{at}"]
        text = "\n".join(script)
        text = text.replace("127.0.0.1:2525", relay.run["smtp"])
        text = text.replace("127.0.0.1:2587", relay.run["submission"])
        text = text.replace("http://127.0.0.1:8025", relay.run["http"])
        done = subprocess.run(
            [shutil.which("bash") or "bash", "-c", text],
            cwd=tmp_path,
            env={**os.environ, "PATH": f"{os.environ['PATH']}:{bin_dir}", "no_proxy": "*"},
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
    printed = re.split(r"@@\d+\n", done.stdout.decode())
    assert done.returncode == 0, f"{commands[len(printed) - 1][0]}\n{done.stderr.decode()}"
    for (command, shown), output in zip(commands, printed, strict=False):
        lines = [_shape(line) for line in output.splitlines()]
        for line in shown:
            assert _shape(line) in lines, f"{command}\nprints\n{output}"


def test_the_test_in_five_lines_passes(tmp_path: Path, relay: RelayProcess) -> None:
    """As they stand there, below what stands for the application; the client's README begins with
    the same file."""
    (shown,) = (block.text for block in blocks(README.read_text()) if block.language == "python")
    assert len(shown[shown.index("def test_") :].splitlines()) == 5
    assert shown == next(blocks((PYTHON / "README.md").read_text())).text
    (tmp_path / "test_it.py").write_text(shown)
    plugins = ("-p", "relay_client.pytest_plugin", "-p", "no:schemathesis")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugins, "test_it.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(PYTHON / "src"),
            "RELAY_URL": relay.run["http"],
            "RELAY_TOKEN": relay.run["admin_token"],
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_it_is_short() -> None:
    """What it is, two commands, five minutes and a map: at most 250 lines."""
    assert len(README.read_text().splitlines()) <= 250


def test_make_knows_how_to_write_the_tables() -> None:
    """`make docs`."""
    done = subprocess.run(
        ["make", "-n", "docs"], cwd=ROOT, capture_output=True, timeout=30, check=True
    )
    assert b"-m tests.docs" in done.stdout
