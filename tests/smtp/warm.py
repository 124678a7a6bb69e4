"""SMTP processes for tests of sessions: forks of an interpreter that has the program in memory.

A fresh interpreter takes half a second of CPU to load it, and a hundred and fifty tests want one
each.  What is forked runs `actors.ingest_main` from its first line on, in an environment that is
its own.  How the program itself starts them is a matter of tests/actors/test_ingest_process.py, and
of all tests that run a relay.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import trio

from relay import child_environment


class Warm:
    """A process, as much of `trio.Process` as its actor uses."""

    def __init__(self, pid: int, told: socket.socket) -> None:
        self.pid = pid
        self._told = told
        self._status: int | None = None

    async def wait(self) -> int:
        """Wait for its end; returns its status, or the negative number of the signal."""
        if self._status is None:
            self._status = int(await _heard(self._told))
            self._told.close()
        return self._status

    def kill(self) -> None:
        """Kill it, if it lives."""
        if self._status is None:  # until it is said, the number is nobody else's for long
            os.kill(self.pid, signal.SIGKILL)


async def start(channel: int, board: int) -> Warm:
    """Start an SMTP process on these descriptors, like `actors.ingest_process`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = json.dumps(dict(child_environment.environment())).encode()
        socket.send_fds(_parent(), [environment], [channel, board, theirs.fileno()])
    return Warm(int(await _heard(ours)), ours)


async def _heard(told: socket.socket) -> bytes:
    await trio.lowlevel.wait_readable(told)
    said = told.recv(100)
    assert said, "the parent of SMTP processes has ended"
    return said


@functools.cache
def _parent() -> socket.socket:
    """The interpreter that is forked, started at first use; it ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.smtp.warm", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def main(asked: socket.socket) -> None:
    """Fork for each who asks, and say when what was forked has ended; until nobody can ask."""
    from actors import ingest_main

    children: dict[int, tuple[int, socket.socket]] = {}  # by their descriptor
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not asked:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    pid, teller = children.pop(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with teller:
                        _tell(teller, status)
                    continue
                environment, fds, _, _ = socket.recv_fds(asked, 1 << 20, 3)
                if not environment:
                    return
                channel, board, told = fds
                pid = os.fork()
                if pid == 0:
                    asked.close()
                    for descriptor in [told, *children]:
                        os.close(descriptor)
                    for _, other in children.values():
                        other.close()
                    os.setsid()
                    os.environ.clear()
                    os.environ.update(json.loads(environment))
                    sys.argv = [ingest_main.__file__, str(channel), str(board)]
                    _end_with(ingest_main.main)
                os.close(channel)
                os.close(board)
                teller = socket.socket(fileno=told)
                _tell(teller, pid)
                descriptor = os.pidfd_open(pid)
                children[descriptor] = pid, teller
                selector.register(descriptor, selectors.EVENT_READ)


def _tell(teller: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # its test has ended
        teller.send(str(number).encode())


def _end_with(run: Callable[[], NoReturn]) -> NoReturn:
    """Run it, and end as an interpreter does."""
    status = 1
    try:
        run()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
