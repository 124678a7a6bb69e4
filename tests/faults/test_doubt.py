"""Every answer that rests on what was found: while the synchronous standby is away it is 503.

Each case is a call that is made twice.  The first time it commits on the primary alone, as one
that ended in doubt does; the second time it finds what the first one did, and must not promise it.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from cryptography.fernet import Fernet

from actors import writer
from actors.messages import Accept
from relay.access.keys import Keys
from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import Vault
from relay.db.listen import Hub
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.devices.postgres import PostgresStore
from relay.devices.store import StoreUnavailable
from relay.errors import DatabaseUnavailable, PermanentFailure
from relay.ids import new_id, new_ids
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.consumption import Consumption
from relay.lifecycle.tokens import Action, sign
from relay.mailboxes.accept import Row, insert_many, insert_one, stored_among
from relay.mailboxes.messages import Messages
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Credential
from relay.outbound.admin import QueueAdmin
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.settled import Settled
from relay.outbound.queue.states import Cause
from relay.outbound.queue.store import Queue
from relay.outbound.routing.senders import Senders
from relay.outbound.suppression.suppressions import Suppressions
from relay.webhooks.store import Webhooks
from tests.actors.running import running
from tests.db.cluster import Cluster, binaries

KEY = bytes(range(32))
HOOK = "http://127.0.0.1/"
PATIENCE = 0.15  # s
Known = dict[str, Any]


@pytest.fixture(scope="module")
def lonely() -> Iterator[Cluster]:
    """A migrated primary whose synchronous standby is away for good."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    cluster.start()
    trio.run(functools.partial(migrate, cluster.dsn()))
    cluster.lose_standby()
    yield cluster
    cluster.remove()


@pytest.fixture
async def pool(lonely: Cluster) -> AsyncIterator[Pool]:
    """A pool whose commits wait for the standby, but not for long."""
    pool = Pool(lonely.dsn(), call_timeout=PATIENCE)
    yield pool
    await pool.close()


@pytest.fixture
async def local(lonely: Cluster) -> AsyncIterator[Pool]:
    """A pool whose commits wait for nobody."""
    pool = Pool(lonely.local_dsn())
    yield pool
    await pool.close()


async def box(pool: Pool, known: Known, name: str) -> str:
    """The address of a mailbox of the case's own."""
    if name not in known:
        (row,) = await pool.fetch("SELECT address FROM relay.create_mailbox()")
        known[name] = row[0]
    return str(known[name])


async def mail(pool: Pool, known: Known) -> None:
    """A message under the same id: SNS again, or the relay's own loop."""
    address = await box(pool, known, "box")
    identity = known.setdefault("id", new_id())
    await insert_many(pool, [Row(identity, address, "a@example.org", b"x")])


async def mail_for_two(pool: Pool, known: Known) -> None:
    """The same for several recipients."""
    addresses = [await box(pool, known, name) for name in "ab"]
    ids = known.setdefault("ids", [new_id() for _ in addresses])
    await insert_one(pool, "a@example.org", list(zip(ids, addresses, strict=True)), b"x")


async def mail_looked_up(pool: Pool, known: Known) -> None:
    """The writer's look after a commit in doubt."""
    if known:
        await stored_among(pool, [known["id"]])
    else:
        await mail(pool, known)


def message(**fields: Any) -> Message:
    return Message(Address("a@shop.example"), [Address("b@x.example")], "s", "t", **fields)


async def a_key(pool: Pool, known: Known) -> None:
    """A send that is repeated with its Idempotency-Key."""
    await enqueue(pool, [message()], key="again", key_hash=b"h" * 32)


async def a_key_in_sql(pool: Pool, known: Known) -> None:
    """`relay.send` with a key, in a transaction that does nothing else."""
    await pool.fetch(
        "SELECT relay.send('a@x.example', 'b@x.example', 's', 't', NULL, 'normal', NULL, 'sql')"
    )


async def ids(pool: Pool, known: Known) -> None:
    """A send that is repeated with ids of its own."""
    await enqueue(pool, [message()], ids=known.setdefault("ids", new_ids(1)))


async def an_outcome(pool: Pool, known: Known) -> None:
    """The finaliser's second try."""
    again = bool(known)
    if not again:
        (queued,) = (await enqueue(pool, [message()])).messages
        rows = await pool.fetch(
            "UPDATE relay.outbound_due SET token = 7, node = %s, attempt = 1, claimed_at = now()"
            " WHERE id = %s RETURNING id",
            (ADMINISTRATOR_ID, queued.id),
        )
        known["id"] = rows[0][0]
    outcome = Settled(known["id"], 7, Cause.DELIVERED)
    found = await Queue(pool, ADMINISTRATOR_ID).finalise([outcome], again=again)
    assert again or found == {known["id"]}


async def a_cancel(pool: Pool, known: Known) -> None:
    """Cancelled already, says the 409."""
    if not known:
        (queued,) = (await enqueue(pool, [message()])).messages
        known["id"] = queued.id
    await QueueAdmin(pool).cancel(known["id"])


async def a_hold(pool: Pool, known: Known) -> None:
    """Held already, says the 409."""
    if not known:
        (queued,) = (await enqueue(pool, [message()])).messages
        known["id"] = queued.id
    await QueueAdmin(pool).hold(known["id"])


async def a_pause(pool: Pool, known: Known) -> None:
    """Paused already."""
    await QueueAdmin(pool).pause()


async def a_token(pool: Pool, known: Known) -> None:
    """Used already, says the 400."""
    if not known:
        await Accounts(pool).create("token@x.example", "token", ADMINISTRATOR_ID)
        secret = await pool.fetch_value("SELECT secret FROM relay.tokens ORDER BY id DESC LIMIT 1")
        known["token"] = sign(KEY, Action.ACTIVATION, secret, "00000")
    await Consumption(pool, lambda: (KEY,)).consume(known["token"])


