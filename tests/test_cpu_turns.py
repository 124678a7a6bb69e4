"""Short turns on the CPU: taken without privilege, inherited, and nothing else is changed."""

from __future__ import annotations

import os
import smtplib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


def turn_of(process: int) -> float:
    """How long the turns of a process are, in milliseconds, as Linux says."""
    try:
        lines = Path(f"/proc/{process}/sched").read_text().splitlines()
    except FileNotFoundError:
        pytest.skip("this Linux does not tell how it schedules")
    found = [line.rpartition(":")[2] for line in lines if line.startswith("se.slice ")]
    if not found:
        pytest.skip("this Linux knows no turns of a length of their own (6.12 does)")
    return float(found[0]) / 1e6


_ASKS = """
import os, subprocess
from relay.cpu_turns import ask_for_short_turns
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
nice = os.nice(7)
before = os.sched_getscheduler(0), os.sched_getaffinity(0)
assert ask_for_short_turns(0.0003)
assert (os.sched_getscheduler(0), os.sched_getaffinity(0), os.nice(0)) == (*before, nice)
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
print(os.getpid(), child.pid, flush=True)
input()
child.communicate()
"""


def test_turns_are_short_for_a_process_and_what_it_starts() -> None:
    """Without root; policy, cores and nice value stay."""
    turn_of(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", _ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert [turn_of(pid) for pid in pids] == [0.3, 0.3]
        process.communicate("\n")
    assert process.returncode == 0


def test_a_relay_its_database_and_its_parser_have_short_turns(tmp_path: Path) -> None:
    """The parser, which has the lowest claim to the CPU, the shortest."""
    with RelayProcess(tmp_path / "relay") as relay:
        turn_of(relay.pid)
        with smtplib.SMTP(*relay.smtp) as client:
            client.sendmail("a@shop.example", relay.create_mailbox(), b"Subject: a\r\n\r\nb\r\n")
        threads = Path(f"/proc/{relay.pid}/task")

        def turns() -> dict[str, float]:
            children = " ".join(file.read_text() for file in threads.glob("*/children"))
            names = {b"relay.mailboxes.worker": "parser", b"bin/postgres": "database"}
            return {
                kind: turn_of(pid)
                for pid in map(int, children.split())
                for name, kind in names.items()
                if name in Path(f"/proc/{pid}/cmdline").read_bytes()
            }

        # The parser asks when it has loaded; until then it has what it inherited.
        found = eventually_sync(turns, "it parses", until=lambda now: now.get("parser") == 0.1)
        assert found == {"parser": 0.1, "database": 0.5}
        assert turn_of(relay.pid) == 0.5
