"""Handing mail to the writer: whatever becomes of it, there is an answer."""

from collections.abc import Mapping
from itertools import count
from uuid import UUID

import pytest
import trio
import trio.testing

from actors.accepting import Acceptor, AskedMailboxes, Returns, hand_over, hand_over_nowait
from actors.messages import Accept
from relay import ids
from relay.accepted import Accepted
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, OverQuota
from relay.ids import new_id
from relay.mailboxes.accept import Lookups
from relay.outbound.bounces.returned import PATH_ROWS, ROWS
from relay.returns.paths import ReturnPaths
from relay.returns.report import READ
from supervisor import ChildSpec, Context, Mailbox, Restart, Supervisor, SupervisorSpec
from tests.eventually import eventually


def message() -> Accept:
    """A message for one mailbox."""
    return Accept("", ((new_id(), "a@b"),), b"x")


class _Writer(Mailbox[Accept]):
    """A mailbox whose reader answers at once."""

    def __init__(self, outcome: Accepted) -> None:
        super().__init__("writer")
        self._outcome = outcome
        self.sent: list[Accept] = []

    async def send(self, message: Accept) -> None:
        self.send_nowait(message)

    def send_nowait(self, message: Accept) -> None:
        self.sent.append(message)
        message.reply.settle(self._outcome)


async def test_mail_for_the_writer_is_stored_or_a_temporary_failure(pool: Pool):
    """What the writer says becomes the answer: the ids by address, or try again."""
    wanted = new_id()

    async def accept(outcome: Accepted) -> Mapping[str, UUID]:
        return await Acceptor(_Writer(outcome), pool).accept("", [(wanted, "a@b")], b"x")

    stored = await accept(Accepted({"a@b": wanted}))
    assert stored == {"a@b": wanted}
    with pytest.raises(DatabaseUnavailable):
        await accept(Accepted({}, "no database"))
    with pytest.raises(OverQuota):
        await accept(Accepted({}, full=frozenset({"a@b"})))


async def test_messages_of_one_mail_are_of_one_instant(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly they are named: by their time they are told from other mail."""
    seconds = count(1)
    monkeypatch.setattr(ids._ids, "_clock", lambda: next(seconds) * 1_000_000_000)
    writer = _Writer(Accepted({}))
    mailboxes = AskedMailboxes(Lookups(pool), writer, None)
    mailboxes.store("", dict.fromkeys(["a@b", "c@d", "e@f"], ""), b"x", None, None)
    (sent,) = writer.sent
    assert len({message_id.int >> 80 for message_id, _ in sent.recipients}) == 1


def test_who_does_not_wait_is_told_that_the_writer_is_behind():
    """At once, and what has a place in its mailbox waits for its answer."""
    writer: Mailbox[Accept] = Mailbox("writer", capacity=1)
    assert not hand_over_nowait(writer, message()).settled
    assert hand_over_nowait(writer, message()).result() == Accepted({}, "the writer is behind")


async def ended(writer: Mailbox[Accept]) -> None:
    """Run a writer that reads nothing, and ends when everybody waits."""

    async def ends(ctx: Context) -> None:
        ctx.ready()
        await trio.testing.wait_all_tasks_blocked()

    spec = ChildSpec("writer", ends, restart=Restart.TEMPORARY, significant=True, mailbox=writer)
    await Supervisor().run(SupervisorSpec("root", (spec,)))


async def test_a_writer_that_has_ended_is_an_answer():
    """To who waits, and to who does not."""
    writer: Mailbox[Accept] = Mailbox("writer")
    with trio.fail_after(20):
        await ended(writer)
        assert await hand_over(writer, message()) == Accepted({}, "the writer has ended")
    assert hand_over_nowait(writer, message()).result() == Accepted({}, "the writer has ended")


async def test_a_writer_that_ends_while_one_waits_for_room_is_an_answer():
    """Who waits is told when it ends."""
    writer: Mailbox[Accept] = Mailbox("writer", capacity=1)
    writer.send_nowait(message())
    answers: list[Accepted] = []

    async def wait() -> None:
        answers.append(await hand_over(writer, message()))

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await ended(writer)
    assert answers == [Accepted({}, "the writer has ended")]


PATHS = ReturnPaths("returns.example", lambda: (b"k" * 32,))
FBL = "fbl@returns.example"


async def test_of_a_mail_to_many_return_paths_no_more_is_kept_than_of_one(pool: Pool):
    """Each has its share of the front; a path that is nobody's keeps nothing."""
    paths = [PATHS.path_of(new_id()) for _ in range(100)]
    returns = Returns(pool, PATHS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(returns.run)
        accepted = await returns.keep("", [*paths, "b-x@returns.example"], b"x" * (READ + 1)).wait()
        assert set(accepted.stored) == set(paths)
        one = await returns.keep("", paths[:1], b"x" * (READ + 1)).wait()
        nursery.cancel_scope.cancel()
    sizes = (
        "SELECT array_agg(DISTINCT octet_length(raw) ORDER BY octet_length(raw)) FROM relay.returns"
    )
    assert await pool.fetch_value(sizes) == [READ // 101, READ]
    assert len(one.stored) == 1


async def test_what_comes_back_is_refused_for_now_when_too_much_waits(pool: Pool):
    """Complaints first, at RCPT and at the dot; when it was read, there is room again."""
    path = PATHS.path_of(new_id())
    fill = "INSERT INTO relay.returns (raw) SELECT '' FROM generate_series(1, %s)"
    returns = Returns(pool, PATHS)

    async def full(address: str) -> bool:
        try:
            return await returns.find(address).wait() is not None
        except OverQuota:
            return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(returns.run)
        assert await returns.find("b-x@returns.example").wait() == "unknown"
        await pool.execute(fill, (ROWS // 4,))
        assert (await returns.keep("", [FBL], b"x").wait()).full == {FBL}
        assert await full(FBL)
        assert not await full(path)
        await pool.execute(fill, (ROWS,))
        await eventually(lambda: counted(returns), "all is full", until=bool)
        assert await full(path)
        await pool.execute("TRUNCATE relay.returns")
        await eventually(
            lambda: full(FBL), "there is room again", until=lambda is_full: not is_full
        )
        assert set((await returns.keep("", [FBL], b"x").wait()).stored) == {FBL}
        nursery.cancel_scope.cancel()


async def counted(returns: Returns) -> bool:
    """Whether a mail to another path is not kept."""
    return bool((await returns.keep("", [PATHS.path_of(new_id())], b"x").wait()).full)


async def test_who_has_one_return_path_shuts_nobody_out(pool: Pool):
    """Of its message little waits, whether many mails came or large ones; others' are kept."""
    many, large, other = (PATHS.path_of(new_id()) for _ in range(3))
    returns = Returns(pool, PATHS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(returns.run)
        for path, size, most in ((many, 1, PATH_ROWS), (large, READ, 1)):
            came = [returns.keep("", [path], b"x" * size) for _ in range(2 * PATH_ROWS)]
            came += [returns.keep("", [path, other], b"x" * size)]
            answers = [await one.wait() for one in came]
            assert [path in one.stored for one in answers].count(True) == most
            assert [one.full == {path} for one in answers].count(True) == len(came) - most
            assert other in answers[-1].stored
        await pool.execute("TRUNCATE relay.returns")
        assert set((await returns.keep("", [large], b"x").wait()).stored) == {large}
        nursery.cancel_scope.cancel()
