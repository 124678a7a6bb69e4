"""Runs one actor under a real supervisor, and waits for what it does to the database."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from relay.db.pool import Pool
from supervisor import ChildSpec, Context, Mailbox, Supervisor, SupervisorSpec


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
        with trio.fail_after(30):
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
    """Wait until the database's answer is the wanted one (the test's time-out is the limit)."""
    while await pool.fetch_value(sql, parameters) != wanted:
        await trio.sleep(0.005)


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
