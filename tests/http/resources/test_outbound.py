"""Sending, the queue, senders, suppressions and webhooks over HTTP, on a real database."""

import contextlib
import functools
import json
import socket
from base64 import b64encode
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID, REPORTS_ID
from relay.datadir import DataDir
from relay.db.listen import Notification, notifications
from relay.db.pool import Pool
from relay.http.operations import MAX_BODY
from relay.keyring import Keyring
from relay.outbound.delivery.render import mail_of
from relay.outbound.pacing.held_back import Standing, Why
from relay.outbound.pacing.rate import Rate
from relay.outbound.queue.states import Cause
from relay.outbound.queue.steps import pack
from relay.outbound.routing.senders import Senders
from relay.outbound.shaping.rules import Limits, parse
from relay.outbound.shaping.traffic import SLOWED, Learned, Receiver, Traffic
from relay.outbound.suppression.suppressions import Suppressions
from relay.webhooks.kinds import KINDS
from relay.webhooks.store import Webhooks
from tests.http.conftest import SMALL, House, open_house
from tests.outbound.node import Node

MISSING = "00000000-0000-7000-8000-000000000000"
CANARY = "canary.person@canary.example"
MESSAGE: dict[str, Any] = {
    "from": "Shop <shop@example.org>",
    "to": ["ada@example.org", "Bob B. <Bob@Example.org>"],
    "subject": "Your order",
    "text": "Hello",
}


async def send(
    house: House, by: dict[str, str] | None = None, key: str | None = None, **changes: Any
) -> httpx.Response:
    """Send `MESSAGE` with changes; as the administrator unless told otherwise."""
    headers = dict(house.admin if by is None else by)
    if key is not None:
        headers["Idempotency-Key"] = key
    return await house.client.post("/api/v1/messages/send", json=MESSAGE | changes, headers=headers)


async def queued(house: House, by: dict[str, str] | None = None, **changes: Any) -> str:
    """Send to one recipient; the message's id."""
    response = await send(house, by, to=changes.pop("to", ["ada@example.org"]), **changes)
    assert response.status_code == 202, response.text
    return str(response.json()["messages"][0]["id"])


