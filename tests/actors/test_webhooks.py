"""The webhooks actor: what receivers get, how often, and what it refuses to connect to."""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import structlog
import trio
from cryptography.fernet import Fernet
from trio.testing import MockClock

from actors import webhooks as webhooks_actor
from actors.messages import SweepNow, Wake
from relay.access.owners import ADMINISTRATOR_ID
from relay.datadir import DataDir
from relay.db.channels import WEBHOOKS
from relay.db.listen import Reconnected, notifications
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import Invalid
from relay.keyring import Keyring
from relay.mailboxes.store import Store
from relay.outbound.queue.states import Cause
from relay.webhooks.kinds import KINDS
from relay.webhooks.post import Poster
from relay.webhooks.signing import secret_of
from relay.webhooks.store import PER_RECEIVER, Webhooks
from supervisor import Supervisor
from tests.actors.running import at_rest, logged, running
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.outbound.node import Node, put
from tests.webhooks.receiver import receiving, verify

KEY = "5a" * 32


@pytest.fixture
def keyring() -> Keyring:
    """Keys as the settings give them."""
    return Keyring(DataDir(Path("none")), KEY, Fernet.generate_key().decode())


@asynccontextmanager
async def at_work(pool: Pool, keyring: Keyring, **changes: Any) -> AsyncIterator[Supervisor]:
    """Run the actor, woken by notifications; it may reach this machine.  Yields its supervisor."""
    wiring = {
        "webhooks": Webhooks(pool),
        "poster": Poster(allow_private=True, timeout=changes.pop("timeout", 5.0)),
        "keyring": keyring,
        "retry_unit": 0.02,
        "max_attempts": 3,
        "rng": random.Random(7),
        **changes,
    }

    async def listen(
        mailbox: Any, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        async with aclosing(notifications(pool.dsn, (WEBHOOKS,))) as heard:
            async for event in heard:
                if isinstance(event, Reconnected) and event.first:
                    task_status.started()
                mailbox.send_nowait(Wake())

    async with (
        running(webhooks_actor.run, **wiring) as (supervisor, mailbox),
        trio.open_nursery() as nursery,
    ):
        await nursery.start(listen, mailbox)
        yield supervisor
        nursery.cancel_scope.cancel()


async def finish(pool: Pool, cause: Cause, *addresses: str, **outcome: Any) -> list[UUID]:
    """Queue a message to each address and let all of them end."""
    node = Node(pool)
    await put(pool, *addresses)
    claimed = await node.claim()
    await node.finish(claimed, cause, **outcome)
    return [message.id for message in claimed]


async def left(pool: Pool) -> list[tuple[Any, ...]]:
    """What is still to be told."""
    return await pool.fetch(
        "SELECT kind, attempt, given_up_at IS NOT NULL, error FROM relay.webhook_events ORDER BY id"
    )


async def nothing_left(pool: Pool) -> None:
    await eventually(lambda: left(pool), "all is told", until=lambda rows: not rows)


async def given_up(pool: Pool) -> list[tuple[Any, ...]]:
    """Wait until the first event of all is given up; what is left then."""
    rows: list[tuple[Any, ...]] = await eventually(
        lambda: left(pool), "one is given up", until=lambda rows: rows and rows[0][2]
    )
    return rows


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (Cause.DELIVERED, "message.delivered"),
        (Cause.REJECTED, "message.failed"),
        (Cause.EXHAUSTED, "message.failed"),
        (Cause.REFUSED, "message.bounced"),
    ],
)
async def test_the_owner_is_told_what_became_of_a_message(
    pool: Pool, keyring: Keyring, cause: Cause, kind: str
):
    """One signed post with the event, its message and a stable id; then nothing is left."""
    async with receiving() as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring):
            (message,) = await finish(pool, cause, "ada@example.org", code=250, error="why")
            await receiver.wait_for(1)
            await nothing_left(pool)
    ((headers, body),) = receiver.got
    event = json.loads(body)
    assert event["type"] == kind
    assert event["id"] == headers["webhook-id"]
    assert event["data"] == {
        "id": str(message),
        "recipient": "ada@example.org",
        "subject": "Subject",
        "priority": "normal",
        "attempts": 1,
        "code": 250,
        "error": "why",
    }
    assert headers[":request"] == "POST /hook?token=secret HTTP/1.1"
    assert headers["host"] == f"127.0.0.1:{receiver.port}"
    assert headers["content-type"] == "application/json"
    secret = secret_of(bytes.fromhex(KEY), ADMINISTRATOR_ID)
    assert verify(secret, headers, body)
    assert not verify(secret, headers, body + b" ")
    assert not verify(secret_of(bytes.fromhex(KEY), UUID(int=1)), headers, body)


