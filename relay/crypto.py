"""Secrets that Relay hands out and how it recognises them again.

Session tokens and API keys carry 256 bits from the operating system's generator.  Only
their SHA-256 is stored: a slow password hash defends *guessable* secrets, and these are
not, while a fast one keeps every request cheap.  Comparison is constant-time.
"""

import hashlib
import hmac
import secrets


def new_session_token() -> str:
    """Return a new session token of one mailbox: `rs_` and 43 URL-safe characters."""
    return "rs_" + secrets.token_urlsafe(32)


def new_api_token() -> str:
    """Return a new API key: `rk_` and 43 URL-safe characters."""
    return "rk_" + secrets.token_urlsafe(32)


def new_admin_token() -> str:
    """Return the administrator's token of one start: `ra_` and 43 URL-safe characters."""
    return "ra_" + secrets.token_urlsafe(32)


def hash_token(token: str) -> bytes:
    """Return the 32 bytes under which `token` is stored (SHA-256 of its UTF-8)."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def tokens_equal(left: bytes, right: bytes) -> bool:
    """Compare two token hashes without telling by the time taken where they differ."""
    return hmac.compare_digest(left, right)
