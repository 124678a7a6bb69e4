"""Sends mail over SMTP on a schedule of its own, whether or not earlier mail was answered.

A closed loop (each connection sends its next message after its last answer) slows down with the
server and so hides what it does to people, who come when they come.  Here message n is due at n /
rate; it is sent by a connection that is free, over connections that are used again.  When all of
`connections` are busy it waits, and the time it was late is in the figures.  A rate of 0 is a
burst: everything is due at once.

Promises
- Nothing is dropped silently: each message has been answered with 250, was refused (with what the
  server said), or was not sent before the time was over (`Sent.unsent`).
- It costs little, for it shares the machine with what it measures: messages are rendered before the
  clock starts, one thread of blocking-free sockets under epoll, four writes a message (MAIL, RCPT,
  DATA, the message; no pipelining, which not every peer offers).  Its own CPU is reported.
- An answer's time is taken right after it was read.  Times are of CLOCK_MONOTONIC, which all
  processes of a machine share.

Run as a process: it says "ready" when all is rendered and connected, and starts with the line that
it is then given.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.bench.mail_kinds import kind

CONNECTIONS = 250
"""Open-loop: as many as may be busy at once (3,000 a second, each answered within 80 ms)."""
BURST_CONNECTIONS = 20

_AFTER = 10.0  # s; how long answers are waited for after the last message has been sent
_CHUNK = 4096


class Load(NamedTuple):
    """What to send: `messages` of a kind to so many mailboxes, so many a second (0: a burst)."""

    kind: str
    mailboxes: int
    rate: int
    messages: int

    @property
    def connections(self) -> int:
        """Over how many connections."""
        return CONNECTIONS if self.rate else BURST_CONNECTIONS

    @property
    def label(self) -> str:
        """In words."""
        boxes = f"{self.mailboxes:,} mailbox{'es' if self.mailboxes > 1 else ''}"
        what = f"{self.rate:,}/s" if self.rate else f"burst of {self.messages:,}"
        return f"{self.kind}, {boxes}, {what}"


@dataclass
class Sent:
    """What became of a load: times on the monotonic clock, by the number of the message."""

    due: list[float]
    answered: dict[int, float] = field(default_factory=dict)
    """When each that was accepted got its 250."""
    refused: dict[int, str] = field(default_factory=dict)
    """What the server said to each that it did not accept."""
    cpu: float = 0.0
    late: float = 0.0
    """By how much the most belated was sent after it was due."""

    @property
    def unsent(self) -> int:
        """How many there was no time for, or no answer to."""
        return len(self.due) - len(self.answered) - len(self.refused)


def recipient(number: int, mailboxes: int) -> str:
    """The address that message so and so goes to."""
    return f"box{number % mailboxes}@relay.localhost"


def send(port: int, load: Load, *, limit: float) -> Sent:
    """Send from a process of its own; nothing is begun any more after `limit` seconds."""
    with tempfile.NamedTemporaryFile("r") as out:
        arguments = [str(port), json.dumps(load), str(limit), out.name]
        with subprocess.Popen(
            [sys.executable, "-m", "tests.bench.open_loop", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", "the generator does not start"
            process.stdin.write("go\n")
            process.stdin.close()
        assert process.returncode == 0, "the generator failed"
        found: dict[str, Any] = json.load(out)
    return Sent(
        due=found["due"],
        answered={int(number): at for number, at in found["answered"].items()},
        refused={int(number): text for number, text in found["refused"].items()},
        cpu=found["cpu"],
        late=found["late"],
    )


# ---------------------------------------------------------------------------- in its process


_MAIL = b"MAIL FROM:<sender@bench.example>\r\n"
_DATA = b"DATA\r\n"
_END = b".\r\n"
_EXPECTED = (b"250", b"250", b"354", b"250", b"250")  # after MAIL, RCPT, DATA, the message, RSET
_MESSAGE, _RSET = 3, 4


class _Message(NamedTuple):
    rcpt: bytes
    front: bytes
    tail: bytes


class _Connection:
    """A session; `step` says to which of `_EXPECTED` an answer is awaited."""

    __slots__ = ("number", "pending", "receive", "said", "send", "sock", "step")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send, self.receive = self.sock.send, self.sock.recv
        self.number = self.step = 0
        self.said = b""
        self.pending: list[memoryview] = []

    def greet(self) -> None:
        """Wait to be greeted, and say EHLO; `ConnectionError` if either is refused."""
        for command, expected in ((b"", b"220"), (b"EHLO bench.example\r\n", b"250")):
            self.sock.sendall(command)
            while not (reply := self.reply(self.receive(_CHUNK))):
                pass
            if not reply.startswith(expected):
                raise ConnectionError(f"{command!r} was answered {reply!r}")
        self.sock.setblocking(False)

    def reply(self, data: bytes) -> bytes:
        """Take what was read; the last line of a reply when that is complete, else nothing.

        `ConnectionError` when the server has hung up.
        """
        if not data:
            raise ConnectionError(f"hung up after {self.said!r}")
        said = self.said + data if self.said else data
        last = said[said.rfind(b"\n", 0, -1) + 1 :]
        if last.endswith(b"\n") and last[3:4] != b"-":
            self.said = b""
            return last
        self.said = said
        return b""

    def keep(self, buffers: Iterable[bytes], taken: int) -> None:
        """Keep for `flush` what the socket has not taken."""
        for buffer in buffers:
            if taken < len(buffer):
                self.pending.append(memoryview(buffer)[taken:])
            taken = max(0, taken - len(buffer))

    def flush(self) -> bool:
        """Go on writing; whether all is written."""
        while self.pending:
            first = self.pending[0]
            try:
                taken = self.send(first)
            except BlockingIOError:
                return False
            if taken < len(first):
                self.pending[0] = first[taken:]
                return False
            del self.pending[0]
        return True


class _Generator:
    def __init__(self, port: int, load: Load, limit: float) -> None:
        self.port, self.load, self.limit = port, load, limit
        self.messages = _rendered(load)
        self.answered: dict[int, float] = {}
        self.refused: dict[int, str] = {}
        self.late = 0.0
        self._poll = select.epoll()
        self._by_fd: dict[int, _Connection] = {}
        self._idle: list[_Connection] = []
        # All at once: some look up the client's name before they greet, which takes a while.
        self._open(min(load.connections, load.messages))

    def run(self) -> list[float]:
        """Send everything; return when each was due."""
        began = time.monotonic()
        rate, count = self.load.rate, len(self.messages)
        due = [began + number / rate if rate else began for number in range(count)]
        begun, ends_at = 0, began + self.limit
        answered, refused, idle = self.answered, self.refused, self._idle
        monotonic, poll, by_fd, serve = time.monotonic, self._poll.poll, self._by_fd, self._serve
        while len(answered) + len(refused) < count:
            now = monotonic()
            while begun < count and due[begun] <= now < ends_at and idle:
                self.late = max(self.late, now - due[begun])
                self._begin(begun)
                begun += 1
            if now >= ends_at + _AFTER or (now >= ends_at and self._quiet()):
                break
            # A millisecond at least, as epoll counts: what falls due meanwhile goes together.
            wait = max(0.0, due[begun] - now) if begun < count and idle else 0.5
            for fd, _ in poll(wait):
                serve(by_fd[fd])
        for connection in by_fd.values():
            connection.sock.close()
        return due

    def _quiet(self) -> bool:
        return len(self._idle) == len(self._by_fd)

    def _open(self, count: int) -> None:
        opened = [_Connection(self.port) for _ in range(count)]
        for connection in opened:
            connection.greet()
            self._by_fd[connection.sock.fileno()] = connection
            self._poll.register(connection.sock, select.EPOLLIN)
            self._idle.append(connection)

    def _begin(self, number: int) -> None:
        connection = (
            self._idle.pop()
        )  # the last that was used: few are busy while the server is fast
        connection.number, connection.step = number, 0
        try:
            self._write(connection, _MAIL)
        except OSError as error:
            self._lost(connection, str(error))

    def _serve(self, connection: _Connection) -> None:
        """Go on with a connection that is ready for it."""
        try:
            if connection.pending:
                if connection.flush():
                    self._poll.modify(connection.sock, select.EPOLLIN)
                return
            reply = connection.receive(_CHUNK)
            # One line, whole, as nearly every reply is.
            if connection.said or reply[3:4] != b" " or reply.find(b"\n") != len(reply) - 1:
                reply = connection.reply(reply)
                if not reply:
                    return
            step = connection.step
            if reply[:3] != _EXPECTED[step]:
                self._refused(connection, reply)
            elif step < _MESSAGE:
                connection.step = step + 1
                message = self.messages[connection.number]
                if step == 0:
                    self._write(connection, message.rcpt)
                elif step == 1:
                    self._write(connection, _DATA)
                else:
                    self._write(connection, message.front, message.tail)
            else:
                if step == _MESSAGE:
                    self.answered[connection.number] = time.monotonic()
                self._idle.append(connection)
        except BlockingIOError:
            pass
        except OSError as error:
            self._lost(connection, str(error))

    def _write(self, connection: _Connection, front: bytes, tail: bytes = b"") -> None:
        """Write what the socket takes, and the rest when it takes more."""
        try:
            taken = connection.sock.sendmsg((front, tail)) if tail else connection.send(front)
        except BlockingIOError:
            taken = 0
        if taken < len(front) + len(tail):
            connection.keep((front, tail), taken)
            self._poll.modify(connection.sock, select.EPOLLIN | select.EPOLLOUT)

    def _refused(self, connection: _Connection, reply: bytes) -> None:
        said = reply.decode(errors="replace").strip()
        self.refused.setdefault(connection.number, said)
        if connection.step == _RSET or reply.startswith(b"421"):
            raise ConnectionError(said)
        connection.step = _RSET
        self._write(connection, b"RSET\r\n")

    def _lost(self, connection: _Connection, why: str) -> None:
        """A connection ended; in the middle of a message, that counts as refused."""
        if connection in self._idle:
            self._idle.remove(connection)
        else:
            self.refused.setdefault(connection.number, why)
        self._poll.unregister(connection.sock)
        del self._by_fd[connection.sock.fileno()]
        connection.sock.close()
        self._open(1)


def _rendered(load: Load) -> list[_Message]:
    make = kind(load.kind)
    ends: dict[bytes, bytes] = {}  # all that share a tail share its end
    messages = []
    for number in range(load.messages):
        front, tail, _ = make(number)
        if tail:
            tail = ends.setdefault(tail, tail + _END)
        else:
            front += _END
        to = recipient(number, load.mailboxes)
        messages.append(_Message(f"RCPT TO:<{to}>\r\n".encode(), front, tail))
    return messages


def main() -> None:
    """Send, and write down what became of it."""
    port, load, limit, out = sys.argv[1:]
    generator = _Generator(int(port), Load(*json.loads(load)), float(limit))
    gc.disable()
    print("ready", flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    due = generator.run()
    found = {
        "due": due,
        "answered": generator.answered,
        "refused": generator.refused,
        "late": generator.late,
        "cpu": time.process_time() - cpu,
    }
    with open(out, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
