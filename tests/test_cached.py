"""What tests install outside the tree: once for a lock file, apart from those of another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.cached import Missing, cached
from tests.npm import linked


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_two_locks_leave_each_other_alone(tmp_path: Path) -> None:
    """Of two clones whose locks differ each keeps its own; the same lock is installed once."""
    made: list[Path] = []

    def install(place: Path) -> None:
        assert list(place.iterdir()) == []
        (place / "program").touch()
        made.append(place)

    one, other = tmp_path / "one.lock", tmp_path / "other.lock"
    one.write_text("1")
    other.write_text("2")
    places = [cached("x", lock, install) for lock in (one, other, one, other)]
    assert made == places[:2] == places[2:]
    assert all((place / "program").exists() for place in places)


def test_what_was_broken_off_is_installed_anew(tmp_path: Path) -> None:
    """Nothing of it is left; and who comes meanwhile waits, and installs nothing."""
    lock = tmp_path / "lock"
    lock.write_text("1")

    def breaks_off(place: Path) -> None:
        (place / "half").touch()
        raise Missing("no network")

    with pytest.raises(Missing, match="no network"):
        cached("x", lock, breaks_off)
    begun, go_on = threading.Event(), threading.Event()
    calls: list[Path] = []

    def install(place: Path) -> None:
        calls.append(place)
        begun.set()
        assert go_on.wait(10)
        assert not (place / "half").exists()

    both = [threading.Thread(target=cached, args=("x", lock, install)) for _ in range(2)]
    for thread in both:
        thread.start()
    assert begun.wait(10)
    go_on.set()
    for thread in both:
        thread.join()
    assert len(calls) == 1


def test_a_folder_that_others_link_at_the_same_time_is_linked(tmp_path: Path) -> None:
    """Each finds what was installed."""
    folder = tmp_path / "client"
    folder.mkdir()
    (folder / "package-lock.json").write_text("{}")
    installed = cached("client", folder / "package-lock.json", lambda place: None)
    (installed / "node_modules").mkdir()
    (folder / "node_modules").symlink_to(tmp_path / "of-an-older-lock")
    assert linked(folder).readlink() == installed / "node_modules"
    assert sorted(path.name for path in folder.iterdir()) == ["node_modules", "package-lock.json"]
