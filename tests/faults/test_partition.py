"""A network that parts relays from their primary, under load of every kind that is promised.

A primary and its synchronous standby, two relays that reach each over a link of its own, and on
each relay mail (250), sends with a key (202) and blobs of devices (Ack) without a pause.  Then the
primary is out of reach of both relays, or of one, and lives on; its standby is promoted; and the
network heals, with the old primary still there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import psycopg
import pytest

from relay.devices.client import Pusher
from relay.devices.noise import KeyPair
from relay.settings import parse_endpoint
from tests.db.cluster import Pair
from tests.eventually import eventually_sync
from tests.faults.failing_over import Posting, lost
from tests.faults.links import Link
from tests.relay_process import RelayProcess

_PAUSE = 0.05  # s; before the next try after a refusal
_ENOUGH = 10  # promises of each kind, on each relay, before the next thing happens


class Asking:
    """Asks each relay for a promise again and again, and keeps those that were given.

    Use it as a context manager.  `ask(relay, name)` says whether `name` was promised.
    """

    def __init__(
        self, relays: Sequence[RelayProcess], ask: Callable[[RelayProcess, str], bool]
    ) -> None:
        self.promised: list[tuple[int, str]] = []
        """The relay's number, and the name."""
        self._ask = ask
        self._names = itertools.count()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, relay), daemon=True)
            for number, relay in enumerate(relays)
        ]

    def __enter__(self) -> Asking:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, relay: RelayProcess) -> None:
        while not self._stop.is_set():
            name = f"asked-{next(self._names)}"
            if self._ask(relay, name):
                self.promised.append((number, name))
            else:
                time.sleep(_PAUSE)

    def resume(self, within: float) -> None:
        """Wait until each relay has promised something that it is asked for from now on."""
        before = len(self.promised)
        for number in range(len(self._threads)):
            eventually_sync(
                lambda number=number: sum(  # type: ignore[misc]
                    1 for one, _ in self.promised[before:] if one == number
                ),
                f"relay {number} gives promises",
                until=lambda count: count >= _ENOUGH,
                within=within,
            )


def send(relay: RelayProcess, name: str) -> bool:
    """Send a message that is due in a thousand years; whether the answer was 202."""
    body = {
        "from": "shop@relay.localhost",
        "to": [f"{name}@relay.localhost"],
        "subject": "s",
        "text": "t",
        "send_at": "2999-01-01T00:00:00Z",
    }
    with relay.http() as client, contextlib.suppress(httpx.HTTPError):
        answer = client.post("/api/v1/messages/send", json=body, headers={"Idempotency-Key": name})
        return answer.status_code == 202
    return False


def push(device: KeyPair, relay: RelayProcess, name: str) -> bool:
    """Push a blob; whether it was acknowledged."""
    address = parse_endpoint(relay.run["devices_push"])
    with (
        contextlib.suppress(OSError),
        Pusher(address, bytes.fromhex(relay.run["devices_key"]), 20) as session,
    ):
        return session.push_all(device.public, [name.encode()]) == [None]
    return False


@pytest.mark.timeout(300)
@pytest.mark.parametrize("parted", [2, pytest.param(1, marks=pytest.mark.soak)])
def test_every_promise_outlives_a_partition(pair: Pair, tmp_path: Path, parted: int) -> None:
    """What was answered 250, 202 or Ack, before, during or after, is on the server that was
    promoted, and every relay goes on there by itself: one that can reach the old primary, too."""
    device = KeyPair.generate()
    with contextlib.ExitStack() as stack:
        links = [
            [
                stack.enter_context(Link(server.directory / ".s.PGSQL.5432"))
                for server in (pair.primary, pair.standby)
            ]
            for _ in range(2)
        ]
        relays = [
            RelayProcess(
                tmp_path / f"relay{number}",
                env={
                    "RELAY_LOG__LEVEL": "warning",
                    "RELAY_DATABASE__URL": (
                        f"postgresql://relay@127.0.0.1:{old.port},127.0.0.1:{new.port}/postgres"
                        "?target_session_attrs=read-write"
                    ),
                    "RELAY_DEVICES__STORE": "postgres",
                },
            )
            for number, (old, new) in enumerate(links)
        ]
        for relay in relays:
            stack.enter_context(relay)
        address = relays[0].create_mailbox()
        pair.begin()
        with (
            Posting(relays, address) as posting,
            Asking(relays, send) as sending,
            Asking(relays, functools.partial(push, device)) as pushing,
        ):

            def resume() -> None:
                for kind in (posting, sending, pushing):
                    kind.resume(within=60.0)

            resume()
            for old, _ in links[:parted]:
                old.part()
            time.sleep(3.0)  # beyond what a relay waits for a server in use
            pair.standby.promote()
            resume()
            for old, _ in links[:parted]:
                old.heal()
            time.sleep(1.0)
            resume()
        new = pair.standby.dsn()
        assert not lost(posting, new)
        with psycopg.connect(new) as sql:
            letters = sql.execute("SELECT recipient FROM relay.outbound_letters").fetchall()
            blobs = sql.execute("SELECT envelope FROM relay.device_inbox").fetchall()
    sent = {recipient.partition("@")[0] for (recipient,) in letters}
    assert {name for _, name in sending.promised} <= sent
    assert {name for _, name in pushing.promised} <= {bytes(blob).decode() for (blob,) in blobs}
