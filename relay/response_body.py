"""The body of an HTTP answer that somebody else wrote: read up to a bound, as it came.

What was compressed is not unpacked, as a few bytes may be gigabytes: whoever asks says that nothing
is to be (`AS_IT_IS`), and sees a `Content-Encoding` in the answer of who does it all the same.
"""

from __future__ import annotations

import httpx
import trio

AS_IT_IS = {"Accept-Encoding": "identity"}
"""What a request says so that the answer's body is not compressed."""


async def body_of(response: httpx.Response, max_bytes: int) -> bytes | None:
    """Return the body of a streamed answer; None if it has more bytes, which are not read."""
    body = bytearray()
    # Cancelled, not left: httpx reads through generators within generators, which only an exception
    # from the innermost ends in order.
    with trio.CancelScope() as reading:
        async for chunk in response.aiter_raw():
            if len(body) + len(chunk) > max_bytes:
                reading.cancel()
            else:
                body += chunk
    return None if reading.cancel_called else bytes(body)
