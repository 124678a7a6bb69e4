"""Whose a token is that somebody shows: the administrator's, a key's, or nobody's.

HTTP, submission and POP3 take the same tokens, as `Authorization: Bearer` or as a password, and ask
here; what its bearer may do is each port's to say.

Promises: tokens are compared as hashes, the administrator's in constant time and without asking the
database; what is longer than any token is not even looked up.  Fails with `DatabaseUnavailable`
from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.access.keys import ApiKey, Keys
from relay.crypto import hash_token, tokens_equal

MAX_TOKEN = 512
"""Characters beyond which a credential is not even looked up."""


@dataclass(frozen=True, slots=True)
class Bearer:
    """Who shows a token: the administrator, the holder of a live key, or neither."""

    token_hash: bytes
    administrator: bool = False
    key: ApiKey | None = None


async def bearer_of(token: str, keys: Keys, admin_token_hash: bytes) -> Bearer | None:
    """Return whose `token` is; None for what can be nobody's: it is empty, or too long."""
    if not token or len(token) > MAX_TOKEN:
        return None
    token_hash = hash_token(token)
    if tokens_equal(token_hash, admin_token_hash):
        return Bearer(token_hash, administrator=True)
    return Bearer(token_hash, key=await keys.authenticate(token_hash))
