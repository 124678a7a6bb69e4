"""Reports of upstreams over HTTP: signed, or with a password, of mail that was sent."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import httpx
import pytest
import trio

from relay.db.pool import Pool
from relay.ids import new_id
from relay.outbound.bounces.notified import Notified
from relay.outbound.bounces.returned import POSTS_KEPT, Returned, forget_reports
from relay.outbound.queue.enqueue import Suppressed
from relay.outbound.suppression.suppressions import Suppressions
from relay.ports.proxy import networks
from relay.returns.paths import ReturnPaths, Tokens
from relay.returns.report import COMPLAINT, Report
from relay.returns.upstream_report import UpstreamReport
from tests.http.conftest import House, open_house
from tests.outbound.node import Node, put, status
from tests.returns import test_generic as plain
from tests.returns import test_postmark as postmark

URL = "/api/v1/ingest/notifications"
PATHS = ReturnPaths("returns.example", lambda: (b"k" * 32,))
TOKENS = Tokens(lambda: (b"k" * 32,))
KEY = b"0123456789abcdef"
SECRETS = ("whsec_" + base64.b64encode(KEY).decode(), "a secret as it is")
ADA = plain.ADA
COMPLAINED = Report(COMPLAINT, (), "abuse")


def signed(body: bytes, key: bytes = KEY, at: int | None = None, name: str = "") -> dict[str, str]:
    """The headers of a signed post, as the specification of Standard Webhooks says them."""
    name, at = name or f"msg_{new_id()}", int(time.time()) if at is None else at
    made = hmac.new(key, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(made).decode()}",
        "Content-Type": "application/json",
    }


def report(message: str, kind: str = "bounced", status: str | None = "5.1.1", **more: Any) -> Any:
    """A report in the words of this relay."""
    return {**plain.report(kind, status, **more), "message": message}


class Upstream:
    """Whoever reports to a control plane, which sent the mail."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.node = Node(house.pool)

    async def message(self, to: str = ADA) -> UUID:
        """Send a message."""
        (queued,) = await put(self.house.pool, to)
        await self.node.finish(await self.node.claim())
        return queued.id

    async def post(
        self, said: Any, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """Post a body, signed unless the headers are given."""
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        return await self.house.client.post(
            URL, content=body, headers=signed(body, **more) if headers is None else headers
        )

    async def tell(self, said: Any, **more: Any) -> tuple[int, str]:
        """Post a signed body; the status and the outcome, or the problem's case."""
        answer = await self.post(said, **more)
        if answer.status_code == 200:
            return 200, str(answer.json()["status"])
        return answer.status_code, answer.json()["type"].rpartition("/")[2]

    async def suppressed(self) -> dict[str, str]:
        """Who is suppressed, and why."""
        listed = await self.house.client.get("/api/v1/suppressions", headers=self.house.admin)
        return {one["address"]: one["cause"] for one in listed.json()}

    async def told(self) -> list[str]:
        """The events that webhooks are to be told of, the oldest first."""
        rows = await self.house.pool.fetch("SELECT kind FROM relay.webhook_events ORDER BY id")
        return [str(kind) for (kind,) in rows]


@pytest.fixture
async def upstream(database_url: str, pool: Pool) -> AsyncIterator[Upstream]:
    """One that two secrets open, with a webhook for whatever comes back."""
    notified = Notified(Returned(pool, b"key"), Suppressions(pool), TOKENS, PATHS)
    async with open_house(
        database_url,
        pool,
        notified=notified,
        notification_secrets=SECRETS,
        report_field="X-PM-Metadata-relay",
        trusted_proxies=networks(["127.0.0.1"]),
    ) as house:
        await house.pool.execute(
            "INSERT INTO relay.webhooks (url, events) VALUES ('https://hooks.example/', "
            "'{message.bounced,message.delayed,message.complained}')"
        )
        yield Upstream(house)


async def test_what_is_reported_becomes_the_truth_once(upstream: Upstream):
    """Delayed, then bounced, then told again: state, error, suppression and webhooks say so."""
    message_id = await upstream.message()
    path = PATHS.path_of(message_id)
    assert await upstream.tell(report(path, "delayed", "4.4.1")) == (200, "reported")
    assert await status(upstream.house.pool, message_id) == "sent"
    gone = report(path.upper(), text=f"550 5.1.1 <{ADA}>: no\0such user")
    assert await upstream.tell(gone) == (200, "reported")
    for _ in range(2):
        assert await upstream.tell(gone) == (200, "ignored")
    entry = await upstream.house.client.get(
        f"/api/v1/outbound/{message_id}", headers=upstream.house.admin
    )
    assert entry.json()["status"] == "bounced"
    assert entry.json()["error"].startswith("550 5.1.1 <")  # which says its code itself
    assert ADA not in entry.json()["error"]
    events = await upstream.house.client.get(
        f"/api/v1/outbound/{message_id}/events", headers=upstream.house.admin
    )
    later = [(one["attempt"], one["phase"], one["enhanced"], one["error"]) for one in events.json()]
    assert later[-2:] == [
        (1, "delayed", "4.4.1", later[-2][3]), (1, "bounced", "5.1.1", entry.json()["error"]),
    ]  # fmt: skip
    assert all(one["at"] for one in events.json())
    assert await upstream.suppressed() == {ADA: "bounced"}
    assert await upstream.told() == ["message.delayed", "message.bounced"]


async def test_a_complaint_suppresses_and_a_policy_does_not(upstream: Upstream):
    """The status stays with the one, and becomes bounced with the other."""
    complained = await upstream.message("ada@x.example")
    said = report(TOKENS.token_of(complained), "complained", None)
    assert await upstream.tell(said) == (200, "reported")
    refused = await upstream.message("eve@x.example")
    policy = report(TOKENS.token_of(refused), status="5.7.1", recipient="eve@x.example")
    assert await upstream.tell(policy) == (200, "reported")
    assert await status(upstream.house.pool, complained) == "sent"
    assert await status(upstream.house.pool, refused) == "bounced"
    assert await upstream.suppressed() == {"ada@x.example": "complained"}
    assert await upstream.told() == ["message.complained", "message.bounced"]


@pytest.mark.parametrize("secret", SECRETS)
async def test_postmark_sends_a_password(upstream: Upstream, secret: str):
    """Its records count by the token among the metadata, and come again when they must."""
    message_id = await upstream.message()
    basic = {"Authorization": "Basic " + base64.b64encode(f"postmark:{secret}".encode()).decode()}
    metadata = {"order": "17", "relay": TOKENS.token_of(message_id)}
    for said, outcome in (
        (postmark.bounce("Transient", "smtp;421 later", Metadata=metadata), "reported"),
        ({**postmark.delivery(), "Metadata": metadata}, "ignored"),
        (postmark.bounce(Metadata={"relay": "a" * 48}), "ignored"),
        (postmark.bounce(Metadata={}), "ignored"),
        (postmark.bounce(Metadata=metadata), "reported"),
        (postmark.bounce(Metadata=metadata), "ignored"),
        (postmark.change("HardBounce", Metadata=metadata), "ignored"),
    ):
        answer = await upstream.post(said, basic)
        assert (answer.status_code, answer.json()) == (200, {"status": outcome})
    assert await status(upstream.house.pool, message_id) == "bounced"
    assert await upstream.suppressed() == {ADA: "bounced"}
    assert (await upstream.post({**postmark.bounce(), "Email": None}, basic)).status_code == 400


async def test_who_unsubscribes_at_postmark_gets_no_more_bulk(upstream: Upstream):
    """As by a link of ours: once, told to webhooks; and gets all other mail."""
    await upstream.house.pool.execute("UPDATE relay.webhooks SET events = '{message.unsubscribed}'")
    message_id = await upstream.message()
    said = postmark.change("ManualSuppression", Metadata={"relay": TOKENS.token_of(message_id)})
    for other in ({"Origin": "Customer"}, {"SuppressSending": False}, {"Metadata": {"relay": "x"}}):
        assert await upstream.tell({**said, **other}) == (200, "ignored")
    assert await upstream.suppressed() == {}
    assert await upstream.tell(said) == (200, "reported")
    assert await upstream.tell(said) == (200, "ignored")
    assert await upstream.suppressed() == {ADA: "unsubscribed"}
    assert await upstream.told() == ["message.unsubscribed"]
    await put(upstream.house.pool, ADA)
    with pytest.raises(Suppressed):
        await put(upstream.house.pool, ADA, priority="bulk")


async def test_what_is_not_of_ours_changes_nothing(upstream: Upstream):
    """Paths and tokens of other keys, domains and messages; ids; the Message-ID."""
    message_id = await upstream.message()
    strange = ReturnPaths("returns.example", lambda: (b"x" * 32,)).path_of(message_id)
    elsewhere = ReturnPaths("other.example", lambda: (b"k" * 32,)).path_of(message_id)
    token = TOKENS.token_of(message_id)
    for other in (
        *(strange, elsewhere, PATHS.path_of(new_id()), "sender@example.org", "@", "b-"),
        *(str(message_id), f"<{message_id}@example.org>", message_id.hex, f"b-{token}"),
        *(TOKENS.token_of(new_id()), Tokens(lambda: (b"x" * 32,)).token_of(message_id)),
    ):
        for kind in ("bounced", "complained", "delayed"):
            assert await upstream.tell(report(other, kind, None)) == (200, "ignored")
    assert await status(upstream.house.pool, message_id) == "sent"
    assert await upstream.suppressed() == {}
    assert await upstream.told() == []
    assert await upstream.house.pool.fetch_value("SELECT count(*) FROM relay.outbound_reports") == 0


async def test_who_has_no_secret_is_refused(upstream: Upstream):
    """Whatever is changed of a signed post; passwords that are none; and it changes nothing."""
    message_id = await upstream.message()
    body = json.dumps(report(PATHS.path_of(message_id))).encode()
    good, now = signed(body), int(time.time())
    other = signed(body, name="another")
    secret = SECRETS[1]
    attempts: list[tuple[bytes, dict[str, str]]] = [
        (body, {}),
        (body + b" ", good),
        (body, {**good, "webhook-id": other["webhook-id"]}),
        (body, {**good, "webhook-signature": "v1,AAAA"}),
        (body, signed(body, b"x" * 16)),
        (body, signed(body, at=now - 400)),
        (body, signed(body, at=now + 400)),
        (body, {"Authorization": f"Bearer {secret}"}),
        (body, {"Authorization": f"Basic {secret}"}),
        (body, upstream.house.admin),
    ]
    for password in (b"postmark:", b"postmark:wrong", secret.encode(), secret.encode() + b":"):
        basic = {"Authorization": f"Basic {base64.b64encode(password).decode()}"}
        attempts.append((body, basic))
    # A signature that is wrong is not mended by a password that is right.
    right = base64.b64encode(f"a:{secret}".encode()).decode()
    attempts.append((body, {**signed(body, b"x" * 16), "Authorization": f"Basic {right}"}))
    for number, (content, headers) in enumerate(attempts):
        # Each from an address of its own, or it would be told that it tries too often.
        headers = {**headers, "X-Forwarded-For": f"192.0.2.{number}"}
        answer = await upstream.post(content, headers)
        assert answer.status_code == 401, headers
        assert answer.json()["type"] == "/problems/unsigned-notification"
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")
    assert await status(upstream.house.pool, message_id) == "sent"
    assert (await upstream.post(body, good)).status_code == 200
    assert await status(upstream.house.pool, message_id) == "bounced"


async def test_a_stranger_is_slowed_down_and_an_upstream_is_not(upstream: Upstream):
    """429 after a few; behind the same address who has a secret is taken all the while."""
    path = PATHS.path_of(await upstream.message())
    answers = [(await upstream.post(report(path), {})).status_code for _ in range(12)]
    assert answers[0] == 401
    assert set(answers) == {401, 429}
    taken = [(await upstream.tell(report(path)))[0] for _ in range(30)]
    assert set(taken) == {200}


async def test_nobody_may_post_without_secrets_in_the_settings(house: House):
    """Not with the empty password either; the answer names the setting."""
    empty = base64.b64encode(b":").decode()
    body = json.dumps(report(PATHS.path_of(new_id()))).encode()
    for headers in ({}, {"Authorization": f"Basic {empty}"}, signed(body, b"")):
        answer = await house.client.post(URL, content=body, headers=headers)
        assert answer.status_code == 401
        assert "notification_secrets" in answer.json()["detail"]


async def test_a_replay_does_nothing(upstream: Upstream):
    """Not even where the message was queued again, and sent, since the report was made."""
    message_id = await upstream.message()
    body = json.dumps(report(PATHS.path_of(message_id), status="4.4.1")).encode()
    once = signed(body)
    assert (await upstream.post(body, once)).json() == {"status": "reported"}
    assert await status(upstream.house.pool, message_id) == "bounced"
    retried = await upstream.house.client.post(
        f"/api/v1/outbound/{message_id}/retry", headers=upstream.house.admin
    )
    assert retried.status_code < 300, retried.text
    await upstream.node.finish(await upstream.node.claim())
    assert await status(upstream.house.pool, message_id) == "sent"
    assert (await upstream.post(body, once)).json() == {"status": "ignored"}
    assert await status(upstream.house.pool, message_id) == "sent"
    assert (await upstream.post(body, signed(body))).json() == {"status": "reported"}


async def test_a_report_that_is_ahead_of_the_delivery_comes_again(upstream: Upstream):
    """503 while its 250 is not recorded; then the same post counts, id and all."""
    (queued,) = await put(upstream.house.pool, ADA)
    body = json.dumps(report(PATHS.path_of(queued.id))).encode()
    post = signed(body)
    # Of an attempt of which nobody knows how it ended.
    assert (await upstream.post(body, post)).status_code == 503
    messages = await upstream.node.claim()
    answer = await upstream.post(body, post)
    assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
    assert await status(upstream.house.pool, queued.id) == "processing"
    assert await upstream.suppressed() == {}
    await upstream.node.finish(messages)
    assert (await upstream.post(body, post)).json() == {"status": "reported"}
    assert await status(upstream.house.pool, queued.id) == "bounced"


async def test_a_database_that_is_away_refuses_nothing_for_good(upstream: Upstream):
    """503, and nothing is remembered of the post."""
    message_id = await upstream.message()
    await upstream.house.pool.close()
    assert (await upstream.tell(report(PATHS.path_of(message_id))))[0] == 503


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"7", b"null", b"{", b"\xff", b"[" * 100_000, b"{}"),
        *(b'{"type": "delivered", "message": "x"}', b'{"type": "bounced"}', b'{"RecordType": 7}'),
        b'{"type": "bounced", "message": "x", "why": ""}',
    ],
)
async def test_what_is_no_report_is_malformed(upstream: Upstream, body: bytes):
    """400, with what is wrong; whoever has no secret is not told."""
    status, case = await upstream.tell(body)
    assert (status, case) == (400, "malformed-notification")
    assert (await upstream.post(body, {})).status_code == 401


