"""The memory of a relay under peers that send too much, too long, too often.

The server runs in a process of its own, with the default limit of a message, and its resident
memory is read from outside.  What it may grow by is the promise: 100 MB over where it was.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from relay.smtp.limits import SmtpLimits

ALLOWED = 100_000_000
PAGE = os.sysconf("SC_PAGE_SIZE")
# None is idle for so long that it gives its place to a newcomer, however long a thousand take.
LIMITS = SmtpLimits(max_connections_per_peer=1000, max_connections=1000, idle_patience=300.0)


class Server:
    """An ingest and writer in a process of their own."""

    def __init__(self, dsn: str, log: Path) -> None:
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.test_smtp_limits", dsn],
                stdout=subprocess.PIPE,
                stderr=out,
                text=True,
            )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def resident(self) -> int:
        """Bytes of memory in use now."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE

    def connect(self, patience: float = 20.0) -> socket.socket:
        """Connect and read the first line; each step, sending included, may take `patience` s."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=patience)
        sock.recv(4096)
        return sock

    def session(self, patience: float = 20.0) -> socket.socket:
        """Connect and say EHLO."""
        sock = self.connect(patience)
        ask(sock, b"EHLO x")
        return sock


def ask(sock: socket.socket, command: bytes) -> bytes:
    """Send a command, and read one segment of replies."""
    sock.sendall(command + b"\r\n")
    return sock.recv(65536)


@pytest.fixture
def server(database_url: str, tmp_path: Path) -> Iterator[Server]:
    """A server that has handled a message, with a mailbox for bob."""
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("INSERT INTO relay.mailboxes (address) VALUES ('bob@relay.localhost')")
    server = Server(database_url, tmp_path / "log")
    try:
        deliver(server)
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        assert server.process.stdout is not None
        server.process.stdout.close()


def deliver(server: Server, body: bytes = b"x", patience: float = 20.0) -> bytes:
    """Send one message and return the reply to its dot."""
    with server.session(patience) as sock:
        ask(sock, b"MAIL FROM:<a@b.example>")
        ask(sock, b"RCPT TO:<bob@relay.localhost>")
        ask(sock, b"DATA")
        return ask(sock, body + b"\r\n.")


@contextmanager
def peak_within(server: Server, allowed: int = ALLOWED) -> Iterator[None]:
    """Fail if memory grows by more than `allowed`, at any time in the block or after it."""
    before = peak = server.resident()
    over = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.01):
            peak = max(peak, server.resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert peak - before < allowed
    assert deliver(server).startswith(b"250")


def test_a_thousand_idle_sessions(server):
    """They cost less than 100 MB; in fact a few kilobytes each."""
    with peak_within(server, 40_000_000), ExitStack() as stack:
        for _ in range(999):  # one more delivers, at the end
            stack.enter_context(server.connect())


def test_an_endless_line(server):
    """A command that never ends is discarded, and then the session is."""
    with peak_within(server, 30_000_000), server.session() as sock, suppress(OSError):
        for _ in range(2_000):
            sock.sendall(b"x" * 65536)


@pytest.mark.parametrize(
    ("piece", "times"),
    [(b"x" * 65536, 1_000), (b"..\r\n" * 16384, 2), (b"\r\n" * 32768, 2), (b"\r" * 65536, 2)],
    ids=["line", "dots", "lines", "bare"],
)
def test_an_endless_message(server, piece, times):
    """Past its limit nothing of it is kept, and past ten times that it is cut off (`line`; what is
    in the socket still is drained for two seconds)."""
    with peak_within(server), server.session() as sock, suppress(OSError):
        ask(sock, b"MAIL FROM:<a@b.example>")
        ask(sock, b"RCPT TO:<bob@relay.localhost>")
        ask(sock, b"DATA")
        for _ in range(times * LIMITS.max_message_bytes // len(piece)):
            sock.sendall(piece)
        assert times == 2, "it was never cut off"


def test_ten_thousand_recipients(server):
    """Each is answered, known or not, until the session is too much of a nuisance."""
    for address in (b"bob@relay.localhost", b"nobody%d@relay.localhost"):
        with peak_within(server, 30_000_000), server.session() as sock, suppress(OSError):
            ask(sock, b"MAIL FROM:<a@b.example>")
            sender = threading.Thread(target=_send_recipients, args=(sock, address))
            sender.start()
            while sock.recv(65536):
                if not sender.is_alive():
                    sock.shutdown(socket.SHUT_WR)
            sender.join()


def _send_recipients(sock: socket.socket, address: bytes) -> None:
    with suppress(OSError):
        for number in range(10_000):
            recipient = address % number if b"%" in address else address
            sock.sendall(b"RCPT TO:<" + recipient + b">\r\n")


def test_ten_thousand_connections(server):
    """Above the cap each hears 421 and is gone."""
    with peak_within(server), ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(server.connect())
        for _ in range(9_000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
                assert sock.recv(4096)[:3] == b"421"


def test_many_large_messages_at_once(server):
    """The budget bounds them together: those for which there is no room are read later, all are
    stored, and all the memory comes back.  At most: the budget, one message while it is taken out
    of it, and two copies on their way to PostgreSQL."""
    body = (b"x" * 998 + b"\r\n") * 26_000
    replies: list[bytes] = []
    before = server.resident()
    with peak_within(server, 150_000_000):
        threads = [
            # The last waits with most of its body until all others are stored.
            threading.Thread(target=lambda: replies.append(deliver(server, body, patience=100)))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {reply[:3] for reply in replies} == {b"250"}
    assert server.resident() - before < 40_000_000


def serve(dsn: str) -> None:
    """Run writer and ingest until killed."""
    import trio

    from actors import ingest, writer
    from actors.messages import Accept
    from relay.db.pool import Pool
    from relay.memory import return_large_blocks
    from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec

    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(listener.getsockname()[1], flush=True)
    return_large_blocks()
    pool = Pool(dsn)
    letters: Mailbox[Accept] = Mailbox("writer", on_dead=writer.dead)
    run = functools.partial(
        ingest.run,
        sockets=[listener],
        pool=pool,
        writer=letters,
        limits=LIMITS,
    )
    tree = SupervisorSpec(
        name="relay",
        children=(
            ChildSpec("writer", functools.partial(writer.run, pool=pool), mailbox=letters),
            ChildSpec("ingest", run),
        ),
    )
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - the log, until the process ends
    trio.run(functools.partial(Supervisor().run, tree))


if __name__ == "__main__":
    serve(sys.argv[1])
