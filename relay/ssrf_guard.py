"""The addresses of the public internet, and those that only this machine's network can reach.

Others may name hosts that the relay connects to: webhooks, upstreams of senders.  Such a host must
not be one that they could not reach themselves.

Promises
- Every address of a host must be public: no private, loopback, link-local, carrier-grade,
  documentation, multicast or reserved one (IANA's registries of special-purpose addresses), none
  where a cloud keeps what is its machines' alone, in no disguise (IPv4 mapped or compatible, 6to4,
  Teredo, ISATAP, NAT64).  One that is not spoils the others: whoever names both means the inner
  one.
- Who connects to an address that `addresses_of` returned connects to one that was checked, so a
  name that resolves differently the next moment gains nothing.

Fails with `NotPublic`, with OSError for a name that has no address, and with `BadUrl`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import trio

from relay.errors import TemporaryFailure
from relay.net import getaddrinfo

_NOT_PUBLIC_4 = tuple(
    ipaddress.IPv4Network(net)
    for net in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's wire server, on every machine there
        "169.254.0.0/16",  # link-local, where clouds keep their metadata
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # where reverse names of private addresses are answered
        "192.52.193.0/24",  # multicast relays, of this network first
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "192.175.48.0/24",  # as 192.31.196.0/24
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is routed; mapped, compatible, NAT64, unique and link-local lie outside."""
_NOT_PUBLIC_6 = tuple(
    ipaddress.IPv6Network(net)
    for net in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # where reverse names of private addresses are answered
        "3fff::/20",  # documentation
    )
)
_ISATAP = {0x0000_5EFE, 0x0200_5EFE}
"""Above the IPv4 address in the lower half of an address that ISATAP has made (RFC 5214, 6.1)."""

MAX_URL = 2048
"""Bytes of a URL."""

Resolve = Callable[..., Awaitable[Any]]
"""`relay.net.getaddrinfo`, or what a test puts in its place."""


class NotPublic(TemporaryFailure):
    """A host has an address that is not public (by now: names change)."""


class BadUrl(ValueError):
    """A URL that is never posted to; the message says why."""


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the public internet's."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in net for net in _NOT_PUBLIC_4)
    if int(ip) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return False
    return ip in _PUBLIC_6 and not any(ip in net for net in _NOT_PUBLIC_6)


def check_url(text: str, *, allow_private: bool = False) -> httpx.URL:
    """Return a URL that may be posted to, as far as can be said without asking for its host."""
    if len(text.encode("utf-8", "replace")) > MAX_URL or not text.isprintable() or " " in text:
        raise BadUrl(f"must be at most {MAX_URL} bytes without spaces or control characters")
    try:
        url = httpx.URL(text)
        host = url.host  # decodes `xn--`
        url.raw_host.decode("ascii").encode("idna")  # as the resolver will: labels of 1 to 63 bytes
    except (httpx.InvalidURL, UnicodeError) as error:
        raise BadUrl("is not a URL") from error
    if url.scheme not in {"http", "https"} or not host:
        raise BadUrl("must begin with https:// or http://, and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise BadUrl("has a port that is none")
    if url.userinfo or url.fragment:
        raise BadUrl("cannot hold a user, a password or a fragment")
    if not allow_private:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            pass  # a name: what it stands for is asked at each post
        else:
            if not is_public(host):
                raise BadUrl("must lead to a public address")
    return url


async def addresses_of(
    host: str,
    port: int,
    *,
    allow_private: bool = False,
    resolve: Resolve = getaddrinfo,
) -> list[str]:
    """Return every address of `host`, each of which may be connected to.

    Raises `NotPublic`, unless `allow_private`, and OSError where there is none.
    """
    try:
        found = await resolve(host, port, type=trio.socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError("not a name of a host") from error  # an empty label, or one over 63 bytes
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not allow_private and not all(map(is_public, addresses)):
        raise NotPublic("the host is not on the public internet")
    return addresses
