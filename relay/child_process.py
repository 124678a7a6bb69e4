"""Python processes that Relay starts for itself, one module each, to be talked to by pipes.

Promises
- A child has the environment of `relay.child_environment` and no terminal's signals.
- What is killed is gone and reaped when `kill` returns, within a second, also in a cancelled scope.

Fails: `start_module` with `OSError` where there is no process or memory for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import trio

import relay
from relay import child_environment

_REAP = 1.0  # s; a killed child is gone within milliseconds


async def start_module(module: str, *arguments: str) -> trio.Process:
    """Start `python -m module`, with pipes as its stdin and stdout."""
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=python_environment(),
        start_new_session=True,  # the terminal's signals are for the parent
    )


def python_environment() -> dict[str, str]:
    """The environment of a child that is to find the modules that this process has."""
    root = str(Path(relay.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return child_environment.environment(PYTHONPATH=path)


def kill(process: trio.Process) -> None:
    """Kill a child and close its pipes; of no effect on one that has ended."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    # Closed by hand: `aclose` waits, and there may be no time for that.
    for pipe in (process.stdin, process.stdout):
        if isinstance(pipe, trio.lowlevel.FdStream):
            pipe.close()
    # Killed, so it ends at once; reaped here (trio reaps only in `wait`), so that no zombie is left
    # behind when this is called in a cancelled scope.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process._proc.wait(_REAP)
    process.poll()  # lets go of the process's descriptor
