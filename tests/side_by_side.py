"""What `make test` does: two runs of pytest side by side, one of browsers and one of all the rest.

Browsers' tests compute, most others wait: together they keep two cores busy.  They are two runs
because the driver of a browser keeps an event loop in its process's main thread, where no test on
Trio could run after it.

Promises
- What the longer run says is seen at once.  What the browsers' says comes after it, as a whole.
- The exit code is 0 only if both runs' are, else the first other one.
- SIGINT (Ctrl-C), SIGTERM and SIGHUP end both runs, with their processes, as Ctrl-C ends one:
  what they have started is stopped.  What is said is said all the same.
- Options come as pytest takes them, by PYTEST_ADDOPTS; both runs have them.

Fails: killed by SIGKILL, it leaves both runs alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

# A browser, its driver and the relay are processes of their own, so one that drives is enough to
# fill what the others leave.  It has a parent that ends it: a Ctrl-C may be lost in the driver's
# loop.  One folder only (tests/conftest.py): all files take seconds to read.
BROWSERS = ("tests/browser", "-n", "1", "-m", "browser and not soak")

# They wait half of the time, for sockets, for disks and for time: it takes five at a time to keep
# two cores busy, for the browsers' end in the midst of them.  A file stays in one process: what it
# starts is its tests' alone.  Files keep their order, or those of one long test would come last,
# when nobody else has anything left to do.
OTHERS = (
    *("-n", "5", "--dist", "loadfile", "--no-loadscope-reorder"),
    *("-m", "not browser and not soak"),
)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(beside: Sequence[str], longer: Sequence[str]) -> int:
    """Run pytest with these arguments and with those; return the exit code of both."""
    colour = ["--color=yes"] if sys.stdout.isatty() else []
    with tempfile.TemporaryFile() as said:
        runs: list[subprocess.Popen[bytes]] = []
        for number in _SIGNALS:
            signal.signal(number, lambda *_: _interrupt(runs))
        runs += [_pytest([*colour, *beside], stdout=said), _pytest(longer)]
        codes = [one.wait() for one in reversed(runs)]
        said.seek(0)
        sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    return next((code if code > 0 else 1 for code in codes if code), 0)


def _pytest(arguments: Sequence[str], stdout: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Each run is a group of processes: what ends it reaches those that it has its tests in."""
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def _interrupt(runs: Sequence[subprocess.Popen[bytes]]) -> None:
    for one in runs:
        if one.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGINT)


if __name__ == "__main__":
    sys.exit(run(BROWSERS, OTHERS))
