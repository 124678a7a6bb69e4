"""Parsers that are killed while mail comes in, and SMTP processes with them: nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.eventually import eventually_sync
from tests.faults.load import Ledger, children, flows, load, stored
from tests.relay_process import RelayProcess

PARSER, INGEST = "relay.mailboxes.worker", "actors.ingest_main"


class Killing:
    """Kills one process after the other by SIGKILL, and counts them by module."""

    def __init__(self, relay: RelayProcess, seed: int = 1) -> None:
        self._relay = relay
        self._chosen = random.Random(seed)
        self._victims: set[int] = set()
        self.killed: Counter[str] = Counter()

    def go_on(self, module: str) -> None:
        """Kill one that runs a module, whatever it does just then; none, if none is there."""
        there = [pid for pid in children(self._relay, module) if pid not in self._victims]
        if not there:
            return
        time.sleep(self._chosen.choice([0.0, 0.0, 0.005, 0.02, 0.05]))
        victim = self._chosen.choice(there)
        self._victims.add(victim)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            self.killed[module] += 1


def everything_is_there(
    relay: RelayProcess, addresses: list[str], ledger: Ledger, kills: int
) -> None:
    """Check that what was answered 250 is stored, and summarised, each once.

    `kills`: of parsers.
    """
    with psycopg.connect(relay.run["database_url"], autocommit=True) as conn:
        eventually_sync(
            lambda: conn.execute("SELECT count(*) FROM relay.unsummarised").fetchone(),
            "all is parsed",
            until=lambda left: left == (0,),
            within=120.0,
        )
        rows = conn.execute(
            "SELECT m.raw_email, s.subject, s.error, s.message_id IS NOT NULL"
            " FROM relay.messages m LEFT JOIN relay.summaries s ON s.message_id = m.id"
        ).fetchall()
        summaries = conn.execute("SELECT count(*) FROM relay.summaries").fetchone()
    assert all(summarised for *_, summarised in rows)
    assert summaries == (len(rows),)
    whole = 0
    for raw, subject, error, _ in rows:
        sent = bytes(raw).partition(b"Subject: ")[2].partition(b"\r\n")[0].decode()
        # What a parser had in hand when it was killed is parsed once more; killed again, it is
        # listed with its headers, and the reason; and again, with the reason alone.
        assert subject == sent or (subject is None and error)
        assert error in {None, "the parser died of it"}
        whole += error is None
    assert 2 * (len(rows) - whole) <= kills, "a message was given up after one kill"
    found = stored(relay, addresses)
    for key, (address, raw) in ledger.accepted.items():
        assert found.get((address, raw)), f"{key} was answered 250 and is gone"


def replaced(relay: RelayProcess) -> list[int]:
    """How often each parser was, as the tree shows it."""
    with relay.http() as client:
        tree = client.get("/api/v1/supervision").raise_for_status().json()
    (mail,) = (group for group in tree["children"] if group["name"] == "mail")
    (summariser,) = (one for one in mail["children"] if one["name"] == "summariser")
    return [process["restarts"] for process in summariser["processes"]]


@pytest.mark.timeout(300)
def test_parsers_that_are_killed_cost_no_summary(tmp_path: Path):
    """Mail comes in meanwhile; each message has its summary once, and the tree counts them."""
    with RelayProcess(tmp_path / "var", env={"RELAY_LOG__LEVEL": "error"}) as relay:
        addresses = [relay.create_mailbox() for _ in range(3)]
        killing = Killing(relay)
        with load(relay, addresses, senders=6) as ledger:
            until(lambda: killing.killed[PARSER] >= 12, lambda: killing.go_on(PARSER))
            flows(ledger)
        assert not ledger.refused
        assert not ledger.broken
        everything_is_there(relay, addresses, ledger, killing.killed[PARSER])
        counts = replaced(relay)
        # One that nobody needed since has not been missed yet.
        assert 12 - len(counts) <= sum(counts) <= 12
        assert relay.stop() == 0


def until(enough: Callable[[], bool], act: Callable[[], None], within: float = 60.0) -> None:
    """Act again and again until it is enough."""
    deadline = time.monotonic() + within
    while not enough():
        assert time.monotonic() < deadline
        act()


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_parsers_and_smtp_processes_that_are_killed_for_minutes(tmp_path: Path):
    """Two SMTP processes and all parsers, again and again: nothing accepted is lost or summarised
    twice, refusals are temporary, and the relay itself goes on."""
    env = {"RELAY_SMTP__PROCESSES": "2", "RELAY_LOG__LEVEL": "error"}
    with RelayProcess(tmp_path / "var", env=env) as relay:
        addresses = [relay.create_mailbox() for _ in range(5)]
        killing, ends = Killing(relay, seed=2), time.monotonic() + 150.0
        with load(relay, addresses, senders=12) as ledger:
            while time.monotonic() < ends:
                flows(ledger)  # as long as it takes a process to start, or they give up
                killing.go_on(INGEST)
                for _ in range(10):
                    killing.go_on(PARSER)
            flows(ledger)
        assert killing.killed[INGEST] >= 10
        assert killing.killed[PARSER] >= 50
        assert all(400 <= code < 500 for code, _ in ledger.refused), ledger.refused[:5]
        everything_is_there(relay, addresses, ledger, killing.killed[PARSER])
        assert sum(replaced(relay)) >= 50
        assert relay.stop() == 0