async def an_account(pool: Pool, known: Known) -> None:
    """Taken, says the 409."""
    await Accounts(pool).create("taken@x.example", "taken", ADMINISTRATOR_ID)


async def a_suspension(pool: Pool, known: Known) -> None:
    """Suspended already."""
    if not known:
        known["account"] = await Accounts(pool).create("s@x.example", "suspended", ADMINISTRATOR_ID)
    await Accounts(pool).suspend(known["account"].id, None)


async def an_address(pool: Pool, known: Known) -> None:
    """Taken, says the 409."""
    await Store(pool, ["relay.localhost"]).create(local_part="taken")


async def a_mailbox_deleted(pool: Pool, known: Known) -> None:
    """Gone already."""
    address = await box(pool, known, "box")
    (row,) = await pool.fetch("SELECT id FROM relay.mailboxes WHERE address = %s", (address,))
    await Store(pool, ["relay.localhost"]).delete(row[0])


async def a_mailbox_that_is_not_there(pool: Pool, known: Known) -> None:
    """Gone already, says the 404 of a DELETE."""
    if not known:
        await a_mailbox_deleted(pool, known)
    administrator = Credential(administrator=True)
    await Store(pool, ["relay.localhost"]).confirm_gone(known["box"], administrator)


async def a_message_deleted(pool: Pool, known: Known) -> None:
    """Gone already."""
    if not known:
        await mail(pool, known)
    (row,) = await pool.fetch("SELECT id FROM relay.mailboxes WHERE address = %s", (known["box"],))
    await Messages(pool).delete(row[0], known["id"])


async def a_key_revoked(pool: Pool, known: Known) -> None:
    """Revoked already, says the 404."""
    if not known:
        known["key"], _ = await Keys(pool).create("o", ["read"])
    await Keys(pool).revoke(known["key"].id)


async def a_suppression_removed(pool: Pool, known: Known) -> None:
    """Gone already."""
    if not known:
        known["made"] = await Suppressions(pool).add(ADMINISTRATOR_ID, "no@x.example")
    await Suppressions(pool).remove(ADMINISTRATOR_ID, "no@x.example")


async def a_webhook_removed(pool: Pool, known: Known) -> None:
    """Gone already."""
    if not known:
        known["hook"], _ = await Webhooks(pool).put(ADMINISTRATOR_ID, HOOK, ["message.bounced"])
    await Webhooks(pool).remove(ADMINISTRATOR_ID, known["hook"].id)


async def a_sender_removed(pool: Pool, known: Known) -> None:
    """Gone already."""
    senders = Senders(pool, Vault((Fernet.generate_key().decode(),)))
    if not known:
        known["made"] = await senders.put(
            ADMINISTRATOR_ID, "a@x.example", "smtps://u:p@127.0.0.1:465"
        )
    await senders.remove(ADMINISTRATOR_ID, "a@x.example")


async def passwords_sealed_anew(pool: Pool, known: Known) -> None:
    """Nothing is left that the old key opens, so that it is thrown away."""
    vault = known.setdefault("vault", Vault((Fernet.generate_key().decode(),)))
    await Senders(pool, vault).sealed.reseal()


async def a_blob_put(pool: Pool, known: Known) -> None:
    """A device's blob: an Ack means durable."""
    await with_store(pool, lambda store: store.put(b"d" * 32, b"blob"))


async def a_blob_deleted(pool: Pool, known: Known) -> None:
    """A DeliverAck of what is gone already."""
    if not known:
        await a_blob_put(pool, known)
        known["id"] = await pool.fetch_value("SELECT max(id) FROM relay.device_inbox")
    await with_store(pool, lambda store: store.delete(b"d" * 32, [known["id"]]))


async def with_store(pool: Pool, call: Callable[[PostgresStore], Awaitable[Any]]) -> None:
    store = PostgresStore(pool, Hub(), ttl=1000.0)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        try:
            await call(store)
        except StoreUnavailable as error:
            failure: Exception | None = error
        else:
            failure = None
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@pytest.mark.parametrize(
    "call",
    [
        *(mail, mail_for_two, mail_looked_up, a_key, a_key_in_sql, ids, an_outcome, a_cancel),
        *(a_hold, a_pause, a_token, an_account, a_suspension, an_address, a_mailbox_deleted),
        *(
            a_mailbox_that_is_not_there,
            a_message_deleted,
            a_key_revoked,
            a_suppression_removed,
            a_webhook_removed,
        ),
        *(a_sender_removed, passwords_sealed_anew, a_blob_put, a_blob_deleted),
    ],
    ids=lambda call: call.__name__,
)
async def test_what_is_only_visible_is_not_promised(pool, local, call):
    """What an earlier call did is found; the answer is that nobody knows."""
    known: Known = {}
    await call(local, known)
    with pytest.raises((DatabaseUnavailable, StoreUnavailable)):
        await call(pool, known)
    # And without the wait it is what it always was: the same again, or a refusal.
    try:
        await call(local, known)
    except PermanentFailure:
        assert call in (a_cancel, a_hold, an_account, an_address)


async def test_a_letter_whose_commit_is_in_doubt_gets_no_250(pool, local):
    """It can be seen in the database when the writer answers that it was not stored."""
    known: Known = {}
    address = await box(local, known, "box")
    letter = Accept("a@example.org", ((new_id(), address),), b"x")
    async with running(writer.run, pool=pool) as (_, letters):
        await letters.send(letter)
        accepted = await letter.reply.wait()
    assert accepted.error is not None
    assert accepted.stored == {}
    assert await local.fetch("SELECT 1 FROM relay.messages WHERE recipient = %s", (address,))