async def test_only_what_was_asked_for_is_told(pool: Pool, keyring: Keyring):
    """Neither other events, nor other owners' messages, nor those that are queued again."""
    async with receiving() as receiver:
        webhooks = Webhooks(pool)
        await webhooks.put(ADMINISTRATOR_ID, receiver.url, ["message.bounced"])
        await webhooks.put(UUID(int=9), receiver.url + "&other", KINDS)
        async with at_work(pool, keyring):
            await finish(pool, Cause.DELIVERED, "a@example.org")
            await finish(pool, Cause.DEFERRED, "b@example.org", delay=3600.0)
            await finish(pool, Cause.REFUSED, "c@example.org")
            await receiver.wait_for(1)
            await nothing_left(pool)
    assert [(e["type"], e["data"]["recipient"]) for e in receiver.events()] == [
        ("message.bounced", "c@example.org")
    ]


async def test_what_is_not_committed_is_not_told(pool: Pool):
    """The event belongs to the transaction of the outcome."""
    await Webhooks(pool).put(ADMINISTRATOR_ID, "https://x.example/", KINDS)
    async with pool.transaction() as conn:
        await conn.execute(
            "INSERT INTO relay.outbound_log (id, token, attempt, status) VALUES (%s, 1, 1, 'sent')",
            (UUID(int=5),),
        )
        await conn.execute("ROLLBACK")
        await conn.execute("BEGIN")
    assert await left(pool) == []


async def test_mail_that_arrives_is_told_with_what_parsing_found(pool: Pool, keyring: Keyring):
    """An anonymous mailbox signs with its own secret, an owned one with its owner's; an expired
    one tells nothing."""
    store = Store(pool, ["relay.localhost"])
    async with receiving() as receiver:
        own = await store.create(webhook_url=receiver.url)
        owned = await store.create(webhook_url=receiver.url, owner_id=UUID(int=3))
        silent = await store.create()
        over = await store.create(webhook_url=receiver.url)
        for created in (own, owned, silent, over):
            await arrive(pool, created.mailbox.id, "Your code")
        await store.delete(over.mailbox.id)
        async with at_work(pool, keyring):
            await receiver.wait_for(2)
            await nothing_left(pool)
    by_mailbox = {json.loads(body)["data"]["mailbox"]: (h, body) for h, body in receiver.got}
    assert set(by_mailbox) == {own.mailbox.address, owned.mailbox.address}
    for created, signer in ((own, own.mailbox.id), (owned, UUID(int=3))):
        headers, body = by_mailbox[created.mailbox.address]
        assert verify(secret_of(bytes.fromhex(KEY), signer), headers, body)
        event = json.loads(body)
        assert event["type"] == "message.arrived"
        assert event["data"]["subject"] == "Your code"
        assert event["data"]["from_address"] == "ada@example.org"
        assert event["data"]["otp"] == "482913"


async def arrive(pool: Pool, mailbox: UUID, subject: str) -> None:
    """Store a message and its summary, as writer and summariser do."""
    async with pool.transaction() as conn:
        cursor = await conn.execute(
            "INSERT INTO relay.messages (mailbox_id, reverse_path, recipient, raw_email)"
            " VALUES (%s, 'b@example.org', 'x', '') RETURNING id",
            (mailbox,),
        )
        row = await cursor.fetchone()
        assert row is not None
        await conn.execute(
            "INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject, otp)"
            " VALUES (%s, %s, 'ada@example.org', %s, '482913')",
            (row[0], mailbox, subject),
        )


async def test_an_event_comes_again_until_it_is_answered(pool: Pool, keyring: Keyring):
    """The same id and body; a redirect is not followed, and is no answer."""
    async with receiving(b"503 Busy", b"302 Found\r\nLocation: /elsewhere") as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring):
            await finish(pool, Cause.DELIVERED, "ada@example.org")
            await receiver.wait_for(3)
            await nothing_left(pool)
    assert len({body for _, body in receiver.got}) == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert {headers[":request"] for headers, _ in receiver.got} == {
        "POST /hook?token=secret HTTP/1.1"
    }


