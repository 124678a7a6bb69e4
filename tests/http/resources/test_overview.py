"""One glance at the relay: counters, and what needs a person first."""

from typing import Any

from actors.webhooks import POSTS as WEBHOOKS
from relay.http.resources.sns import POSTS as NOTIFICATIONS
from relay.outbound.queue.finaliser import OUTCOMES
from relay.outbound.queue.states import Cause
from tests.http.conftest import House
from tests.outbound.node import Node

SEND = {"from": "a@relay.localhost", "to": ["b@relay.localhost"], "subject": "s", "text": "t"}


async def test_a_quiet_relay_needs_nobody(house: House):
    """Nothing under attention; the mailboxes are counted."""
    await house.mailbox()
    seen = (await house.client.get("/api/v1/overview", headers=house.admin)).json()
    assert seen["attention"] == []
    assert seen["mailboxes"] == 1
    assert seen["queue"]["queued"] == 0
    assert set(seen["counters"]) >= {"received", "sent", "deferred", "bounced", "failed"}


async def test_what_moved_is_known_at_the_first_look(house: House):
    """What the counters were a minute or two ago comes with what they are."""

    async def seen() -> dict[str, Any]:
        answer = await house.client.get("/api/v1/overview", headers=house.admin)
        return dict(answer.json())

    assert (await seen())["earlier"] is None  # nothing is recorded in this house
    await house.history.record()
    OUTCOMES.labels(Cause.DELIVERED).inc(3)
    await house.history.record()  # too soon to be noted
    now = await seen()
    assert now["counters"]["sent"] - now["earlier"]["counters"]["sent"] == 3
    assert 0 < now["earlier"]["seconds"] < 60


async def test_failed_means_what_it_means_of_a_message(house: House):
    """Rejected or exhausted, as the history counts it, too; bounced is another thing."""

    async def counted() -> dict[str, float]:
        seen = (await house.client.get("/api/v1/overview", headers=house.admin)).json()
        return dict(seen["counters"])

    before = await counted()
    for cause in (Cause.REJECTED, Cause.EXHAUSTED, Cause.REFUSED):
        OUTCOMES.labels(cause).inc()
    after = await counted()
    assert after["failed"] - before["failed"] == 2
    assert after["bounced"] - before["bounced"] == 1


async def test_what_goes_by_other_ways_is_counted_whatever_it_is(house: House) -> None:
    """Webhooks of every kind, notifications that held mail, calls that queue and store."""

    async def counted() -> dict[str, float]:
        seen = (await house.client.get("/api/v1/overview", headers=house.admin)).json()
        return dict(seen["counters"])

    before = await counted()
    for kind, outcome in (("sent", "delivered"), ("arrived", "delivered"), ("sent", "given_up")):
        WEBHOOKS.labels(kind, outcome).inc()
    for outcome in ("stored", "ignored"):
        NOTIFICATIONS.labels(outcome).inc()
    calls = [house.client.post("/api/v1/messages/send", json=SEND, headers={**house.admin, **one})
             for one in ({}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "k"})]  # fmt: skip
    for call in calls:
        assert (await call).status_code == 202
    path = f"/api/v1/mailboxes/{(await house.mailbox())[0]}/test-message"
    assert (await house.client.post(path, headers=house.admin)).status_code == 201
    after = await counted()
    assert after["posted"] - before["posted"] == 2, "the one that was repeated is one"
    assert after["put"] - before["put"] == 1
    assert after["told"] - before["told"] == 2
    assert after["notified"] - before["notified"] == 1