async def test_a_body_is_bounded(upstream: Upstream):
    """413 above the limit, whoever posts; a report of half of that counts."""
    path = PATHS.path_of(await upstream.message())
    assert await upstream.tell(report(path, text="x" * 250_000)) == (200, "reported")
    assert (await upstream.tell(report(path, text="x" * 600_000)))[0] == 413


async def test_a_replay_to_another_node_at_once_does_nothing(upstream: Upstream):
    """Of many at the same time one counts; ids are forgotten when no signature holds any more."""
    message_id = await upstream.message()
    said = UpstreamReport((PATHS.path_of(message_id),), COMPLAINED)
    pool = upstream.house.pool
    outcomes: list[bool] = []

    async def node() -> None:
        notified = Notified(Returned(pool, b"key"), Suppressions(pool), TOKENS, PATHS)
        outcomes.append(await notified.take(said, "msg_1"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(node)
    assert sorted(outcomes) == [False] * 4 + [True]
    # What was counted of it is gone, and so would count again; the id is there.
    await pool.execute("DELETE FROM relay.outbound_reports")
    await forget_reports(pool)
    await node()
    assert outcomes.pop() is False
    await pool.execute(
        "UPDATE relay.notifications SET created_at = created_at - make_interval(secs => %s)",
        (POSTS_KEPT,),
    )
    await forget_reports(pool)
    await node()
    assert outcomes.pop() is True
