"""Seals: what proves in a URL that this relay made it, and when, where no header can be set.

Format: `instant "." signature`: milliseconds since 1970 in decimal, and HMAC-SHA256 (base64url
without padding) of it, a blank, and what is sealed.  The key is derived from a signing key of the
relay's and a purpose, so that no seal passes for one of another purpose, nor for another signature.

Promises: a seal holds for what it was made for, its instant included, and for the seconds that its
purpose allows; one from a node whose clock is ahead by `AHEAD` holds, too.  Rotated signing keys go
on verifying.  Signatures are compared in constant time.  Pure.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Sequence

AHEAD = 30.0
"""Seconds that another node's clock may be ahead of ours."""

_FORM = re.compile(r"([0-9]{1,15})\.([A-Za-z0-9_-]{43})", re.ASCII)


def seal(signing: Sequence[bytes], purpose: bytes, sealed: bytes, now: float) -> str:
    """Return a seal of `sealed`, made `now` (epoch seconds)."""
    instant = str(int(now * 1000))
    return f"{instant}.{_sign(signing[0], purpose, instant, sealed)}"


def holds(
    text: str,
    signing: Sequence[bytes],
    purpose: bytes,
    sealed: bytes,
    *,
    now: float,
    lasts: float,
) -> bool:
    """Whether `text` is a seal of `sealed` and holds `now`, `lasts` seconds after it was made."""
    form = _FORM.fullmatch(text)
    if form is None or not -AHEAD <= now - int(form[1]) / 1000 < lasts:
        return False
    return any(
        hmac.compare_digest(form[2], _sign(key, purpose, form[1], sealed)) for key in signing
    )


def _sign(key: bytes, purpose: bytes, instant: str, sealed: bytes) -> str:
    own = hmac.digest(key, purpose, "sha256")
    signature = hmac.digest(own, instant.encode() + b" " + sealed, "sha256")
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
