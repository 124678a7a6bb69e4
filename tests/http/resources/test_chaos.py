"""Faults on demand over HTTP: seen, set, and refused where they are off."""

from __future__ import annotations

from relay.db.pool import Pool
from relay.smtp.chaos import Rate
from tests.http.conftest import House, open_house

OFF = {"mail": None, "rcpt": None, "data": None, "dot": None}


async def test_rates_are_set_and_seen(house: House):
    """What is left out goes wrong no longer."""
    rates = {"rcpt": {"code": 451, "rate": 0.25}}
    put = await house.client.put("/api/v1/chaos", json=rates, headers=house.admin)
    assert (put.status_code, put.json()) == (200, OFF | rates)
    assert house.chaos.rates == {"rcpt": Rate(451, 0.25)}
    assert (await house.client.get("/api/v1/chaos", headers=house.admin)).json() == OFF | rates
    notices = (await house.client.get("/readyz")).json()["notices"]
    assert notices == [
        "SMTP commands are refused by chance, as asked (/api/v1/chaos): rcpt 25% with 451"
    ]
    seen = (await house.client.get("/api/v1/overview", headers=house.admin)).json()["attention"]
    assert [(one["grade"], one["text"]) for one in seen] == [("warning", f"{notices[0]}.")]
    put = await house.client.put("/api/v1/chaos", json={}, headers=house.admin)
    assert put.json() == OFF
    assert house.chaos.rates == {}
    assert "notices" not in (await house.client.get("/readyz")).json()


async def test_what_makes_no_sense_is_refused(house: House):
    """With what is wrong about it; and nobody but the administrator sets it."""
    for rates in ({"rcpt": {"code": 250, "rate": 1}}, {"rcpt": {"code": 451, "rate": 2}}, {"x": 1}):
        put = await house.client.put("/api/v1/chaos", json=rates, headers=house.admin)
        assert put.status_code == 422, rates
    put = await house.client.put("/api/v1/chaos", json={}, headers=await house.key("send"))
    assert put.status_code == 403
    assert house.chaos.rates == {}


async def test_where_it_is_off_it_says_so(database_url: str, pool: Pool):
    """Rather than to let a test pass that tests nothing."""
    async with open_house(database_url, pool, chaos=None) as plain:
        put = await plain.client.put("/api/v1/chaos", json={}, headers=plain.admin)
        assert (put.status_code, put.json()["type"]) == (409, "/problems/chaos-off")