@pytest.mark.parametrize(
    ("answers", "posts", "error"),
    [
        ([b"500 No", b"500 No", b"500 No"], 3, "the answer was 500"),
        ([b"410 Gone"], 1, "the answer was 410"),
        ([None, None, None], 3, "no answer within 5 s"),
        ([b"garbage"] * 3, 3, "the connection broke before an answer came"),
    ],
)
async def test_an_event_is_given_up_after_the_last_attempt(
    pool: Pool,
    keyring: Keyring,
    virtual: MockClock,
    answers: list[bytes | None],
    posts: int,
    error: str,
):
    """It is kept with the reason, which names neither URL nor answer."""
    hang = answers.count(None)
    async with receiving(*answers) as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring, timeout=5.0):
            await finish(pool, Cause.DELIVERED, "ada@example.org")
            for number in range(hang):
                await receiver.wait_for(number + 1)
                await at_rest(pool)
                virtual.jump(5.0)
            rows = await given_up(pool)
    assert rows == [("message.delivered", posts, True, error)]
    assert len(receiver.got) == posts
    await pool.execute("UPDATE relay.webhook_events SET given_up_at = now() - interval '8 days'")
    assert await Webhooks(pool).forget() == 1


async def test_a_sweep_forgets_what_is_past_its_time(pool: Pool, keyring: Keyring):
    """It is done every hour; an operator has it done now."""
    async with receiving(b"410 Gone") as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring):
            await finish(pool, Cause.DELIVERED, "ada@example.org")
            await given_up(pool)
    wiring = {"retry_unit": 1.0, "max_attempts": 3, "keyring": keyring}
    poster = Poster(allow_private=True, timeout=5.0)
    run = running(webhooks_actor.run, webhooks=Webhooks(pool), poster=poster, **wiring)
    async with run as (_, mailbox):
        await mailbox.send(Wake())
        await eventually(  # it has looked, and forgotten for this hour
            lambda: mailbox.statistics().depth, "it has looked", until=lambda depth: depth == 0
        )
        await pool.execute("UPDATE relay.webhook_events SET given_up_at = now() - interval '8 d'")
        await mailbox.send(SweepNow())
        await eventually(
            lambda: left(pool),
            "what is past its time is forgotten before a look by the clock",
            until=lambda events: not events,
            within=4.0,
        )


async def test_a_receiver_that_hangs_delays_no_other(pool: Pool, keyring: Keyring):
    """It holds its few places; the other's events go out meanwhile."""
    count = 3 * PER_RECEIVER
    async with (
        receiving() as quick,
        at_work(pool, keyring, timeout=30.0, concurrency=2 * PER_RECEIVER),
        receiving(*[None] * count) as stuck,
    ):
        await Webhooks(pool).put(ADMINISTRATOR_ID, stuck.url, KINDS)
        addresses = [f"u{number}@example.org" for number in range(count)]
        await finish(pool, Cause.DELIVERED, *addresses)
        await stuck.wait_for(PER_RECEIVER)
        await Webhooks(pool).put(ADMINISTRATOR_ID, quick.url, KINDS)
        await finish(pool, Cause.DELIVERED, *addresses)
        await quick.wait_for(count)
        assert stuck.most == PER_RECEIVER
    assert len({event["id"] for event in quick.events()}) == count


async def test_what_hangs_of_one_owner_holds_up_no_other_owner(pool: Pool, keyring: Keyring):
    """However many receivers that owner has: places are left for others."""
    other = uuid4()
    async with AsyncExitStack() as stack:
        stuck = [await stack.enter_async_context(receiving(*[None] * 8)) for _ in range(5)]
        quick = await stack.enter_async_context(receiving())
        for one in stuck:
            await Webhooks(pool).put(ADMINISTRATOR_ID, one.url, KINDS)
        await Webhooks(pool).put(other, quick.url, KINDS)
        await finish(pool, Cause.DELIVERED, *(f"u{number}@example.org" for number in range(8)))
        async with at_work(pool, keyring, timeout=20.0):
            await eventually(
                lambda: sum(one.open for one in stuck),
                "most places are taken",
                until=lambda posts: posts >= 2 * PER_RECEIVER,
            )
            node = Node(pool)
            await put(pool, "ada@example.net", owner=other)
            await node.finish(await node.claim())
            with trio.fail_after(10):
                await quick.wait_for(1)


