"""When passwords are checked: what guessers get, and who need not wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from relay.access.password_checks import PasswordChecks, PasswordLimits, TooManyWrong, Turn
from relay.errors import DatabaseUnavailable

HERE, THERE = "127.0.0.1", "192.0.2.1"


async def come(turn: Turn) -> None:
    """Wait for a turn as sessions do."""
    if not turn.come_nowait():
        await turn.come()


async def said(
    checks: PasswordChecks,
    host: str = THERE,
    password: str = "wrong",
    *,
    right: bool = False,
    took: float = 0.0,
) -> float:
    """Say a password; return when it was checked, in seconds since the clock began."""
    with checks.turn(host, password) as turn:
        await come(turn)
        at = trio.current_time()
        await trio.sleep(took)
        if right:
            turn.right()
    return at


async def checked(checks: PasswordChecks, within: float, *hosts: str) -> list[str]:
    """Whose passwords are checked within so many seconds, where each host has one that is wrong
    after the other."""
    found: list[str] = []

    async def guess(host: str) -> None:
        while True:
            try:
                await said(checks, host, took=0.01)
            except TooManyWrong:
                continue
            found.append(host)

    with trio.move_on_after(within):
        async with trio.open_nursery() as nursery:
            for host in hosts:
                nursery.start_soon(guess, host)
    return found


@asynccontextmanager
async def guessing(checks: PasswordChecks, *hosts: str) -> AsyncIterator[None]:
    """Guess in the block, from each of the hosts."""
    async with trio.open_nursery() as nursery:
        for host in hosts:
            nursery.start_soon(checked, checks, 1000.0, host)
        await trio.sleep(10.0)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("sessions", [1, 40])
async def test_a_network_has_ten_guesses_and_then_one_in_two_seconds(
    sessions: int, autojump_clock: MockClock
):
    """With one session or with many; each of its addresses counts for all."""
    found = await checked(PasswordChecks(), 60.5, *[f"2001:db8::{n:x}" for n in range(sessions)])
    assert len(found) == 10 + 30
    local = await checked(PasswordChecks(), 10.05, *[HERE, "::1", "127.0.0.2"] * 5)
    assert 190 <= len(local) <= 100 + 100, "a hundred, and ten a second"


async def test_who_breaks_off_has_guessed(autojump_clock: MockClock):
    """Hanging up saves nothing, whether before the answer or while the password is checked."""
    checks, begun = PasswordChecks(), 0

    async def guess() -> None:
        nonlocal begun
        with checks.turn(THERE, "wrong") as turn:
            await come(turn)
            begun += 1
            await trio.sleep_forever()

    for _ in range(1000):
        with trio.move_on_after(0.01):
            await guess()
    assert begun == 10 + 4, "in not quite ten seconds"


async def test_a_right_password_costs_nothing(autojump_clock: MockClock):
    """However many sign in at once, from one network: none waits for credit to be earned."""
    checks = PasswordChecks()
    async with trio.open_nursery() as nursery:
        for number in range(50):
            nursery.start_soon(
                lambda n: said(checks, password=f"right {n}", right=True, took=0.01), number
            )
    assert trio.current_time() < 1.0
    assert len(await checked(checks, 0.5, THERE)) == 10


async def test_what_cannot_be_judged_costs_nothing(autojump_clock: MockClock):
    """As while the database is away."""
    checks = PasswordChecks()
    for _ in range(30):
        with pytest.raises(DatabaseUnavailable), checks.turn(THERE, "a password") as turn:
            await come(turn)
            raise DatabaseUnavailable("it is away")
    assert trio.current_time() == 0.0


@pytest.mark.parametrize("host", [HERE, THERE])
async def test_who_signed_in_here_never_waits(host: str, autojump_clock: MockClock):
    """Though its own network guesses, and so do hundreds of others."""
    checks = PasswordChecks()
    await said(checks, host, "right", right=True)
    others = [f"198.51.100.{n}" for n in range(200)]
    async with guessing(checks, *[host] * 60, *others):
        began = trio.current_time()
        for _ in range(3):
            assert await said(checks, host, "right", right=True) == began


@pytest.mark.parametrize("host", [HERE, THERE])
async def test_who_need_not_wait_comes_before_anybody_else_has_a_turn(host: str):
    """So no session is taken for one that waits; whoever would pass others has to wait."""
    checks = PasswordChecks(PasswordLimits(credit=1, local_credit=1))
    with checks.turn(host, "one") as first, checks.turn(host, "two") as second:
        assert first.come_nowait()
        assert not second.come_nowait(), "its credit is taken, and nothing else is"
        first.right()
    with checks.turn(host, "two") as again:
        assert again.come_nowait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(said, checks, host, "three")
            await wait_all_tasks_blocked()
            with checks.turn(host, "one") as known, checks.turn(host, "four") as late:
                assert known.come_nowait()
                known.right()
                assert not late.come_nowait()
            nursery.cancel_scope.cancel()


async def test_a_known_password_that_is_wrong_now_is_charged_and_forgotten(
    autojump_clock: MockClock,
):
    """As that of a key which was revoked: what comes next waits as any other."""
    checks = PasswordChecks()
    await said(checks, password="right", right=True)
    for _ in range(10):
        await said(checks)
    now = trio.current_time()
    assert await said(checks, password="right") == now, "as it was known"
    assert await said(checks, password="right") > now + 2.0


async def test_strangers_keep_nobody_out_who_comes_for_the_first_time(autojump_clock: MockClock):
    """A network that has said nothing wrong goes before all that have; this machine waits for
    none."""
    checks = PasswordChecks()
    async with guessing(checks, *[f"198.51.100.{n}" for n in range(200)]):
        began = trio.current_time()
        assert await said(checks, THERE, "new", right=True) - began < 0.1
        began = trio.current_time()
        assert await said(checks, HERE, "new here", right=True) == began


async def test_a_site_with_many_networks_has_the_turns_of_one(autojump_clock: MockClock):
    """Whoever owns an IPv6 /48 has 65,536 networks."""
    checks = PasswordChecks()
    async with guessing(checks, *[f"2001:db8:1:{n:x}::1" for n in range(400)]):
        began = trio.current_time()
        assert await said(checks, THERE, "new", right=True) - began < 1.0


async def test_all_strangers_together_have_a_hundred_checks_a_second(
    autojump_clock: MockClock,
):
    """Where a check takes 10 ms, one at each of six places in 60 ms; network after network."""
    found = await checked(PasswordChecks(), 3.0, *[f"198.51.100.{n}" for n in range(150)])
    assert 290 <= len(found) <= 306
    assert set(found[:150]) == set(found)
    assert len(set(found)) == 150


async def test_who_waits_too_long_is_told_to_come_again(autojump_clock: MockClock):
    """The log says it once."""
    checks = PasswordChecks()
    with structlog.testing.capture_logs() as lines:
        waits: list[float] = []

        async def guess() -> None:
            try:
                await said(checks)
            except TooManyWrong:
                waits.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(guess)
    assert waits == [15.0] * 23, "10 were checked at once, and 7 in 15 s"
    assert [line["network"] for line in lines] == [THERE]


@pytest.mark.parametrize("limits", [PasswordLimits(), PasswordLimits(credit=1000)])
async def test_nothing_is_lost_where_waiting_ends_early(
    limits: PasswordLimits, autojump_clock: MockClock
):
    """Those who hang up in line, for credit or for a place, leave all to the others."""
    checks = PasswordChecks(limits)
    for _ in range(20):
        with trio.move_on_after(0.015):
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(
                        lambda n: said(checks, f"192.0.2.{n % 4}", took=0.01), number
                    )
    await trio.sleep(600.0)
    began = trio.current_time()
    assert await said(checks, took=1.0) == began
    async with trio.open_nursery() as nursery:
        for _ in range(limits.places):
            nursery.start_soon(lambda: said(checks, took=1.0))
        await wait_all_tasks_blocked()
    assert trio.current_time() < began + 3.0, "all places are there"
    assert not checks._queues


async def test_memory_is_bounded(autojump_clock: MockClock):
    """Of right passwords and of networks the latest are remembered."""
    checks = PasswordChecks(PasswordLimits(remembered=10, places=1000))
    for number in range(2000):
        await said(checks, f"10.0.{number // 256}.{number % 256}", f"right {number}", right=True)
        await said(checks, f"10.0.{number // 256}.{number % 256}")
    assert len(checks._known) == 10
    assert len(checks._credit) <= 11
