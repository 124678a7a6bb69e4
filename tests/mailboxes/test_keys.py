"""API keys: shown once, stored as hashes, revoked for good."""

from uuid import uuid4

import pytest

from relay.crypto import hash_token
from relay.mailboxes.keys import Keys
from relay.mailboxes.plans import Invalid


async def test_a_token_authenticates_until_it_is_revoked(pool):
    """A key is found by its token, and no longer after the revocation."""
    keys = Keys(pool)
    key, token = await keys.create("team", ["send", "read"], "pro")
    assert key.scopes == ("read", "send")
    assert await keys.authenticate(hash_token(token)) == key
    assert await keys.authenticate(hash_token(token + "x")) is None
    assert await keys.authenticate(b"") is None
    assert await keys.authenticate(hash_token("\ud800\x00")) is None
    assert await keys.revoke(key.id)
    assert not await keys.revoke(key.id)
    assert not await keys.revoke(uuid4())
    assert await keys.authenticate(hash_token(token)) is None
    (listed,) = await keys.list()
    assert listed.revoked_at is not None


async def test_only_a_hash_is_stored(pool):
    """The table has the token's SHA-256, not the token."""
    _, token = await Keys(pool).create("team", ["read"])
    stored = await pool.fetch_value("SELECT token_hash FROM relay.api_keys")
    assert bytes(stored) == hash_token(token)


async def test_admin_includes_the_other_scopes(pool):
    """A key with admin may do everything, another only what it lists."""
    admin, _ = await Keys(pool).create("root", ["admin"])
    reader, _ = await Keys(pool).create("team", ["read"])
    assert admin.allows("read")
    assert admin.allows("send")
    assert reader.allows("read")
    assert not reader.allows("send")


@pytest.mark.parametrize(
    ("owner", "scopes", "plan"),
    [
        ("", ["read"], "free"),
        ("a\x00", ["read"], "free"),
        ("x" * 201, ["read"], "free"),
        ("team", [], "free"),
        ("team", ["write"], "free"),
        ("team", ["read"], "gold"),
    ],
)
async def test_refuses_bad_values(pool, owner, scopes, plan):
    """Unknown scopes and plans, and owners that cannot be shown, are refused."""
    with pytest.raises(Invalid):
        await Keys(pool).create(owner, scopes, plan)
