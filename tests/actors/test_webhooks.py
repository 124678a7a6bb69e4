"""The webhooks actor: what receivers get, how often, and what it refuses to connect to."""

import base64
import hashlib
import hmac
import json
import random
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import structlog
import trio
from cryptography.fernet import Fernet

from actors import webhooks as webhooks_actor
from actors.messages import SweepNow, Wake
from relay.access.owners import ADMINISTRATOR_ID
from relay.datadir import DataDir, Keyring
from relay.db.channels import WEBHOOKS
from relay.db.listen import Reconnected, notifications
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import Invalid
from relay.mailboxes.store import Store
from relay.outbound.states import Cause
from relay.public import BadUrl, check_url, is_public
from relay.webhooks.post import NotPosted, Poster
from relay.webhooks.signing import secret_of
from relay.webhooks.store import KINDS, PER_RECEIVER, Webhooks
from supervisor import Supervisor
from tests.actors.running import logged, running
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.outbound.node import Node, put

KEY = "5a" * 32


@dataclass
class Receiver:
    """A web server that answers as it is told, and keeps what it got."""

    port: int
    answers: list[bytes | None] = field(default_factory=list)
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    open: int = 0
    most: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=secret"

    async def serve(self, stream: trio.SocketStream) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await self._answer(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1

    async def _answer(self, stream: trio.SocketStream) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            chunk = await stream.receive_some(65536)
            if not chunk:
                return
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])
        }
        while len(body) < int(headers["content-length"]):
            body += await stream.receive_some(65536)
        self.got.append(({":request": lines[0], **headers}, body))
        answer = self.answers.pop(0) if self.answers else b"204 No Content"
        if answer is None:
            await trio.sleep_forever()
        assert answer is not None
        await stream.send_all(b"HTTP/1.1 " + answer + b"\r\nContent-Length: 0\r\n\r\n")

    async def wait_for(self, count: int) -> None:
        """Return when so many posts have come."""
        await eventually(
            lambda: len(self.got), f"{count} posts come", until=lambda have: have >= count
        )

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@asynccontextmanager
async def receiving(*answers: bytes | None) -> AsyncIterator[Receiver]:
    """Run a receiver for the block."""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        receiver = Receiver(listener.socket.getsockname()[1], list(answers))
        nursery.start_soon(trio.serve_listeners, receiver.serve, [listener])
        yield receiver
        nursery.cancel_scope.cancel()


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


def verify(secret: str, headers: dict[str, str], body: bytes) -> bool:
    """Verify a post as the documents of Standard Webhooks say, in a receiver's own words."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    given = [part.split(",", 1) for part in headers["webhook-signature"].split(" ")]
    return any(version == "v1" and value == wanted for version, value in given)


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
        ([None, None, None], 3, "no answer within 0.1 s"),
        ([b"garbage"] * 3, 3, "the connection broke before an answer came"),
    ],
)
async def test_an_event_is_given_up_after_the_last_attempt(
    pool: Pool, keyring: Keyring, answers: list[bytes | None], posts: int, error: str
):
    """It is kept with the reason, which names neither URL nor answer."""
    async with receiving(*answers) as receiver:
        await Webhooks(pool).put(ADMINISTRATOR_ID, receiver.url, KINDS)
        async with at_work(pool, keyring, timeout=0.1 if answers[0] is None else 5.0):
            await finish(pool, Cause.DELIVERED, "ada@example.org")
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
            while not (rows := await left(pool)) or not rows[0][2]:
                await trio.sleep(0.005)
    wiring = {"retry_unit": 1.0, "max_attempts": 3, "keyring": keyring}
    poster = Poster(allow_private=True, timeout=5.0)
    run = running(webhooks_actor.run, webhooks=Webhooks(pool), poster=poster, **wiring)
    async with run as (_, mailbox):
        await mailbox.send(Wake())
        while mailbox.statistics().depth:  # it has looked, and forgotten for this hour
            await trio.sleep(0.005)
        await pool.execute("UPDATE relay.webhook_events SET given_up_at = now() - interval '8 d'")
        await mailbox.send(SweepNow())
        with trio.fail_after(4):  # before it would look by itself
            while await left(pool):
                await trio.sleep(0.005)


async def test_a_receiver_that_hangs_delays_no_other(pool: Pool, keyring: Keyring):
    """It holds its few places; the other's events go out meanwhile."""
    count = 3 * PER_RECEIVER
    async with receiving(*[None] * count) as stuck, receiving() as quick:
        await Webhooks(pool).put(ADMINISTRATOR_ID, stuck.url, KINDS)
        addresses = [f"u{number}@example.org" for number in range(count)]
        await finish(pool, Cause.DELIVERED, *addresses)
        async with at_work(pool, keyring, timeout=2.0, concurrency=PER_RECEIVER + 1):
            await stuck.wait_for(PER_RECEIVER)
            await Webhooks(pool).put(ADMINISTRATOR_ID, quick.url, KINDS)
            await finish(pool, Cause.DELIVERED, *addresses)
            await quick.wait_for(count)
            assert stuck.most == PER_RECEIVER
    assert len({event["id"] for event in quick.events()}) == count


