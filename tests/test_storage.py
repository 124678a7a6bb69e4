"""The floor of free disk space: what a look at the disk says, and what becomes of it."""

from __future__ import annotations

import operator
import threading
from functools import partial

import pytest
import structlog
import trio
import trio.testing

from relay.settings import parse_floor, parse_size
from relay.storage import LEAST_FREE, LOOK_EVERY, PATIENCE, Disk, Space, measure, usual_floor
from tests.actors.running import logged
from tests.eventually import eventually

GB = 1 << 30


class Drive:
    """A disk whose free space is what the test says."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.looks = 0

    def __call__(self) -> Disk:
        self.looks += 1
        return Disk(1000, self.free)


def seen(drive: Drive, space: Space, free: int) -> tuple[bool, list[str]]:
    """Let so much be free, look, and return whether it is short and what was logged."""
    drive.free = free
    with structlog.testing.capture_logs() as lines:
        space.look()
    return space.short(), [line["event"] for line in lines]


def test_the_floor_is_left_higher_than_it_is_reached():
    """Each crossing is said once; a few bytes more or less do not change the answers."""
    drive = Drive(1000)
    space = Space(drive, lambda total: 100)
    assert not space.short(10**9), "nobody has looked yet"
    steps: list[tuple[int, bool, list[str]]] = [
        (1000, False, []),
        (199, False, ["storage.getting_low"]),
        (201, False, []),
        (190, False, []),
        (100, False, []),
        (99, True, ["storage.low"]),
        (98, True, []),
        (109, True, []),
        (110, False, ["storage.recovered"]),
        (100, False, []),
        (220, False, []),
        (199, False, ["storage.getting_low"]),
        (50, True, ["storage.low"]),
        (1000, False, ["storage.recovered"]),
    ]
    for free, short, events in steps:
        assert seen(drive, space, free) == (short, events), free


def test_what_would_go_below_the_floor_is_short_already():
    """An announced size counts: 30 bytes above the floor there is room for 30, not for 31."""
    space = Space(Drive(130), lambda total: 100)
    space.look()
    assert not space.short(30)
    assert space.short(31)
    assert space.notice is None


def test_a_notice_is_in_units_that_people_read():
    """GiB, not bytes."""
    space = Space(Drive(3 << 29), lambda total: 2 << 30)
    space.look()
    assert space.notice is not None
    assert "1.50 GiB are free" in space.notice
    assert "the floor is 2.00 GiB" in space.notice


def test_no_floor_refuses_nothing():
    """With a floor of 0 a disk may be full to the last byte; its own errors say so then."""
    space = Space(Drive(0), lambda total: 0)
    space.look()
    assert not space.short()
    assert not space.short(10**12)


def test_the_usual_floor_is_a_gigabyte_or_a_twentieth():
    """Of a large disk the one, of a small one the other."""
    assert usual_floor(1000 * GB) == LEAST_FREE == GB
    assert usual_floor(2 * GB) == 2 * GB // 20


def test_a_real_file_system_is_measured(tmp_path):
    """What is free is less than what there is, and more than nothing."""
    disk = measure(tmp_path)
    assert 0 < disk.free <= disk.total


def test_a_disk_that_cannot_be_asked_refuses_nothing(tmp_path):
    """A directory that is gone: the last figures stand."""
    space = Space(lambda: measure(tmp_path / "gone"), lambda total: 1 << 60)
    space.look()
    assert not space.short()


async def test_it_is_looked_at_again_and_again():
    """A crossing is noticed at the next look, in either direction."""
    drive = Drive(1000)
    space = Space(drive, lambda total: 100)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(space.watch, 0.01)
        for free, short in ((50, True), (500, False), (50, True)):
            drive.free = free
            await eventually(
                space.short,
                f"it is {'short' if short else 'ample'}",
                until=partial(operator.is_, short),
            )
        nursery.cancel_scope.cancel()


async def test_a_disk_that_hangs_holds_up_one_thread_and_nobody(virtual):
    """Said once; no second thread joins it; when it answers again all is as before."""
    hangs, asked = threading.Event(), 0

    def look() -> Disk:
        nonlocal asked
        asked += 1
        if asked == 2:
            hangs.wait(30)
        return Disk(1000, 500 if asked == 1 else 50)

    space = Space(look, lambda total: 100)
    with structlog.testing.capture_logs() as lines:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(space.watch)
            await eventually(lambda: space.floor, "it has answered once")
            virtual.jump(LOOK_EVERY)
            await eventually(lambda: asked == 2, "it is asked again")
            for _ in range(3):
                virtual.jump(PATIENCE)
                await logged(lines, "storage.unanswered")
                await trio.testing.wait_all_tasks_blocked()
                virtual.jump(LOOK_EVERY)
                await trio.testing.wait_all_tasks_blocked()
            assert not space.short()
            assert asked == 2
            hangs.set()
            await eventually(space.short, "it is short")
            nursery.cancel_scope.cancel()
    assert [line["event"] for line in lines].count("storage.unanswered") == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1000", 1000), ("64k", 65536), ("1.5M", 3 << 19), ("1G", GB), ("2 gb", 2 * GB)],
)
def test_sizes(text, size):
    """Bytes, or a number with k, M or G, where k is 1024."""
    assert parse_size(text) == size
    assert parse_floor(text)(10**15) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1e9", "5x", "101%", "%", None, True, 1.5])
def test_what_is_no_size(text):
    """Anything else is a sentence that says what it may be."""
    with pytest.raises(ValueError, match="it must be a number of bytes"):
        parse_floor(text)


def test_a_share_of_the_disk():
    """A percentage is of the whole disk."""
    assert parse_floor("5%")(1000) == 50
    assert parse_floor("0.5 %")(1000) == 5
    assert parse_floor("100%")(1000) == 1000


def test_what_one_process_has_seen_another_is_told():
    """It refuses what the first would, and looks at nothing itself."""
    drive = Drive(free=40)
    space, told = Space(drive, lambda total: 50), Space()
    space.look()
    told.tell(space.state)
    assert told.short()
    drive.free = 500
    space.look()
    told.tell(space.state)
    assert (told.short(), told.short(440), told.short(460)) == (False, False, True)
