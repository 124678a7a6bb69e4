"""Children that sign: the same signatures, deaths, stops, and no orphans."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.outbound.signing.dkim import ALGORITHMS, PrivateKey, generate, sign
from relay.outbound.signing.processes import NoProcess, SigningProcesses, ToSign, processes_on
from tests.eventually import eventually, eventually_sync

RSA, ED25519 = uuid4(), uuid4()


@cache
def key(id: UUID) -> PrivateKey:
    return generate(ALGORITHMS[0] if id == RSA else ALGORITHMS[1])


def digests(count: int, *ids: UUID) -> list[ToSign]:
    return [ToSign(id, key(id), os.urandom(32)) for _ in range(count) for id in ids]


def expected(wanted: list[ToSign]) -> list[bytes]:
    return [sign(one.key, one.digest) for one in wanted]


@asynccontextmanager
async def running(**more: Any) -> AsyncIterator[SigningProcesses]:
    """Processes of which one at least signs, until the block ends."""
    processes = SigningProcesses(**({"count": 1} | more))
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(processes.run)
            processes.want()
            await eventually(lambda: processes.ready, "a process signs")
            yield processes
            nursery.cancel_scope.cancel()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_signs_what_this_process_would():
    """By both kinds of keys, batches of several tasks at once, each its own and in order."""
    async with running(count=2) as processes, trio.open_nursery() as nursery:

        async def ask(count: int) -> None:
            wanted = digests(count, RSA, ED25519)
            assert await processes.sign(wanted) == expected(wanted)

        for count in (1, 8, 0, 200, 3, 1):
            nursery.start_soon(ask, count)


async def test_there_is_none_until_one_is_wanted():
    """Who asks before is told so at once, and does without."""
    processes = SigningProcesses()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.run)
        with pytest.raises(NoProcess):
            await processes.sign(digests(1, ED25519))
        assert not processes.pids
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_that_dies_or_stops_is_replaced(how: signal.Signals):
    """Those who wait for it hear of that, and another signs soon."""
    async with running(deadline=0.5) as processes:
        assert await processes.sign(digests(1, RSA))
        (pid,) = processes.pids
        heard = 0

        async def ask() -> None:
            nonlocal heard
            with pytest.raises(NoProcess):
                await processes.sign(digests(20, RSA))
            heard += 1

        os.kill(pid, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            os.kill(pid, how)
        assert heard == 3
        # Who waited hears of it a moment before the child is taken from those that sign.
        await eventually(lambda: processes.pids not in ([], [pid]), "another one signs")
        assert gone(pid)
        wanted = digests(2, RSA)
        assert await processes.sign(wanted) == expected(wanted)


async def test_one_that_has_nothing_to_do_ends():
    """And comes back when it is wanted."""
    async with running(idle=0.2) as processes:
        (pid,) = processes.pids
        await eventually(lambda: not processes.ready, "it ends")
        assert gone(pid)
        with pytest.raises(NoProcess):
            await processes.sign(digests(1, ED25519))
        processes.want()
        await eventually(lambda: processes.ready, "another one signs")


async def test_whoever_is_cancelled_takes_no_answer_of_others():
    """What it asked for is made all the same, and nobody else gets it."""
    async with running() as processes:
        (pid,) = processes.pids
        os.kill(pid, signal.SIGSTOP)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(processes.sign, digests(50, RSA))
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        os.kill(pid, signal.SIGCONT)
        assert scope.cancelled_caught
        wanted = digests(3, RSA, ED25519)
        assert await processes.sign(wanted) == expected(wanted)


async def test_none_outlives_a_cancelled_run():
    """In the middle of a batch."""
    async with running() as processes:
        pids = processes.pids
        async with trio.open_nursery() as nursery:
            nursery.start_soon(processes.sign, digests(200, RSA))
            await trio.testing.wait_all_tasks_blocked(0.005)
            nursery.cancel_scope.cancel()
    assert all(map(gone, pids))


@pytest.mark.parametrize("stopped", [False, True])
def test_none_outlives_a_process_that_is_killed(stopped: bool):
    """Its pipe ends, and it does; also where that process was stopped."""
    program = (
        "import trio\n"
        "from relay.outbound.signing.processes import SigningProcesses\n"
        "async def main():\n"
        "    processes = SigningProcesses(1)\n"
        "    processes.want()\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(processes.run)\n"
        "        while not processes.pids: await trio.sleep(0.01)\n"
        "        print(processes.pids[0], flush=True)\n"
        "trio.run(main)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if stopped:
            parent.send_signal(signal.SIGSTOP)
        parent.kill()
    eventually_sync(lambda: gone(pid), "it has followed its parent")


async def test_a_key_that_is_forgotten_signs_no_more():
    """What goes by its id later is another key."""
    async with running() as processes:
        await processes.sign(digests(1, ED25519))
        processes.forget([ED25519])
        other = ToSign(ED25519, generate(ALGORITHMS[1]), b"x" * 32)
        assert await processes.sign([other]) == expected([other])


def test_as_many_as_there_are_cores():
    """And no more than a loop has mails for."""
    assert [processes_on(cores) for cores in (1, 2, 3, 8)] == [1, 2, 3, 4]
