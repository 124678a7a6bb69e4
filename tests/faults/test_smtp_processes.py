"""SMTP processes that are killed, and a relay that is killed over their heads."""

from __future__ import annotations

import os
import signal
import smtplib
import threading
import time
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.eventually import eventually_sync
from tests.faults.load import children, flows, load, stored
from tests.relay_process import RelayProcess

TWO = {"RELAY_SMTP__PROCESSES": "2", "RELAY_LOG__LEVEL": "warning"}


def processes(relay: RelayProcess) -> list[int]:
    """The SMTP processes that this relay has started."""
    return children(relay, "actors.ingest_main")


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def restarted(relay: RelayProcess, victim: int) -> bool:
    """Whether there are two, and this is none of them."""
    now = processes(relay)
    return len(now) == 2 and victim not in now


class Knocking:
    """Somebody who connects again and again, and notes what he hears that is no greeting."""

    def __init__(self, relay: RelayProcess) -> None:
        self._relay = relay
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._knock)
        self.greeted = 0
        self.turned_away: list[str] = []

    def __enter__(self) -> Knocking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _knock(self) -> None:
        while not self._stop.is_set():
            try:
                with smtplib.SMTP(timeout=30) as client:
                    code, text = client.connect(*self._relay.smtp)
                    if code == 220:
                        self.greeted += 1
                    else:
                        self.turned_away.append(f"{code} {text!r}")
            except (ConnectionRefusedError, smtplib.SMTPConnectError) as error:
                self.turned_away.append(repr(error))
            except (OSError, smtplib.SMTPServerDisconnected):
                pass  # it was greeted by a process that was killed, or just before
            time.sleep(0.01)


@pytest.mark.timeout(300)
def test_processes_that_are_killed_lose_nothing_that_was_accepted(tmp_path):
    """Mail goes on through the other, the port refuses nobody, and the one comes back."""
    with RelayProcess(tmp_path / "var", env=TWO) as relay:
        addresses = [relay.create_mailbox() for _ in range(3)]
        first = processes(relay)
        assert len(first) == 2
        with Knocking(relay) as knocking, load(relay, addresses, senders=20) as ledger:
            for _ in range(4):  # both at once, too, when one is killed before the other is back
                flows(ledger)
                victim = processes(relay)[0]
                os.kill(victim, signal.SIGKILL)
                flows(ledger)
                eventually_sync(partial(restarted, relay, victim), "there are two again")
            flows(ledger)
        assert not knocking.turned_away
        assert knocking.greeted > 20
        assert all(400 <= code < 500 for code, _ in ledger.refused), ledger.refused
        found = stored(relay, addresses)
        for key, (address, raw) in ledger.accepted.items():
            assert found.get((address, raw)), f"{key} was answered 250 and is gone"
        with relay.http() as client:
            tree = client.get("/api/v1/supervision").json()
        (group,) = (group for group in tree["children"] if group["name"] == "processes")
        assert [one["name"] for one in group["children"]] == ["ingest-1", "ingest-2"]
        assert sum(one["restarts"] for one in group["children"]) == 4
        shown = [process["pid"] for one in group["children"] for process in one["processes"]]
        assert sorted(shown) == processes(relay)
        assert relay.stop() == 0
        assert not any(map(alive, processes(relay)))


@pytest.mark.parametrize("stopped", [False, True])
def test_a_relay_that_is_killed_takes_its_processes_along(tmp_path, stopped: bool):
    """Within seconds, under load: none keeps the port, and the next relay is as good as new.  Also
    where it was stopped, and read nothing more of what they said."""
    relay = RelayProcess(tmp_path / "var", env=TWO)
    try:
        relay.start()
        relay.keep_ports()
        addresses = [relay.create_mailbox() for _ in range(2)]
        first = processes(relay)
        with load(relay, addresses, senders=4) as ledger:
            flows(ledger)
            if stopped:
                os.kill(relay.pid, signal.SIGSTOP)
                time.sleep(0.5)  # in which they go on talking to it
            relay.kill()
            eventually_sync(
                lambda: [pid for pid in first if alive(pid)],
                "they are gone",
                until=lambda left: not left,
                within=5.0,
            )
            relay.start()
            flows(ledger)
        with psycopg.connect(relay.run["database_url"]) as conn:
            (count,) = conn.execute("SELECT count(*) FROM relay.messages").fetchone() or (0,)
            assert count >= len(ledger.accepted)
        found = stored(relay, addresses)
        for key, (address, raw) in ledger.accepted.items():
            assert found.get((address, raw)), f"{key} was answered 250 and is gone"
    finally:
        relay.stop()


def test_where_there_is_one_process_none_is_started(tmp_path):
    """The relay serves sessions itself, as ever."""
    with RelayProcess(tmp_path / "var", env={"RELAY_SMTP__PROCESSES": "1"}) as relay:
        assert not processes(relay)
        with smtplib.SMTP(*relay.smtp) as client:
            client.sendmail("a@b.example", [relay.create_mailbox()], b"x\r\n")


def test_whom_a_process_refuses_its_relay_knows(tmp_path: Path) -> None:
    """With the name under which the sender has signed in there."""
    with RelayProcess(tmp_path / "var", env=TWO) as relay, relay.http() as api:
        address = api.post("/api/v1/mailboxes").json()["address"]
        with smtplib.SMTP(*relay.smtp, timeout=30) as session:
            session.login("shop", "any")
            session.mail("a@shop.example")
            assert session.rcpt(address)[0] == 250
            assert session.rcpt(f"x{address}")[0] == 550
        shown = eventually_sync(
            lambda: api.get(f"/api/v1/mailboxes/{address}/refused").json(), "it is told"
        )
        (one,) = shown
        assert (one["address"], one["why"], one["login"]) == (f"x{address}", "unknown", "shop")
