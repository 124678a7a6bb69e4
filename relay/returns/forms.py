"""The forms of bounces that are no standard and that others have collected, by flufl.bounce.

What Mailman has met since 1998, kept up as a library: who is named in a form of MDaemon, of AOL, of
a gateway against viruses and so on.  `relay.returns.report` asks it of mail that a mail server
wrote by its own word and that is no report of a standard.

Promises: never raises, and looks at the first `_LOOKED_AT` bytes and `_LINES` lines, none of them
longer than `_LINE` (the library's patterns are tried at every place of every line, by some in the
square of it), and at no mail that names more than `_NESTED` boundaries, or messages within messages
(`email` takes their square).  A line is a
field, a block of fields or a part, of which each of the library's 25 readers makes objects anew: 48
kB of nothing but line ends cost 1.7 s.

Loads `email` and the library, when first asked.  Pure.
"""

from __future__ import annotations

_LOOKED_AT = 48 * 1024
_LINES = 1000  # whom it is about stands in front of what is returned
_LINE = 200  # bytes; no form has longer ones where it names anybody
_NESTED = 20


def named(raw: bytes) -> tuple[frozenset[str], frozenset[str]]:
    """Whom a bounce names as delayed, and whom as failed."""
    from email import message_from_bytes

    from flufl.bounce import all_failures

    raw = raw[:_LOOKED_AT]
    lowered = raw.lower()
    if max(lowered.count(b"boundary"), lowered.count(b"message/")) > _NESTED:
        return frozenset(), frozenset()
    lines = (line[:_LINE] for line in raw.splitlines()[:_LINES])
    try:
        delayed, failed = all_failures(message_from_bytes(b"\r\n".join(lines)))
    except Exception:
        return frozenset(), frozenset()
    return _texts(delayed), _texts(failed)


def _texts(addresses: frozenset[bytes]) -> frozenset[str]:
    return frozenset(address.decode("ascii", "replace") for address in addresses)
