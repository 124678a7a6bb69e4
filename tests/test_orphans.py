"""What tests have started ends with the process that they run in, however that ends."""

from __future__ import annotations

import signal
import subprocess
import sys

_STARTS = """
import sys, time
from tests.orphans import end_after_us
for pid, word in zip(sys.argv[1::2], sys.argv[2::2]):
    end_after_us(int(pid), word)
print(flush=True)
time.sleep(60)
"""


def test_what_was_started_ends_with_who_is_killed() -> None:
    """And who has another command line is left alone: a number may be a stranger's by then."""
    with subprocess.Popen(["sleep", "61"]) as ours, subprocess.Popen(["sleep", "62"]) as stranger:
        words = (str(stranger.pid), "a relay", str(ours.pid), "61")
        with subprocess.Popen(
            [sys.executable, "-c", _STARTS, *words], stdout=subprocess.PIPE
        ) as parent:
            assert parent.stdout is not None
            assert parent.stdout.readline() == b"\n"
            assert ours.poll() is None
            parent.kill()
        assert ours.wait(30) == -signal.SIGTERM
        assert stranger.poll() is None
        stranger.kill()
