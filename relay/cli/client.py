"""The HTTP client of the commands: finds the running relay and talks to its API.

Promises
  * The relay is found through `run/relay.json` in the data directory, which also holds the
    administrator's token; nothing else is read, and no proxy is ever asked.  One that is just
    starting (it holds its directory) is waited for.
  * Every wait has a deadline.  Every failure is a `Failure` of one sentence: 69 when no relay
    answers, 1 when it refused, 70 when it failed.
  * A cursor is followed on the relay that was found, whatever host the link names.

Why `relay.cli.exchange`: httpx and what it imports (Trio among it) take 0.25 s to load, five times
as long as everything else that `relay status` does.  One plain connection a call is all that is
needed here, and streams are read twice as fast.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from relay.cli import exits, options
from relay.cli.exchange import BrokenExchange, Exchange
from relay.cli.exits import Failure
from relay.cli.output import line
from relay.datadir import DataDir

CONNECT_TIMEOUT = 5.0  # seconds
CALL_TIMEOUT = 30.0  # seconds without a byte
PAGE = 200  # the most that a list call gives
LOCK_PATIENCE = 1.0  # seconds until one that was just started holds its data directory
START_PATIENCE = 10.0  # seconds that a relay which is starting may take to be ready
MOST_EMPTY = 1000  # pages of a list with nothing on them; a search looks for a second for each
CHUNK = 1 << 16  # bytes that a stream gives at most at once


def read_run(data_dir: Path, *, patience: float = START_PATIENCE) -> dict[str, Any]:
    """Return what the relay running on `data_dir` published, or end with status 69.

    One that is starting is waited for, `patience` seconds at most, and a moment for one that may
    have been started just now; blocking.
    """
    data = DataDir(data_dir)
    began = time.monotonic()
    until = began + patience
    while (run := data.read_run()) is None:
        try:
            data.run_file.read_bytes()
        except PermissionError:
            raise Failure(
                f"{data.run_file} belongs to another user; run this as the user who runs the"
                " relay.",
                exits.UNAVAILABLE,
            ) from None
        except OSError:
            pass
        if not data.is_held() and time.monotonic() >= began + LOCK_PATIENCE:
            raise Failure(
                f"No relay is running on {data.path}; start one with "
                f"`{options.starting(data_dir)}`, or name the data directory of another with "
                "--data-dir.",
                exits.UNAVAILABLE,
            )
        if time.monotonic() >= until:
            raise Failure(
                f"The relay on {data.path} is starting or stopping; try again in a moment.",
                exits.UNAVAILABLE,
            )
        time.sleep(0.05)
    return run


def segment(text: str) -> str:
    """Return `text` as one segment of a URL's path."""
    # "." and ".." are folded away by every URL library unless they are spelt out.
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="@")


def path_of(address: str, message_id: str = "") -> str:
    """Return the path of the messages of a mailbox, or of one of them."""
    path = f"/api/v1/mailboxes/{segment(address)}/messages"
    return f"{path}/{segment(message_id)}" if message_id else path


def following(link: str) -> str | None:
    """Return path and query of the next page, as a `Link` header names it."""
    match = re.search(r'<([^>]*)>\s*;\s*rel="?next"?', link)
    if match is None:
        return None
    parts = urlsplit(match[1])
    return f"{parts.path}?{parts.query}"


class Answer(NamedTuple):
    """A successful answer, read whole."""

    status: int
    content: bytes
    link: str = ""

    def json(self) -> Any:
        """Return the body as JSON."""
        return json.loads(self.content)

    @property
    def following(self) -> str | None:
        """Path and query of the next page, from the `Link` header."""
        return following(self.link)


