"""The `Host` and `Origin` that a request may have: those that name this relay.

Promises: no other site's script reaches the relay, not even through a name that was made to resolve
to this machine; the address that a connection arrived at and this machine's own names always pass.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

from relay.http.problems.details import Problem
from relay.ip import is_loopback


class AllowedHosts:
    """The hosts and origins that are this relay's own."""

    def __init__(self, public_urls: Iterable[str]) -> None:
        """`public_urls`: the addresses that people see; empty ones are none."""
        parts = [urlsplit(url) for url in public_urls if url]
        self._public_hosts = {each.hostname for each in parts}
        self._public_origins = {
            (each.scheme, each.hostname, each.port or _port_of(each.scheme)) for each in parts
        }

    def check(
        self,
        host: str | None,
        origin: str | None,
        server: str | None,
        tls: bool,
        *,
        any_host: bool = False,
        any_origin: bool = False,
    ) -> None:
        """Raise the 403 of a foreign `Host` or `Origin`.

        `server` is the address that the connection arrived at, which may be named too; `any_host`
        lets every Host pass, and no Origin more than otherwise; `any_origin` every Origin.
        """
        name, port = _split(host)
        if not any_host and (name is None or not self._names_us(name, server)):
            raise Problem(
                403,
                "foreign-host",
                "The Host header does not name this relay. RELAY_HTTP__PUBLIC_URL says by which "
                "addresses it is reached, one or a JSON list of them; localhost and the address "
                "of the port need not be said.",
            )
        if origin is None or any_origin:
            return
        try:
            parts = urlsplit(origin)
            theirs = (parts.scheme, parts.hostname, parts.port or _port_of(parts.scheme))
        except ValueError:
            theirs = ("", None, None)
        scheme, their_host, their_port = theirs
        if theirs in self._public_origins:
            return
        if (
            scheme in {"http", "https"}
            and their_host is not None
            and self._names_us(their_host, server)
            and their_port == (port or _port_of("https" if tls else "http"))
        ):
            return
        raise Problem(403, "foreign-origin", "Pages of other origins may not call this relay.")

    def _names_us(self, name: str, server: str | None) -> bool:
        if is_loopback(name) or name in self._public_hosts:
            return True
        try:  # addresses are compared as addresses: ::1 has several spellings
            return server is not None and ipaddress.ip_address(name) == ipaddress.ip_address(
                server.partition("%")[0]
            )
        except ValueError:
            return False


def _split(host: str | None) -> tuple[str | None, int | None]:
    if not host or any(c in host for c in "/?#@\\, \t"):
        return None, None
    try:
        parts = urlsplit(f"//{host}")
        name, port = parts.hostname, parts.port
    except ValueError:
        return None, None
    return name, port


def _port_of(scheme: str) -> int | None:
    return {"http": 80, "https": 443, "ws": 80, "wss": 443}.get(scheme)
