"""A thousand sessions that stall in their handshake, on every port: what they cost, and whom."""

from __future__ import annotations

import poplib
import smtplib
import ssl
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from tests.certificates import write
from tests.relay_process import RelayProcess
from tests.stalling import (
    address_of,
    many_files,
    resident,
    settings,
    stall,
    timed_mails,
)

STALLED = {"smtp": 1000, "submission": 100, "submission_tls": 250, "pop3": 100, "pop3_tls": 250}
EACH = 100 * 1024 * 1024 / 1000  # bytes of memory
NOISE = 4 * 1024 * 1024  # bytes; for what mails, and a first session at a port, leave in the heap
PATIENCE = 0.25  # s; the median of a plain message's time, on a busy machine
ANYONE = ssl.create_default_context()
ANYONE.check_hostname, ANYONE.verify_mode = False, ssl.CERT_NONE


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with a certificate, and room for all who stall."""
    folder = tmp_path_factory.mktemp("stalls")
    with (
        many_files(),
        RelayProcess(folder / "data", env=settings(write(folder), 2000)) as running,
    ):
        yield running


def test_they_cost_little_memory_and_nobody_time(relay: RelayProcess) -> None:
    """100 KB each at most; mail goes on as before, and who comes to such a port is served."""
    with relay.http(Accept="application/json") as http:
        made = http.post("/api/v1/mailboxes").raise_for_status().json()
    timed_mails(relay.smtp, made["address"], 30)
    context = ssl.create_default_context()
    with ExitStack() as stack:
        for door, count in STALLED.items():
            before = resident(relay.pid)
            for _ in range(count):
                stack.enter_context(stall(relay, door, context))
            cost = resident(relay.pid) - before
            took = timed_mails(relay.smtp, made["address"], 30)
            print(f"{count} at {door}: {cost / 1e6:.1f} MB; a mail {statistics.median(took):.4f} s")
            assert cost < EACH * count + NOISE
            assert statistics.median(took) < PATIENCE
        reader = poplib.POP3_SSL(*address_of(relay, "pop3_tls"), context=ANYONE, timeout=20)
        reader.user(made["address"])
        reader.pass_(made["session_token"])
        assert reader.stat()[0] == 30 * (1 + len(STALLED))
        reader.quit()
        submission = address_of(relay, "submission_tls")
        with smtplib.SMTP_SSL(*submission, context=ANYONE, timeout=20) as client:
            assert client.login("x", relay.run["admin_token"])[0] == 235


@pytest.mark.parametrize("door", ["smtp", "pop3_tls"])
def test_a_flood_of_handshakes_takes_its_turns(relay: RelayProcess, door: str) -> None:
    """Peers that shake hands as fast as they can leave half of the time to others."""
    address = relay.create_mailbox()
    quiet = timed_mails(relay.smtp, address, 50)
    context = ssl.create_default_context()
    ended = threading.Event()
    done: list[int] = []

    def flood() -> None:
        count = 0
        while not ended.is_set():
            with suppress(OSError, AssertionError):
                stall(relay, door, context).close()
                count += 1
        done.append(count)

    peers = [threading.Thread(target=flood) for _ in range(8)]
    began = time.monotonic()
    for peer in peers:
        peer.start()
    try:
        took = timed_mails(relay.smtp, address, 100)
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
