"""Whose a token is that somebody shows."""

from typing import Any

from relay.access.bearers import MAX_TOKEN, Bearer, bearer_of
from relay.access.keys import Keys
from relay.crypto import hash_token
from relay.db.pool import Pool

ADMIN = hash_token("ra_admin")


async def test_a_token_is_a_keys_while_the_key_lives(pool: Pool):
    """Anything else is nobody's, and so is the token of a key that was revoked."""
    keys = Keys(pool)
    key, token = await keys.create("shop", ["send"])
    found = await bearer_of(token, keys, ADMIN)
    assert found is not None
    assert (found.key and found.key.id, found.administrator) == (key.id, False)
    assert await bearer_of("rk_other", keys, ADMIN) == Bearer(hash_token("rk_other"))
    await keys.revoke(key.id)
    assert await bearer_of(token, keys, ADMIN) == Bearer(hash_token(token))


async def test_the_administrator_is_known_without_the_database():
    """And what can be nobody's token is not looked up at all."""
    nobody: Any = None  # a look-up would fail
    assert await bearer_of("ra_admin", nobody, ADMIN) == Bearer(ADMIN, administrator=True)
    assert await bearer_of("", nobody, ADMIN) is None
    assert await bearer_of("x" * (MAX_TOKEN + 1), nobody, ADMIN) is None
