"""Which links an agent means: of a host, with a beginning, or with a part of path and query.

A stranger's link can be made to be read differently: `https://evil.example\\@shop.example/` is at
evil.example to browsers, to RFC 3986 at shop.example.  Such a link is none that was asked for; nor
is one whose host cannot be read.

The clients' `link()` has the same rule (`_links.py`, `links.ts`), and clients/cases.json holds all
three to it; agents may also write as people do, in any case and with dots around a host.
"""

from __future__ import annotations

import re

from relay.addresses import canonical_domain
from relay.cli.agent.client import within

_LINK = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::(\d{0,5}))?", re.IGNORECASE)
_HOST = re.compile(r"\[[0-9a-f:.]+\]|[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_LONGEST = 253  # characters of a host


def link_matches(wanted: str | None, link: str) -> bool:
    """Tell whether a link is one that was asked for; None asks for any.

    With a dot and no slash it is a host or one of its parent domains; with a scheme it is a link's
    beginning, which has the whole of its host; anything else is a part of path and query.  So no
    other site's link fits by having the name in its path.
    """
    if wanted is None:
        return True
    found = _LINK.match(link)
    if found is None or "\\" in found[1]:  # to a browser it is a slash: the host would be another
        return False
    place = _PLACE.fullmatch(found[1].rpartition("@")[2])
    if place is None or int(place[2] or "0") > 65535:
        return False
    host, rest = _host(place[1]), link[found.end() :]
    if host is None:
        return False
    if begins := _LINK.match(wanted):
        is_there = begins[0].lower() == found[0].lower()
        return is_there and rest.casefold().startswith(wanted[begins.end() :].casefold())
    if "." in wanted and "/" not in wanted:
        domain = _host(wanted.strip().strip("."))
        return domain is not None and (host == domain or host.endswith(f".{domain}"))
    return within(wanted, rest)


def _host(text: str) -> str | None:
    """Return a host as DNS is asked for it; None if none can be called so."""
    if len(text) > _LONGEST:  # before it is made shorter, too
        return None
    host = text.lower().rstrip(".")
    if not host.isascii():
        try:
            host = canonical_domain(host)
        except ValueError:
            return None
    return host if len(host) <= _LONGEST and _HOST.fullmatch(host) else None