async def test_a_lost_lease_changes_nothing(pool: Pool):
    """Whoever claims the event next decides; what the former holder reports is ignored."""
    webhooks = Webhooks(pool)
    await webhooks.put(ADMINISTRATOR_ID, "https://x.example/", KINDS)
    await finish(pool, Cause.DELIVERED, "ada@example.org")
    (first,) = await webhooks.claim(10, 0.0, {})
    (second,) = await webhooks.claim(10, 60.0, {})
    assert second.id == first.id
    assert not await webhooks.told(first)
    assert not await webhooks.defer(first, 1.0, "late")
    assert not await webhooks.give_up(first, "late")
    assert await webhooks.claim(10, 60.0, {}) == []
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


PRIVATE = [
    "0.0.0.0", "10.1.2.3", "100.64.0.1", "127.0.0.1", "169.254.169.254", "172.31.255.255",
    "192.0.0.170", "192.88.99.1", "192.168.1.1", "198.18.0.1", "203.0.113.9", "224.0.0.1",
    "240.0.0.1", "255.255.255.255",
    "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "64:ff9b::7f00:1",
    "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:7f00:1::",
    "2002:808:808::1", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0", "fec0::1",
    "ff02::1", "not an address",
]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE)
async def test_no_address_that_is_not_public_is_connected_to(address: str):
    """Named in the URL or given by a name, alone or beside a public one."""
    assert not is_public(address)

    async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("93.184.215.14", port)),
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)),
        ]

    with pytest.raises(NotPosted, match="not on the public internet"):
        await Poster(resolve=resolve).post("https://inner.example/", b"", {})


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.215.14", "2606:4700::1111", "2a00::1"])
def test_public_addresses_are_told_from_the_others(address: str):
    """What is routed on the internet is public."""
    assert is_public(address)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://localhost/",
        "http://[::ffff:127.0.0.1]/", "http://[::1]:80/", "http://①②⑦.0.0.1/",
    ],
)  # fmt: skip
async def test_disguises_of_this_machine_are_seen_through(url: str):
    """Whatever the resolver makes of them is checked, and it is the resolver that is connected."""
    with pytest.raises(NotPosted) as caught:
        await Poster(timeout=5.0).post(url, b"", {})
    assert "127" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x.example/", "file:///etc/passwd", "https://", "x", "https://u:p@x.example/",
        "https://x.example/#f", "https://x.example/ y", "https://x.example/\r\nX: y",
        "https://127.0.0.1/", "https://[::1]/", "https://x.example/" + "a" * 2048,
        "https://x.example:99999/", "http://a..x.example/", "http://xn--a.x.example/",
        f"http://{'a' * 64}.x.example/", "https://.x.example/",
    ],
)  # fmt: skip
def test_a_url_that_is_never_posted_to_is_refused_at_once(url: str):
    """With a sentence that does not repeat it."""
    with pytest.raises(BadUrl) as caught:
        check_url(url)
    assert "x.example" not in str(caught.value)


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


@pytest.mark.parametrize("error", [UnicodeError("x"), httpx.InvalidURL("x")])
async def test_a_url_that_a_codec_refuses_is_refused_for_good(error: Exception):
    """Whatever `check_url` overlooks."""

    async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        raise error

    with pytest.raises(NotPosted):
        await Poster(resolve=resolve).post("https://x.example/", b"", {})


async def test_the_connection_goes_to_the_address_that_was_checked():
    """One look-up a post: what the name stands for the next moment does not matter."""
    asked = []

    async with receiving() as receiver:

        async def resolve(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
            asked.append((host, port))
            return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", receiver.port))]

        poster = Poster(allow_private=True, resolve=resolve)
        url = f"http://does-not-resolve.example:{receiver.port}/path"
        with trio.fail_after(10):
            assert await poster.post(url, b"{}", {}) == 204
    assert asked == [("does-not-resolve.example", receiver.port)]
    assert receiver.got[0][0]["host"] == f"does-not-resolve.example:{receiver.port}"


def test_each_owner_has_a_secret_of_his_own():
    """In the form that libraries of Standard Webhooks take."""
    one, other = (secret_of(bytes(32), UUID(int=number)) for number in (1, 2))
    assert one != other
    assert len(base64.b64decode(one.removeprefix("whsec_"), validate=True)) == 32
