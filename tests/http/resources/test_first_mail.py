"""A mail from the relay itself, to see one come."""

from __future__ import annotations

from tests.http.conftest import House

BASE = "/api/v1/mailboxes"


async def test_a_mailbox_gets_a_mail_of_the_relays_own(house: House):
    """With a code, a link and a picture; in that mailbox alone, by whoever may read it, and a key
    that may make mail."""
    address, token = await house.mailbox()
    other, theirs = await house.mailbox()
    put = await house.client.post(f"{BASE}/{address}/test-message", headers=token)
    assert put.status_code == 201
    await house.parse(put.json()["id"])
    (listed,) = (await house.client.get(f"{BASE}/{address}/messages", headers=token)).json()
    assert (listed["otp"], listed["from_name"]) == ("482913", "Relay")
    whole = await house.client.get(f"{BASE}/{address}/messages/{listed['id']}", headers=token)
    assert [one["content_id"] for one in whole.json()["attachments"]] == ["mark@relay"]
    assert whole.json()["links"] == [f"http://127.0.0.1:{house.port}/"]
    assert (await house.client.get(f"{BASE}/{other}/messages", headers=theirs)).json() == []
    keyed = await house.key("read", "send")
    own = (await house.client.post(BASE, headers=keyed)).json()["address"]
    assert (await house.client.post(f"{BASE}/{own}/test-message", headers=keyed)).status_code == 201
    reads = await house.key("read")
    own = (await house.client.post(BASE, headers=reads)).json()["address"]
    refused = await house.client.post(f"{BASE}/{own}/test-message", headers=reads)
    assert refused.json()["type"].endswith("missing-scope"), "it makes mail"
    refused = await house.client.post(f"{BASE}/{address}/test-message", headers=theirs)
    assert refused.status_code == 404
