"""The keys of DKIM over HTTP: the administrator's alone, and never their private halves."""

from typing import Any

import pytest

from tests.http.conftest import House

BASE = "/api/v1/dkim"


async def post(house: House, path: str = BASE, **body: Any) -> Any:
    return await house.client.post(path, json=body or None, headers=house.admin)


async def test_keys_are_made_shown_rotated_and_removed(house: House):
    """201 with the records; the list and the domain show every key with its state."""
    made = await post(house, domain="Shop.example", selector="s1")
    assert made.status_code == 201, made.text
    records = made.json()["records"]
    assert made.json()["domain"] == "shop.example"
    assert [record["name"] for record in records] == [
        "s1._domainkey.shop.example",
        "s1-ed25519._domainkey.shop.example",
    ]
    assert all(record.keys() == {"name", "type", "value"} for record in records)
    assert all(record["type"] == "TXT" for record in records)
    rotated = await post(house, f"{BASE}/shop.example/rotate?selector=s2")
    assert rotated.status_code == 200, rotated.text
    shown = (await house.client.get(f"{BASE}/SHOP.example", headers=house.admin)).json()
    assert [(key["selector"], key["state"], key["algorithm"]) for key in shown["keys"]] == [
        ("s2", "active", "rsa-sha256"),
        ("s2-ed25519", "active", "ed25519-sha256"),
        ("s1", "retired", "rsa-sha256"),
        ("s1-ed25519", "retired", "ed25519-sha256"),
    ]
    assert {key["value"] for key in shown["keys"]} == {
        record["value"] for record in records + rotated.json()["records"]
    }
    assert all((key["retired_at"] is None) == (key["state"] == "active") for key in shown["keys"])
    listed = await house.client.get(BASE, headers=house.admin)
    assert listed.json() == [shown]
    gone = await house.client.delete(f"{BASE}/shop.example?selector=s1", headers=house.admin)
    assert gone.status_code == 204
    gone = await house.client.delete(f"{BASE}/shop.example", headers=house.admin)
    assert gone.status_code == 204
    assert (await house.client.get(BASE, headers=house.admin)).json() == []


async def test_what_cannot_be_done_is_said(house: House):
    """404 where there are no keys, 409 for what is taken, 422 for what is no name."""
    missing = [
        await house.client.get(f"{BASE}/shop.example", headers=house.admin),
        await post(house, f"{BASE}/shop.example/rotate"),
        await house.client.delete(f"{BASE}/shop.example", headers=house.admin),
        await house.client.get(f"{BASE}/a%20b", headers=house.admin),
        await house.client.get(f"{BASE}/%00", headers=house.admin),
    ]
    for answer in missing:
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/dkim-not-found")
    await post(house, domain="shop.example", selector="s1")
    taken = await post(house, domain="shop.example", selector="s1")
    assert (taken.status_code, taken.json()["type"]) == (409, "/problems/dkim-selector-taken")
    assert (await post(house, domain="shop.example")).status_code == 201
    waits = await post(house, domain="shop.example")
    assert (waits.status_code, waits.json()["type"]) == (409, "/problems/dkim-standby")
    for body in ({"domain": "a b"}, {"domain": "shop.example", "selector": "a_b"}):
        assert (await post(house, **body)).status_code == 422


@pytest.mark.parametrize("scopes", [("read",), ("read", "send", "accounts"), ()])
async def test_keys_are_the_administrators(house: House, scopes: tuple[str, ...]):
    """Whoever may send may not even see them; nor may nobody."""
    await post(house, domain="shop.example")
    by = await house.key(*scopes) if scopes else {}
    for method, path, body in (
        ("GET", BASE, None),
        ("POST", BASE, {"domain": "other.example"}),
        ("GET", f"{BASE}/shop.example", None),
        ("POST", f"{BASE}/shop.example/rotate", None),
        ("DELETE", f"{BASE}/shop.example", None),
    ):
        answer = await house.client.request(method, path, json=body, headers=by)
        assert answer.status_code == (403 if scopes else 401), (method, path)
        assert "DKIM1" not in answer.text
    found = (await house.client.get(BASE, headers=house.admin)).json()
    assert [(one["domain"], len(one["keys"])) for one in found] == [("shop.example", 2)]