async def get(house: House, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
    return await house.client.get(f"/api/v1/{path}", headers=headers or house.admin)


async def post(
    house: House, path: str, by: dict[str, str] | None = None, **values: Any
) -> httpx.Response:
    return await house.client.post(
        f"/api/v1/{path}", headers=by or house.admin, json=values or None
    )


async def test_each_recipient_becomes_a_message_of_his_own(house: House):
    """202 with one id a recipient, in their order; equal addresses are one."""
    response = await send(house, to=[*MESSAGE["to"], "ADA@example.org"])
    assert response.status_code == 202
    messages = response.json()["messages"]
    assert [(m["recipient"], m["status"]) for m in messages] == [
        ("ada@example.org", "queued"),
        ("Bob@example.org", "queued"),
    ]
    assert len({m["id"] for m in messages}) == 2
    (first, second) = await Node(house.pool).claim()
    assert {str(first.id), str(second.id)} == {m["id"] for m in messages}
    assert (first.sender, first.sender_name, first.subject) == (
        "shop@example.org", "Shop", "Your order",
    )  # fmt: skip
    assert {first.recipient_name, second.recipient_name} == {None, "Bob B."}


async def test_everything_that_was_given_reaches_the_queue(house: House):
    """Bodies, headers, attachments byte for byte, priority, time, and what to do in doubt."""
    blob = bytes(range(256)) * 3
    at = datetime.now(UTC) + timedelta(hours=1)
    sent = await queued(
        house, html="<p>Hello</p>", headers={"Reply-To": "help@example.org"}, priority="bulk",
        send_at=at.isoformat(), unknown_outcome="hold",
        attachments=[{"filename": "a.bin", "content_type": "application/x-thing",
                      "content": b64encode(blob).decode()}],
    )  # fmt: skip
    shown = (await get(house, f"outbound/{sent}")).json()
    assert shown["priority"] == "bulk"
    assert datetime.fromisoformat(shown["next_retry_at"]) == at
    assert await Node(house.pool).claim() == []
    await house.pool.execute("UPDATE relay.outbound_due SET run_at = now()")
    node = Node(house.pool)
    batch = await node.look()
    (message,) = batch.messages
    given = message.message
    assert (given.text, given.html) == ("Hello", "<p>Hello</p>")
    assert given.headers == {"Reply-To": "help@example.org"}
    (file,) = given.attachments
    assert (file.filename, file.content_type, file.content) == (
        "a.bin", "application/x-thing", blob,
    )  # fmt: skip
    assert message.hold_unknown


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"to": []}, "to"),
        ({"to": ["ada"]}, "to[0]"),
        ({"to": ["ada@example.org", "b@x\r\nRCPT TO:<c@x.org>"]}, "to[1]"),
        ({"from": "nobody"}, "from"),
        ({"from": "a@example.org, b@example.org"}, "from"),
        ({"subject": "a\r\nBcc: x@example.org"}, "subject"),
        ({"text": None}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"headers": {"Bcc": "x@example.org"}}, "headers"),
        ({"headers": {"X-A": "a\nB: c"}}, "headers"),
        ({"headers": {"X A": "b"}}, "headers"),
        ({"headers": ["X-A"]}, "headers"),
        ({"priority": "urgent"}, "priority"),
        ({"send_at": "2026-01-01T00:00:00"}, "send_at"),
        ({"send_at": "soon"}, "send_at"),
        ({"unknown_outcome": "guess"}, "unknown_outcome"),
        ({"attachments": [{"filename": "a", "content": "no base64!"}]}, "attachments"),
        ({"attachments": [{"filename": "../a", "content": ""}]}, "attachments"),
        ({"attachments": [{"filename": "a", "content_type": "x", "content": ""}]}, "attachments"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_what_is_malformed_is_refused_whole(house: House, changes: Any, field: str):
    """422 with a sentence that names the field; nothing is queued."""
    body = MESSAGE | changes
    response = await house.client.post(
        "/api/v1/messages/send",
        # By hand: httpx would not write a lone surrogate, which JSON can.
        content=json.dumps(body),
        headers=house.admin | {"Content-Type": "application/json"},
    )
    assert response.status_code == 422, response.text
    assert response.json()["errors"][0].startswith(field)
    assert (await get(house, "outbound")).json() == []


async def test_the_same_key_gives_the_same_answer(house: House):
    """Also to two calls at once; another body is a 409; another's key is another key."""
    key = await house.key("send")
    first = await send(house, key, "k-1")
    answers: list[httpx.Response] = []

    async def again() -> None:
        answers.append(await send(house, key, "k-1", priority="normal"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(again)
    assert {(a.status_code, a.text) for a in answers} == {(202, first.text)}
    other = await send(house, key, "k-1", subject="Another")
    assert (other.status_code, other.json()["type"]) == (
        409, "/problems/idempotency-key-reused",
    )  # fmt: skip
    foreign = await send(house, await house.key("send"), "k-1")
    assert foreign.status_code == 202
    assert foreign.text != first.text
    assert len((await get(house, "outbound", key)).json()) == 2
    await house.pool.execute("UPDATE relay.outbound_keys SET created_at = now() - interval '25 h'")
    assert (await send(house, key, "k-1", subject="Another")).status_code == 202
    assert (await send(house, key, "x" * 256)).status_code == 422


async def test_one_suppressed_recipient_refuses_the_call(house: House):
    """Whatever the case; the answer names them in a field, and in no sentence; another key is not
    concerned, unless the administrator suppressed it."""
    key, other = await house.key("send"), await house.key("send")
    assert (await post(house, "suppressions", key, address="BOB@example.ORG")).status_code == 201
    refused = await send(house, key)
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/suppressed")
    said = refused.json()
    assert said.pop("recipients") == ["bob@example.org"]
    assert "bob" not in str(said)
    assert (await get(house, "outbound", key)).json() == []
    assert (await send(house, other)).status_code == 202
    await post(house, "suppressions", address="bob@example.org", reason="asked")
    assert (await send(house, other)).status_code == 422


async def test_the_operator_lists_and_lifts_what_others_suppressed(house: House):
    """By a key's id, or everybody's at once with whose they are, page by page; a key learns of the
    administrator's only that it holds, and is told nothing of another's."""
    key, other = await house.key("send"), await house.key("send")
    for by, address in ((key, "ada@x.example"), (other, "ada@x.example"), (key, "bob@x.example")):
        await post(house, "suppressions", by, address=address)
    await post(house, "suppressions", address="all@x.example")
    assert len((await get(house, "suppressions")).json()) == 1
    path, found = "suppressions?owner=all&limit=1", []
    while path:
        page = await get(house, path)
        found += page.json()
        path = page.links["next"]["url"].partition("/api/v1/")[2] if "next" in page.links else ""
    assert [one["address"] for one in found] == [
        *("ada@x.example", "ada@x.example", "all@x.example", "bob@x.example"),
    ]
    owners = [one["owner"] for one in found]
    assert owners[2] == str(ADMINISTRATOR_ID)
    assert found[2]["owner_name"] is None
    assert owners[3] in owners[:2]
    assert found[3]["owner_name"]
    (mine, theirs) = owners[3], next(one for one in owners[:2] if one != owners[3])
    listed = (await get(house, f"suppressions?owner={mine}")).json()
    assert [one["address"] for one in listed] == ["ada@x.example", "bob@x.example"]
    for wanted in (theirs, "all"):
        assert (await get(house, f"suppressions?owner={wanted}", key)).status_code == 403

    async def lifted(address: str, by: dict[str, str], owner: str = "") -> Any:
        path = f"/api/v1/suppressions/{address}{owner and '?owner='}{owner}"
        return await house.client.delete(path, headers=by)

    held = await lifted("all@x.example", key)
    assert (held.status_code, held.json()["detail"]) == (
        404,
        "The administrator has suppressed this address, for everybody's mail.",
    )
    for none in ("nobody@x.example", "no%C2%88body@x.example"):
        unknown = await lifted(none, key)
        assert unknown.json()["detail"] == "You have no such suppression."
    assert (await lifted("bob@x.example", other, mine)).status_code == 403
    assert (await lifted("bob@x.example", house.admin)).status_code == 404
    assert (await lifted("bob@x.example", house.admin, mine)).status_code == 204
    assert (await lifted("all@x.example", house.admin)).status_code == 204
    left = (await get(house, "suppressions?owner=all")).json()
    assert [one["address"] for one in left] == ["ada@x.example", "ada@x.example"]


async def test_the_list_of_reports_is_the_administrators(house: House):
    """Whom a report of TLS bounced at, `owner=reports` lists and takes off, for the scope admin;
    it is on nobody else's list."""
    await Suppressions(house.pool).add(REPORTS_ID, "tls@example.org")
    key, admin = await house.key("send"), await house.key("send", "admin")
    path = "suppressions/tls@example.org"
    for by in (house.admin, admin, key):
        assert (await get(house, "suppressions", by)).json() == []
        removed = await house.client.delete(f"/api/v1/{path}", headers=by)
        assert removed.status_code == 404
    refused = await get(house, "suppressions?owner=reports", key)
    assert (refused.status_code, refused.json()["type"]) == (403, "/problems/missing-scope")
    (listed,) = (await get(house, "suppressions?owner=reports", admin)).json()
    assert listed["address"] == "tls@example.org"
    assert (await get(house, "suppressions?owner=others")).status_code == 422
    for by, status in ((key, 403), (house.admin, 204), (admin, 404)):
        done = await house.client.delete(f"/api/v1/{path}?owner=reports", headers=by)
        assert done.status_code == status
    assert (await get(house, "suppressions?owner=reports")).json() == []


async def test_a_key_sends_as_no_role_of_the_relays_own_domain(house: House):
    """Who could write as no-reply@ would be believed; other addresses, and domains, are free."""
    key = await house.key("send", "admin")

    async def status(sender: str, by: dict[str, str]) -> tuple[int, str]:
        changes: dict[str, Any] = {"from": sender}
        answer = await send(house, by, **changes)
        return answer.status_code, answer.json().get("type", "")

    for sender in (
        "no-reply@relay.localhost",
        'X <"Admin"@Relay.Localhost>',
        "root+a@relay.localhost",
    ):
        assert await status(sender, key) == (403, "/problems/reserved-name")
        assert await status(sender, house.admin) == (202, "")
    for sender in ("shop@relay.localhost", "no-reply@elsewhere.example"):
        assert await status(sender, key) == (202, "")


async def test_what_is_suppressed_after_queueing_is_cancelled(house: House):
    """When its turn comes, with the error `suppressed`."""
    sent = await queued(house)
    await post(house, "suppressions", address="Ada@example.org")
    assert await Node(house.pool).claim() == []
    shown = (await get(house, f"outbound/{sent}")).json()
    assert (shown["status"], shown["error"]) == ("cancelled", "suppressed")


async def test_a_message_is_its_owners(house: House):
    """To another key it is not there; the administrator sees its state, not whose it is."""
    key, other = await house.key("send"), await house.key("send")
    sent = await queued(house, key, to=[CANARY], subject="canary subject")
    own = (await get(house, f"outbound/{sent}", key)).json()
    assert (own["recipient"], own["subject"], own["status"], own["attempts"]) == (
        CANARY, "canary subject", "queued", 0,
    )  # fmt: skip
    assert (own["sender"], own["peer"], own["tls"], own["reply"]) == (
        "shop@example.org", None, None, None,
    )  # fmt: skip
    for path in (f"outbound/{sent}", f"outbound/{sent}/events"):
        assert (await get(house, path, other)).status_code == 404
    for path in (f"outbound/{sent}/cancel", f"outbound/{sent}/retry"):
        assert (await post(house, path, other)).status_code == 404
    assert (await get(house, "outbound", other)).json() == []
    (seen,) = (await get(house, "outbound")).json()
    assert (seen["id"], seen["recipient"], seen["subject"]) == (sent, None, None)
    assert seen["sender"] is None
    assert "canary" not in (await get(house, f"outbound/{sent}")).text
    assert (await post(house, f"outbound/{sent}/cancel")).json()["status"] == "cancelled"


async def test_lists_are_filtered_and_go_on_page_by_page(house: House):
    """By status and recipient, newest first; the Link header leads to the end."""
    ids = [await queued(house, to=[f"u{number}@example.org"]) for number in range(5)]
    await post(house, f"outbound/{ids[2]}/cancel")
    found, path = [], "outbound?status=queued&limit=2"
    while path:
        page = await get(house, path)
        found += [item["id"] for item in page.json()]
        link = page.links.get("next")
        path = "" if link is None else link["url"].removeprefix("/api/v1/")
    assert found == [ids[4], ids[3], ids[1], ids[0]]
    cancelled = (await get(house, "outbound?status=cancelled")).json()
    assert [item["id"] for item in cancelled] == [ids[2]]
    one = (await get(house, "outbound?recipient=U1@EXAMPLE.org")).json()
    assert [item["id"] for item in one] == [ids[1]]
    assert (await get(house, "outbound?recipient=nobody")).json() == []
    assert (await get(house, "outbound?status=lost")).status_code == 422
    assert (await get(house, "outbound?cursor=x")).status_code == 422


async def test_the_law_decides_what_may_be_done_by_hand(house: House):
    """retry takes held, failed and bounced; cancel what has not begun; else 409 says why."""
    sent = await queued(house)
    refused = await post(house, f"outbound/{sent}/retry")
    assert refused.status_code == 409
    assert refused.json()["detail"] == "A message that is queued cannot be retried."
    node = Node(house.pool)
    claimed = await node.claim()
    assert (await post(house, f"outbound/{sent}/cancel")).status_code == 409
    steps = pack([("rcpt", 550, 0.25, 0.01)], 0.0)
    await node.finish(
        claimed, Cause.REFUSED, phase="rcpt", code=550, error="no such <redacted:0>", steps=steps,
        peer="mx.example[192.0.2.1]:25", tls="TLSv1.3",
    )  # fmt: skip
    shown = (await get(house, f"outbound/{sent}")).json()
    assert (shown["status"], shown["attempts"], shown["error"]) == (
        "bounced", 1, "no such <redacted:0>",
    )  # fmt: skip
    (event,) = (await get(house, f"outbound/{sent}/events")).json()
    assert datetime.fromisoformat(event.pop("at")).tzinfo is not None
    assert event == {
        "attempt": 1, "phase": "rcpt", "code": 550, "duration": 0.01,
        "enhanced": None, "error": "no such <redacted:0>", "reply": None,
        "peer": "mx.example[192.0.2.1]:25", "tls": "TLSv1.3",
    }  # fmt: skip
    again = await post(house, f"outbound/{sent}/retry")
    assert (again.status_code, again.json()["status"]) == (200, "queued")
    await node.finish(
        await node.claim(), Cause.DELIVERED, phase="dot", code=250, reply="Ok: queued as 4bX",
        peer="mx.example[192.0.2.2]:25",
    )  # fmt: skip
    shown = (await get(house, f"outbound/{sent}")).json()
    assert (shown["status"], shown["attempts"], shown["peer"], shown["tls"], shown["reply"]) == (
        "sent", 2, "mx.example[192.0.2.2]:25", None, "250 Ok: queued as 4bX",
    )  # fmt: skip
    events = (await get(house, f"outbound/{sent}/events")).json()
    assert [(one["peer"], one["tls"], one["reply"]) for one in events] == [
        ("mx.example[192.0.2.1]:25", "TLSv1.3", None),
        ("mx.example[192.0.2.2]:25", None, "250 Ok: queued as 4bX"),
    ]
    assert shown["sent_at"] is not None
    for act in ("retry", "cancel"):
        assert (await post(house, f"outbound/{MISSING}/{act}")).status_code == 404
        assert (await post(house, f"outbound/x/{act}")).status_code == 404


async def test_the_queue_is_paused_for_all_and_resumed(house: House):
    """Nothing is claimed meanwhile; only an administrator may."""
    await queued(house)
    assert (await post(house, "queue/pause")).json()["paused"] is True
    assert await Node(house.pool).claim() == []
    state = (await get(house, "queue")).json()
    assert (state["paused"], state["queued"], state["due"]) == (True, 1, 1)
    key = await house.key("send", "read")
    for response in (
        await get(house, "queue", key),
        await post(house, "queue/resume", key),
    ):
        assert response.status_code == 403
    assert (await post(house, "queue/resume")).json()["paused"] is False
    assert len(await Node(house.pool).claim()) == 1


async def test_senders_belong_to_their_owner_and_hide_their_password(house: House):
    """Made, replaced, listed and removed whatever the case of the address."""
    key, other = await house.key("send"), await house.key("send")
    upstream = "smtps://us%40er:canary-password@mail.example.org"
    made = await post(house, "senders", key, address="Shop@Example.org", upstream=upstream)
    assert made.status_code == 201
    again = await post(house, "senders", key, address="SHOP@example.org", upstream=upstream)
    assert again.status_code == 200
    listed = await get(house, "senders", key)
    assert [(s["address"], s["upstream"], s["username"]) for s in listed.json()] == [
        ("shop@example.org", "smtps://mail.example.org:465", "us@er")
    ]
    assert "canary" not in made.text + again.text + listed.text
    assert (await get(house, "senders", other)).json() == []
    removed = await house.client.delete("/api/v1/senders/shop@example.org", headers=other)
    assert removed.status_code == 404
    await queued(house, key)
    (claimed,) = await Node(house.pool).claim()
    assert claimed.upstream == "smtps://mail.example.org:465"
    removed = await house.client.delete("/api/v1/senders/SHOP@EXAMPLE.ORG", headers=key)
    assert removed.status_code == 204


@pytest.mark.parametrize(
    "values",
    [
        {"address": "shop@example.org", "upstream": "smtp://u:canary@mail.example.org"},
        {"address": "shop@example.org", "upstream": "http://u:canary@mail.example.org"},
        {"address": "shop", "upstream": "loop:"},
        {"address": "shop@example.org"},
    ],
)
async def test_a_sender_that_cannot_be_used_is_refused(house: House, values: dict[str, str]):
    """422, and the password is not repeated."""
    response = await post(house, "senders", None, **values)
    assert response.status_code == 422
    assert "canary" not in response.text


@pytest.mark.parametrize(
    "upstream",
    [
        "smtps://u:canary@127.0.0.1",
        "smtps://u:canary@localhost:2465",
        "smtp+starttls://u:canary@[::1]:587",
        "smtps://u:canary@[::ffff:10.0.0.1]",
        "smtps://u:canary@169.254.169.254",
        "smtp://127.0.0.1:25",
    ],
)
async def test_a_key_cannot_have_the_relay_connect_into_its_own_network(
    house: House, upstream: str
):
    """Refused unless the key is an administrator's, or the setting allows it to all."""
    values = {"address": "shop@example.org", "upstream": upstream}
    refused = await post(house, "senders", await house.key("send"), **values)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "upstream: it must be a host of the public internet."
    assert "canary" not in refused.text
    assert (await post(house, "senders", await house.key("send", "admin"), **values)).is_success
    assert (await post(house, "senders", None, **values)).is_success
    senders = Senders(house.pool, house.keyring.vault, private_upstreams=True)
    await senders.put(UUID(int=7), "shop@example.org", upstream, private=False)
    found = await house.pool.fetch("SELECT private FROM relay.senders ORDER BY created_at")
    assert found == [(True,), (True,), (False,)]


async def test_lists_by_address_go_on_page_by_page(house: House):
    """Suppressions and senders alike."""
    for number in range(3):
        await post(house, "suppressions", address=f"u{number}@example.org", reason="r")
        await post(house, "senders", address=f"u{number}@example.org", upstream="loop:")
    for path in ("suppressions", "senders"):
        first = await get(house, f"{path}?limit=2")
        second = await get(house, first.links["next"]["url"].removeprefix("/api/v1/"))
        assert [e["address"] for e in first.json() + second.json()] == [
            f"u{number}@example.org" for number in range(3)
        ]
        assert "next" not in second.links
        assert (await get(house, f"{path}?cursor=%00")).status_code == 200
    removed = await house.client.delete("/api/v1/suppressions/U1@example.org", headers=house.admin)
    assert removed.status_code == 204
    assert len((await get(house, "suppressions")).json()) == 2


async def test_webhooks_belong_to_their_owner_and_name_public_addresses(house: House):
    """The answer holds the secret of this owner; a mailbox's has its own."""
    key, other = await house.key("send", "read"), await house.key("send", "read")
    url = "https://hooks.example.org/a"
    made = await post(house, "webhooks", key, url=url)
    assert (made.status_code, made.json()["events"]) == (
        201, sorted(KINDS),
    )  # fmt: skip
    again = await post(house, "webhooks", key, url=url, events=["message.failed"])
    assert (again.status_code, again.json()["events"]) == (200, ["message.failed"])
    assert (await get(house, "webhooks", key)).json() == [again.json()]
    assert (await get(house, "webhooks", other)).json() == []
    foreign = await post(house, "webhooks", other, url=url)
    assert foreign.json()["secret"] != made.json()["secret"]
    for wrong in ("http://127.0.0.1/", "ftp://x.example/", "https://u:p@x.example/"):
        assert (await post(house, "webhooks", key, url=wrong)).status_code == 422
    assert (await post(house, "webhooks", key, url=url, events=["x"])).status_code == 422
    path = f"/api/v1/webhooks/{made.json()['id']}"
    assert (await house.client.delete(path, headers=other)).status_code == 404
    assert (await house.client.delete(path, headers=key)).status_code == 204
    address, token = await house.mailbox(webhook_url=url)
    own = (await get(house, f"mailboxes/{address}/webhook", token)).json()
    assert own["url"] == url
    assert own["secret"] not in (made.json()["secret"], foreign.json()["secret"])
    owned = await house.client.post("/api/v1/mailboxes", headers=key, json={})
    path = f"mailboxes/{owned.json()['address']}/webhook"
    assert (await get(house, path, key)).json() == {"url": None, "secret": made.json()["secret"]}


async def test_what_a_webhook_would_not_take_is_listed_and_posted_again(house: House):
    """To its owner alone, newest first; posted again as if for the first time."""
    key, other = await house.key("send"), await house.key("send")
    url = "https://hooks.example.org/a"
    await post(house, "webhooks", key, url=url)
    await house.pool.execute(
        """
        INSERT INTO relay.webhook_events (kind, subject_id, signer, url, attempt, error, run_at,
                                          given_up_at)
        SELECT 'message.failed', relay.uuidv7(), owner, url, 10, 'the answer was 500', 'infinity',
               now()
        FROM relay.webhooks, generate_series(1, 3)
        """
    )
    first = await get(house, "webhooks/events?limit=2", key)
    rest = await get(house, first.links["next"]["url"].removeprefix("/api/v1/"), key)
    found = first.json() + rest.json()
    assert len({event["id"] for event in found}) == 3
    assert [event["id"] for event in found] == sorted((e["id"] for e in found), reverse=True)
    assert (found[0]["type"], found[0]["url"], found[0]["attempts"], found[0]["error"]) == (
        "message.failed", url, 10, "the answer was 500",
    )  # fmt: skip
    assert (await get(house, "webhooks/events", other)).json() == []
    again = f"webhooks/events/{found[1]['id']}/retry"
    assert (await post(house, again, other)).status_code == 404
    assert (await post(house, again, key)).status_code == 204
    assert (await post(house, again, key)).status_code == 404
    assert (await post(house, "webhooks/events/x/retry", key)).status_code == 404
    assert len((await get(house, "webhooks/events", key)).json()) == 2
    (event,), _ = await Webhooks(house.pool).claim(5, 10.0, {})
    assert (str(event.id), event.attempt) == (found[1]["id"], 1)


async def test_keys_of_the_settings_stay_as_they_are(pool: Pool, house: House):
    """A rotation seals anew what another key sealed, and counts what no key opens."""
    await post(house, "senders", address="a@example.org", upstream="smtps://u:p@mail.example.org")
    await pool.execute("UPDATE relay.senders SET key_id = 'former'::bytea")
    done = (await post(house, "keyring/rotate")).json()
    assert done == {
        "new_signing_key": False,
        "new_encryption_key": False,
        "resealed": 1,
        "unreadable": 0,
        "old_keys_dropped": False,
    }
    await pool.execute("UPDATE relay.senders SET key_id = NULL, password = 'x'::bytea")
    assert (await post(house, "keyring/rotate")).json()["unreadable"] == 1


async def test_a_rotation_that_was_cut_off_is_finished(
    database_url: str, pool: Pool, tmp_path: Path
):
    """The relay died after the new key was made: at the next call no further key is made, the
    password is sealed with the new one, and the old one is dropped."""
    before = Keyring(DataDir(tmp_path))
    await Senders(pool, before.vault).put(
        ADMINISTRATOR_ID, "a@example.org", "smtps://u:p@mail.example.org"
    )
    before.renew_encryption()
    restarted = Keyring(DataDir(tmp_path))
    assert restarted.encryption_count == 2
    async with open_house(database_url, pool, keyring=restarted) as house:
        done = (await post(house, "keyring/rotate")).json()
    assert done == {
        "new_signing_key": False,
        "new_encryption_key": False,
        "resealed": 1,
        "unreadable": 0,
        "old_keys_dropped": True,
    }
    ((account, sealed),) = await pool.fetch("SELECT id, password FROM relay.senders")
    after = Keyring(DataDir(tmp_path))
    assert after.encryption_count == 1
    assert after.vault.open(account, sealed) == "p"


async def test_no_key_is_dropped_that_a_password_may_need(
    database_url: str, pool: Pool, tmp_path: Path
):
    """One password that cannot be read keeps the old keys."""
    keyring = Keyring(DataDir(tmp_path))
    await Senders(pool, keyring.vault).put(
        ADMINISTRATOR_ID, "a@example.org", "smtps://u:p@mail.example.org"
    )
    await pool.execute("UPDATE relay.senders SET password = 'x'::bytea")
    async with open_house(database_url, pool, keyring=keyring) as house:
        done = (await post(house, "keyring/rotate")).json()
    assert (done["new_encryption_key"], done["unreadable"], done["old_keys_dropped"]) == (
        True, 1, False,
    )  # fmt: skip
    assert Keyring(DataDir(tmp_path)).encryption_count == 2


def begin(house: House, headers: dict[str, str], framing: str, body: bytes) -> bytes:
    """Begin a call that queues mail, send so much of its body, and wait for what is said."""
    with socket.create_connection(("127.0.0.1", house.port), timeout=20) as peer:
        peer.sendall(
            b"POST /api/v1/messages/send HTTP/1.1\r\nHost: localhost\r\nAuthorization: "
            + headers["Authorization"].encode()
            + f"\r\nContent-Type: application/json\r\n{framing}\r\n\r\n".encode()
            + body
        )
        return peer.recv(65536)


async def test_large_bodies_wait_for_each_other(database_url: str, pool: Pool):
    """While an owner's bodies fill their places, one more of theirs is told to come back."""
    limits = replace(SMALL, uploads=2, upload_timeout=0.3, upload_every=60.0)
    async with open_house(database_url, pool, limits) as house:
        key, answers = await house.key("send"), []

        async def held() -> None:
            call = functools.partial(
                begin, house, key, "Content-Length: 9000000", b" " * (MAX_BODY + 1)
            )
            answers.append(await trio.to_thread.run_sync(call))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(held)
        statuses = {answer.split(b" ")[1] for answer in answers}
        assert statuses <= {b"408", b"503"}
        assert b"503" in statuses
        assert (await send(house)).status_code == 202


async def test_nobodys_large_bodies_keep_others_from_sending(database_url: str, pool: Pool):
    """One key's bodies that do not go on hold half of the places, those that announce much and
    bring little none; small chunked bodies need none."""
    limits = replace(SMALL, uploads=4, body_timeout=30.0, upload_every=30.0, upload_timeout=30.0)
    async with open_house(database_url, pool, limits) as house:
        slow, other = await house.key("send"), await house.key("send")
        large = {"from": "a@relay.localhost", "to": "x@elsewhere.example", "text": "x" * 600_000}
        small = b'{"from": "a@relay.localhost", "to": "x@elsewhere.example", "text": "x"}'
        head = (
            "POST /api/v1/messages/send HTTP/1.1\r\nHost: localhost\r\n"
            "Content-Type: application/json"
            f"\r\nAuthorization: {slow['Authorization']}\r\nContent-Length: 9000000\r\n\r\n"
        ).encode()
        async with contextlib.AsyncExitStack() as peers:
            for size in (1, 1, 1, 1, 600_000, 600_000, 600_000, 600_000):
                peer = await trio.open_tcp_stream("127.0.0.1", house.port)
                await peers.enter_async_context(peer)
                await peer.send_all(head + b" " * size)
            with trio.fail_after(15):  # half of what those may take
                for headers in (other, house.admin):
                    sent = await house.client.post(
                        "/api/v1/messages/send", json=large, headers=headers
                    )
                    assert sent.status_code == 202
                chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(small), small)
                call = functools.partial(begin, house, slow, "Transfer-Encoding: chunked", chunk)
                assert (await trio.to_thread.run_sync(call)).startswith(b"HTTP/1.1 202 ")


async def test_a_large_body_that_drips_loses_its_place(database_url: str, pool: Pool):
    """Less than 64 KiB in the time for it is a 408, long before all of its time is over."""
    limits = replace(SMALL, body_timeout=30.0, upload_every=0.2, upload_timeout=30.0)
    async with open_house(database_url, pool, limits) as house:
        call = functools.partial(
            begin, house, house.admin, "Content-Length: 9000000", b" " * (MAX_BODY + 1)
        )
        with trio.fail_after(10):
            assert (await trio.to_thread.run_sync(call)).startswith(b"HTTP/1.1 408 ")


async def test_a_message_of_many_megabytes_is_taken(house: House):
    """Attachments are limited together, beyond that it is a 422; a stranger is refused before their
    body has come."""

    def attached(size: int) -> list[dict[str, str]]:
        return [{"filename": "big", "content": b64encode(bytes(size)).decode()}]

    assert (await send(house, attachments=attached(26_214_400))).status_code == 202
    refused = await send(house, attachments=attached(26_214_401))
    assert (refused.status_code, refused.json()["errors"][0].split(":")[0]) == (422, "attachments")

    def stranger() -> bytes:
        with socket.create_connection(("127.0.0.1", house.port), timeout=10) as peer:
            peer.sendall(
                b"POST /api/v1/messages/send HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 40000000\r\n\r\n"
            )
            peer.sendall(b" " * 600_000)
            return peer.recv(65536)

    assert (await trio.to_thread.run_sync(stranger)).startswith(b"HTTP/1.1 401 ")
    (row,) = await house.pool.fetch("SELECT count(*), max(size) FROM relay.outbound_contents")
    assert row == (1, 26_214_405)


async def test_who_is_asleep_is_told_of_what_is_due(database_url: str, pool: Pool):
    """The process's claimer gets the lanes and the time; a replay says nothing."""
    told: list[Any] = []
    async with open_house(database_url, pool, wake_outbound=told.append) as house:
        sent = await send(house, key="once", to=["a@example.org", "b@example.org", "c@other.org"])
        await send(house, key="once", to=["a@example.org", "b@example.org", "c@other.org"])
    assert sent.status_code == 202
    (due_lanes,) = told
    assert {due_lane.domain for due_lane in due_lanes} == {"example.org", "other.org"}
    for due_lane in due_lanes:
        assert abs((due_lane.due_at - datetime.now(UTC)).total_seconds()) < 60


async def test_other_processes_are_told_where_no_claimer_runs(house: House, database_url: str):
    """By a notification after the commit, which says whether it was high mail."""
    async with contextlib.aclosing(notifications(database_url, ["relay_outbound"])) as heard:
        await anext(heard)  # LISTEN is in effect
        for priority, payload in (("normal", ""), ("high", "high"), ("bulk", "")):
            await queued(house, priority=priority)
            with trio.fail_after(20):
                assert await anext(heard) == Notification("relay_outbound", payload)


async def test_the_administrators_mail_is_that_of_relay_send(house: House):
    """What SQL queued is shown whole to the administrator."""
    sent: UUID = await house.pool.fetch_value(
        "SELECT relay.send('me@example.org', 'ada@example.org', 'From SQL', 'text')"
    )
    shown = (await get(house, f"outbound/{sent}")).json()
    assert (shown["recipient"], shown["subject"]) == ("ada@example.org", "From SQL")
    owner = await house.pool.fetch_value("SELECT owner FROM relay.outbound_letters")
    assert owner == ADMINISTRATOR_ID


async def test_a_message_may_have_a_deadline(house: House) -> None:
    """not_after is shown, must lie after send_at, and the same key with another one is refused."""
    until = "2099-01-01T00:00:00Z"
    message = await queued(house, not_after=until, send_at="2098-01-01T00:00:00Z")
    shown = (await get(house, f"outbound/{message}")).json()
    assert shown["not_after"].startswith("2099-01-01T00:00:00")
    refused = await send(house, not_after=until, send_at=until)
    assert refused.status_code == 422
    assert "not_after" in refused.json()["detail"]
    for name in ("not_after", "send_at"):
        for instant in (
            "tomorrow", 5, "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+23:59",
            "9999-06-01T00:00:00Z", "2099-01-01T00:00:00",
        ):  # fmt: skip
            values: dict[str, Any] = {name: instant}
            answer = await send(house, **values)
            assert answer.status_code == 422, (name, instant, answer.text)
    first = await send(house, key="k", not_after=until)
    assert (await send(house, key="k", not_after=until)).json() == first.json()
    assert (await send(house, key="k")).status_code == 409


async def test_an_operator_may_flush_the_queue(house: House) -> None:
    """Deferred mail is due at once, by domain and by route; a key without admin may not."""
    message = await queued(house)
    node = Node(house.pool)
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0, error="451 later")
    for wanted, count in (
        ("domain=other.example", 0), ("route=smtps://other.example:465", 0),
        ("domain=example.org&route=default", 1), ("", 1),
    ):  # fmt: skip
        assert (await get(house, f"queue/flush?{wanted}")).json() == {"count": count}
    assert (await get(house, "queue/flush", await house.key("send"))).status_code == 403
    for name in ("domain", "route", "recipient", "tag"):  # which no text of PostgreSQL's can have
        assert (await get(house, f"queue/flush?{name}=%00")).status_code == 422
        assert name == "route" or (await get(house, f"outbound?{name}=%00")).status_code == 422
    assert (await post(house, "queue/flush?domain=other.example")).json() == {"count": 0}
    assert (await post(house, "queue/flush?route=smtps://other.example:465")).json() == {"count": 0}
    assert (await post(house, "queue/flush?domain=example.org&route=default")).json() == {
        "count": 1
    }
    assert [claimed.id for claimed in await node.claim()] == [UUID(message)]


async def test_failures_are_told_in_groups_and_retried_by_group(house: House) -> None:
    """By the filter that counted them, each owner their own; what is no filter is refused."""
    mine, other = await house.key("send"), await house.key("send")
    message = await queued(house, mine)
    node = Node(house.pool)
    await node.finish(await node.claim(), Cause.REFUSED, phase="rcpt", code=550, error="550 a & b")
    (group,) = (await get(house, "outbound/failures?domain=example.org", mine)).json()
    assert group.pop("finished_at")
    assert group == {
        "status": "bounced",
        "domain": "example.org",
        "error": "550 a & b",
        "count": 1,
        "latest": message,
    }
    assert (await get(house, "outbound/failures", other)).json() == []
    for narrowed, groups in (
        ("recipient=ADA@example.org&priority=normal", 1), ("recipient=bob@example.org", 0),
        ("recipient=nobody", 0), ("priority=bulk", 0), ("tag=x", 0),
    ):  # fmt: skip
        found = (await get(house, f"outbound/failures?{narrowed}", mine)).json()
        assert len(found) == groups, narrowed
    path = "outbound/failures/retry?status=bounced&domain=example.org&error=550%20a%20%26%20b"
    assert (await post(house, path, by=other)).json() == {"count": 0}
    assert (await post(house, "outbound/failures/retry?status=sent", by=mine)).status_code == 422
    assert (await post(house, path, by=mine)).json() == {"count": 1}
    assert [claimed.id for claimed in await node.claim()] == [UUID(message)]


async def test_messages_are_counted_by_state(house: House):
    """Each owner counts their own, the administrator all; a state without one is 0."""
    mine, other = await house.key("send"), await house.key("send")
    for _ in range(4):
        await queued(house, mine)
    await queued(house, other)
    node = Node(house.pool)
    first, second, third, *_ = await node.claim()
    await node.finish([first])
    await node.finish([second], Cause.REFUSED, phase="rcpt", code=550, error="no")
    await node.finish([third], Cause.DEFERRED, delay=3600.0, error="later")
    states = {"queued", "processing", "held", "sent", "failed", "bounced", "cancelled"}
    total = 0
    for by, count in ((mine, 4), (other, 1), (house.admin, 5)):
        found = (await get(house, "outbound/counts", by)).json()
        assert found.pop("more") == []
        assert found.pop("all") == count == sum(found.values())
        assert set(found) == states
        for state, told in found.items():
            shown = (await get(house, f"outbound?status={state}", by)).json()
            assert len(shown) == told, state
            total += told
    assert total == 10
    assert (await get(house, "outbound/counts", await house.key("read"))).status_code == 403


async def test_of_more_than_are_counted_is_said_that_there_are_more(house: House):
    """The newest are counted; those that did not go well have a bound of their own."""
    mine = await house.key("send")
    await queued(house, mine)
    owner = await house.pool.fetch_value("SELECT owner FROM relay.outbound_letters")
    await house.pool.execute(
        "SELECT relay.send('a@example.org', 'x' || n || '@example.org', 's', 't')"
        " FROM generate_series(1, 10000) n"
    )
    found = (await get(house, "outbound/counts")).json()
    assert (found["all"], found["queued"], found["sent"]) == (10_000, 10_001, 0)
    assert found["more"] == ["all", "sent"]
    await house.pool.execute("UPDATE relay.outbound_letters SET owner = %s", (owner,))
    found = (await get(house, "outbound/counts", mine)).json()
    assert (found["all"], found["queued"]) == (10_000, 10_001)
    assert found["more"] == ["all", "sent", "queued", "processing", "held"]
    await house.pool.execute(
        "WITH gone AS (DELETE FROM relay.outbound_due RETURNING id)"
        " INSERT INTO relay.outbound_log (id, token, attempt, status)"
        " SELECT id, 1, 1, 'bounced' FROM gone"
    )
    found = (await get(house, "outbound/counts")).json()
    assert (found["bounced"], found["queued"], found["sent"]) == (10_000, 0, 0)
    assert found["more"] == ["all", "sent", "failed", "bounced", "cancelled"]


async def test_the_traffic_of_destinations_is_counted(house: House) -> None:
    """What is unfinished, and what finished within the hour, by how; for nobody else's eyes."""
    for to in ("a@one.example", "b@one.example", "c@two.example"):
        await queued(house, to=[to])
    node = Node(house.pool)
    first, second, third = await node.claim()
    await node.finish([first])
    await node.finish([second], Cause.REFUSED, phase="rcpt", code=550, error="no")
    await node.finish([third], Cause.DEFERRED, delay=3600.0, error="later")
    found = (await get(house, "queue/traffic")).json()
    assert [one["domain"] for one in found] == ["one.example", "two.example"]
    assert sum(one["unfinished"] for one in found) == 1
    assert sum(one["sent"] for one in found) == 1
    assert sum(one["bounced"] for one in found) == 1
    assert sum(one["failed"] for one in found) == 0
    await house.pool.execute("UPDATE relay.outbound_log SET finished_at = now() - interval '2 h'")
    (left,) = (await get(house, "queue/traffic")).json()
    assert (left["unfinished"], left["sent"], left["bounced"]) == (1, 0, 0)
    mine = await house.key("send")
    assert (await get(house, "queue/traffic", mine)).json() == []
    await queued(house, mine, to=["d@two.example"])
    await queued(house, mine, to=["e@three.example"])
    await node.finish((await node.claim())[:1])
    found = (await get(house, "queue/traffic", mine)).json()
    counted = {one["domain"]: one["unfinished"] + one["sent"] for one in found}
    assert counted == {"two.example": 1, "three.example": 1}
    assert sum(one["sent"] for one in found) == 1


async def test_what_holds_a_destination_back_stands_beside_its_counts(
    database_url: str, pool: Pool
) -> None:
    """Of a site, too; the overview counts the same lines, and those of them that refuse."""
    slowed = Standing("big", None, 1, 0, 0, 0.0, ends_in=7200.0, why=Why.SLOWED)
    limits = {"one.example": Limits(connections=2, rate=Rate(1.0, 1.0))}
    held = [
        replace(slowed, domains=("one.example",), reason="2 connections at most; 6 s at the dot"),
        Standing("default", "no.example", 1, 0, 2, 9.0, why=Why.DEFERRING),
        Standing("any", "two.example", 1, 0, 0, 0.0, why=Why.NO_ROOM, owner=7),
    ]
    async with open_house(
        database_url, pool, destinations=lambda *_: held, limits_of=lambda _: limits
    ) as house:
        for to in ("a@one.example", "c@two.example"):
            await queued(house, to=[to])
        counted = (await get(house, "queue/traffic")).json()
        found = {one["domain"]: one["held"] for one in counted}
        listed = (await get(house, "queue/destinations")).json()
        (concern,) = [
            one
            for one in (await get(house, "overview")).json()["attention"]
            if "held back" in one["text"]
        ]
    assert found["two.example"] is None  # that is one owner's
    assert (found["one.example"]["why"], found["one.example"]["opens_in"]) == ("slowed", 0.0)
    assert found["one.example"]["until"] is not None
    assert concern["text"] == "Destinations held back: 3, of which 1 refusing or silent."
    assert len(listed) == 3
    # What the reason has said already is not said again.
    assert {one["limits"] for one in counted} == {"at most 60/min", None}


async def test_the_limits_of_destinations_are_told(database_url: str, pool: Pool) -> None:
    """Those that the rules give and a receiver has asked for, the least of its receivers'."""
    rules = parse("[default]\nrate = '60/m'\nconnections = 8\n", "rules")
    traffic = Traffic(lambda: rules)
    traffic.meets("one.example", Receiver("mx:one"), 0.0)
    traffic.meets("one.example", Receiver("mx:one", "other"), 0.0)
    slowed = Learned(Receiver("mx:one"), SLOWED, 100.0, 0.25, "one.example", "451 no")
    traffic.take_over([slowed], 1.0)

    def limits(domains: Collection[str]) -> Mapping[str, Limits]:
        return traffic.limits_of(domains, 1.0)

    async with open_house(database_url, pool, limits_of=limits) as house:
        for to in ("a@one.example", "c@two.example"):
            await queued(house, to=[to])
        found = {one["domain"]: one for one in (await get(house, "queue/traffic")).json()}
    told = [
        found["one.example"][name] for name in ("most_per_minute", "most_connections", "limits")
    ]
    assert told == [15.0, 2, "at most 15/min; 2 connections at most"]
    assert found["two.example"]["most_per_minute"] is None


async def test_all_that_a_filter_means_is_counted_and_changed_at_once(house: House) -> None:
    """By state, recipient, domain and priority; each owner their own; several statements do it."""
    mine, other = await house.key("send"), await house.key("send")
    for name, priority in (("ada", "high"), ("bob", "bulk"), ("cyd", "bulk")):
        await queued(house, mine, to=[f"{name}@one.example"], priority=priority)
    await queued(house, other, to=["ada@two.example"])

    async def counted(filter_: str, by: dict[str, str] = mine) -> dict[str, int]:
        answer = await get(house, f"outbound/matching{filter_}", by)
        assert answer.status_code == 200, answer.text
        found: dict[str, int] = answer.json()
        return found

    assert await counted("") == {"retry": 0, "cancel": 3, "hold": 3}
    assert await counted("", house.admin) == {"retry": 0, "cancel": 4, "hold": 4}
    assert (await counted("?recipient=ADA@one.example"))["hold"] == 1
    assert (await counted("?recipient=nobody"))["hold"] == 0
    assert (await counted("?status=held"))["cancel"] == 0
    await house.pool.execute(
        "UPDATE relay.outbound_contents SET tag = 'shop' WHERE id = (SELECT content_id"
        " FROM relay.outbound_letters WHERE address = 'bob@one.example')"
    )
    assert (await counted("?tag=shop"))["cancel"] == 1
    assert (await counted("?tag=Shop"))["cancel"] == 0
    (tagged,) = (await get(house, "outbound?tag=shop", mine)).json()
    assert tagged["recipient"] == "bob@one.example"
    path = "outbound/matching/hold?priority=bulk&domain=ONE.example"
    assert (await post(house, path, by=other)).json() == {"count": 0}
    assert (await post(house, path, by=mine)).json() == {"count": 2}
    assert (await post(house, path, by=mine)).json() == {"count": 0}
    assert await counted("?status=held") == {"retry": 2, "cancel": 2, "hold": 0}
    assert (await post(house, "outbound/matching/retry?status=held", by=mine)).json() == {
        "count": 2
    }
    assert (await post(house, "outbound/matching/cancel?recipient=x", by=mine)).json() == {
        "count": 0
    }
    assert (await post(house, "outbound/matching/cancel", by=mine)).json() == {"count": 3}
    assert await counted("", house.admin) == {"retry": 0, "cancel": 1, "hold": 1}
    reader = await house.key("read")
    assert (await post(house, "outbound/matching/cancel", by=reader)).status_code == 403
    assert (await get(house, "outbound/matching?status=gone", mine)).status_code == 422


async def test_what_is_sent_can_be_fetched_by_its_owner_and_the_administrator(house: House):
    """As message/rfc822, byte for byte as the delivery composes it; 404 for everybody else."""
    mine = await house.key("read", "send")
    other = await house.key("read", "send")
    sent = await queued(house, mine, html="<p>Hello</p>")
    (message,) = await Node(house.pool).claim()
    for by in (mine, house.admin):
        answer = await get(house, f"outbound/{sent}/raw", by)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "message/rfc822"
        assert answer.content == mail_of(message).data
    for path, by in ((sent, other), (MISSING, mine), ("x", mine)):
        answer = await get(house, f"outbound/{path}/raw", by)
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (
            404, "outbound-not-found",
        )  # fmt: skip


async def test_what_was_queued_by_sql_and_is_no_message_has_no_bytes(house: House):
    """409 and a reason, which holds nothing of the message."""
    sent = await queued(house)
    await house.pool.execute("UPDATE relay.outbound_contents SET subject = E'a\\nBcc: x@y.example'")
    answer = await get(house, f"outbound/{sent}/raw")
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (409, "cannot-be-sent")
    assert "y.example" not in answer.text
