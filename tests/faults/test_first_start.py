"""A first start that is killed, whenever: the next start mends what is there, and all works."""

import smtplib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


def has_begun(relay: RelayProcess) -> object:
    """The cluster is being made."""
    return list(relay.data_dir.glob("postgres/data.new-*"))


def is_half_made(relay: RelayProcess) -> object:
    """The cluster looks like one, and initdb works on it still."""
    return list(relay.data_dir.glob("postgres/data.new-*/global/pg_control"))


def has_cluster(relay: RelayProcess) -> object:
    """The cluster is there, without a database of ours."""
    return (relay.data_dir / "postgres/data/PG_VERSION").exists()


def is_migrating(relay: RelayProcess) -> object:
    """The schema is there in part."""
    return "0001_" in relay.log_file.read_text()


def is_ready(relay: RelayProcess) -> object:
    """Nothing is missing."""
    return relay.run_file.exists()


MOMENTS = (has_begun, is_half_made, has_cluster, is_migrating, is_ready)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_first_start_that_was_killed_is_made_good(
    tmp_path: Path, moment: Callable[[RelayProcess], object]
):
    """The next start is ready, accepts a message, and leaves nothing of the one before."""
    relay = RelayProcess(tmp_path / "var", env={"RELAY_LOG__LEVEL": "debug"}, first_start=True)
    relay.spawn()
    try:
        eventually_sync(lambda: moment(relay), moment.__name__, within=60.0)
    finally:
        relay.kill()
    with relay:
        address = relay.create_mailbox()
        with smtplib.SMTP(*relay.smtp, timeout=20) as client:
            client.sendmail("a@example.org", [address], "Subject: first\r\n\r\ncode 123456\r\n")
    assert not list(relay.data_dir.glob("postgres/data.new*"))
