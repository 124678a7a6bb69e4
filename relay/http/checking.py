"""Messages that are checked: read where hostile mail hurts nobody, a few at a time.

Promises
  * Owners share the places; a message is in memory only while it is read, within a budget.

Fails with 503 where too many are checked at once, and for a message that cannot be read within the
parser's limits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from uuid import UUID

from relay.errors import TemporaryFailure
from relay.http.deps import Deps
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.problems.details import unavailable
from relay.http.responses.downloads import Downloads
from relay.mailboxes.examination import Examined

_CHECKS, _CHECKS_OF_ONE, _WAITING = 16, 4, 16
_PATIENCE = 15.0  # s until a check begins; those before it may ask a DNS that does not answer


class Checking:
    """The places, for all calls that check."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._turns = FairLimiter(_CHECKS, _CHECKS_OF_ONE, kept=1, waiting=_WAITING)
        self._memory = Downloads(deps.limits.download_bytes // 4)

    @asynccontextmanager
    async def examined(
        self, owner: Hashable, mailbox_id: UUID, message_id: str, size: int
    ) -> AsyncIterator[Examined | None]:
        """Have a place for the block, with what a message tells; None where it is gone."""
        try:
            async with self._turns.turn(owner, _PATIENCE):
                held = self._memory.hold(owner, size)
                try:
                    raw = await self._deps.messages.raw(mailbox_id, message_id)
                    found = None if raw is None else await self._read(raw)
                    del raw
                finally:
                    held.release()
                yield found
        except Crowded:
            raise unavailable("Too many messages are being checked; try again.") from None

    async def _read(self, raw: bytes) -> Examined:
        try:
            return await self._deps.examine(raw)
        except TemporaryFailure as error:
            raise unavailable(f"The message could not be examined: {error}.") from error
