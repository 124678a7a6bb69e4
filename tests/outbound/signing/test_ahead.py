"""What waits to be signed: its order, what is handed over together, and whose error is whose."""

import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from relay.crypto import Vault
from relay.errors import PermanentFailure
from relay.outbound.active_queue.jobs import Job
from relay.outbound.delivery.render import mail_of
from relay.outbound.queue.claimed import Claimed
from relay.outbound.signing.ahead import BATCH, LONG, PER_PROCESS, TOGETHER, Result, Signing
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.processes import SigningProcesses
from relay.outbound.signing.signer import Signer
from relay.smtp.client import Mail
from tests.eventually import eventually
from tests.outbound.claims import another
from tests.outbound.signing.test_dkim_keys import OLD

LINE = "a line of text that is as long as those of letters mostly are\n"


def job(priority: int = 1, **more: Any) -> Job:
    fields: dict[str, Any] = {"sender": "a@shop.example", "text_body": "text", "priority": priority}
    fields |= more
    size = len(fields["text_body"])
    return Job(another(**({"size": size} | fields)), 100.0, 0.0)


def write(message: Claimed) -> Mail:
    if message.subject == "bad":
        raise PermanentFailure("it cannot be written")
    return mail_of(message)


class Turns(trio.abc.Instrument):
    """Counts the turns of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class World:
    """A signer with keys, and all that it handed over, call by call."""

    def __init__(self, signer: Signer, nursery: trio.Nursery) -> None:
        self.calls: list[list[Result[str]]] = []
        self.signing: Signing[str] = Signing(
            signer, self.write, lambda made: self.calls.append([*made])
        )
        self.nursery = nursery
        self.turns = Turns()
        self.on_loop = Counter[int]()
        """Bytes that were composed in each turn of the loop."""
        self.longest = 0
        """Bytes of the longest mail that was composed there."""

    def write(self, message: Claimed) -> Mail:
        mail = write(message)
        if threading.current_thread() is threading.main_thread():
            self.on_loop[self.turns.count] += mail.size
            self.longest = max(self.longest, mail.size)
        return mail

    def put(self, line: str, job: Job) -> None:
        self.signing.put(line, job, self.nursery)

    async def has(self, count: int) -> list[Result[str]]:
        """Wait until so many were handed over."""
        made: list[Result[str]] = await eventually(
            lambda: [one for call in self.calls for one in call],
            f"{count} are made",
            until=lambda made: len(made) == count,
        )
        return made


@asynccontextmanager
async def worlds(any_pool, by: str) -> AsyncIterator[World]:
    vault = Vault([OLD])
    keys = DkimKeys(any_pool, vault)
    await keys.create("shop.example")
    processes = SigningProcesses(1)
    signer = Signer(keys, vault, processes)
    await signer.refresh()
    async with trio.open_nursery() as nursery:
        if by == "processes":
            nursery.start_soon(processes.run)
            processes.want()
            await eventually(lambda: processes.ready, "a process signs")
        world = World(signer, nursery)
        trio.lowlevel.add_instrument(world.turns)
        yield world
        trio.lowlevel.remove_instrument(world.turns)
        nursery.cancel_scope.cancel()


both = pytest.mark.parametrize("by", ["threads", "processes"])


@both
async def test_each_mail_is_its_own(any_pool, by: str):
    """Short, long or none at all: what cannot be made says so, and the others are signed."""
    async with worlds(any_pool, by) as world:
        jobs = [
            job(),
            job(subject="bad"),
            job(text_body="a line\n" * 50_000),
            job(sender="a@nobody.example"),
        ]
        for one in jobs:
            world.put("line", one)
        made = {one.key: mail for _, one, mail in await world.has(4)}
    first, bad, long, unsigned = (made[one.key] for one in jobs)
    assert isinstance(bad, PermanentFailure)
    for one, mail, count in (jobs[0], first, 2), (jobs[2], long, 2), (jobs[3], unsigned, 0):
        assert isinstance(mail, Mail)
        assert mail.data.count(b"DKIM-Signature: ") == count
        assert mail.data.endswith(mail_of(one.message).data)


@both
async def test_high_mail_goes_first(any_pool, by: str):
    """Whatever waits: it is behind the batches under way, and is handed over as it is made."""
    async with worlds(any_pool, by) as world:
        for _ in range(10 * BATCH):
            world.put("line", job())
        high = job(0)
        world.put("line", high)
        made = await world.has(10 * BATCH + 1)
    place = [one.key for _, one, _ in made].index(high.key)
    assert place <= (PER_PROCESS + 1) * BATCH
    assert len(world.calls[0]) == place + 1, "nothing that came later went with it"


@pytest.mark.parametrize(
    ("size", "threads"), [(2000, False), (LONG // 2, False), (LONG - 2000, False), (4 * LONG, True)]
)
async def test_the_loop_composes_no_more_than_so_many_bytes_in_a_turn(
    any_pool, size: int, threads: bool
):
    """However many tasks do, and however long mails are: what is long is composed in a thread."""
    async with worlds(any_pool, "processes") as world:
        count = 6 * BATCH
        for _ in range(count):
            world.put("line", job(text_body=LINE * (size // len(LINE))))
        made = await world.has(count)
    assert all(isinstance(mail, Mail) and b"DKIM-Signature" in mail.data for _, _, mail in made)
    if threads:
        assert not world.on_loop
    else:
        assert world.on_loop.total() >= count * size * 0.9
        assert max(world.on_loop.values()) <= LONG + world.longest


@both
async def test_the_mails_of_a_line_come_together(any_pool, by: str):
    """Many for one line: some at a time.  One for another: at once."""
    async with worlds(any_pool, by) as world:
        for _ in range(2 * TOGETHER):
            world.put("busy", job())
        world.put("other", job())
        await world.has(2 * TOGETHER + 1)
    sizes = [len(call) for call in world.calls if call[0][0] == "busy"]
    assert len(sizes) <= 3
    assert [len(call) for call in world.calls if call[0][0] == "other"] == [1]


@both
async def test_what_is_taken_back_is_not_handed_over(any_pool, by: str):
    """All that nobody has begun, and what is signed and waits for the others of its line; what is
    in hand is handed over, and nothing is left."""
    async with worlds(any_pool, by) as world:
        jobs = [job() for _ in range(20 * BATCH)]
        for one in jobs:
            world.put("line", one)
        await eventually(lambda: world.signing._held, "some are signed")
        taken = {one.key for _, one in world.signing.take_all()}
        assert taken
        await world.has(len(jobs) - len(taken))
        made = {one.key for call in world.calls for _, one, _ in call}
        assert made | taken == {one.key for one in jobs}
        assert not made & taken
        # The line is as one of which nothing was ever signed.
        world.put("line", last := job())
        await eventually(lambda: world.calls[-1][-1][1] is last, "it goes on")
