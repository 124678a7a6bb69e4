"""Those who wait on one mailbox: where many do one of them looks, and looks in vain are so many."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from operator import lt
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.listen import Bell
from relay.db.pool import Pool
from relay.http.feeds.following_mail import pause
from relay.http.limits.heavy_calls import HeavyCalls
from relay.http.waiting.waiters import Watch
from relay.mailboxes.arrivals import Arrivals
from tests.eventually import eventually
from tests.http.conftest import SMALL, House, open_house


@pytest.fixture
async def many(database_url: str, pool: Pool) -> AsyncIterator[House]:
    """A house where many may wait on one mailbox."""
    limits = dataclasses.replace(SMALL, streams_per_mailbox=20, keep_alive_every=3600.0)
    async with open_house(database_url, pool, limits) as house:
        yield house


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often waits looked, each for itself and one for all."""
    count: Counter[str] = Counter()

    def counted(name: str, look: Callable[..., Any]) -> Callable[..., Any]:
        async def counting(*args: Any, **named: Any) -> Any:
            count[name] += 1
            return await look(*args, **named)

        return counting

    for name in ("next_match", "heads"):
        monkeypatch.setattr(Arrivals, name, counted(name, getattr(Arrivals, name)))
    return count


class Waits:
    """Calls that wait on a mailbox, each for a subject, and what they were answered."""

    def __init__(self, house: House, address: str, token: dict[str, str]) -> None:
        self._house, self._address, self._token = house, address, token
        self.answers: dict[str, Any] = {}

    async def wait(self, subject: str, scope: trio.CancelScope, **more: str) -> None:
        """Wait, and write down which message came."""
        with scope:
            answer = await self._house.client.get(
                f"/api/v1/mailboxes/{self._address}/messages/wait",
                params={"timeout": 50, "subject": subject, **more},
                headers=self._token,
                timeout=60,
            )
            self.answers[subject] = answer.json().get("subject", answer.status_code)

    async def mail(self, subject: str) -> None:
        """Have some come."""
        await self._house.deliver(
            self._address, f"From: a@b.example\r\nSubject: {subject}\r\n\r\nx".encode()
        )

    async def answered(self, subject: str, mail: str) -> None:
        """Return once this was what came to whoever waited for it."""
        got = await eventually(lambda: self.answers.get(subject), subject, until=bool)
        assert got == mail


async def test_where_many_wait_one_looks_for_all(many: House, looks: Counter[str]):
    """However many wait for another, a mail costs one look, and one more of whom it is for; who
    leads may be answered or go, and nobody misses any."""
    waits = Waits(many, *await many.mailbox())
    scopes = [trio.CancelScope() for _ in range(10)]
    async with trio.open_nursery() as nursery:
        for number, scope in enumerate(scopes):
            nursery.start_soon(waits.wait, f"code {number}.", scope)
        await eventually(lambda: looks["next_match"], "first looks", until=lambda n: n == 10)
        await many.waiting(count=10)
        for number in range(6):
            had = looks["heads"]
            await waits.mail(f"nobody's {number}")
            await eventually(lambda: looks["heads"], "a look", until=partial(lt, had))
        # The first two looked each for itself, once or twice.
        assert looks["next_match"] <= 10 + 2 * 2
        for number in (9, 3, 0):
            await waits.mail(f"your CODE {number}.")
            await waits.answered(f"code {number}.", f"your CODE {number}.")
        for number in (1, 2, 4, 5):
            scopes[number].cancel()
            await waits.mail(f"nobody's, {number}")
        for number in (8, 6, 7):
            await waits.mail(f"code {number}.")
        for number in (8, 6, 7):
            await waits.answered(f"code {number}.", f"code {number}.")
        assert looks["next_match"] <= 10 + 2 * 2 + 6 + 4


async def test_who_waits_in_a_crowd_hears_of_the_mailbox_end(many: House, looks: Counter[str]):
    """All of them, at once."""
    address, token = await many.mailbox()
    waits = Waits(many, address, token)
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(waits.wait, f"code {number}.", trio.CancelScope())
        await eventually(lambda: looks["next_match"], "first looks", until=lambda n: n == 6)
        await waits.mail("nobody's")
        await eventually(lambda: looks["heads"], "a look", until=bool)
        answer = await many.client.delete(f"/api/v1/mailboxes/{address}", headers=token)
        assert answer.status_code == 204
    # Each ends: at the mailbox's end, and not with its time-out.
    assert set(waits.answers.values()) == {404}


