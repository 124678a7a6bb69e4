"""Secrets that Relay hands out and recognises again, and secrets that it keeps for others.

Session tokens and API keys carry 256 bits from the operating system's generator.  Only
their SHA-256 is stored: a slow password hash defends *guessable* secrets, and these are
not, while a fast one keeps every request cheap.  Comparison is constant-time.

`Vault` encrypts what must be read back (the passwords of upstreams, private keys of DKIM).  What it
seals names the account it is for, inside the ciphertext, so that whoever can write to the database
cannot make one account use another's secret.  Fails with `Unreadable`, which is temporary: a key
that is missing here may be known to another node, or again after the next start.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from uuid import UUID

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from relay.chance import token_urlsafe
from relay.errors import TemporaryFailure


def new_session_token() -> str:
    """Return a new session token of one mailbox: `rs_` and 43 URL-safe characters."""
    return "rs_" + token_urlsafe(32)


def new_api_token() -> str:
    """Return a new API key: `rk_` and 43 URL-safe characters."""
    return "rk_" + token_urlsafe(32)


def new_admin_token() -> str:
    """Return the administrator's token of one start: `ra_` and 43 URL-safe characters."""
    return "ra_" + token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """Return the 32 bytes under which `token` is stored (SHA-256 of its UTF-8)."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def tokens_equal(left: bytes, right: bytes) -> bool:
    """Compare two token hashes without telling by the time taken where they differ."""
    return hmac.compare_digest(left, right)


def hash_source(key: bytes, address: str) -> bytes:
    """Return 16 bytes that stand for a network address, and tell it to nobody without the key."""
    own = hmac.digest(key, b"relay source", "sha256")
    return hmac.digest(own, address.encode(), "sha256")[:16]


class Unreadable(TemporaryFailure):
    """A secret cannot be decrypted with the keys at hand, or belongs to another account."""


class Vault:
    """Seals and opens secrets: the first of its Fernet keys seals, all of them open.

    The keys may be replaced while it is in use; whoever holds the vault then has the new ones.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.replace(keys)

    def replace(self, keys: Sequence[str]) -> None:
        """Use these keys from now on, newest first."""
        self._fernet = MultiFernet([Fernet(key) for key in keys])
        self._key_id = hashlib.sha256(keys[0].encode()).digest()[:8]

    @property
    def key_id(self) -> bytes:
        """The name of the key that seals now: 8 bytes that tell nothing about it."""
        return self._key_id

    def seal(self, account: UUID, secret: str) -> bytes:
        """Return `secret` encrypted, for `account` alone."""
        return self._fernet.encrypt(account.bytes + secret.encode())

    def open(self, account: UUID, sealed: bytes) -> str:
        """Return the secret that was sealed for `account`, or raise `Unreadable`."""
        try:
            plain = self._fernet.decrypt(bytes(sealed))
        except InvalidToken as error:
            raise Unreadable("no encryption key opens a stored secret") from error
        if not hmac.compare_digest(plain[:16], account.bytes):
            raise Unreadable("a stored secret was sealed for another account")
        return plain[16:].decode()
