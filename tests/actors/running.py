"""Runs one actor under a real supervisor, and waits for what it does to the database."""

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import structlog
import trio
import trio.testing

from relay import log as logging
from relay.db.pool import Pool
from supervisor import ChildSpec, Context, Mailbox, NotRunning, Supervisor, SupervisorSpec
from tests.eventually import eventually


@asynccontextmanager
async def running(
    run: Callable[..., Awaitable[None]], **wiring: Any
) -> AsyncIterator[tuple[Supervisor, Mailbox[Any]]]:
    """Run an actor until the block ends, then drain it; yields its supervisor and mailbox."""
    mailbox: Mailbox[Any] = Mailbox("actor")
    child: Callable[[Context], Awaitable[None]] = functools.partial(run, **wiring)
    supervisor = Supervisor()
    async with trio.open_nursery() as nursery:
        spec = SupervisorSpec("root", (ChildSpec("actor", child, mailbox=mailbox),))
        nursery.start_soon(supervisor.run, spec)
        with trio.fail_after(60):
            yield supervisor, mailbox
            supervisor.shutdown()


class _Undisturbed:
    """As much of a context as an actor's turn looks at: nobody drains or pauses it."""

    def __init__(self) -> None:
        self.draining = trio.Event()
        self.paused = False

    def beat(self) -> None:
        """Nobody watches."""


def undisturbed() -> Any:
    """A context for single turns of an actor, run without a supervisor."""
    return _Undisturbed()


async def becomes(pool: Pool, sql: str, wanted: Any, *parameters: Any) -> None:
    """Wait until the database's answer is the wanted one."""
    await eventually(
        lambda: pool.fetch_value(sql, parameters),
        f"{sql} is {wanted!r}",
        until=lambda value: value == wanted,
    )


async def blocked(pool: Pool, count: int = 1) -> None:
    """Wait until so many statements in this database wait for somebody's lock."""
    sql = """
        SELECT count(*)
        FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'
        """
    await becomes(pool, sql, count)


async def at_rest(pool: Pool) -> None:
    """Wait until every task waits and nobody is at the database: what was begun has ended.

    What an actor has planned for later it has not begun: jump a mock clock there first.
    """

    async def resting() -> bool:
        await trio.testing.wait_all_tasks_blocked()
        return pool.statistics().in_use == 0

    await eventually(resting, "all is at rest")


async def a_turn(mailbox: Mailbox[Any], hint: Any) -> None:
    """Wait until an actor that takes all its messages between turns has been through a whole turn.

    That is so when it takes a second hint: the turn in which it acts on the first one is over.
    """
    for _ in range(2):
        mailbox.send_nowait(hint)
        await eventually(
            lambda: mailbox.statistics().depth, "its messages are taken", until=lambda n: n == 0
        )


Lines = list[dict[str, Any]]


@contextmanager
def kept() -> Iterator[Lines]:
    """The lines of the log from now on, with what SMTP processes say."""
    before = structlog.get_config()
    lines: Lines = []
    logging.configure("info", write=lines.append)
    try:
        yield lines
    finally:
        structlog.configure(**before)


async def logged(lines: Sequence[MutableMapping[str, Any]], event: str) -> None:
    """Wait until an event is among the captured lines of the log."""
    await eventually(
        lambda: [line["event"] for line in lines],
        f"{event} is logged",
        until=lambda events: event in events,
    )


def state(supervisor: Supervisor, name: str) -> str:
    """The state of a child; empty before there is one."""
    with contextlib.suppress(NotRunning):
        for child in supervisor.tree().children:
            if child.name == name:
                return child.state.value
    return ""


async def make_mailbox(pool: Pool, expires_in: float = 600.0, count: int = 1) -> Any:
    """Insert mailboxes by SQL that expire in so many seconds; return the id of the last one."""
    rows = await pool.fetch(
        """
        INSERT INTO relay.mailboxes (address, expires_at)
        SELECT relay.random_local_part() || '@relay.localhost', now() + make_interval(secs => %s)
        FROM generate_series(1, %s)
        RETURNING id
        """,
        (expires_in, count),
    )
    return rows[-1][0]
