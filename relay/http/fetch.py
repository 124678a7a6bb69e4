"""A careful GET: over https, to an address already checked, bounded in time and size."""

from __future__ import annotations

import httpx
import trio

from relay.errors import TemporaryFailure

TIMEOUT = 10.0  # s, for all of it
MAX_BYTES = 64 * 1024


async def fetch(url: str) -> bytes:
    """Return the body at `url`; `TemporaryFailure` for anything but a complete 200.

    The caller has checked that the host may be asked; no redirect leads elsewhere.
    """
    if not url.startswith("https://"):
        raise TemporaryFailure("only https is fetched")
    body = bytearray()
    try:
        with trio.fail_after(TIMEOUT):
            async with (
                httpx.AsyncClient(follow_redirects=False) as client,
                client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response,
            ):
                if response.status_code != 200:
                    raise TemporaryFailure(f"the answer was {response.status_code}")
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_BYTES:
                        raise TemporaryFailure("the answer is too large")
    except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError) as error:
        raise TemporaryFailure(f"the fetch failed: {type(error).__name__}") from error
    return bytes(body)
