"""The HTTP client of the commands: finds the running relay and talks to its API.

Promises
  * The relay is found through `run/relay.json` in the data directory, which also holds the
    administrator's token; nothing else is read, and no proxy is ever asked.
  * Every call has a deadline.  Every failure is a `Failure` of one sentence: 69 when no relay
    answers, 1 when it refused, 70 when it failed.
  * A cursor is followed on the relay that was found, whatever host the link names.

httpx is imported at the first call: it takes longer to load than a call takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from relay.cli import exits
from relay.cli.exits import Failure
from relay.cli.output import line
from relay.datadir import DataDir

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT = 5.0  # seconds
CALL_TIMEOUT = 30.0  # seconds without a byte
PAGE = 200  # the most that a list call gives


def read_run(data_dir: Path) -> dict[str, Any]:
    """Return what the relay running on `data_dir` published, or end with status 69."""
    data = DataDir(data_dir)
    run = data.read_run()
    if run is not None:
        return run
    try:
        data.run_file.read_bytes()
    except PermissionError:
        raise Failure(
            f"{data.run_file} belongs to another user; run this as the user who runs the relay.",
            exits.UNAVAILABLE,
        ) from None
    except OSError:
        pass
    if data.is_held():
        raise Failure(
            f"The relay on {data.path} is starting or stopping; try again in a moment.",
            exits.UNAVAILABLE,
        )
    raise Failure(
        f"No relay is running on {data.path}; start one with `relay up`, or name the data "
        "directory of another with --data-dir.",
        exits.UNAVAILABLE,
    )


def segment(text: str) -> str:
    """Return `text` as one segment of a URL's path."""
    # "." and ".." are folded away by every URL library unless they are spelt out.
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="@")


class Api:
    """The API of the running relay; close it, or use it as a context manager."""

    def __init__(self, base: str, headers: Mapping[str, str]) -> None:
        import ssl

        import httpx

        self.base = base
        self._http = httpx.Client(
            base_url=base,
            headers={"Accept-Encoding": "identity", **headers},
            timeout=httpx.Timeout(CALL_TIMEOUT, connect=CONNECT_TIMEOUT),
            trust_env=False,
            # The relay speaks plain HTTP on its own address.  A context without authorities
            # spares loading the system's, and an https base would fail closed.
            verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        )

    @classmethod
    def find(cls, data_dir: Path, *, token: str | None = None, anonymous: bool = False) -> Api:
        """Reach the relay on `data_dir`: as administrator, as `token`'s holder, or as nobody."""
        run = read_run(data_dir)
        try:
            base, admin = str(run["http"]), str(run["admin_token"])
        except KeyError:
            raise Failure(
                f"The relay on {data_dir.absolute()} serves no HTTP (it runs without control).",
                exits.UNAVAILABLE,
            ) from None
        return cls(base, {} if anonymous else credential(token or admin))

    def __enter__(self) -> Api:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Make one call and return a successful answer; `timeout`: seconds without a byte."""
        import httpx

        with self._explained():
            response = self._http.request(
                method,
                path,
                params=_given(params),
                json=json,
                timeout=httpx.USE_CLIENT_DEFAULT
                if timeout is None
                else httpx.Timeout(timeout, connect=CONNECT_TIMEOUT),
            )
        _refuse(response)
        return response

    def get(self, path: str, **params: Any) -> Any:
        """Return the JSON of a GET; parameters that are None are left out."""
        return self.call("GET", path, params=params).json()

    def pages(self, path: str, *, limit: int | None, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page after page, `limit` of them at most (None: all)."""
        left = limit
        query: Mapping[str, Any] | None = params
        while left is None or left > 0:
            page = PAGE if left is None else min(left, PAGE)
            response = self.call(
                "GET", path, params={**query, "limit": page} if query is not None else None
            )
            items = response.json()
            yield from items if left is None else items[:left]
            if left is not None:
                left -= len(items)
            following = response.links.get("next", {}).get("url")
            if following is None or not items:
                return
            parts = urlsplit(following)
            path, query = f"{parts.path}?{parts.query}", None

    @contextmanager
    def stream(self, path: str, *, quiet: float | None, **params: Any) -> Iterator[Iterator[bytes]]:
        """Yield the body as it comes; `quiet`: seconds it may say nothing (None: any)."""
        import httpx

        timeout = httpx.Timeout(CALL_TIMEOUT, connect=CONNECT_TIMEOUT, read=quiet)
        with (
            self._explained(),
            self._http.stream("GET", path, params=_given(params), timeout=timeout) as response,
        ):
            if response.is_error:
                response.read()
            _refuse(response)
            yield response.iter_raw()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.ConnectError as error:
            raise Failure(
                f"The relay does not answer at {self.base}; it may have just stopped.",
                exits.UNAVAILABLE,
            ) from error
        except httpx.TimeoutException as error:
            raise Failure(
                f"The relay at {self.base} did not answer in time; `relay status` and its log "
                "say what it is doing.",
                exits.UNAVAILABLE,
            ) from error
        except httpx.TransportError as error:
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


def _given(params: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if params is None:
        return None  # {} would strip the query from the URL of a cursor
    return {name: value for name, value in params.items() if value is not None}


def _refuse(response: httpx.Response) -> None:
    """Turn an error answer (RFC 9457) into the sentence it carries."""
    if not response.is_error:
        return
    try:
        problem = response.json()
        faults = problem.get("errors") or ()
        sentence = " ".join(faults) or problem.get("detail") or problem.get("title") or ""
    except (ValueError, AttributeError, TypeError):
        sentence = ""
    sentence = sentence or f"The relay answered {response.status_code} {response.reason_phrase}."
    code = exits.REFUSED
    if response.status_code >= 500:
        code = exits.UNAVAILABLE if response.status_code == 503 else exits.INTERNAL
    raise Failure(line(sentence), code)
