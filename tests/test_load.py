"""Whether a thread lacks the CPU."""

import os
import threading
import time

import pytest

from relay.load import (
    UNKNOWN_SATURATED,
    Load,
    Scheduled,
    Senders,
    cpu_seconds,
    lacks,
    scheduled,
)
from tests.eventually import eventually


@pytest.mark.parametrize(
    ("ran", "waited", "lacking"),
    [
        (0.0, 0.0, False),
        (0.62, 0.3, False),  # of a second: the cores are all in use, and suffice
        (0.4, 0.5, False),  # others have them, and it has enough
        (0.98, 0.0, True),  # one thread has no more than a core
        (0.7, 0.28, True),  # and it waits for it, too
        (0.4, 0.58, True),  # others have the cores
    ],
)
def test_a_thread_lacks_the_cpu_that_never_sleeps(ran, waited, lacking):
    """Running and waiting for a core count alike."""
    before = Scheduled(7.0, 3.0)
    assert lacks(before, Scheduled(7.0 + ran, 3.0 + waited), 1.0) is lacking


def test_where_waiting_is_not_known_less_is_taken_for_it():
    """Of either look: what is not known is not guessed."""
    before, used = Scheduled(7.0, None), Scheduled(7.0 + UNKNOWN_SATURATED + 0.01, None)
    assert lacks(before, used, 1.0)
    assert not lacks(before, used, 1.1)
    assert lacks(Scheduled(7.0, 3.0), used, 1.0)


def test_an_answer_is_about_a_quarter_of_a_second():
    """The first look begins to measure, and each answer holds for as long."""
    had = Scheduled(7.0, 3.0)
    one = Load(lambda: had)
    assert not one.lacking(100.0)
    had = Scheduled(7.2, 3.2)
    assert not one.lacking(100.2)
    assert one.lacking(100.4)
    assert one.lacking(100.6)
    assert not one.lacking(100.7)


def test_a_thread_elsewhere_that_lacks_it_counts_too():
    """At once, and as long as it does."""
    elsewhere = False
    one = Load(lambda: Scheduled(7.0, 3.0), lambda: elsewhere)
    assert not one.lacking(100.0)
    elsewhere = True
    assert one.lacking(100.1)
    assert one.lacking(100.4)
    elsewhere = False
    assert not one.lacking(100.5)


def test_a_wait_for_others_is_none_for_the_cpu():
    """A thread that only sleeps has used nothing, whatever another thread does meanwhile."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(1000))

    worker = threading.Thread(target=work)
    worker.start()
    try:
        before, began = scheduled(), time.monotonic()
        over.wait(0.2)
        assert not lacks(before, scheduled(), time.monotonic() - began)
    finally:
        over.set()
        worker.join()


async def test_work_without_a_pause_is_seen():
    """Of the kernel's own figures."""
    one = Load()

    def worked() -> bool:
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        return one.lacking(time.monotonic())

    await eventually(worked, "the thread lacks the CPU")


def test_a_kernel_that_does_not_tell(tmp_path):
    """The process's own time is what is left, for a file that is missing or says something else."""
    schedstat = tmp_path / "schedstat"
    assert scheduled(schedstat).waited is None
    assert scheduled(schedstat).ran == pytest.approx(time.process_time(), abs=1.0)
    schedstat.write_text("nothing\n")
    assert scheduled(schedstat).waited is None


def test_the_cpu_of_a_process():
    """Seconds that only rise; of one that is none nobody knows."""
    before, until = cpu_seconds(os.getpid()), time.process_time() + 0.05
    while time.process_time() < until:
        pass
    after = cpu_seconds(os.getpid())
    assert before is not None
    assert after is not None
    assert after > before
    assert cpu_seconds(None) is None
    assert cpu_seconds(-1) is None


def test_senders_wait_when_a_good_part_of_the_connections_has_mail_that_waits():
    """Seen again and again: one look is chance, and of many open connections few are not many."""
    waiting, connections = 12, 20
    senders = Senders(lambda: waiting)
    assert not senders.wait(), "nobody has said who is connected"
    senders.count_by(lambda: connections)
    assert not senders.wait()
    assert [senders.wait() for _ in range(5)][-1]
    connections = 250
    assert [senders.wait() for _ in range(10)][-1] is False


def test_one_connection_is_no_flood():
    """Whoever sends one message after the other always waits, and harms nobody."""
    senders = Senders(lambda: 1)
    senders.count_by(lambda: 1)
    assert not any(senders.wait() for _ in range(100))