async def test_whoever_has_all_its_places_takes_none_of_a_receiver_that_others_use(pool: Pool):
    """Its events are older and as many as the receiver is posted at once; the other's is taken."""
    other, webhooks = uuid4(), Webhooks(pool)
    await webhooks.put(ADMINISTRATOR_ID, "https://x.example/", KINDS)
    await webhooks.put(other, "https://x.example/other", KINDS)
    await finish(pool, Cause.DELIVERED, *(f"u{n}@example.org" for n in range(PER_RECEIVER)))
    node = Node(pool)
    await put(pool, "ada@example.net", owner=other)
    await node.finish(await node.claim())
    (claimed,), _ = await webhooks.claim(4, 60.0, {}, {ADMINISTRATOR_ID: 12}, 12)
    assert claimed.signer == other
    assert len((await webhooks.claim(9, 60.0, {}, {ADMINISTRATOR_ID: 11}, 12))[0]) == 1


async def test_anonymous_mailboxes_together_have_the_places_of_one_owner(pool: Pool):
    """However many there are: the others' places are left, of a receiver they share, too."""
    store, webhooks = Store(pool, ["relay.localhost"]), Webhooks(pool)
    for number in range(4):
        mine = await store.create(webhook_url=f"https://{number}.example/")
        for _ in range(PER_RECEIVER):
            await arrive(pool, mine.mailbox.id, "Your code")
    first, _ = await webhooks.claim(16, 60.0, {}, {}, 12)
    assert len(first) == 12
    await webhooks.put(ADMINISTRATOR_ID, "https://3.example/other", KINDS)
    await finish(pool, Cause.DELIVERED, "ada@example.org")
    (claimed,), _ = await webhooks.claim(4, 60.0, {}, Counter(one.owner for one in first), 12)
    assert claimed.signer == ADMINISTRATOR_ID
    assert len((await webhooks.claim(16, 60.0, {}, {}, 12))[0]) == 4


async def test_a_lost_lease_changes_nothing(pool: Pool):
    """Whoever claims the event next decides; what the former holder reports is ignored."""
    webhooks = Webhooks(pool)
    await webhooks.put(ADMINISTRATOR_ID, "https://x.example/", KINDS)
    await finish(pool, Cause.DELIVERED, "ada@example.org")
    (first,), _ = await webhooks.claim(10, 0.0, {})
    (second,), _ = await webhooks.claim(10, 60.0, {})
    assert second.id == first.id
    assert not await webhooks.told(first)
    assert not await webhooks.defer(first, 1.0, "late")
    assert not await webhooks.give_up(first, "late")
    assert (await webhooks.claim(10, 60.0, {}))[0] == []
    assert await webhooks.told(second)
    assert await left(pool) == []


