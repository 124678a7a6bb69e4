"""What was answered 250 is there afterwards, byte for byte, whatever dies in between."""

import operator
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually_sync
from tests.faults.load import Ledger, load, stored
from tests.relay_process import RelayProcess

QUIET = {"RELAY_LOG__LEVEL": "warning"}


def flows(ledger: Ledger) -> None:
    """Wait until mail is accepted that was not before."""
    before = len(ledger.accepted)
    eventually_sync(
        lambda: len(ledger.accepted), "mail flows", until=lambda n: n >= before + 20, within=60.0
    )


def rounds_of_kill(relay: RelayProcess, rounds: int, seed: int) -> int:
    """Kill and restart under load; return how many accepted messages were checked."""
    rng = random.Random(seed)
    relay.start()
    relay.keep_ports()
    addresses = [relay.create_mailbox() for _ in range(3)]
    accepted: dict[str, tuple[str, bytes]] = {}
    for number in range(rounds):
        with load(relay, addresses, senders=4) as ledger:
            time.sleep(rng.uniform(0.2, 0.8))
            relay.kill()
        assert ledger.accepted, "the load never got through"
        assert all(400 <= code < 500 for code, _ in ledger.refused), ledger.refused
        accepted |= {f"{number}-{key}": value for key, value in ledger.accepted.items()}
        relay.start()
    found = stored(relay, addresses)
    for key, (address, raw) in accepted.items():
        assert found.get((address, raw)), f"{key} was answered 250 and is gone"
    return len(accepted)


def test_kill_at_a_random_moment_loses_nothing_that_was_accepted(tmp_path):
    """After kill -9 of the relay under load, every message answered 250 is stored as sent."""
    relay = RelayProcess(tmp_path / "var", env=QUIET)
    try:
        assert rounds_of_kill(relay, rounds=3, seed=1) > 20
    finally:
        relay.stop()


@pytest.mark.soak
def test_kill_at_many_random_moments_loses_nothing(tmp_path):
    """The same, many times over."""
    relay = RelayProcess(tmp_path / "var", env=QUIET)
    try:
        assert rounds_of_kill(relay, rounds=60, seed=time.time_ns()) > 1000
    finally:
        relay.stop()


def test_a_database_that_stops_costs_4xx_and_comes_back_by_itself(tmp_path):
    """While an external database is stopped there are only 4xx; then mail flows again."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir, fsync=True)
    try:
        cluster.start()
        url = cluster.dsn(cluster.new_database())
        relay = RelayProcess(tmp_path / "var", env={**QUIET, "RELAY_DATABASE__URL": url})
        with relay:
            addresses = [relay.create_mailbox() for _ in range(2)]
            with load(relay, addresses, senders=3) as ledger:
                for _ in range(2):
                    flows(ledger)
                    cluster.stop(signal.SIGQUIT)
                    refusals = len(ledger.refused)
                    eventually_sync(
                        lambda: len(ledger.refused),
                        "the outage is noticed",
                        until=partial(operator.lt, refusals),
                    )
                    cluster.start()
                    flows(ledger)
            assert all(400 <= code < 500 for code, _ in ledger.refused), ledger.refused
            found = stored(relay, addresses)
            for key, value in ledger.accepted.items():
                assert found.get(value), f"{key} was answered 250 and is gone"
            assert relay.process is not None
            assert relay.process.poll() is None
    finally:
        cluster.remove()


def test_the_embedded_server_is_restarted_when_it_dies(tmp_path):
    """kill -9 of the embedded PostgreSQL under load: 4xx, recovery, nothing accepted lost."""
    with RelayProcess(tmp_path / "var", env=QUIET) as relay:
        addresses = [relay.create_mailbox()]
        with load(relay, addresses, senders=3) as ledger:
            flows(ledger)
            kill_postgres(relay.data_dir)
            flows(ledger)
        assert all(400 <= code < 500 for code, _ in ledger.refused), ledger.refused
        found = stored(relay, addresses)
        assert all(found.get(value) for value in ledger.accepted.values())


def kill_postgres(data_dir: Path) -> None:
    """Kill the postmaster of a data directory as an outage would."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/postgres") and any(
            str(data_dir).encode() in word for word in words
        ):
            os.kill(int(process.name), signal.SIGKILL)
            return
    raise AssertionError("no postgres runs on this data directory")
