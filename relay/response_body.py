"""The body of an HTTP answer that somebody else wrote: read up to a bound, as it came.

Each chunk of it is an object and some calls, whatever its size: a body of more than `MOST_PIECES`
is read no further, and between each `AT_ONCE` others have their turn.

What was compressed is not unpacked, as a few bytes may be gigabytes: whoever asks says that nothing
is to be (`AS_IT_IS`), and sees a `Content-Encoding` in the answer of who does it all the same.
"""

from __future__ import annotations

import httpx
import trio

AS_IT_IS = {"Accept-Encoding": "identity"}
"""What a request says so that the answer's body is not compressed."""

MOST_PIECES = 2_000
AT_ONCE = 64
"""Pieces."""


async def body_of(response: httpx.Response, max_bytes: int) -> bytes | None:
    """Return the body of a streamed answer; None if it has more bytes, which are not read, or comes
    in more than `MOST_PIECES`."""
    body = bytearray()
    pieces = 0
    # Cancelled, not left: httpx reads through generators within generators, which only an exception
    # from the innermost ends in order.
    with trio.CancelScope() as reading:
        async for chunk in response.aiter_raw():
            pieces += 1
            if len(body) + len(chunk) > max_bytes or pieces > MOST_PIECES:
                reading.cancel()
            else:
                body += chunk
            if pieces % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
    return None if reading.cancel_called else bytes(body)
