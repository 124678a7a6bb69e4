"""Mailboxes in PostgreSQL: who sees which, and until when."""

from uuid import uuid4

import psycopg
import pytest

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import hash_token
from relay.db.channels import of_owner
from relay.db.pool import Pool
from relay.errors import Invalid
from relay.mailboxes.known import KnownMailboxes
from relay.mailboxes.records import Created
from relay.mailboxes.store import _COUNT_LIVE, AddressTaken, Store
from relay.mailboxes.visibility import Credential
from tests.mailboxes.mail import deliver

ADMIN = Credential(administrator=True)
EXPIRE = "UPDATE relay.mailboxes SET expires_at = now() - interval '1 microsecond' WHERE id = %s"


def _session(created: Created) -> Credential:
    assert created.session_token is not None
    return Credential(hash_token(created.session_token))


async def _life(pool: Pool, created: Created) -> float:
    """How many minutes a mailbox was given."""
    seconds: float = await pool.fetch_value(
        """
        SELECT extract(epoch FROM expires_at - created_at)::float8
        FROM relay.mailboxes WHERE id = %s
        """,
        (created.mailbox.id,),
    )
    return seconds / 60


@pytest.mark.parametrize(
    ("plan", "asked", "minutes"),
    [
        ("free", None, 60),
        ("free", 5, 5),
        ("free", 61, 60),
        ("pro", None, 1440),
        ("pro", 10**30, 1440),
        ("enterprise", 10080, 10080),
        ("free", 0.5, 0.5),
    ],
)
async def test_a_mailbox_lives_as_long_as_its_plan_allows(pool, store, plan, asked, minutes):
    """The life asked for is clamped to the plan; without one it is the plan's default."""
    assert await _life(pool, await store.create(plan=plan, ttl_minutes=asked)) == minutes


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_minutes": 0},
        {"ttl_minutes": -1},
        {"ttl_minutes": float("nan")},
        {"plan": "gold"},
        {"domain": "elsewhere.example"},
        {"domain": ""},
        {"local_part": ""},
        {"local_part": "a b"},
        {"local_part": "a@b"},
        {"local_part": "a\x00"},
        {"local_part": "x" * 65},
        {"webhook_url": "ftp://x"},
        {"webhook_url": "https://x y"},
    ],
)
async def test_refuses_what_cannot_be_a_mailbox(store, wrong):
    """Bad values are refused with a reason."""
    with pytest.raises(Invalid):
        await store.create(**wrong)


async def test_an_address_belongs_to_one(pool, store):
    """A local part is taken in any spelling, also by a mailbox that has expired."""
    created = await store.create(local_part="Bob.Smith", domain="b.EXAMPLE")
    assert created.mailbox.address == "bob.smith@b.example"
    await pool.execute(EXPIRE, (created.mailbox.id,))
    with pytest.raises(AddressTaken, match=r"bob\.smith@b\.example"):
        await store.create(local_part="bob.SMITH", domain="b.example")
    await store.create(local_part="bob.smith")


async def test_random_addresses_differ(store):
    """Without a local part, addresses are random and readable."""
    made = {(await store.create()).mailbox.address for _ in range(20)}
    assert len(made) == 20
    assert all(len(address.partition("@")[0]) == 23 for address in made)


async def test_only_a_hash_of_the_token_is_stored(pool, store):
    """The session token is in the answer, its SHA-256 in the table."""
    created = await store.create()
    assert created.session_token is not None
    stored = await pool.fetch_value("SELECT token_hash FROM relay.mailboxes")
    assert bytes(stored) == hash_token(created.session_token)


async def test_owned_mailboxes_have_no_session_token(store):
    """With an API key the owner is the credential."""
    key = uuid4()
    created = await store.create(owner_id=key, plan="pro")
    assert created.session_token is None
    assert created.mailbox.owner_type == "api"
    assert await store.find(created.mailbox.address, Credential(owner_id=key)) is not None
    assert (await store.create(owner_id=key, owner_type="mcp")).mailbox.owner_type == "mcp"