class Api:
    """The API of the running relay, as the holder of one credential."""

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        self.base = base
        self._headers = headers

    @classmethod
    def find(
        cls,
        data_dir: Path,
        *,
        token: str | None = None,
        anonymous: bool = False,
        patience: float = START_PATIENCE,
    ) -> Api:
        """Reach the relay on `data_dir`: as administrator, as `token`'s holder, or as nobody.

        One that is starting is waited for, `patience` seconds at most.
        """
        run = read_run(data_dir, patience=patience)
        try:
            base, admin = str(run["http"]), str(run["admin_token"])
        except KeyError:
            raise Failure(
                f"The relay on {data_dir.absolute()} serves no HTTP (it runs without control).",
                exits.UNAVAILABLE,
            ) from None
        return cls(base, {} if anonymous else credential(token or admin))

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        timeout: float = CALL_TIMEOUT,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Make one call and return a successful answer; `timeout`: seconds without a byte.

        Parameters that are None are left out; `path` may carry a query of its own.
        """
        target = _target(path, params)
        with self._open(method, target, json, timeout, headers) as response:
            with self._explained():
                content = response.read()
            return Answer(response.status, content, response.headers.get("link", ""))

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of a GET."""
        return self.call("GET", path, params=params).json()

    def pages(self, path: str, *, limit: int | None, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page after page, `limit` of them at most (None: all).

        One that goes on without having more ends with a `Failure`: whose next page is one that came
        before, or whose pages are empty, `MOST_EMPTY` of them.
        """
        left = limit
        seen = set[str]()
        empty = 0
        target = _target(path, {**params, "limit": PAGE if left is None else min(left, PAGE)})
        while left is None or left > 0:
            answer = self.call("GET", target)
            items = answer.json()
            yield from items if left is None else items[:left]
            if left is not None:
                left -= len(items)
            # A page may be empty and have a next one: of a search that looked for long enough.
            if answer.following is None:
                return
            seen.add(target)
            target = answer.following
            empty += not items
            if target in seen or empty == MOST_EMPTY:
                raise Failure(
                    f"The list at {self.base}{urlsplit(target).path} has no end; is that a relay?",
                    exits.INTERNAL,
                )

    @contextmanager
    def stream(self, path: str, *, quiet: float | None, **params: Any) -> Iterator[Iterator[bytes]]:
        """Yield the body as it comes; `quiet`: seconds it may say nothing (None: any)."""
        with self._open("GET", _target(path, params), None, quiet) as response:
            yield self._chunks(response)

    def _chunks(self, response: Exchange) -> Iterator[bytes]:
        while True:
            with self._explained():
                chunk = response.read_some(CHUNK)
            if not chunk:
                return
            yield chunk

    @contextmanager
    def _open(
        self,
        method: str,
        target: str,
        value: Any,
        timeout: float | None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[Exchange]:
        """Send a request and give its answer, the body unread; an error answer is a Failure."""
        parts = urlsplit(self.base)
        headers = {"Host": parts.netloc, **self._headers, **(headers or {})}
        body = None
        if value is not None:
            body = json.dumps(value).encode()
            headers["Content-Type"] = "application/json"
        try:
            exchange = Exchange(
                parts.hostname or "", parts.port or 80, connect_timeout=CONNECT_TIMEOUT
            )
        except OSError as error:
            raise Failure(
                f"The relay does not answer at {self.base}; it may have just stopped.",
                exits.UNAVAILABLE,
            ) from error
        with exchange as response:
            with self._explained():
                response.ask(method, target, headers, body, timeout)
                if response.status >= 300:
                    raise refusal(response.status, response.reason, response.read())
            yield response  # outside, for what fails in there is not the relay's doing

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise Failure(
                f"The relay at {self.base} did not answer in time; `relay status` and its log "
                "say what it is doing.",
                exits.UNAVAILABLE,
            ) from error
        except (OSError, BrokenExchange) as error:
            raise Failure(
                f"The relay at {self.base} broke the connection; it may have just stopped.",
                exits.UNAVAILABLE,
            ) from error


def credential(token: str) -> dict[str, str]:
    """Return the header that carries `token`: session tokens (`rs_…`) have one of their own."""
    if not token.isascii() or not token.isprintable() or not token.strip():
        raise Failure("The token is empty or holds characters that no token has.", exits.USAGE)
    name = "X-Session-Token" if token.startswith("rs_") else "Authorization"
    return {name: token if name == "X-Session-Token" else f"Bearer {token}"}


def _target(path: str, params: Mapping[str, Any] | None) -> str:
    query = urlencode({k: v for k, v in (params or {}).items() if v is not None})
    return f"{path}?{query}" if query else path


def refusal(status: int, reason: str, content: bytes) -> Failure:
    """Return an error answer (RFC 9457) as the sentence it carries."""
    try:
        problem = json.loads(content)
        faults = problem.get("errors") or ()
        sentence = " ".join(faults) or problem.get("detail") or problem.get("title") or ""
        if who := problem.get("recipients"):
            sentence = f"{sentence.removesuffix('.')}: {', '.join(who)}."
    except (ValueError, AttributeError, TypeError):
        sentence = ""
    sentence = sentence or f"The relay answered {status} {reason}."
    code = exits.REFUSED
    if status >= 500:
        code = exits.UNAVAILABLE if status == 503 else exits.INTERNAL
    return Failure(line(sentence), code, status=status)