async def test_an_outage_of_the_database_is_waited_out(keyring: Keyring):
    """The actor goes on when the database is back, without having been restarted."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        await migrate(cluster.dsn())
        pool = Pool(cluster.dsn(), acquire_timeout=1.0)
        async with receiving() as receiver, aclosing_pool(pool):
            await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
            async with at_work(pool, keyring) as supervisor:
                await finish(pool, Cause.DELIVERED, "a@example.org")
                await receiver.wait_for(1)
                with structlog.testing.capture_logs() as lines:
                    await trio.to_thread.run_sync(cluster.stop)
                    await logged(lines, "webhook.database_unavailable")
                await trio.to_thread.run_sync(cluster.start)
                await finish(pool, Cause.DELIVERED, "b@example.org")
                await eventually(
                    lambda: [event["data"]["recipient"] for event in receiver.events()],
                    "the next is told",
                    until=lambda told: "b@example.org" in told,
                )
                (child,) = supervisor.tree().children
                assert child.restarts == 0
    finally:
        cluster.remove()


@asynccontextmanager
async def aclosing_pool(pool: Pool) -> AsyncIterator[None]:
    """Close a pool at the end."""
    try:
        yield
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
            await pool.close()


async def test_a_webhook_that_is_removed_is_told_nothing_more(pool: Pool):
    """Not even what was due; another owner cannot remove it."""
    webhooks = Webhooks(pool)
    hook, made = await webhooks.put(ADMINISTRATOR_ID, "https://x.example/", KINDS)
    again, made_again = await webhooks.put(
        ADMINISTRATOR_ID, "https://x.example/", ["message.failed"]
    )
    assert (made, made_again, again.id, again.events) == (True, False, hook.id, ["message.failed"])
    await finish(pool, Cause.REJECTED, "ada@example.org")
    assert len(await left(pool)) == 1
    assert not await webhooks.remove(UUID(int=9), hook.id)
    assert await webhooks.remove(ADMINISTRATOR_ID, hook.id)
    assert await left(pool) == []


async def test_during_a_rotation_both_secrets_verify(pool: Pool, tmp_path: Path):
    """A receiver that still has the former secret is not cut off."""
    data = DataDir(tmp_path)
    keyring = Keyring(data)
    before = secret_of(keyring.signing[0], ADMINISTRATOR_ID)
    keyring.renew_signing()
    after = secret_of(keyring.signing[0], ADMINISTRATOR_ID)
    assert before != after
    async with receiving() as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring):
            await finish(pool, Cause.DELIVERED, "ada@example.org")
            await receiver.wait_for(1)
    headers, body = receiver.got[0]
    assert verify(before, headers, body)
    assert verify(after, headers, body)


@pytest.mark.parametrize("host", ["a..b", "xn--a.com", "a" * 64 + ".example"])
async def test_a_host_that_no_resolver_takes_ends_its_own_event_only(
    pool: Pool, keyring: Keyring, host: str
):
    """Refused when a mailbox is made; one stored before is given up at once, and the next told."""
    url = f"http://{host}/"
    with pytest.raises(Invalid):
        await Store(pool, ["relay.localhost"]).create(webhook_url=url)
    async with receiving() as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, url, KINDS)
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring) as supervisor:
            await finish(pool, Cause.DELIVERED, "ada@example.org")
            await receiver.wait_for(1)
            await eventually(
                lambda: left(pool),
                "one is given up",
                until=lambda rows: [row[1:3] for row in rows] == [(1, True)],
            )
            (child,) = supervisor.tree().children
            assert child.restarts == 0


async def test_what_became_due_while_the_database_was_asked_is_posted(pool: Pool, keyring: Keyring):
    """A busy server takes longer over the question than the event had left."""

    class Busy(Webhooks):
        async def next_due(self, after: datetime) -> float | None:
            soon = await super().next_due(after)
            asked.set()
            return -0.05 if soon is None else soon

    asked = trio.Event()
    async with (
        receiving() as receiver,
        at_work(pool, keyring, webhooks=Busy(pool)) as supervisor,
    ):
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        await asked.wait()
        await finish(pool, Cause.DELIVERED, "ada@example.org")
        await receiver.wait_for(1)
        (child,) = supervisor.tree().children
        assert child.restarts == 0


async def test_what_becomes_due_between_the_claim_and_the_question_when_is_posted(
    pool: Pool, keyring: Keyring
):
    """When it is due, and not when the actor sweeps: it asks from its claim on."""

    class Busy(Webhooks):
        async def claim(self, *of: Any) -> Any:
            found = await super().claim(*of)
            await trio.sleep(0.3)  # far longer than the second attempt is put off
            return found

    async with (
        receiving(b"503 Service Unavailable") as receiver,
        at_work(pool, keyring, webhooks=Busy(pool)),
    ):
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        await finish(pool, Cause.DELIVERED, "ada@example.org")
        await receiver.wait_for(1)
        with trio.fail_after(webhooks_actor.SWEEP_EVERY / 2):
            await receiver.wait_for(2)


async def test_what_nobody_foresaw_costs_one_event_its_attempts(pool: Pool, keyring: Keyring):
    """The actor goes on, and the event ends like one whose receiver is away."""

    class Broken(Poster):
        async def post(self, text: str, body: bytes, headers: Any) -> int:
            raise RuntimeError(text)

    await Webhooks(pool).put(ADMINISTRATOR_ID, "https://x.example/secret", KINDS)
    async with at_work(pool, keyring, poster=Broken()) as supervisor:
        await finish(pool, Cause.DELIVERED, "ada@example.org")
        rows = await given_up(pool)
        (child,) = supervisor.tree().children
        assert child.restarts == 0
    assert rows == [("message.delivered", 3, True, "an internal error of the relay")]
