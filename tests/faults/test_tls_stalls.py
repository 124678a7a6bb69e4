"""A thousand sessions that stall in their handshake: what they cost, and whom."""

from __future__ import annotations

import resource
import smtplib
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.certificates import write
from tests.relay_process import RelayProcess

STALLED = 1000
MEMORY = 100 * 1024 * 1024
PATIENCE = 0.25  # s; the median of a plain message's time, on a busy machine


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a certificate, and room for all who stall."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = tmp_path_factory.mktemp("stalls")
    cert, key = write(folder)
    env = {
        "RELAY_SMTP__TLS_CERT": cert,
        "RELAY_SMTP__TLS_KEY": key,
        "RELAY_SMTP__MAX_CONNECTIONS": str(2 * STALLED),
        "RELAY_SMTP__MAX_CONNECTIONS_PER_PEER": str(2 * STALLED),
    }
    with RelayProcess(folder / "data", env=env) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def memory(relay: RelayProcess) -> int:
    """Bytes of memory that the relay's own process has now."""
    status = Path(f"/proc/{relay.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def stall(relay: RelayProcess, context: ssl.SSLContext) -> socket.socket:
    """Begin a handshake, hear what the relay says to it, and say no more."""
    sock = socket.create_connection(relay.smtp, timeout=20)
    with sock.makefile("rb") as file:
        assert file.readline()[:3] == b"220"
        sock.sendall(b"EHLO x\r\n")
        while file.readline()[3:4] == b"-":
            pass
        sock.sendall(b"STARTTLS\r\n")
        assert file.readline()[:3] == b"220"
    out, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(heard, out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    sock.sendall(out.read())
    assert sock.recv(65536)
    return sock


def timed_mails(relay: RelayProcess, address: str, count: int) -> list[float]:
    """Send so many mails over one plain session; return how long each took."""
    took = []
    with smtplib.SMTP(*relay.smtp, timeout=30) as client:
        for _ in range(count):
            began = time.monotonic()
            client.sendmail("a@b.example", [address], b"Subject: x\r\n\r\nx\r\n")
            took.append(time.monotonic() - began)
    return took


def test_they_cost_little_memory_and_nobody_time(relay: RelayProcess) -> None:
    """100 KB each at most, and mail in clear goes on as before."""
    address = relay.create_mailbox()
    timed_mails(relay, address, 30)
    before = memory(relay)
    context = ssl.create_default_context()
    with ExitStack() as stack:
        sessions = [stack.enter_context(stall(relay, context)) for _ in range(STALLED)]
        cost = memory(relay) - before
        took = timed_mails(relay, address, 50)
        print(f"{len(sessions)} stalled: {cost / 1e6:.1f} MB; a mail {statistics.median(took):.4f}")
        assert cost < MEMORY
        assert statistics.median(took) < PATIENCE


def test_a_flood_of_handshakes_takes_its_turns(relay: RelayProcess) -> None:
    """Peers that shake hands as fast as they can leave half of the time to others."""
    address = relay.create_mailbox()
    quiet = timed_mails(relay, address, 50)
    context = ssl.create_default_context()
    ended = threading.Event()
    done: list[int] = []

    def flood() -> None:
        count = 0
        while not ended.is_set():
            with suppress(OSError, AssertionError):
                stall(relay, context).close()
                count += 1
        done.append(count)

    peers = [threading.Thread(target=flood) for _ in range(8)]
    began = time.monotonic()
    for peer in peers:
        peer.start()
    try:
        took = timed_mails(relay, address, 100)
    finally:
        ended.set()
        for peer in peers:
            peer.join()
    rate = sum(done) / (time.monotonic() - began)
    print(
        f"quiet {statistics.median(quiet):.4f}, in a flood of {rate:.0f} handshakes a second"
        f" {statistics.median(took):.4f}, the longest {max(took):.4f}"
    )
    assert sum(done) > 20
    assert statistics.median(took) < PATIENCE
