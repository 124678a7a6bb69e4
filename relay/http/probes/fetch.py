"""GET over https: from a host that the caller has checked, bounded in time and size, no redirects.

`fetch` is for certificates and confirmations, `fetch_object` for mail in S3.
"""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import trio

from relay.errors import PermanentFailure, TemporaryFailure
from relay.response_body import AS_IT_IS, body_of

TIMEOUT = 10.0  # s, for all of it
MAX_BYTES = 64 * 1024
OBJECT_TIMEOUT = 60.0  # s; SNS has given up by then and comes again
# What a client that encrypts before it stores leaves beside the object: the key, encrypted.
_ENCRYPTED = ("x-amz-meta-x-amz-key", "x-amz-meta-x-amz-key-v2")


class Unreadable(PermanentFailure):
    """What was fetched can never be used."""


async def fetch(url: str) -> bytes:
    """Return the body at `url`; `TemporaryFailure` for anything but a complete 200.

    The caller has checked that the host may be asked; no redirect leads elsewhere.
    """
    if not url.startswith("https://"):
        raise TemporaryFailure("only https is fetched")
    try:
        return (await _get(url, MAX_BYTES, TIMEOUT))[0]
    except Unreadable as error:
        raise TemporaryFailure(str(error)) from error


async def fetch_object(url: str, max_bytes: int) -> bytes:
    """Return the object at `url`, pre-signed.

    `Unreadable` if it is larger, or encrypted by whoever stored it; `TemporaryFailure` for
    anything else but a complete 200: rights and names are mended by people, and asked for again.
    """
    body, headers = await _get(url, max_bytes, OBJECT_TIMEOUT)
    if any(name in headers for name in _ENCRYPTED):
        raise Unreadable("the object is encrypted by its client")
    return body


async def _get(url: str, max_bytes: int, seconds: float) -> tuple[bytes, Mapping[str, str]]:
    try:
        with trio.fail_after(seconds):
            async with (
                httpx.AsyncClient(follow_redirects=False, timeout=seconds) as client,
                client.stream("GET", url, headers=AS_IT_IS) as response,
            ):
                if response.status_code != 200:
                    raise TemporaryFailure(f"the answer was {response.status_code}")
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise TemporaryFailure("the answer is compressed")
                body = await body_of(response, max_bytes)
                if body is None:
                    raise Unreadable("the answer is too large")
    except (httpx.HTTPError, httpx.InvalidURL, trio.TooSlowError) as error:
        raise TemporaryFailure(f"the fetch failed: {type(error).__name__}") from error
    return body, response.headers
