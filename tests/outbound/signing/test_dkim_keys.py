"""Keys of DKIM as they are stored: sealed, one active of each kind, rotated with an overlap."""

import base64
from uuid import uuid4

import psycopg
import pytest
import trio
from cryptography.fernet import Fernet

from relay.crypto import Unreadable, Vault
from relay.db import channels
from relay.db.listen import Reconnected, notifications
from relay.db.pool import Pool
from relay.outbound.composing.message import MalformedMessage
from relay.outbound.sealed import Resealed
from relay.outbound.signing.dkim import load, record
from relay.outbound.signing.dkim_keys import DkimKeys, NoKeys, SelectorTaken, StandbyWaits
from relay.outbound.signing.signer import Signer
from relay.smtp.client import Mail

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()


@pytest.fixture
def keys(any_pool: Pool) -> DkimKeys:
    return DkimKeys(any_pool, Vault([OLD]))


async def states(keys: DkimKeys, domain: str = "shop.example") -> dict[str, str]:
    found = await keys.show(domain)
    return {} if found is None else {key.selector: key.state for key in found.keys}


async def test_a_domain_gets_both_keys_and_its_private_halves_are_sealed(
    any_pool: Pool, keys: DkimKeys
):
    """What is stored opens for its own row alone, and is the half of what is published."""
    made = await keys.create("Shop.Example.", "S1")
    assert [(key.name, key.algorithm, key.state) for key in made.keys] == [
        ("s1._domainkey.shop.example", "rsa-sha256", "active"),
        ("s1-ed25519._domainkey.shop.example", "ed25519-sha256", "active"),
    ]
    rows = await keys.active()
    vault = Vault([OLD])
    stored = await any_pool.fetch_value("SELECT string_agg(k::text, '') FROM relay.dkim_keys k")
    for row, key in zip(rows, made.keys, strict=True):
        text = vault.open(row.id, row.private_key)
        assert record(load(text)) == key.record
        assert text not in stored
        for secret in (base64.b64decode(text), text.encode()):
            assert secret.hex() not in stored
        with pytest.raises(Unreadable):
            vault.open(uuid4(), row.private_key)
        with pytest.raises(Unreadable):
            Vault([NEW]).open(row.id, row.private_key)
    assert made.keys[0].record.startswith("v=DKIM1; k=rsa; p=MIIB")
    assert len(base64.b64decode(made.keys[1].record.partition("p=")[2])) == 32


async def test_rotation(any_pool: Pool, keys: DkimKeys):
    """At once, or by standby keys; what is retired is still shown, and has no private half."""
    await keys.create("shop.example", "s1")
    standby = await keys.create("shop.example", "s2")
    assert {key.state for key in standby.keys} == {"standby"}
    assert [row.selector for row in await keys.active()] == ["s1", "s1-ed25519"]
    with pytest.raises(StandbyWaits):
        await keys.create("shop.example", "s3")
    with pytest.raises(StandbyWaits):
        await keys.rotate("shop.example", "s3")
    now = await keys.rotate("SHOP.example")
    assert [(key.selector, key.record) for key in now.keys] == [
        (key.selector, key.record) for key in standby.keys
    ]
    assert [row.selector for row in await keys.active()] == ["s2", "s2-ed25519"]
    with pytest.raises(SelectorTaken):
        await keys.rotate("shop.example", "s1")
    assert [row.selector for row in await keys.active()] == ["s2", "s2-ed25519"]
    await keys.rotate("shop.example", "s3")
    assert await states(keys) == {
        **dict.fromkeys(("s3", "s3-ed25519"), "active"),
        **dict.fromkeys(("s2", "s2-ed25519"), "retired"),
        **dict.fromkeys(("s1", "s1-ed25519"), "retired"),
    }
    assert not await any_pool.fetch_value(
        "SELECT count(private_key) FROM relay.dkim_keys WHERE state = 'retired'"
    )
    assert await keys.remove("shop.example", "s1-ed25519")
    assert await keys.remove("shop.example", "s2")
    assert await states(keys) == {"s3": "active", "s3-ed25519": "active", "s1": "retired"}
    assert not await keys.remove("shop.example", "s2")
    assert await keys.remove("shop.example")
    assert await keys.show("shop.example") is None
    with pytest.raises(NoKeys):
        await keys.rotate("shop.example")