async def test_strangers_and_the_dead_see_nothing_alike(pool, store):
    """Unknown, foreign, expired and deleted mailboxes are all None."""
    created = await store.create()
    mine, address = _session(created), created.mailbox.address
    found = await store.find(address.upper(), mine)
    assert found is not None
    assert found.id == created.mailbox.id
    assert await store.find(address, ADMIN) is not None
    for stranger in (Credential(), Credential(hash_token("rs_x")), Credential(owner_id=uuid4())):
        assert await store.find(address, stranger) is None
    for unknown in ("nobody@relay.localhost", "", "@", "a\x00b@c", "\ud800@x"):
        assert await store.find(unknown, mine) is None
    await pool.execute(EXPIRE, (created.mailbox.id,))
    assert await store.find(address, mine) is None
    assert await store.find(address, ADMIN) is None

    deleted = await store.create()
    assert await store.delete(deleted.mailbox.id)
    assert not await store.delete(deleted.mailbox.id)
    assert await store.find(deleted.mailbox.address, _session(deleted)) is None


async def test_knows_what_a_credential_has_made_or_found(store):
    """By what opened it, and by nothing else; what it no longer opens is not known to it either."""
    key = uuid4()
    for made, mine in (
        (anonymous := await store.create(), _session(anonymous)),
        (await store.create(owner_id=key), Credential(owner_id=key)),
        (await store.create(owner_id=ADMINISTRATOR_ID, plan="enterprise"), ADMIN),
    ):
        address = made.mailbox.address
        for stranger in (Credential(), Credential(hash_token("x")), Credential(owner_id=uuid4())):
            assert await store.find(address, stranger) is None
            assert store.known(address, stranger) is None
        known = store.known(address.upper(), mine)
        assert known is not None
        assert known.id == made.mailbox.id
        assert await store.delete(made.mailbox.id)
        assert await store.find(address, mine) is None
        assert store.known(address, mine) is None
    assert store.known("\ud800@x", ADMIN) is None


async def test_knows_so_many_mailboxes(store):
    """Above that, the one that was found longest ago is forgotten."""
    known = KnownMailboxes(most=2)
    mailbox = (await store.create()).mailbox
    for address in "aba":
        known.note(address, ADMIN, mailbox)
    known.note("c", ADMIN, mailbox)
    assert [known.get(address, ADMIN) is not None for address in "abc"] == [True, False, True]


async def test_knows_a_mailbox_once_whatever_is_shown_beside_what_opened_it(store):
    """Tokens that nobody has use up no places."""
    key = uuid4()
    mailbox = (await store.create(owner_id=key)).mailbox
    known = KnownMailboxes(most=3)
    known.note("first", ADMIN, mailbox)
    for number in range(10):
        token = hash_token(str(number))
        known.note("a", Credential(token, key), mailbox)
        assert known.get("a", Credential(token)) is None
        known.note("b", Credential(token, key, administrator=True), mailbox)
    for address, opens in (("first", ADMIN), ("a", Credential(owner_id=key)), ("b", ADMIN)):
        assert known.get(address, opens) is not None
    assert known.get("b", Credential(owner_id=key)) is None
    other = Credential(hash_token("its own"), uuid4())
    known.note("a", other, mailbox)
    assert known.get("a", Credential(other.token_hash)) is not None
    assert known.get("a", Credential(owner_id=other.owner_id)) is None


