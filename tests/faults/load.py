"""Senders that remember exactly what they were told, for tests that break things meanwhile."""

from __future__ import annotations

import contextlib
import random
import smtplib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


@dataclass
class Ledger:
    """What the senders sent and what the relay answered."""

    accepted: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # key -> (address, raw)
    refused: list[tuple[int, bytes]] = field(default_factory=list)  # code and text of each reply
    broken: int = 0  # connections that ended without a reply
    lock: threading.Lock = field(default_factory=threading.Lock)


def message(key: str, rng: random.Random) -> bytes:
    """A message that nobody else sends: a few lines, sometimes many, never a leading dot."""
    lines = [f"line {n} {rng.getrandbits(64):x}" for n in range(rng.choice([3, 20, 400]))]
    text = f"From: load@example.org\r\nSubject: {key}\r\n\r\n" + "\r\n".join(lines) + "\r\n"
    return text.encode()


def _sender(
    relay: RelayProcess, addresses: list[str], number: int, ledger: Ledger, stop: threading.Event
) -> None:
    rng = random.Random(number)
    count = 0
    while not stop.is_set():
        try:
            with smtplib.SMTP(*relay.smtp, timeout=30) as client:
                while not stop.is_set():
                    count += 1
                    key = f"sender{number}-message{count}"
                    address, raw = rng.choice(addresses), message(key, rng)
                    try:
                        client.sendmail("load@example.org", [address], raw)
                    except smtplib.SMTPResponseException as error:
                        with ledger.lock:
                            ledger.refused.append((error.smtp_code, _bytes(error.smtp_error)))
                        client.rset()
                    except smtplib.SMTPRecipientsRefused as error:
                        with ledger.lock:
                            ledger.refused += [
                                (code, _bytes(text)) for code, text in error.recipients.values()
                            ]
                        time.sleep(0.02)
                    else:
                        with ledger.lock:
                            ledger.accepted[key] = (address, raw)
        except smtplib.SMTPServerDisconnected:
            with ledger.lock:
                ledger.broken += 1
            time.sleep(0.02)
        except smtplib.SMTPResponseException as error:
            with ledger.lock:
                ledger.refused.append((error.smtp_code, _bytes(error.smtp_error)))
            time.sleep(0.02)
        except OSError:
            with ledger.lock:
                ledger.broken += 1
            time.sleep(0.05)


def _bytes(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text


@contextlib.contextmanager
def load(relay: RelayProcess, addresses: list[str], senders: int) -> Iterator[Ledger]:
    """Send from `senders` connections to `addresses` until the block ends."""
    ledger, stop = Ledger(), threading.Event()
    threads = [
        threading.Thread(target=_sender, args=(relay, addresses, number, ledger, stop))
        for number in range(senders)
    ]
    for thread in threads:
        thread.start()
    try:
        yield ledger
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def children(relay: RelayProcess, module: str) -> list[int]:
    """The processes that run a module for this relay."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == relay.pid and module.encode() in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return sorted(found)


def flows(ledger: Ledger) -> None:
    """Wait until mail is accepted that was not before."""
    before = len(ledger.accepted)
    eventually_sync(
        lambda: len(ledger.accepted), "mail flows", until=lambda n: n >= before + 40, within=60.0
    )


def stored(relay: RelayProcess, addresses: list[str]) -> dict[tuple[str, bytes], int]:
    """Return how often each (address, raw message) is stored, read back through the API."""
    found: dict[tuple[str, bytes], int] = {}
    with relay.http() as client:
        for address in addresses:
            url: str | None = f"/api/v1/mailboxes/{address}/messages?limit=200"
            while url is not None:
                page = client.get(url)
                page.raise_for_status()
                for entry in page.json():
                    raw = client.get(f"/api/v1/mailboxes/{address}/messages/{entry['id']}/raw")
                    raw.raise_for_status()
                    key = (address, raw.content)
                    found[key] = found.get(key, 0) + 1
                url = page.links.get("next", {}).get("url")
    return found