async def test_what_needs_a_person_is_said(house: House):
    """A pause, an actor that is paused, mail that waits too long and mail that is held."""
    house.supervisor.pause("writer")
    for _ in range(2):
        sent = await house.client.post("/api/v1/messages/send", json=SEND, headers=house.admin)
        assert sent.status_code == 202
    await house.pool.execute("UPDATE relay.outbound_due SET run_at = now() - interval '5 minutes'")
    first = (await house.client.get("/api/v1/overview", headers=house.admin)).json()["attention"]
    assert [one["grade"] for one in first] == ["error", "warning"]
    assert {(one["grade"], one["text"]) for one in first} == {
        ("warning", "Writer is paused."),
        ("error", "Mail that is due waits for 5 minutes."),
    }
    waiting = (await house.client.get("/api/v1/outbound", headers=house.admin)).json()
    held = await house.client.post(f"/api/v1/outbound/{waiting[0]['id']}/hold", headers=house.admin)
    assert held.json()["status"] == "held"
    await house.client.post("/api/v1/queue/pause", headers=house.admin)
    texts = {
        one["text"]
        for one in (await house.client.get("/api/v1/overview", headers=house.admin)).json()[
            "attention"
        ]
    }
    assert texts == {
        "Writer is paused.", "All deliveries are paused.",
        "1 message held until somebody decides.",
    }  # fmt: skip


async def test_what_bounced_is_said_however_little_was_sent(house: House):
    """Where that is more than one of twenty, until it is an hour ago; it leads to the failures."""

    async def told() -> list[tuple[str, ...]]:
        seen = (await house.client.get("/api/v1/overview", headers=house.admin)).json()
        return [
            (one["grade"], one["text"], one["about"], one["place"]) for one in seen["attention"]
        ]

    node = Node(house.pool)
    for _ in range(2):
        sent = await house.client.post("/api/v1/messages/send", json=SEND, headers=house.admin)
        assert sent.status_code == 202
    first, second = await node.claim()
    await node.finish([first])
    assert await told() == []
    await node.finish([second], Cause.REFUSED, phase="rcpt", code=550, error="no")
    text = "1 of 2 messages of the last hour bounced or failed."
    assert await told() == [("warning", text, "queue", "failures")]
    await house.pool.execute("UPDATE relay.outbound_log SET finished_at = now() - interval '2 h'")
    assert await told() == []


async def test_the_queue_is_filtered_by_priority_and_domain(house: House):
    """Both narrow the list, whatever table leads; a page of each status still fits."""
    for priority, domain in (("high", "one.example"), ("bulk", "two.example")):
        body = SEND | {"to": [f"x@{domain}"], "priority": priority}
        await house.client.post("/api/v1/messages/send", json=body, headers=house.admin)

    async def found(**values: str) -> list[str]:
        answer = await house.client.get("/api/v1/outbound", params=values, headers=house.admin)
        return [one["recipient"] for one in answer.json()]

    assert await found(priority="high") == ["x@one.example"]
    assert await found(domain="TWO.example", status="queued") == ["x@two.example"]
    assert await found(domain="two.example", priority="high") == []
    counted = (await house.client.get("/api/v1/queue", headers=house.admin)).json()
    assert counted["by_priority"] == {"high": 1, "normal": 0, "bulk": 1}


async def test_the_priorities_of_what_is_queued_add_up_to_it(house: House):
    """Neither what is held nor what is being delivered is counted among them."""
    body = SEND | {"to": [f"u{number}@one.example" for number in range(5)]}
    sent = await house.client.post("/api/v1/messages/send", json=body, headers=house.admin)
    one, other = (message["id"] for message in sent.json()["messages"][:2])
    await house.client.post(f"/api/v1/outbound/{one}/hold", headers=house.admin)
    await house.pool.execute(
        """
        UPDATE relay.outbound_due
        SET node = gen_random_uuid(), run_at = now() + interval '1 minute', claimed_at = now()
        WHERE id = %s
        """,
        (other,),
    )
    counted = (await house.client.get("/api/v1/queue", headers=house.admin)).json()
    assert (counted["queued"], counted["processing"], counted["held"]) == (3, 1, 1)
    assert counted["by_priority"] == {"high": 0, "normal": 3, "bulk": 0}


async def test_mailboxes_are_found_by_a_part_of_their_address(house: House):
    """Whatever its case; percent and underscore are only characters."""
    made = await house.client.post(
        "/api/v1/mailboxes", json={"local_part": "sign_up"}, headers=house.admin
    )
    await house.mailbox()

    async def found(q: str) -> list[str]:
        answer = await house.client.get("/api/v1/mailboxes", params={"q": q}, headers=house.admin)
        return [one["address"] for one in answer.json()]

    assert await found("SIGN_UP") == [made.json()["address"]]
    assert await found("sign%") == []