async def test_lists_an_owners_mailboxes(store):
    """An owner sees their own, the administrator all, newest first, page by page."""
    key = uuid4()
    mine = [(await store.create(owner_id=key)).mailbox.address for _ in range(5)]
    await store.create()
    assert (await store.mailboxes(Credential())).items == []
    seen: list[str] = []
    cursor = None
    while True:
        page = await store.mailboxes(Credential(owner_id=key), limit=2, cursor=cursor)
        seen += [item.address for item in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(mine)
    assert len((await store.mailboxes(ADMIN)).items) == 6
    await store.create(owner_id=ADMINISTRATOR_ID)
    assert len((await store.mailboxes(Credential(owner_id=ADMINISTRATOR_ID))).items) == 1


async def test_captured_mailboxes_count_as_the_administrators(pool, store):
    """Beside its own, though no index by owner has them; a key's are counted by that index."""
    key = uuid4()
    for owner in (key, key, ADMINISTRATOR_ID):
        await store.create(owner_id=owner)
    await pool.execute(
        "INSERT INTO relay.mailboxes (address, owner_type, owner_id, captured_at, expires_at) "
        "SELECT n || '@shop.example', 'capture', %s, now(), now() + n * interval '1 hour' "
        "FROM generate_series(0, 2) n",
        (ADMINISTRATOR_ID,),
    )
    assert (await store.allowance(owner_id=ADMINISTRATOR_ID)).mailboxes == 3
    assert (await store.allowance(owner_id=key)).mailboxes == 2
    async with pool.transaction() as conn:
        await conn.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor = await conn.execute(
            f"EXPLAIN SELECT {_COUNT_LIVE.format(most=10)}", {"owner": key, "source": None}
        )
        plan = "\n".join([row[0] for row in await cursor.fetchall()])
    assert "using mailboxes_owner" in plan
    assert "mailboxes_captured" not in plan


@pytest.mark.parametrize("cursor", ["", "x", "e30", "WzEsIDJd", "\ud800", "a" * 9000])
async def test_refuses_foreign_cursors(store, messages, cursor):
    """A cursor that was not made here is refused, never an internal error."""
    mailbox = (await store.create()).mailbox.id
    with pytest.raises(Invalid):
        await messages.page(mailbox, cursor=cursor)
    with pytest.raises(Invalid):
        await store.mailboxes(ADMIN, cursor=cursor)


async def test_a_purged_mailbox_leaves_nothing(pool, store):
    """Raw mail, summaries, counts and the address go at once, other mailboxes stay; once."""
    gone, stays = await store.create(local_part="gone"), await store.create()
    for box in (gone, stays):
        for _ in range(3):
            await deliver(pool, box.mailbox.id, "x")
    await pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, %s)",
        (gone.mailbox.id, b"y" * 3_000_000),
    )
    assert await store.purge(gone.mailbox.id)
    assert not await store.purge(gone.mailbox.id)
    for table in ("messages", "summaries"):
        assert await pool.fetch_row(
            f"SELECT count(*), count(*) FILTER (WHERE mailbox_id = %s) FROM relay.{table}",
            (gone.mailbox.id,),
        ) == (3, 0)
    assert await pool.fetch_value("SELECT sum(messages) FROM relay.usage_changes") == 3
    assert (await store.create(local_part="gone")).mailbox.id != gone.mailbox.id


# What users do by plain SQL ----------------------------------------------------------------------


async def test_sql_makes_a_mailbox(pool, store):
    """relay.create_mailbox gives an address of the relay's first domain and a working token."""
    await store.register_domains()
    row = await pool.fetch_row("SELECT * FROM relay.create_mailbox(5)")
    assert row is not None
    address, token, expires_at = row
    assert address.endswith("@relay.localhost")
    found = await store.find(address, Credential(hash_token(token)))
    assert found.expires_at == expires_at
    assert 299 < found.expires_in <= 300
    row = await pool.fetch_row("SELECT address FROM relay.create_mailbox(plan => 'pro')")
    assert (await store.find(row[0], ADMIN)).plan == "pro"
    await Store(pool, ["c.example"]).register_domains()
    assert (await pool.fetch_value("SELECT address FROM relay.create_mailbox()")).endswith(
        "@c.example"
    )


@pytest.mark.parametrize("call", ["0", "-1", "5, 'gold'", "5, NULL"])
async def test_sql_refuses_bad_values(pool, call):
    """relay.create_mailbox raises for a life below a minute and an unknown plan."""
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        await pool.execute(f"SELECT * FROM relay.create_mailbox({call})")


@pytest.mark.parametrize("address", ["Bob@x.example", "bob", "@x", "a b@x", "x" * 300 + "@y"])
async def test_sql_cannot_insert_a_bad_address(pool, address):
    """Addresses are canonical and bounded, whoever inserts them."""
    with pytest.raises(psycopg.errors.CheckViolation):
        await pool.execute("INSERT INTO relay.mailboxes (address) VALUES (%s)", (address,))