async def test_rotations_at_once_leave_one_active_key_of_each_kind(keys: DkimKeys):
    """And every selector is another."""
    await keys.create("shop.example")
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(keys.rotate, "shop.example")
    found = await states(keys)
    assert sorted(found.values()) == ["active"] * 2 + ["retired"] * 8


async def test_names_that_are_none_are_refused(keys: DkimKeys):
    """Domains and selectors that no DNS has; asked for, they have no keys."""
    for domain in ("", ".", "a b", "[127.0.0.1]", "a..b", "x" * 64 + ".example", "a;b", "a@b"):
        with pytest.raises(MalformedMessage):
            await keys.create(domain)
        assert await keys.show(domain) is None
        assert not await keys.remove(domain)
    for selector in ("", ".", "a..b", "-a", "a_b", "a;b", "x" * 51, "ä"):
        with pytest.raises(MalformedMessage):
            await keys.create("shop.example", selector)
    assert not await keys.remove("shop.example", "\0")
    assert await keys.list(10) == []
    made = await keys.create("münchen.example", "a.b")
    assert made.keys[0].name == "a.b._domainkey.xn--mnchen-3ya.example"


async def test_domains_are_listed_in_pages(keys: DkimKeys):
    """By name, each with all of its keys."""
    for domain in ("b.example", "a.example", "c.example"):
        await keys.create(domain, "s")
    await keys.create("b.example", "t")
    found = await keys.list(2)
    assert [(one.domain, len(one.keys)) for one in found] == [("a.example", 2), ("b.example", 4)]
    assert [one.domain for one in await keys.list(2, "b.example")] == ["c.example"]


async def test_private_keys_move_to_the_newest_encryption_key(any_pool: Pool):
    """As passwords do; the signer goes on with what it holds, and reads the new ones."""
    vault = Vault([OLD])
    keys = DkimKeys(any_pool, vault)
    made = await keys.create("shop.example")
    vault.replace([NEW, OLD])
    assert await keys.sealed.stale() == 2
    assert await keys.sealed.reseal() == Resealed(2, 0)
    vault.replace([NEW])
    signer = Signer(keys, vault)
    await signer.refresh()
    mail = Mail("a@shop.example", ("b@b.example",), b"From: a@shop.example\r\n\r\nx\r\n")
    found, again = signer.begin(mail).digests, signer.begin(mail).digests
    assert [record(one.key) for one in found] == [key.record for key in made.keys]
    assert again[0].key is found[0].key, "loaded once"


async def test_every_change_is_announced(any_database_url: str, any_pool: Pool, keys: DkimKeys):
    """Made, rotated, removed: whoever listens hears of it."""
    async with trio.open_nursery() as nursery:
        heard = 0
        listening = trio.Event()

        async def listen() -> None:
            nonlocal heard
            async for event in notifications(any_database_url, (channels.DKIM,)):
                if isinstance(event, Reconnected):
                    listening.set()
                else:
                    heard += 1

        nursery.start_soon(listen)
        await listening.wait()
        for change in (keys.create, keys.rotate, keys.remove):
            before = heard
            await change("shop.example")
            with trio.fail_after(10):
                while heard == before:
                    await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_the_table_refuses_what_the_program_never_does(any_pool: Pool, keys: DkimKeys):
    """A second active key of a kind; a retired one with its private half."""
    await keys.create("shop.example", "s1")
    for statement in (
        "INSERT INTO relay.dkim_keys (domain, selector, algorithm, state, record, private_key,"
        " key_id, activated_at) SELECT domain, 'other', algorithm, state, record, private_key,"
        " key_id, activated_at FROM relay.dkim_keys",
        "UPDATE relay.dkim_keys SET state = 'retired', retired_at = now()",
        "UPDATE relay.dkim_keys SET state = 'broken'",
    ):
        with pytest.raises(psycopg.IntegrityError):
            await any_pool.execute(statement)
