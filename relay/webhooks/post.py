"""Posting to an address that somebody else chose, which must not lead into this network.

Promises
- The host is resolved here and every one of its addresses must be public (`relay.ssrf_guard`).  The
  connection goes to an address that was checked, so a name that resolves differently the next
  moment gains nothing.
- TLS is verified against the name.  No redirect is followed, no proxy asked, no cookie kept, and
  nothing of an answer is read beyond its head, which is bounded (`relay.response_bounds`), and what
  `get` was told to read; all of it within one deadline.

Fails with `NotPosted`, a sentence that repeats nothing of the URL or the answer; with its kind
`Refused` where no other attempt will fare better.

Why a client of its own for each: kept connections are found again by their address, and two
names may share one.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import httpx
import trio

from relay import ssrf_guard
from relay.errors import TemporaryFailure
from relay.net import getaddrinfo
from relay.response_body import AS_IT_IS, body_of
from relay.response_bounds import BoundedTransport, Bounds
from relay.ssrf_guard import BadUrl, NotPublic, Resolve, check_url

FRAMING = 32 * 1024
"""Bytes that a body may have come in more than it has."""


class NotPosted(TemporaryFailure):
    """The post did not reach its receiver, as far as is known."""


class Refused(NotPosted):
    """The URL is none that can be posted to, now or ever."""


class Got(NamedTuple):
    """What was answered to a `get`."""

    status: int
    media_type: str
    """As the server has it, with its parameters."""
    body: bytes


class Poster:
    """Posts; `timeout` in seconds is for all of a post, name look-up included.

    `allow_private` lets it reach this machine and its network: for development, and for relays
    all of whose users are trusted.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        timeout: float = 15.0,
        context: Callable[[], ssl.SSLContext] = ssl.create_default_context,
        resolve: Resolve = getaddrinfo,
    ) -> None:
        """`context` is called by the first post: reading the system's authorities takes 25 ms."""
        self._allow_private = allow_private
        self._timeout = timeout
        self._tls = cache(context)  # the usual one honours SSL_CERT_FILE
        self._resolve = resolve

    async def post(self, text: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Post `body` and return the status of the answer, or raise `NotPosted`."""
        return (await self._ask("POST", text, body, headers)).status

    async def head(self, text: str, headers: Mapping[str, str]) -> int:
        """Ask for the head of what is there, and return the status, or raise `NotPosted`."""
        return (await self._ask("HEAD", text, b"", headers)).status

    async def get(self, text: str, headers: Mapping[str, str], most: int) -> Got:
        """Return what is there, or raise `NotPosted`: if its body has over `most` bytes, too."""
        return await self._ask("GET", text, b"", headers, most)

    async def _ask(
        self, method: str, text: str, body: bytes, headers: Mapping[str, str], most: int = 0
    ) -> Got:
        try:
            url = check_url(text, allow_private=self._allow_private)
        except BadUrl as error:
            raise Refused(f"the URL {error}") from error
        try:
            with trio.fail_after(self._timeout):
                return await self._send(method, url, body, headers, most)
        except (UnicodeError, httpx.InvalidURL) as error:
            # What `check_url` takes and a codec further down does not.
            raise Refused("the URL cannot be posted to") from error
        except trio.TooSlowError as error:
            raise NotPosted(f"no answer within {self._timeout:g} s") from error

    async def _send(
        self, method: str, url: httpx.URL, body: bytes, headers: Mapping[str, str], most: int
    ) -> Got:
        failure: Exception | None = None
        for address in await addresses_of(
            url, allow_private=self._allow_private, resolve=self._resolve
        ):
            request = httpx.Request(
                method,
                url.copy_with(host=address),
                headers={
                    **headers,
                    "Host": url.netloc.decode("ascii"),
                    **AS_IT_IS,
                    "Connection": "close",
                },
                content=body,
                extensions={"sni_hostname": url.raw_host.decode("ascii").strip("[]")},
            )
            bounds = Bounds(most + FRAMING)
            try:
                async with httpx.AsyncClient(
                    transport=BoundedTransport(self._tls(), bounds),
                    trust_env=False,
                    follow_redirects=False,
                    timeout=self._timeout,
                ) as client:
                    response = await client.send(request, stream=True)
                    try:
                        # Of a post, its head has said all that matters.
                        read = await body_of(response, most) if most else b""
                        if read is None:
                            raise NotPosted("the answer is too large")
                        kind = response.headers.get("content-type", "")
                        return Got(response.status_code, kind, read)
                    finally:
                        await response.aclose()
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error  # nothing was sent; the next address may do
            except httpx.HTTPError as error:
                if bounds.passed:
                    raise NotPosted("the answer is too large") from error
                raise NotPosted("the connection broke before an answer came") from error
        why = "TLS could not be agreed" if _is_of_tls(failure) else "no connection"
        raise NotPosted(why) from failure


def _is_of_tls(error: BaseException | None) -> bool:
    """Whether TLS is what an error comes from, through httpx, httpcore and Trio."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error is not None


async def addresses_of(
    url: httpx.URL, *, allow_private: bool = False, resolve: Resolve = getaddrinfo
) -> list[str]:
    """Return every address of the URL's host, each of which may be connected to."""
    host = url.raw_host.decode("ascii").strip("[]")
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        return await ssrf_guard.addresses_of(
            host, port, allow_private=allow_private, resolve=resolve
        )
    except OSError as error:
        raise NotPosted("the host has no address") from error
    except NotPublic as error:
        raise NotPosted(str(error)) from error
