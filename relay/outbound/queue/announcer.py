"""Telling all nodes that mail may be due, once for all that was queued meanwhile.

NOTIFY takes a lock at its commit that all commits of the database share, so it is sent neither in
the transaction of an insert nor once for each.

Promises: what `soon` was called for is announced within `linger` seconds, or `linger` + `rest` of
the announcement before; as high mail if any of it was.

Fails: never.  An announcement that fails is a line of the log: the claimers' sweeps find the mail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import trio

from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.outbound.queue.enqueue import HIGH

log = get_logger()


class Announcer:
    """Calls `announce` with the payload (`HIGH` or nothing), for as long as somebody runs `run`.

    `linger`: seconds to wait for more before an announcement, so that a claimer of this process
    has claimed what it can; `rest`: seconds without one after it.
    """

    def __init__(
        self, announce: Callable[[str], Awaitable[Any]], *, linger: float = 0.0, rest: float = 0.0
    ) -> None:
        self._announce = announce
        self._linger = linger
        self._rest = rest
        self._wanted = trio.Event()
        self._high = False

    def soon(self, *, high: bool = False) -> None:
        """Have it announced that something was queued."""
        self._high = self._high or high
        self._wanted.set()

    async def run(self) -> NoReturn:
        """Announce until cancelled."""
        while True:
            await self._wanted.wait()
            await trio.sleep(self._linger)
            self._wanted = trio.Event()
            high, self._high = self._high, False
            try:
                await self._announce(HIGH if high else "")
            except DatabaseUnavailable as error:
                log.info("claimer.not_announced", reason=str(error))
            await trio.sleep(self._rest)
