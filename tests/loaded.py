"""Relays that need not load: a process has loaded the program once, and a fork of it goes on.

To load takes most of a start, and tests start some hundreds of relays and of SMTP processes.  A
fork is the same program from `relay.__main__` or `actors.ingest_main` on, with the arguments,
environment, directory, log and descriptors that it is given, in a session of its own.  What differs
is what the kernel remembers of how a process began (`/proc`'s `cmdline` and `environ`), so who
looks at that, or at the load itself, starts it as people do.

`python -m tests.loaded FD` is that process: it takes one request after the other from the socket,
and tells of each fork how it ended through the pipe that came with its request.  Forks that are
there when nobody can ask any more get SIGTERM.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import importlib
import json
import os
import random
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import trio

from relay import child_environment

_ROOT = Path(__file__).parents[1]
_MOST = 1 << 20  # bytes of a request
_RELAY, _SMTP = "relay.__main__", "actors.ingest_main"
_WORDS = (_RELAY, "relay.cli", "relay.cli.up", "relay.app", _SMTP)


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

    async def wait_for_end(self) -> int:
        """What `wait` returns, on Trio."""
        if self.returncode is None:
            await trio.lowlevel.wait_readable(self._ended)
        return self.wait()

    def __del__(self) -> None:
        os.close(self._ended)


class SmtpProcess:
    """A fork, as much of a `trio.Process` as `actors.ingest_process` uses."""

    def __init__(self, fork: LoadedProcess) -> None:
        self._fork = fork
        self.pid = fork.pid

    async def wait(self) -> int:
        """Wait for its end; returns its status, or the negative number of the signal."""
        return await self._fork.wait_for_end()

    def kill(self) -> None:
        """Kill it, if it lives."""
        self._fork.kill()


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
    return _fork(_RELAY, arguments, env, (log, log))


async def start_smtp(channel: int, board: int) -> SmtpProcess:
    """Start an SMTP process on these descriptors, like `actors.ingest_process`."""
    fork = await trio.to_thread.run_sync(_fork_smtp, channel, board)
    return SmtpProcess(fork)


def _fork_smtp(channel: int, board: int) -> LoadedProcess:
    with open(os.devnull, "wb") as nowhere:
        written = (nowhere.fileno(), 2)
        env = child_environment.environment()
        return _fork(_SMTP, ("3", "4"), env, written, (channel, board))


def _fork(
    module: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    written: tuple[int, int],
    kept: Sequence[int] = (),
) -> LoadedProcess:
    """`written`: its standard output and error; `kept`: what it has as descriptors from 3 on."""
    asked = {"module": module, "arguments": arguments, "env": dict(env), "cwd": os.getcwd()}
    ended, end = os.pipe()
    with _lock:
        connection = _loaded()
        socket.send_fds(connection, [json.dumps(asked).encode()], [end, *written, *kept])
        os.close(end)
        pid = int(connection.recv(16))
    return LoadedProcess(pid, ended, (module, *arguments))


_lock = threading.Lock()


def _serve(connection: socket.socket) -> tuple[str, list[str]] | None:
    """Fork for each request; returns in a fork, with what it runs, and None when nobody asks."""
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
            request, fds, _, _ = socket.recv_fds(connection, _MOST, 5)
            if not request:
                for watch in ends:  # nobody is there any more who would
                    signal.pidfd_send_signal(watch, signal.SIGTERM)
                return None
            asked = json.loads(request)
            end, out, error, *kept = fds
            pid = os.fork()
            if not pid:
                looker.close()
                connection.close()
                os.dup2(out, 1)
                os.dup2(error, 2)
                # First above all that there is, or one would take another's place.
                most = max([*fds, *ends, *(end for _, end in ends.values())])
                above = [fcntl.fcntl(one, fcntl.F_DUPFD, most + 1) for one in kept]
                for number, one in enumerate(above, 3):
                    os.dup2(one, number)
                os.closerange(3 + len(kept), max([most, *above]) + 1)
                os.setsid()
                os.chdir(asked["cwd"])
                os.environ.clear()
                os.environ.update(asked["env"])
                return asked["module"], asked["arguments"]
            for one in (out, error, *kept):
                os.close(one)
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
        asked = _serve(connection)
    if asked is not None:
        for rng in rngs:
            rng.seed()
        module, arguments = asked
        sys.argv = ["relay", *arguments]
        importlib.import_module(module).main()


if __name__ == "__main__":
    _main()
