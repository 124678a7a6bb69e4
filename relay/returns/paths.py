"""Return paths: the address that each message which leaves has as its MAIL FROM, and reading it.

Format: `b-TOKEN@DOMAIN`.  TOKEN is base32 (RFC 4648, without padding, in small letters: servers
lower-case local parts) of the message's id, 16 octets, and the first 14 octets of HMAC-SHA256 of
it; the local part has 50 octets, of the 64 that there may be.  The key is derived from a signing
key of the relay's, so that no return path passes for a seal of another purpose.  `fbl@DOMAIN` is
where complaints come to.  The token alone names a message, too, to an upstream that has return
paths of its own and repeats a header field instead.

Promises: an address or a token is read as a message's only if this relay (or one with the same
keys) made it for that message; rotated keys go on verifying.  Compared in constant time.  Case does
not matter.

Fails: `message_of` returns None for everything else.  Pure, but for the keys, which may change
between two calls.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Callable, Sequence
from functools import lru_cache
from uuid import UUID

from relay.addresses import canonical_domain

COMPLAINTS = "fbl"
"""The local part that complaints are sent to (feedback loops)."""

_PREFIX = "b-"
_MAC = 14  # octets
_TOKEN = 48  # characters: of 30 octets, without padding
_PURPOSE = b"relay return path"


@lru_cache(maxsize=4)
def derived(signing: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Return the keys of return paths, one of each signing key."""
    return tuple(hmac.digest(key, _PURPOSE, "sha256") for key in signing)


class Tokens:
    """The tokens of messages."""

    def __init__(self, keys: Callable[[], Sequence[bytes]]) -> None:
        """`keys`: those of `derived` now; the first signs, all verify."""
        self._keys = keys

    def token_of(self, message: UUID) -> str:
        """Return what names a message, in small letters and digits."""
        signed = message.bytes + _sign(self._keys()[0], message)
        return base64.b32encode(signed).decode().lower()

    def message_of(self, token: str) -> UUID | None:
        """Return the message whose token this is, or None."""
        if len(token) != _TOKEN:
            return None
        try:
            signed = base64.b32decode(token.upper().encode("ascii"))
        except (binascii.Error, ValueError):
            return None
        message = UUID(bytes=signed[:16])
        made = signed[16:]
        # All of them, always: which key it is nobody learns by the time.
        fits = [hmac.compare_digest(made, _sign(key, message)) for key in self._keys()]
        return message if any(fits) else None


class ReturnPaths:
    """The return paths at one domain."""

    def __init__(self, domain: str, keys: Callable[[], Sequence[bytes]]) -> None:
        """`keys`: as those of `Tokens`."""
        self.domain = canonical_domain(domain)
        self._at = f"@{self.domain}"
        self._tokens = Tokens(keys)

    def path_of(self, message: UUID) -> str:
        """Return the address that what comes back of a message is sent to."""
        return f"{_PREFIX}{self._tokens.token_of(message)}{self._at}"

    def covers(self, address: str) -> bool:
        """Whether an address, in its canonical spelling, is at the domain."""
        return address.endswith(self._at)

    def is_complaints(self, address: str) -> bool:
        """Whether an address, in its canonical spelling, is that for complaints."""
        return address == COMPLAINTS + self._at

    def message_of(self, address: str) -> UUID | None:
        """Return the message whose return path an address is, or None."""
        local, at, domain = address.strip().lower().rpartition("@")
        token = local.removeprefix(_PREFIX)
        if not at or domain != self.domain or token == local:
            return None
        return self._tokens.message_of(token)

    def takes(self, address: str) -> bool:
        """Whether mail to an address at the domain is taken."""
        return self.is_complaints(address) or self.message_of(address) is not None


def _sign(key: bytes, message: UUID) -> bytes:
    return hmac.digest(key, message.bytes, "sha256")[:_MAC]
