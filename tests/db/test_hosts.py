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
