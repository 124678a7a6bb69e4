"""API keys: shown once, stored as hashes, revoked for good."""

from uuid import uuid4

import pytest

from relay.access.keys import Keys
from relay.crypto import hash_token
from relay.errors import Invalid
from relay.mailboxes.store import Store


async def test_a_token_authenticates_until_it_is_revoked(any_pool):
    """A key is found by its token, and no longer after the revocation."""
    keys = Keys(any_pool)
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


async def test_the_last_use_is_noted_once_a_minute(any_pool):
    """The list has it after the first use; a second one soon after writes nothing."""
    keys = Keys(any_pool)
    key, token = await keys.create("team", ["read"])
    assert key.last_used_at is None
    await keys.authenticate(hash_token(token + "x"))
    assert (await keys.list())[0].last_used_at is None
    await keys.authenticate(hash_token(token))
    (first,) = await keys.list()
    assert first.last_used_at is not None
    assert first.last_used_at >= first.created_at
    await any_pool.execute("UPDATE relay.api_keys SET last_used_at = NULL")
    await keys.authenticate(hash_token(token))
    assert (await keys.list())[0].last_used_at is None
    await Keys(any_pool).authenticate(hash_token(token))  # another process has not noted it
    assert (await keys.list())[0].last_used_at is not None


async def test_only_a_hash_is_stored(any_pool):
    """The table has the token's SHA-256, not the token."""
    _, token = await Keys(any_pool).create("team", ["read"])
    stored = await any_pool.fetch_value("SELECT token_hash FROM relay.api_keys")
    assert bytes(stored) == hash_token(token)


async def test_admin_includes_the_other_scopes(any_pool):
    """A key with admin may do everything, another only what it lists."""
    admin, _ = await Keys(any_pool).create("root", ["admin"])
    reader, _ = await Keys(any_pool).create("team", ["read"])
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
async def test_refuses_bad_values(any_pool, owner, scopes, plan):
    """Unknown scopes and plans, and owners that cannot be shown, are refused."""
    with pytest.raises(Invalid):
        await Keys(any_pool).create(owner, scopes, plan)


async def test_who_may_all_is_not_limited_in_what_it_sends_from(any_pool):
    """Such a key could make itself another without the limit, so there is none."""
    with pytest.raises(Invalid, match="admin"):
        await Keys(any_pool).create("x", ["send", "admin"], senders=["@example.org"])


async def test_a_key_with_an_end_lives_while_it_is_renewed(any_pool):
    """It opens nothing from its end on, may be renewed after it, and revoking it deletes it."""
    keys = Keys(any_pool)
    key, token = await keys.create("program", ["read"], kind="mcp", expires_in=600)
    assert (key.kind, key.expires_at is not None) == ("mcp", True)
    assert await keys.authenticate(hash_token(token)) == key
    await any_pool.execute("UPDATE relay.api_keys SET expires_at = now()")
    assert await keys.authenticate(hash_token(token)) is None
    renewed = await keys.renew(key.id, 600)
    assert renewed is not None
    assert await keys.authenticate(hash_token(token)) == renewed
    assert await keys.revoke(key.id)
    assert not await keys.revoke(key.id)
    assert await keys.renew(key.id, 600) is None
    assert await keys.list() == []


async def test_keys_that_ended_long_ago_go_with_the_next(any_pool):
    """What a program that was killed left behind does not gather; other keys stay."""
    keys = Keys(any_pool)
    for _ in range(3):
        await keys.create("program", ["read"], expires_in=600)
    await any_pool.execute("UPDATE relay.api_keys SET expires_at = now() - interval '25 hours'")
    kept, _ = await keys.create("team", ["read"])
    assert await keys.renew(kept.id, 600) is None, "one without an end has none to move"
    assert [key.id for key in await keys.list()] == [kept.id]


async def test_a_key_may_be_limited_in_what_it_sends_from(any_pool):
    """By address, by domain, and by the mailboxes that it has; without a limit by nothing."""
    keys, store = Keys(any_pool), Store(any_pool, ["b.example"])
    free, _ = await keys.create("a", ["send"])
    assert await keys.may_send_from(free, "any@where.example")
    some, _ = await keys.create("b", ["send"], senders=["@Shop.example", "ADA@b.example"])
    for address in ("x@shop.example", "ada@B.example"):
        assert await keys.may_send_from(some, address)
    for address in ("x@mail.shop.example", "bob@b.example", "x@notshop.example", "nonsense"):
        assert not await keys.may_send_from(some, address)
    own, _ = await keys.create("c", ["send"], senders=["own"])
    mine = await store.create(owner_id=own.id, owner_type=own.kind)
    theirs = await store.create(owner_id=some.id)
    assert await keys.may_send_from(own, mine.mailbox.address.upper())
    assert not await keys.may_send_from(own, theirs.mailbox.address)
    await any_pool.execute("UPDATE relay.mailboxes SET expires_at = now()")
    assert not await keys.may_send_from(own, mine.mailbox.address)
    for wrong in ([], ["shop.example"], ["@"], ["*"], ["@a b"], ["own"] * 51):
        with pytest.raises(Invalid):
            await keys.create("d", ["send"], senders=wrong)
