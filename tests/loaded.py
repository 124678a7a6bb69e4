"""Relays that need not load: a process has loaded the program once, and a fork of it goes on.

To load takes most of a start, and tests start some hundreds of relays.  A fork is the same program
from `relay.__main__` on, with the arguments, environment, directory and log that it is given, in a
session of its own.  What differs is what the kernel remembers of how a process began (`/proc`'s
`cmdline` and `environ`), so who looks at that, or at the load itself, starts it as people do.

`python -m tests.loaded FD` is that process: it takes one request after the other from the socket,
and tells of each fork how it ended through the pipe that came with its request.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import json
import os
import random
import select
import selectors
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_MOST = 1 << 20  # bytes of a request
_WORDS = ("relay.__main__", "relay.cli", "relay.cli.up", "relay.app")


class LoadedProcess(subprocess.Popen[bytes]):
    """A fork; what a `Popen` of it would do, for the process that waits for it is another."""

    def __init__(self, pid: int, ended: int, args: Sequence[str]) -> None:
        """`ended`: the pipe that says how it ended."""
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._child_created = False  # it is not ours to wait for
        self._ended = ended
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
                self.returncode = int(os.read(self._ended, 16))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended."""
        if self.returncode is None and not select.select([self._ended], [], [], timeout)[0]:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def __del__(self) -> None:
        os.close(self._ended)


@functools.cache
def _loaded() -> socket.socket:
    """The process that has loaded the program, by its socket; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.loaded", str(its.fileno())],
            cwd=_ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=[its.fileno()],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def start(arguments: Sequence[str], env: Mapping[str, str], log: int) -> LoadedProcess:
    """Run `relay` with these arguments; `log`: where it writes."""
    asked = {"arguments": arguments, "env": dict(env), "cwd": os.getcwd()}
    ended, end = os.pipe()
    with _lock:
        connection = _loaded()
        socket.send_fds(connection, [json.dumps(asked).encode()], [log, end])
        os.close(end)
        pid = int(connection.recv(16))
    return LoadedProcess(pid, ended, ("relay", *arguments))


_lock = threading.Lock()


def _serve(connection: socket.socket) -> Sequence[str] | None:
    """Fork for each request; returns in a fork, with its arguments, and None when nobody asks."""
    looker = selectors.DefaultSelector()
    looker.register(connection, selectors.EVENT_READ)
    ends: dict[int, tuple[int, int]] = {}
    while True:
        for key, _ in looker.select():
            if key.fileobj is not connection:
                pid, end = ends.pop(key.fd)
                looker.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(end, b"%d" % os.waitstatus_to_exitcode(status))
                os.close(end)
                continue
            request, fds, _, _ = socket.recv_fds(connection, _MOST, 2)
            if not request:
                return None
            asked = json.loads(request)
            log, end = fds
            pid = os.fork()
            if not pid:
                looker.close()
                connection.close()
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.closerange(3, max([log, end, *ends, *(end for _, end in ends.values())]) + 1)
                os.setsid()
                os.chdir(asked["cwd"])
                os.environ.clear()
                os.environ.update(asked["env"])
                arguments: list[str] = asked["arguments"]
                return arguments
            os.close(log)
            watch = os.pidfd_open(pid)
            ends[watch] = (pid, end)
            looker.register(watch, selectors.EVENT_READ)
            connection.send(b"%d" % pid)


def _main() -> None:
    from relay.memory import loading

    with loading():
        for word in _WORDS:
            importlib.import_module(word)
    # What was thrown for one process at its load is another's in each fork.
    rngs = [
        value
        for module in list(sys.modules.values())
        for value in vars(module).values()
        if type(value) is random.Random
    ]
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        arguments = _serve(connection)
    if arguments is not None:
        from relay.__main__ import main

        for rng in rngs:
            rng.seed()
        sys.argv = ["relay", *arguments]
        main()


if __name__ == "__main__":
    _main()
