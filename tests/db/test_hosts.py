"""What is known of a database's servers, and what of it is on the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from relay.db.hosts import Hosts


class Met:
    """A connection as `Hosts` sees it."""

    def __init__(self, host: str) -> None:
        self.host, self.timeline = (host, "5432"), 0
        self.abandoned = False

    def abandon(self) -> None:
        """It is closed."""
        self.abandoned = True


def test_a_timeline_is_on_the_disk_before_its_server_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it says is flushed before it takes its name, and the name after: a power cut leaves
    the old figure or the new one, whole, and no lower one once the server has been taken."""
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushing(file: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file")
        fsync(file)

    def renaming(*names: Any) -> None:
        steps.append("rename")
        replace(*names)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", renaming)
    kept = tmp_path / "timeline"
    hosts: Any = Hosts(kept)
    assert hosts.met(Met("one"), 7, 3) is None
    assert steps == ["file", "rename", "folder"]
    old: Any = Hosts(kept)
    assert "timeline 2" in old.met(Met("two"), 7, 2)


def test_what_another_process_has_met_counts_here_too(tmp_path: Path):
    """A later timeline closes what leads to an earlier one, and is kept; an earlier one is none."""
    kept = tmp_path / "timeline"
    hosts: Any = Hosts(kept)
    assert hosts.known is None
    connection = Met("one")
    assert hosts.met(connection, 7, 3) is None
    hosts.learn(7, 2)
    assert hosts.known == (7, 3)
    assert not connection.abandoned
    hosts.learn(7, 4)
    assert hosts.known == (7, 4)
    assert connection.abandoned
    assert Hosts(kept).known == (7, 4)
    hosts.learn(8, 9)
    assert hosts.known == (7, 4), "it was a database that the operator has moved from, or to"
    told = Hosts()
    told.learn(7, 4)
    assert told.known == (7, 4)
    assert "timeline 3" in hosts.met(Met("two"), 7, 3)


def test_who_answered_last_is_tried_first():
    """Then the others as they stand in the URL; whoever was silent is tried last, until they answer
    again.  Whom a caller has had enough of is left out."""
    hosts = Hosts()
    one, two, three = url = (("one", "5432"), ("two", "5432"), ("three", "5432"))
    attempts: list[Any] = [{"host": host, "port": port} for host, port in url]

    def ordered(but: tuple[str, str] | None = None) -> list[str]:
        return [str(each["host"]) for each in hosts.ordered(attempts, but)]

    assert ordered() == ["one", "two", "three"]
    hosts.answered(three)
    assert ordered() == ["three", "one", "two"]
    hosts.fell_silent(one)
    assert ordered() == ["three", "two", "one"]
    hosts.fell_silent(three)
    assert ordered() == ["two", "one", "three"]
    assert ordered(but=two) == ["one", "three"]
    hosts.answered(one)
    assert ordered() == ["one", "two", "three"]
    assert hosts.silent == {three}


def test_a_host_is_an_address_and_a_port():
    """Servers on one machine are told apart by their ports, and an address counts for a name."""
    hosts = Hosts()
    pair: list[Any] = [{"host": "one"}, {"host": "one", "hostaddr": "192.0.2.1", "port": "5433"}]
    hosts.answered(("192.0.2.1", "5433"))
    assert hosts.ordered(pair) == pair[::-1]
    assert hosts.ordered(pair, ("one", "5432")) == pair[1:]
