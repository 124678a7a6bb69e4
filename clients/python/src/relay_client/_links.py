r"""Which links are like a host, begin so, or have a part of a path.

A stranger's link can be made to be read differently: `https://evil.example\@shop.example/` is at
evil.example to browsers, to RFC 3986 at shop.example.  Such a link is like nothing here; nor is one
that cannot be read.  The TypeScript client does the same (links.ts), with JavaScript's URL;
clients/cases.json holds both to it.
"""

from __future__ import annotations

import re
import unicodedata

_LINK = re.compile(r"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_PLACE = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]]+)(?::(\d{0,5}))?", re.IGNORECASE)
# What no host has, and `%`: not all take what is behind it for a character.
_FORBIDDEN = re.compile(
    '[\x00-\x20\x7f-\xa0"#%/<>?@\\\\^`{|}\u2000-\u200f\u2028-\u202f\u2060-\u206f]'
)
_DOTS = re.compile("[\u3002\uff0e\uff61]")
_LONGEST = 253  # characters of a host; Punycode takes the square of a length
_TOO_LONG = re.compile("[^.]{64}|.{254}")


def is_like(link: str, match: str) -> bool:
    """Whether a link has a host, or one below it, begins so, or has a part of path and query.

    A beginning has the whole of its host: `https://shop.example` is not that of
    `https://shop.example.evil.example/`.
    """
    found = _LINK.match(link)
    if found is None or "\\" in found[1]:
        return False
    place = _PLACE.fullmatch(found[1].rpartition("@")[2])
    if place is None or int(place[2] or "0") > 65535:
        return False
    host = _host(place[1])
    if host is None:
        return False
    if _LINK.match(match):
        return len(match) >= found.end() and link.startswith(match)
    if "." in match and "/" not in match:
        wanted = _host(match) or match.lower()
        return host == wanted or host.endswith(f".{wanted}")
    return match in link[found.end() :]


def _host(text: str) -> str | None:
    """Return a host as DNS is asked for it; None if none can be called so."""
    if len(text) > _LONGEST:
        return None
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _DOTS.sub(".", text).lower())
    if _FORBIDDEN.search(text) or _TOO_LONG.search(text):
        return None
    host = ".".join(map(_label, text.lower().split(".")))
    return None if _TOO_LONG.search(host) else host


def _label(label: str) -> str:
    return label if label.isascii() else f"xn--{label.encode('punycode').decode()}"
