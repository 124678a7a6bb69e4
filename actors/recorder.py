"""The recorder: writes down once a minute what moved, so that charts know the last day.

When it writes is decided here; what a row holds is `relay/history.py`.

Promises
- A row a minute, a moment after the minute's end by the database's clock; in a drain what was
  counted since, after those who count have ended.
- Every relay on a database records: they add to the same row.

Fails: never on an outage of the database; what was counted meanwhile is in the next row.  A
statement that the database refuses is logged, and tried again a minute later.

Why an actor: a minute is nobody else's pace.  The reaper's rounds last as long as there is to
remove, one node reaps for all, and a process without the control plane counts, too.
"""

from __future__ import annotations

import psycopg
import trio

from actors.periodic import wait_for_messages
from relay.errors import DatabaseUnavailable
from relay.history import History
from relay.log import get_logger
from relay.outage import Outage
from supervisor import Context, Drained

log = get_logger()

_AGAIN = 60.0  # s, after a statement that was refused
_LONGEST = 10.0  # s between two attempts in an outage
_LAST = 2.0  # s for the last row


async def run(ctx: Context, *, history: History) -> None:
    """Record until drained, and once more then."""
    outage = Outage(longest=_LONGEST)
    ctx.ready()
    try:
        while True:
            try:
                seconds = await history.record()
            except DatabaseUnavailable as error:
                if not outage.is_on:
                    log.warning("recorder.waits_for_database", reason=str(error))
                seconds = outage.lost()
            except psycopg.Error as error:
                log.warning("recorder.refused", error=type(error).__name__)
                seconds = _AGAIN
            else:
                if outage.over():
                    log.info("recorder.recovered")
            await wait_for_messages(ctx, seconds)
    except Drained:
        with trio.move_on_after(_LAST):
            try:
                await history.record()
            except (DatabaseUnavailable, psycopg.Error) as error:
                log.info("recorder.left", reason=type(error).__name__)
