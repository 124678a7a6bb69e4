"""Calls over HTTP, by httpx: the clients that make them, one try, and how a flow is carried out.

Promises: a try ends in its time, and takes so many bytes and no more (`relay_client._bounds`).
What httpx logs of a call is spelt, its status line's phrase for one: whoever answers has said that.
Fails: what a flow is thrown is httpx's `TransportError`, or a `RelayError` where the call cannot be
made at all.
"""

from __future__ import annotations

import json
import logging
import ssl
import time
from typing import Any, TypeVar, cast
from urllib.parse import urlencode

import anyio
import httpx

from relay_client._bounds import LATE, BodyReader, time_limit
from relay_client._connect import Connection
from relay_client._exchange import (
    ANSWER_TIMEOUT,
    Answer,
    ApiRequest,
    Flow,
    Pause,
    address_of,
)
from relay_client._text import MAX_NAME, in_a_line, quoted
from relay_client.errors import RelayError

T = TypeVar("T")

__tracebackhide__ = True  # a test that fails shows the test

GRACE = 5.0
"""Seconds by which the answer to a wait may be late."""

_REPLY = 30.0  # s until an answer begins, or goes on
_CONNECT = 5.0  # s until there is a connection


class _Spelt(logging.Filter):
    """Has a record drive nothing where it is shown: live on a terminal, or in the log of CI."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.args:
            said = record.args if isinstance(record.args, tuple) else (record.args,)
            record.args = tuple(
                in_a_line(one, MAX_NAME) if isinstance(one, str) else one for one in said
            )
        else:
            record.msg = in_a_line(str(record.msg))
        return True


# Of the whole process, since they know of no client.  The second logs a call's pieces, for DEBUG.
for _name in ("httpx", "httpcore.http11"):
    logging.getLogger(_name).addFilter(_Spelt())


class _Jar(httpx.Cookies):
    """Cookies, asked for only where an answer sets one.

    No relay does, but what stands in front of several may.  To look, the standard library's jar
    makes two objects of its own of each call.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        if "Set-Cookie" in response.headers:
            super().extract_cookies(response)


# What httpx sends that changes nothing: every header costs both sides, call by call.
_NEEDLESS = ("Connection",)


class _Lean:
    """What `Client` and `AsyncClient` have before httpx's own: what no call needs is left out."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._jar = _Jar()
        http = cast("httpx.Client | httpx.AsyncClient", self)
        for name in _NEEDLESS:
            del http.headers[name]
        self.address = str(http.base_url).rstrip("/")

    @property
    def cookies(self) -> httpx.Cookies:
        """What is sent to whoever set it."""
        return self._jar

    @cookies.setter
    def cookies(self, cookies: Any) -> None:
        self._jar = _Jar(cookies)


class Client(_Lean, httpx.Client):
    """httpx's client, as lean as that."""


class AsyncClient(_Lean, httpx.AsyncClient):
    """The same for asyncio and Trio."""


Made = TypeVar("Made", Client, AsyncClient)


def client(kind: type[Made], where: Connection, **more: Any) -> Made:
    """Make one of these.

    It fails where the environment is wrong.  What httpx raises then has a proxy's password in its
    text, and the token in its frames: nothing of either is passed on.
    """
    try:
        return kind(**where.arguments, **more)
    except OSError as error:
        wrong = "the certificates of SSL_CERT_FILE cannot be read"
        if error.filename is not None:
            wrong = "the file of SSLKEYLOGFILE cannot be written"
        wrong += f": {error.strerror}"
    except ImportError:
        wrong = "a SOCKS proxy of the environment needs httpx[socks] to be installed"
    except (httpx.InvalidURL, ValueError):
        wrong = "a proxy of the environment has no URL that can be read: HTTP_PROXY or its like"
    raise RelayError(wrong)  # with no context


def _request(http: httpx.Client | httpx.AsyncClient, request: ApiRequest) -> httpx.Request:
    longest = _REPLY if request.time_limit is None else min(_REPLY, request.time_limit)
    query = urlencode(request.params)
    # Made whole: httpx reads what it puts together itself three times over.
    url = f"{cast('_Lean', http).address}{request.path}{query and f'?{query}'}"
    return http.build_request(
        request.method,
        url,
        content=None if request.body is None else _json(request.body),
        headers={**request.headers, **({} if request.body is None else _JSON)},
        timeout=httpx.Timeout(
            longest,
            connect=min(_CONNECT, longest),
            read=longest if request.long_poll is None else request.long_poll + GRACE,
        ),
    )


