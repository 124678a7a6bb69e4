"""Upstream identities and suppressions: encrypted, owned, rotated."""

from uuid import UUID, uuid4

import pytest
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import Unreadable, Vault
from relay.db.pool import Pool
from relay.outbound.composing.message import MalformedMessage
from relay.outbound.routing.senders import Senders, parse_upstream
from relay.outbound.sealed import Resealed
from relay.outbound.suppression.suppressions import Suppressions
from tests.outbound.node import Node, put

OLD, NEW = Fernet.generate_key().decode(), Fernet.generate_key().decode()
SECRET = "canary-päss word"
URL = "smtps://us%40er:canary-p%C3%A4ss%20word@up.example"


def test_a_vault_opens_what_any_of_its_keys_sealed_for_the_same_account_only():
    """The id inside the plaintext keeps rows from being swapped."""
    account = uuid4()
    sealed = Vault([OLD]).seal(account, SECRET)
    assert SECRET.encode() not in sealed
    both = Vault([NEW, OLD])
    assert both.open(account, sealed) == SECRET
    with pytest.raises(Unreadable, match="another account"):
        both.open(uuid4(), sealed)
    with pytest.raises(Unreadable, match="no encryption key"):
        Vault([NEW]).open(account, sealed)
    with pytest.raises(Unreadable, match="no encryption key"):
        both.open(account, b"garbage")
    assert both.key_id == Vault([NEW]).key_id != Vault([OLD]).key_id


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("loop:", ("loop:", None, None)),
        (URL, ("smtps://up.example:465", "us@er", SECRET)),
        ("smtp+starttls://up.example:2587", ("smtp+starttls://up.example:2587", None, None)),
        ("smtp://u:p@[::1]:2525", ("smtp://[::1]:2525", "u", "p")),
    ],
)
def test_an_upstream_is_taken_apart(url: str, parts: tuple[str, str | None, str | None]):
    """URL without secrets, user, password."""
    found = parse_upstream(url)
    assert (found.url, found.username, found.password) == parts


@pytest.mark.parametrize(
    "url",
    [
        "",
        "up.example:25",
        "http://up.example",
        "smtp://up.example",
        "smtps://",
        "smtps://up.example:70000",
        "smtps://up.example:x",
        "smtps://up.example/path",
        "smtps://up.exa\r\nmple",
        "smtps://up.example:0",
        "smtps://up.example?x",
        "smtps://up ex.example",
        "smtps://user@up.example",
        "smtps://us%0aer:password@up.example",
        "smtps://us%ffer:password@up.example",
    ],
)
def test_an_upstream_that_cannot_be_used_is_refused(url: str):
    """With a sentence that does not repeat it: it may hold a password."""
    with pytest.raises(MalformedMessage) as caught:
        parse_upstream(url)
    assert "up.ex" not in str(caught.value)


async def test_a_password_is_stored_encrypted_and_reaches_its_message(node: Node):
    """Only through the vault, and only for the owner's mail."""
    vault = Vault([OLD])
    senders = Senders(node.pool, vault)
    added, made = await senders.put(ADMINISTRATOR_ID, "Sender@Example.org", URL)
    assert (added.address, added.upstream) == ("sender@example.org", "smtps://up.example:465")
    assert made
    stored = await node.pool.fetch_value("SELECT s::text FROM relay.senders s")
    assert "canary" not in stored
    assert SECRET.encode().hex() not in stored
    await put(node.pool, "a@x.example")
    (claimed,) = await node.claim()
    assert claimed.username == "us@er"
    assert claimed.sender_id is not None
    assert claimed.password is not None
    assert vault.open(claimed.sender_id, claimed.password) == SECRET
    await put(node.pool, "b@x.example", owner=uuid4())
    (foreign,) = await node.claim()
    assert foreign.upstream is None
    assert await senders.remove(ADMINISTRATOR_ID, "SENDER@example.org")
    assert not await senders.remove(ADMINISTRATOR_ID, "sender@example.org")


async def test_an_identity_is_replaced_and_listed_by_owner(any_pool: Pool):
    """One row an owner and address."""
    senders = Senders(any_pool, Vault([OLD]))
    other = uuid4()
    assert (await senders.put(ADMINISTRATOR_ID, "a@x.org", "loop:"))[1]
    assert not (await senders.put(ADMINISTRATOR_ID, "A@x.org", URL))[1]
    await senders.put(other, "a@x.org", "loop:")
    await senders.put(ADMINISTRATOR_ID, "b@x.org", "loop:")
    found = await senders.list(ADMINISTRATOR_ID, limit=10)
    assert [s.upstream for s in found] == ["smtps://up.example:465", "loop:"]
    assert await senders.list(ADMINISTRATOR_ID, limit=10, after="a@x.org") == found[1:]
    assert len(await senders.list(other, limit=10)) == 1
    for address in (
        "",
        "a",
        "@x",
        "a@",
        "a b@x.org",
        "A <a@x.org>",
        "a\n@x.org",
        "a" * 250 + "@x.org",
    ):
        with pytest.raises(MalformedMessage):
            await senders.put(other, address, "loop:")


async def test_rotation_goes_on_where_it_was_interrupted(any_pool: Pool):
    """Afterwards the old key is not needed; what no key opens is left as it is and counted."""
    vault = Vault([OLD])
    senders = Senders(any_pool, vault)
    for number in range(5):
        await senders.put(ADMINISTRATOR_ID, f"u{number}@x.org", URL)
    await any_pool.execute("UPDATE relay.senders SET password = '\\x00' WHERE address = 'u4@x.org'")
    vault.replace([NEW, OLD])
    assert await senders.sealed.stale() == 5
    assert await senders.sealed.reseal() == Resealed(4, 1)
    assert await senders.sealed.reseal() == Resealed(0, 1)
    newest = Vault([NEW])
    rows = await any_pool.fetch(
        "SELECT id, password FROM relay.senders WHERE address <> 'u4@x.org'"
    )
    assert [newest.open(sender_id, sealed) for sender_id, sealed in rows] == [SECRET] * 4


async def test_suppressions_compare_without_case_and_belong_to_an_owner(any_pool: Pool):
    """Added twice they are one; removed they are gone."""
    suppressions = Suppressions(any_pool)
    other = UUID(int=7)
    assert (await suppressions.add(ADMINISTRATOR_ID, "Bob@X.example", "bounced"))[1]
    assert not (await suppressions.add(ADMINISTRATOR_ID, "bob@x.EXAMPLE", "asked"))[1]
    await suppressions.add(other, "ann@x.example")
    await suppressions.add(ADMINISTRATOR_ID, "cy@münchen.example")
    found = await suppressions.list(ADMINISTRATOR_ID, limit=10)
    assert [(s.address, s.reason) for s in found] == [
        ("bob@x.example", "asked"),
        ("cy@xn--mnchen-3ya.example", ""),
    ]
    assert await suppressions.list(ADMINISTRATOR_ID, limit=1, after="bob@x.example") == found[1:]
    assert not await suppressions.remove(other, "bob@x.example")
    assert await suppressions.remove(ADMINISTRATOR_ID, "BOB@x.example")
    assert await suppressions.remove(ADMINISTRATOR_ID, "cy@MÜNCHEN.example")
