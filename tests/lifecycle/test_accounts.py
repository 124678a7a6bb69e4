"""Accounts for those who do not write SQL."""

from uuid import uuid4

import pytest

from relay.db.pool import Pool
from relay.lifecycle.accounts import Accounts, Status, Taken, TooManyMails, WrongStatus
from relay.lifecycle.tokens import Action
from relay.outbound.composing.message import MalformedMessage
from tests.lifecycle.people import insert, tokens


async def test_made_found_and_listed_by_their_owner_alone(pool: Pool):
    """The administrator (no owner) sees all, those that SQL made too."""
    accounts, one, two = Accounts(pool), uuid4(), uuid4()
    ada = await accounts.create("Ada@EXAMPLE.org", "ada", one)
    bob = await accounts.create("bob@bücher.example", "Böb <b>", two)
    (by_sql,) = await insert(pool)
    assert (ada.email, ada.login, ada.status) == ("Ada@example.org", "ada", Status.PROVISIONED)
    assert bob.email == "bob@xn--bcher-kva.example"
    assert len(await tokens(pool, ada.id)) == 1
    assert await accounts.get(ada.id, one) == ada
    assert await accounts.get(ada.id, two) is None
    assert await accounts.get(ada.id, None) == ada
    assert await accounts.list(two, limit=10) == [bob]
    everybodys = await accounts.list(None, limit=10)
    assert [each.id for each in everybodys] == [by_sql, bob.id, ada.id]
    assert await accounts.list(None, limit=10, before=bob.id) == [ada]


async def test_status_changes_are_idempotent_and_the_owners(pool: Pool):
    """Asking for what is already so is no error; asking for another's is nobody's account."""
    accounts, one, two = Accounts(pool), uuid4(), uuid4()
    ada = await accounts.create("ada@example.org", "ada", one)
    assert await accounts.suspend(ada.id, two) is None
    assert await accounts.get(ada.id, one) == ada
    assert await accounts.unsuspend(ada.id, one) == ada
    for _ in range(2):
        suspended = await accounts.suspend(ada.id, one)
        assert suspended is not None
        assert suspended.status is Status.SUSPENDED
    for _ in range(2):
        back = await accounts.unsuspend(ada.id, one)
        assert back is not None
        assert (back.status, back.suspended_at) == (Status.PROVISIONED, None)


async def test_mail_fits_the_status_and_is_bounded(pool: Pool):
    """A recovery for the active, an activation for the provisioned, five in 15 minutes."""
    accounts, one = Accounts(pool), uuid4()
    ada = await accounts.create("ada@example.org", "ada", one)
    with pytest.raises(WrongStatus, match="provisioned"):
        await accounts.mail(ada.id, one, Action.PASSWORD_RECOVERY)
    assert await accounts.mail(ada.id, uuid4(), Action.ACTIVATION) is None
    for _ in range(4):
        assert await accounts.mail(ada.id, one, Action.ACTIVATION) == ada
    with pytest.raises(TooManyMails):
        await accounts.mail(ada.id, one, Action.ACTIVATION)


async def test_what_is_taken_or_malformed_names_its_field(pool: Pool):
    """And nothing is stored."""
    accounts, one = Accounts(pool), uuid4()
    await accounts.create("ada@example.org", "ada", one)
    for email, login, field in (
        ("ada@example.org", "other", "email"),
        ("other@example.org", "ada", "login"),
    ):
        with pytest.raises(Taken) as taken:
            await accounts.create(email, login, one)
        assert taken.value.field == field
    for email, login, field in (
        ("nobody", "x", "email"),
        ("Ada <x@example.org>", "x", "email"),
        ('"a b"@example.org', "x", "email"),
        ('"a,b"@example.org', "x", "email"),
        ("x@[127.0.0.1]", "x\r\n", "login"),
        ("x@example.org\r\nBcc: y@example.org", "x", "email"),
        ("\ud800@example.org", "x", "email"),
        ("x@example.org", "a,b", "login"),
        ("x@example.org", "a\nb", "login"),
        ("x@example.org", "a\tb", "login"),
        ("x@example.org", "\x00", "login"),
        ("x@example.org", "\u2028", "login"),
        ("x@example.org", "\ud800", "login"),
        ("x@example.org", "", "login"),
        ("x@example.org", "x" * 255, "login"),
    ):
        with pytest.raises(MalformedMessage) as malformed:
            await accounts.create(email, login, one)
        assert malformed.value.field == field, (email, login)
    assert len(await accounts.list(None, limit=50)) == 1