async def test_nobody_rests_for_what_another_has_looked_for_in_vain(
    many: House, looks: Counter[str], monkeypatch: pytest.MonkeyPatch
):
    """Those of another owner have a leader of their own."""

    def rest(_: HeavyCalls, owner: Hashable) -> float:
        return 0.0 if owner == ADMINISTRATOR_ID else 60.0

    monkeypatch.setattr(HeavyCalls, "looked_in_vain", rest)
    address, token = await many.mailbox()
    strangers, administrator = Waits(many, address, token), Waits(many, address, many.admin)
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(strangers.wait, f"code {number}.", trio.CancelScope())
        await eventually(lambda: looks["next_match"], "first looks", until=lambda n: n == 4)
        await many.waiting(count=4)
        await strangers.mail("nobody's")
        await eventually(lambda: looks["heads"], "a look", until=bool)
        nursery.start_soon(administrator.wait, "the one", trio.CancelScope())
        await many.waiting(count=5)
        await administrator.mail("the one")
        await administrator.answered("the one", "the one")
        nursery.cancel_scope.cancel()


def test_looks_in_vain_are_so_many_a_second_for_an_owner(autojump_clock: MockClock):
    """Who has more rests, the longer the more there are, never long; the administrator does not."""

    async def main() -> None:
        turns = HeavyCalls(())
        assert [turns.looked_in_vain("a") for _ in range(100)] == [0.0] * 100
        assert turns.looked_in_vain("a") == pytest.approx(0.02)
        assert turns.looked_in_vain("a") == pytest.approx(0.04)
        assert turns.looked_in_vain("b") == 0.0
        assert [turns.looked_in_vain(ADMINISTRATOR_ID) for _ in range(1000)] == [0.0] * 1000
        assert max(turns.looked_in_vain("a") for _ in range(1000)) == pytest.approx(5.0, abs=0.02)
        await trio.sleep(8)
        assert turns.looked_in_vain("a") == 0.0

    trio.run(main, clock=autojump_clock)


async def test_a_wait_that_rests_is_woken_after_it(autojump_clock: MockClock):
    """Mail that comes meanwhile is looked at then; its time-out and the relay's end come first."""
    calls: Any = SimpleNamespace(refusal=_not_refused)
    draining, began = trio.Event(), trio.current_time()

    async def woken(seconds: float, rest: float, *rings: float) -> tuple[bool, float]:
        bell, start = Bell(), trio.current_time()
        async with trio.open_nursery() as nursery:
            for at in rings:
                nursery.start_soon(_ring, bell, at)
            heard = await pause(
                calls, Watch(bell), seconds, rest=rest, draining=draining, keep_alive_every=15
            )
            nursery.cancel_scope.cancel()
        return heard, round(trio.current_time() - start, 3)

    assert await woken(30, 0, 1) == (True, 1)
    assert await woken(30, 5, 1, 2) == (True, 5)
    assert await woken(30, 5, 7) == (True, 7)
    assert await woken(3, 5, 1) == (True, 3)
    assert await woken(20, 5) == (False, 20)
    draining.set()
    assert await woken(30, 5, 1) == (True, 1)
    assert trio.current_time() > began


async def _not_refused() -> None:
    await trio.lowlevel.checkpoint()


async def _ring(bell: Bell, at: float) -> None:
    await trio.sleep(at)
    bell.ring()


async def test_a_head_tells_what_a_look_would_find(pool: Pool, house: House):
    """Parts of texts are compared as the database does: whatever their case, and in any script."""
    arrivals = Arrivals(pool)
    subjects = [
        "Your code", "STRASSE ẞ", "straße", "ΟΔΥΣΣΕΥΣ", "İstanbul", "273 K", "100% \\_", "ΐ", "",
        "Ж" * 3000, "nothing",
    ]  # fmt: skip
    needles = [
        "CODE", "ß", "ss", "ς", "Σ", "σ", "istanbul", "İ", "i̇", "k", "K", "%", "\\_", "ΐ", "ж",
        "a needle of more than sixteen", "nothing", f"{uuid4()}",
    ]  # fmt: skip
    for subject in subjects:
        address, _ = await house.mailbox()
        await house.deliver(address, b"From: Ada@example.org\r\n\r\nx")
        mailbox = await pool.fetch_value(
            "SELECT id FROM relay.mailboxes WHERE address = %s", (address,)
        )
        await pool.execute(
            "UPDATE relay.summaries SET subject = %s WHERE mailbox_id = %s",
            (subject or None, mailbox),
        )
        heads = await arrivals.heads(mailbox, 0)
        assert heads is not None
        (head,) = heads.found
        for sender in (None, "ada@", "bob"):
            for needle in needles:
                found = await arrivals.next_match(mailbox, sender=sender, subject=needle)
                assert found is not None
                sought = await arrivals.sought(sender, needle, None)
                certain = head.subject is not None
                assert certain == (len(subject.encode()) <= 4000)
                if certain:
                    assert sought.may_be(head) is (found.message is not None), (subject, needle)
                elif found.message is not None:
                    assert sought.may_be(head)
