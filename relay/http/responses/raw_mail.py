"""Messages byte for byte, on their way to clients a piece at a time.

Promises
  * Of a message no more than a piece is in memory, held within the budget of the downloads; of all
    that are being read a few pieces are loaded at once, and of one owner's fewer.
  * An outage before the first piece is a 503, and a message that is gone no answer of its size.

Fails: where the database goes away later, the answer ends with less than was announced, which tells
its reader.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Hashable
from uuid import UUID

from quart import Response

from relay.errors import TemporaryFailure
from relay.http.limits.fair_limiter import FairLimiter
from relay.http.responses.downloads import Downloads
from relay.log import get_logger
from relay.mailboxes.messages import Messages

log = get_logger()

_LOADED = 256 * 1024  # bytes of a message that are loaded at once
_LOADS, _LOADS_OF_ONE = 4, 2  # pieces that are being loaded: half of a small pool


class RawMail:
    """What answers with messages as they came."""

    def __init__(self, messages: Messages, downloads: Downloads) -> None:
        self._messages = messages
        self._downloads = downloads
        self._loading = FairLimiter(_LOADS, _LOADS_OF_ONE, kept=1)

    async def response(
        self,
        owner: Hashable,
        mailbox_id: UUID,
        message_id: UUID | str,
        size: int,
        content_type: str,
        headers: dict[str, str],
    ) -> Response | None:
        """Return a message of `size` bytes as a response; None if it is gone."""
        held = self._downloads.hold(owner, min(size, _LOADED))

        async def piece(at: int) -> bytes | None:
            async with self._loading.turn(owner):
                return await self._messages.raw_piece(mailbox_id, message_id, at, _LOADED)

        try:
            first = await piece(0)  # while the answer may still be another
        except BaseException:
            held.release()
            raise
        if first is None:
            held.release()
            return None

        async def pieces(loaded: bytes | None) -> AsyncGenerator[bytes, None]:
            at = 0
            while loaded:
                yield loaded
                at += len(loaded)
                loaded = None
                if at >= size:
                    return
                try:
                    loaded = await piece(at)
                except TemporaryFailure as error:
                    log.warning("http.unavailable", error=str(error))

        return self._downloads.response(pieces(first), size, held, content_type, headers)