_JSON = {"Content-Type": "application/json"}


def _json(body: object) -> bytes:
    """Return what httpx makes of it too, but for old ones, which send half a character."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _time_limit(request: ApiRequest) -> float:
    """Seconds within which a try ends, whatever the other side does."""
    if request.long_poll is not None:
        return request.long_poll + GRACE
    return ANSWER_TIMEOUT if request.time_limit is None else request.time_limit


def _send(http: httpx.Client, request: ApiRequest) -> Answer:
    with time_limit(_time_limit(request)):
        response = http.send(_request(http, request), stream=True)
        try:
            reader = BodyReader(response.status_code, response.headers, request.max_bytes)
            if reader.fault is None:
                for piece in response.iter_raw():
                    if not reader.takes(piece):
                        break
        finally:
            response.close()
    return _answer(response, reader)


async def _send_async(http: httpx.AsyncClient, request: ApiRequest) -> Answer:
    built = _request(http, request)
    with anyio.move_on_after(_time_limit(request)):
        try:
            response = await http.send(built, stream=True)
        except ssl.SSLError as error:  # as httpcore 0.17 leaves it on asyncio
            raise httpx.ConnectError(str(error), request=built) from error
        reader = BodyReader(response.status_code, response.headers, request.max_bytes)
        try:
            if reader.fault is None:
                async for piece in response.aiter_raw():
                    if not reader.takes(piece):
                        # So that the next read fails, and ends all the generators that iterate.
                        await response.aclose()
        except httpx.TransportError:
            if reader.fault is None:
                raise
        finally:
            await response.aclose()
        return _answer(response, reader)
    raise httpx.ReadTimeout(LATE, request=built)


def _answer(response: httpx.Response, reader: BodyReader) -> Answer:
    request = response.request
    asked = f"{request.method} {address_of(request.url)}"
    return Answer(response.status_code, response.headers, reader.content(), reader.fault, asked)


def _failure(http: httpx.Client | httpx.AsyncClient, error: Exception) -> Exception:
    """Return what a flow is thrown.

    httpx has no error of its own for a client that is closed, and others than those of a call for
    what a caller has named that can be in no call.
    """
    if isinstance(error, RuntimeError) and http.is_closed:
        return RelayError("the client is closed")
    if isinstance(error, UnicodeEncodeError):
        what = error.object[error.start : error.end]
        if "\ud800" <= what[0] <= "\udfff":
            return RelayError(f"half a character cannot be sent: {quoted(what)}")
    if isinstance(error, httpx.LocalProtocolError) and "header" in str(error):
        return RelayError("a header of the call has characters that none can have")
    if isinstance(error, (httpx.InvalidURL, UnicodeError)):
        return RelayError(f"there is no such call: {error}")
    return error


_FAILURES = (httpx.TransportError, httpx.InvalidURL, UnicodeError, RuntimeError)
"""What a flow is told of; all else is a fault of this client's."""


def run(http: httpx.Client, flow: Flow[T]) -> T:
    """Carry a flow out, with sockets that block."""
    try:
        step = next(flow)
        while True:
            came: Answer | None
            try:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    came = None
                else:
                    came = _send(http, step)
            except _FAILURES as error:
                step = flow.throw(_failure(http, error))
            else:
                step = flow.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_async(http: httpx.AsyncClient, flow: Flow[T]) -> T:
    """Carry a flow out, on asyncio or Trio."""
    try:
        step = next(flow)
        while True:
            came: Answer | None
            try:
                if isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                    came = None
                else:
                    came = await _send_async(http, step)
            except _FAILURES as error:
                step = flow.throw(_failure(http, error))
            else:
                step = flow.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


def shielded(seconds: float) -> anyio.CancelScope:
    """Return what lets its block run for so long, though all around it is cancelled."""
    return anyio.move_on_after(seconds, shield=True)
