"""Where a relay is, and what opens it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from ipaddress import ip_address
from typing import Any, Union
from urllib.parse import urlsplit

import httpx

from relay_client._answers import is_token
from relay_client._text import quoted
from relay_client._version import __version__
from relay_client.errors import RelayError

__tracebackhide__ = True  # a report of pytest's shows what a frame was called with: the token

DEFAULT_URL = "http://127.0.0.1:8025"


@dataclass(frozen=True)
class Connection:
    """A relay's URL, what opens it, and what httpx's client is made with, either one."""

    url: str
    token: str | None = field(repr=False)
    arguments: dict[str, Any] = field(repr=False)


class FromEnvironment(Enum):
    """That a token is not said, and the environment's is meant; None is no token at all."""

    RELAY_TOKEN = "RELAY_TOKEN"  # noqa: S105  # the name of a variable


FROM_ENVIRONMENT = FromEnvironment.RELAY_TOKEN
Token = Union[str, None, FromEnvironment]


def connection(url: str | None, token: Token) -> Connection:
    """Look for a relay where it is said to be, else where the environment says."""
    named = "a relay's URL" if url else "RELAY_URL"
    url = (url or os.environ.get("RELAY_URL") or "").strip() or DEFAULT_URL
    if isinstance(token, FromEnvironment):
        token = os.environ.get(token.value)
    token = (token or "").strip() or None
    host = _host(url, named)
    headers = {"User-Agent": f"relay-client/{__version__}", "Accept": "application/json"}
    headers["Accept-Encoding"] = "identity"  # what is packed may be a thousand times as much
    if token:
        if not is_token(token):
            raise RelayError("the token has characters that no token has")
        headers["Authorization"] = f"Bearer {token}"
    # A proxy of the environment is not asked for what is on this machine.
    arguments = {"base_url": url, "headers": headers, "trust_env": not is_loopback(host)}
    return Connection(url.rstrip("/"), token, arguments)


_SHOWN = re.compile(
    r"""
      [a-z][a-z0-9+.-]*://[a-z0-9.-]*(?::[0-9]{1,5}(?=[/?#]|\Z))?(?=[:/?#]|\Z)
    | (?:localhost | (?:[0-9]+\.){3}[0-9]+ | [a-z0-9.-]+\.[a-z]{2,9})(?::[0-9]{1,5})?(?=[/?#]|\Z)
    """,
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
"""No more than scheme, host and port, and these only where they are no token and no password."""
_HTTP = re.compile(r"https?://[^/\s\\\x00-\x1f\x7f][^\s\\\x00-\x1f\x7f]*", re.IGNORECASE)


def _host(url: str, named: str) -> str:
    """Return the host of a relay's URL; an error has no more than its scheme, host, port."""
    wrong = "begin with http:// or https:// and a host"
    found = None if "@" in url else _SHOWN.match(url)
    shown = found[0] if found else ""
    if _HTTP.fullmatch(url):
        if "@" in url:
            wrong = "have no user and no password, the token opens it"
        else:
            host = _host_of(url)
            if host and not re.search("[?#]", url):
                return host
            if host:
                wrong = "end before a ? or #"
    raise RelayError(f"{named} must {wrong}{shown and f': {quoted(shown)}'}")


def _host_of(url: str) -> str:
    try:
        _ = urlsplit(url).port  # fails where it is none
        return httpx.URL(url).host
    except (ValueError, httpx.InvalidURL):
        return ""


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own, whatever machine this is."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
