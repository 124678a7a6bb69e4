"""returns: reads what came back of mail that was sent, and makes it the truth of its message.

Promises
- What came to a return path is looked at within milliseconds when idle; a message is a reason to
  look, and so is the clock (`sweep_every`).
- It is read in a child process that can be killed (`relay.mailboxes.parser`): of the mail itself
  this process reads nothing.  What no child can read within its limits is dropped after
  `_ATTEMPTS`, with a line in the log.
- What follows is `relay.returns.law`; what is done about it `relay.outbound.bounces.returned`,
  once.
- A complaint at the address for complaints counts for the message whose return path it names, if
  that is one of ours.

Fails: never on an outage of the database (back-off, one warning).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from uuid import UUID

import psycopg

from actors.periodic import wait_for_messages
from relay.errors import TemporaryFailure
from relay.load import cpu_seconds
from relay.log import get_logger
from relay.mailboxes.parser import Parser
from relay.outage import Outage
from relay.outbound.bounces.returned import RETURNS, About, Came, Returned, tell
from relay.returns.law import Finding, finding
from relay.returns.paths import ReturnPaths
from relay.returns.report import COMPLAINT, Report, is_from_nobody
from supervisor import Context, Drained, Process

log = get_logger()

_ATTEMPTS = 5
_SOON = 2.0


async def run(
    ctx: Context,
    *,
    returned: Returned,
    paths: ReturnPaths,
    parse_timeout: float = 5.0,
    sweep_every: float = 5.0,
    soon: float = _SOON,
) -> None:
    """Read until drained.

    `parse_timeout`: seconds that one mail may take; `sweep_every`: seconds after which it looks
    although nobody called; `soon`: after which a report of a message that is still being delivered
    is looked at again, the second time after twice as many.
    """
    with closing(Parser(deadline=parse_timeout)) as parser:
        reading = _Reading(returned, paths, parser, soon, ctx.beat)
        ctx.processes = partial(_processes, parser)
        outage = Outage()
        seconds = 0.0
        ctx.ready()
        try:
            while True:
                await wait_for_messages(ctx, seconds)
                try:
                    while not (ctx.draining.is_set() or ctx.paused) and await reading.some():
                        pass
                except (TemporaryFailure, psycopg.Error) as error:
                    if not outage.is_on:
                        own = isinstance(error, TemporaryFailure)
                        log.warning(
                            "returns.wait", reason=str(error) if own else type(error).__name__
                        )
                    seconds = outage.lost()
                else:
                    seconds = sweep_every
                    if outage.over():
                        log.info("returns.recovered")
        except Drained:
            return


def _processes(parser: Parser) -> list[Process]:
    if parser.pid is None and not parser.restarts:
        return []
    return [Process("parser", parser.pid, parser.restarts, cpu_seconds(parser.pid))]


class _Reading:
    def __init__(
        self,
        returned: Returned,
        paths: ReturnPaths,
        parser: Parser,
        soon: float,
        beat: Callable[[], None],
    ) -> None:
        self._returned = returned
        self._paths = paths
        self._parser = parser
        self._soon = soon
        self._beat = beat

    async def some(self) -> bool:
        """Read some of what is due; whether there was any."""
        came = await self._returned.claim()
        for one in came:
            report, fault = await self._parser.report(one.raw)
            self._beat()  # one may take the parser all of its time
            if report is None:
                if one.attempt < _ATTEMPTS:
                    continue  # it is due again when its lease is over
                log.warning("returns.unread", reason=fault, size=len(one.raw))
                await self._end(one, "unread")
                continue
            await self._follow(one, report)
        return bool(came)

    async def _follow(self, one: Came, report: Report) -> None:
        message_id = one.message_id or self._named(report)
        about = await self._returned.about(message_id) if message_id else None
        found = None
        if about is not None:
            found = finding(report, about.recipient, from_nobody=is_from_nobody(one.raw))
        if about is None or found is None:
            log.info(
                "returns.ignored", id=message_id and str(message_id), report=report.kind or None
            )
            await self._end(one, "ignored")
            return
        await self._apply(one, about, found)

    def _named(self, report: Report) -> UUID | None:
        """The message that a complaint is about, by its return path."""
        if report.kind != COMPLAINT:
            return None
        named = map(self._paths.message_of, report.paths)
        return next((message_id for message_id in named if message_id is not None), None)

    async def _apply(self, one: Came, about: About, found: Finding) -> None:
        applied = await self._returned.apply(about, found, one.id)
        if applied is None:
            if one.attempt < _ATTEMPTS * 4:
                await self._returned.later(one.id, self._soon * one.attempt)
            else:
                await self._end(one, "ignored")
        else:
            tell(about, found, applied)

    async def _end(self, one: Came, outcome: str) -> None:
        RETURNS.labels(outcome).inc()
        await self._returned.drop(one.id)
