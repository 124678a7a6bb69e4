"""IP addresses as sockets, headers, URLs and settings show them.

Pure.
"""

from __future__ import annotations

import ipaddress


def ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address that a socket, a header or a URL shows as `host`; ValueError: none.

    A zone (`%eth0`) is dropped; IPv4 as a socket for both families shows it (::ffff:192.0.2.7) is
    IPv4.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def is_loopback(host: str) -> bool:
    """Tell whether `host` names this machine alone; an address may be in brackets."""
    if host in {"localhost", "localhost."} or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