async def test_closing_keeps_the_time(pool, store):
    """closed_at follows is_active through every way of changing it."""
    mailbox = (await store.create()).mailbox.id
    closed = "SELECT closed_at IS NOT NULL FROM relay.mailboxes"
    assert not await pool.fetch_value(closed)
    await store.delete(mailbox)
    assert await pool.fetch_value(closed)
    await pool.execute("UPDATE relay.mailboxes SET is_active = true")
    assert not await pool.fetch_value(closed)
    await pool.execute("INSERT INTO relay.mailboxes (address, is_active) VALUES ('a@b', false)")
    assert await pool.fetch_value(closed + " WHERE address = 'a@b'")


async def test_the_database_cascades(pool, store):
    """A mailbox that is deleted by SQL takes its messages and summaries with it."""
    mailbox = (await store.create()).mailbox.id
    await deliver(pool, mailbox, "x")
    await pool.execute("DELETE FROM relay.mailboxes")
    assert await pool.fetch_value("SELECT count(*) FROM relay.messages") == 0
    assert await pool.fetch_value("SELECT count(*) FROM relay.summaries") == 0


HEARD = ("relay_messages", "relay_expiry", "relay_mailboxes")


async def _heard(
    pool: Pool, *statements: str, channels: tuple[str, ...] = HEARD
) -> list[tuple[str, str]]:
    """The notifications that statements cause, in order."""
    async with pool.connection() as conn:
        for channel in channels:
            await conn.execute(f"LISTEN {channel}")
        for statement in statements:
            await pool.execute(statement)
        heard = [(n.channel, n.payload) async for n in conn.notifies(timeout=0.2)]
        await conn.execute("UNLISTEN *")
    return heard


async def test_announces_new_mailboxes_once_a_statement(pool):
    """Inserting many mailboxes announces the earliest expiry, once."""
    heard = await _heard(
        pool,
        """
        INSERT INTO relay.mailboxes (address, expires_at)
        SELECT n || '@x', to_timestamp(4000000000 + n) FROM generate_series(1, 500) n
        """,
    )
    assert heard == [("relay_expiry", "4000000001.000000")]


async def test_announces_changes_of_mailboxes(pool, store):
    """Deleting, shortening and removing announce the mailbox; the ticker's flip does not."""
    made = [str((await store.create()).mailbox.id) for _ in range(4)]
    heard = await _heard(
        pool,
        f"UPDATE relay.mailboxes SET is_active = false WHERE id = '{made[0]}'",
        f"UPDATE relay.mailboxes SET expires_at = to_timestamp(1) WHERE id = '{made[1]}'",
        f"UPDATE relay.mailboxes SET is_active = false WHERE id = '{made[1]}'",
        f"UPDATE relay.mailboxes SET webhook_url = NULL, is_active = false WHERE id = '{made[0]}'",
        f"DELETE FROM relay.mailboxes WHERE id = '{made[2]}'",
        f"DELETE FROM relay.mailboxes WHERE id = '{made[0]}'",
    )
    assert heard == [
        ("relay_mailboxes", f"{made[0]},="),
        ("relay_expiry", "1.000000"),
        ("relay_mailboxes", f"{made[1]},="),
        ("relay_mailboxes", f"{made[2]},="),
    ]


async def test_announces_a_mass_change_to_everybody(pool, store):
    """More changes than a payload can name are announced as one star."""
    await pool.execute("SELECT relay.create_mailbox() FROM generate_series(1, 300)")
    heard = await _heard(pool, "UPDATE relay.mailboxes SET is_active = false")
    assert heard == [("relay_mailboxes", "*,=")]


@pytest.mark.parametrize(
    "change", ["UPDATE relay.mailboxes SET is_active = false", "DELETE FROM relay.mailboxes"]
)
@pytest.mark.parametrize(
    ("mailboxes", "owners", "named"),
    [(1, 1, 1), (200, 15, 15), (200, 16, 0), (201, 200, 200), (250, 250, 0)],
)
async def test_announces_whose_the_changed_mailboxes_are_where_there_is_room(
    pool, store, change, mailboxes, owners, named
):
    """Of very many mailboxes, too, which are not named then; of too many owners none is."""
    ids = [uuid4() for _ in range(owners)]
    made = await pool.fetch(
        "INSERT INTO relay.mailboxes (address, token_hash, expires_at, owner_id, owner_type)"
        " SELECT gen_random_uuid() || '@test', NULL, now() + interval '1 hour', (%(ids)s::uuid[])"
        "[1 + n %% %(owners)s], 'api' FROM generate_series(1, %(mailboxes)s) n"
        " RETURNING id::text",
        {"ids": ids, "owners": owners, "mailboxes": mailboxes},
    )
    ((_, payload),) = await _heard(pool, change, channels=("relay_mailboxes",))
    keys = [of_owner(one) for one in ids[:named]]
    keys += [id for (id,) in made] if mailboxes <= 200 else ["*"]
    assert sorted(payload.split(",")) == sorted(keys)
    assert len(payload) < 8000


