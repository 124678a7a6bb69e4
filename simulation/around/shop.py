"""The product whose accounts they are.

It makes and changes them by SQL, in transactions of its own, and suspends some for a while, over
HTTP.
"""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any, NoReturn

import trio

from simulation.around import Around
from simulation.around.talk import HttpFailed, call
from simulation.history import ACTIVATION, RECOVERY, Answer, Suspension
from simulation.world import NODE

_BRIEF = (5, 20, 60)
"""Seconds for which some tokens are good."""


class _Undone(Exception):
    """It was thought better of."""


async def shop(around: Around, name: str, mean: float) -> None:
    """Make accounts, recover some, and make tokens that are good for a short time only."""
    NODE.set(name)
    rng = around.world.here
    while await around.pause(rng, mean):
        known = [each for each in around.history.accounts if each in around.history.ids]
        does = rng.random()
        if does < 0.3 or not known:
            email = f"{around.marker('acc').lower()}@people.example"
            around.history.accounts[email] = Answer.DOUBT
            sql = "INSERT INTO relay.accounts (email, login) VALUES (%(email)s, %(email)s)"
            answer, made = await _transact(around, rng, sql + " RETURNING id", {"email": email})
            around.history.accounts[email] = answer
            if answer is Answer.KEPT:
                around.history.ids[email] = [str(made)]
            around.world.tell("account.answered", email=email, answer=answer)
            continue
        email = rng.choice(known)
        if does < 0.5:
            action = RECOVERY
            sql = "SELECT relay.recover_account(id) FROM relay.accounts WHERE email = %(email)s"
        else:
            action = rng.choice((ACTIVATION, RECOVERY))
            sql = """
                INSERT INTO relay.tokens (account, action, expires_at)
                SELECT id, %(action)s::relay.token_action,
                       extract(epoch FROM now())::integer + %(seconds)s
                FROM relay.accounts
                WHERE email = %(email)s
                RETURNING id
                """
        values = {"email": email, "action": action, "seconds": rng.choice(_BRIEF)}
        answer, _ = await _transact(around, rng, sql, values)
        around.history.asked.setdefault(email, []).append((action, answer))
        around.world.tell("letter.answered", email=email, asks=action, answer=answer)


async def _transact(
    around: Around, rng: Any, sql: str, values: dict[str, Any]
) -> tuple[Answer, Any]:
    """Do something in a transaction that takes its time, and is not committed in each case."""
    import psycopg

    from relay.errors import DatabaseUnavailable, RolledBack

    assert around.sql is not None
    takes, undone = rng.choice((0.0, 0.0, rng.uniform(0.0, 2.0))), rng.random() < 0.2
    try:
        async with around.sql.transaction() as conn:
            row = await (await conn.execute(sql, values)).fetchone()
            await trio.sleep(takes)
            if undone or row is None:
                _undo()
    except (_Undone, RolledBack):
        return Answer.REFUSED, None
    except DatabaseUnavailable:
        return Answer.DOUBT, None
    except psycopg.Error:
        return Answer.REFUSED, None
    return Answer.KEPT, row[0]


def _undo() -> NoReturn:
    raise _Undone


async def hold(
    around: Around,
    email: str,
    seconds: float,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Have a transaction that holds somebody's account for so long."""
    from relay.errors import DatabaseUnavailable

    assert around.sql is not None
    sql = "SELECT FROM relay.accounts WHERE email = %s FOR NO KEY UPDATE"
    held = False
    try:
        async with around.sql.transaction() as conn:
            await conn.execute(sql, [email])
            held = True
            task_status.started()
            await trio.sleep(seconds)
    except DatabaseUnavailable:
        if not held:
            task_status.started()


async def moderator(around: Around, name: str, mean: float) -> None:
    """Suspend an account now and then, and end that soon."""
    NODE.set(name)
    rng, world = around.world.here, around.world
    while await around.pause(rng, mean):
        # What was asked for in doubt may be done at any later time: such an account is left alone.
        doubtful = {each.email for each in around.history.suspensions if each.ended == inf}
        known = [
            each
            for each in around.history.accounts
            if each in around.history.ids and each not in doubtful
        ]
        if not known:
            continue
        email = rng.choice(known)
        suspension = Suspension(email, world.now())
        around.history.suspensions.append(suspension)
        if sure := await _set(around, rng, email, "suspend"):
            suspension.since = world.now()
        with trio.move_on_after(rng.uniform(2.0, 40.0)):
            await around.stopped.wait()
        suspension.until = world.now()
        while not await _set(around, rng, email, "unsuspend"):
            sure = False
            await trio.sleep(rng.uniform(0.0, 5.0))
        if sure:
            suspension.ended = world.now()


async def _set(around: Around, rng: Any, email: str, how: str) -> bool:
    """Suspend an account, or end that; whether it is done."""
    path = f"/api/v1/accounts/{around.history.ids[email][0]}/{how}"
    status = 0
    with suppress(HttpFailed):
        status, _ = await call(around, around.choose(rng), "POST", path)
    around.world.tell("account.set", email=email, how=how, status=status)
    return status == 200