async def test_announces_what_is_changed_of_messages(pool, store):
    """Deletions, reads and tags name their messages, once a statement; of what is over, of what did
    not happen and of what comes in, nothing is said."""
    mailbox = (await store.create()).mailbox.id
    over = (await store.create()).mailbox.id
    ids = [await deliver(pool, mailbox, str(n)) for n in range(4)]
    await deliver(pool, over, "x")
    await pool.execute("UPDATE relay.mailboxes SET is_active = false WHERE id = %s", (over,))
    heard = await _heard(
        pool,
        f"UPDATE relay.messages SET is_read = true WHERE id = '{ids[0]}'",
        f"UPDATE relay.summaries SET tags = '{{x}}' WHERE message_id = '{ids[1]}'",
        f"DELETE FROM relay.messages WHERE id = '{ids[2]}'",
        f"DELETE FROM relay.messages WHERE mailbox_id = '{over}'",
        "UPDATE relay.messages SET is_read = true WHERE false",
        f"INSERT INTO relay.messages (mailbox_id, raw_email) VALUES ('{mailbox}', '')",
        f"DELETE FROM relay.messages WHERE id IN ('{ids[0]}', '{ids[1]}')",
        channels=("relay_changes",),
    )
    keys = [f"{mailbox}:{one}" for one in ids]
    assert [payload for _, payload in heard[:-1]] == [f"{key},=" for key in keys[:3]]
    assert sorted(heard[-1][1].split(",")) == sorted(["=", *keys[:2]])


async def test_announces_of_many_changed_messages_only_where_they_are(pool, store):
    """More than a payload can name are announced as their mailbox."""
    mailbox = (await store.create()).mailbox.id
    for n in range(101):
        await deliver(pool, mailbox, str(n))
    heard = await _heard(pool, "DELETE FROM relay.messages", channels=("relay_changes",))
    assert heard == [("relay_changes", f"{mailbox},=")]


@pytest.mark.parametrize(("owners", "named"), [(15, 15), (100, 0)])
async def test_announces_whose_the_changed_messages_are_where_there_is_room(
    pool, store, owners, named
):
    """A hundred messages leave room for a few owners; of more none is named, and all look."""
    ids = [uuid4() for _ in range(owners)]
    boxes = [(await store.create(owner_id=one)).mailbox.id for one in ids]
    for n in range(100):
        await deliver(pool, boxes[n % owners], str(n))
    ((_, payload),) = await _heard(pool, "DELETE FROM relay.messages", channels=("relay_changes",))
    keys = payload.split(",")
    assert {key for key in keys if key.startswith("=")} == {of_owner(one) for one in ids[:named]}
    assert len(keys) == 100 + named
    assert len(payload) < 8000


async def test_announces_whose_changed_messages_are_that_are_too_many_to_say_where(pool, store):
    """Of more mailboxes than can be named it says whose they are: nobody else looks."""
    owner = uuid4()
    for n in range(201):
        mailbox = (await store.create(owner_id=owner)).mailbox.id
        await deliver(pool, mailbox, str(n))
    heard = await _heard(pool, "DELETE FROM relay.messages", channels=("relay_changes",))
    assert heard == [("relay_changes", f"*,{of_owner(owner)}")]


async def test_announces_messages_once_a_statement(pool, store):
    """Inserting many messages is one notification, and each of them is queued for parsing."""
    await store.create()
    heard = await _heard(
        pool,
        """
        INSERT INTO relay.messages (mailbox_id, raw_email)
        SELECT id, 'x' FROM relay.mailboxes, generate_series(1, 100)
        """,
    )
    assert heard == [("relay_messages", "")]
    assert await pool.fetch_value("SELECT count(*) FROM relay.unsummarised") == 100
