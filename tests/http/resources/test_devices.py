"""Blobs over HTTP, and what the operator sees of device inboxes."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio

from relay.db.pool import Pool
from relay.devices.inbox import DeviceInbox
from relay.devices.intake import Intake, RecipientRates, SourceRates
from relay.devices.sqlite import SqliteStore
from relay.ports.proxy import networks
from tests.eventually import eventually
from tests.http.conftest import House, open_house

LARGEST = 65_482


@contextlib.asynccontextmanager
async def inboxes(
    path: Path, database_url: str, pool: Pool, rates: RecipientRates | None = None, **limits: Any
) -> AsyncIterator[tuple[House, SqliteStore]]:
    """Run a control plane with a device store of its own."""
    store = SqliteStore(path / "devices.db", ttl=3600.0, **limits)
    device_inbox = DeviceInbox(store, Intake(store, rates))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        async with open_house(database_url, pool, devices=device_inbox) as house:
            yield house, store
        nursery.cancel_scope.cancel()


async def test_a_blob_is_durable_at_its_201(tmp_path, database_url, pool):
    """Anonymous; the id is decimal, the time RFC 3339; the bytes are those of the body."""
    key = secrets.token_bytes(32)
    async with inboxes(tmp_path, database_url, pool) as (house, store):
        for envelope in (b"hello", b"", bytes(LARGEST)):
            answer = await house.client.post(
                f"/api/v1/devices/{key.hex()}/blobs",
                content=envelope,
                headers={"Content-Type": "application/octet-stream"},
            )
            assert answer.status_code == 201, answer.text
            (blob,) = await store.flush(key)
            assert answer.json()["id"] == str(blob.id)
            assert answer.json()["expires_at"].endswith("Z")
            assert blob.envelope == envelope
            await store.delete(key, [blob.id])


async def test_permanent_refusals(tmp_path, database_url, pool):
    """A key of another form is nobody's; one byte too many is 413; nothing is stored."""
    async with inboxes(tmp_path, database_url, pool) as (house, store):
        for key in ("ab" * 31, "ab" * 33, "xy" * 32, "0x" + "ab" * 31, "ab" * 31 + "%20%20"):
            answer = await house.client.post(f"/api/v1/devices/{key}/blobs", content=b"x")
            assert answer.status_code == 404, key
        path = f"/api/v1/devices/{'ab' * 32}/blobs"
        assert (await house.client.post(path, content=bytes(LARGEST + 1))).status_code == 413
        assert await store.flush(bytes.fromhex("ab" * 32)) == []


async def test_temporary_refusals_say_when_to_try_again(tmp_path, database_url, pool):
    """507 for a full inbox, 429 for its rate, 503 without a store: each with Retry-After."""
    rates = RecipientRates(rate=0.1, burst=4)
    async with inboxes(tmp_path, database_url, pool, rates, max_blobs=3) as (house, _):

        async def put(key: str) -> tuple[int, str]:
            answer = await house.client.post(f"/api/v1/devices/{key}/blobs", content=b"x")
            if answer.status_code != 201:
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.headers["Content-Type"] == "application/problem+json"
            return answer.status_code, answer.json().get("type", "").rpartition("/")[2]

        found = [await put("ab" * 32) for _ in range(5)]
        assert found == [(201, "")] * 3 + [(507, "inbox-full"), (429, "device-rate")]
        assert await put("cd" * 32) == (201, "")
    async with open_house(database_url, pool) as house:
        answer = await house.client.post(f"/api/v1/devices/{'ab' * 32}/blobs", content=b"x")
        assert answer.status_code == 503


async def test_an_address_and_all_inboxes_have_their_limits(tmp_path, database_url, pool):
    """429 for a source that has pushed its bytes, to whichever keys; 507 when all inboxes together
    are full, for everybody; both with Retry-After, and told apart from the recipient's own."""
    sources = SourceRates(8 << 10)
    store = SqliteStore(tmp_path / "devices.db", ttl=3600.0, max_total=300_000)
    device_inbox = DeviceInbox(store, Intake(store, sources=sources))
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        proxies = networks(["127.0.0.1"])
        async with open_house(
            database_url, pool, devices=device_inbox, trusted_proxies=proxies
        ) as house:

            async def put(source: str) -> tuple[int, str]:
                answer = await house.client.post(
                    f"/api/v1/devices/{secrets.token_hex(32)}/blobs",
                    content=bytes(60_000),
                    headers={"X-Forwarded-For": source},
                )
                if answer.status_code != 201:
                    assert int(answer.headers["Retry-After"]) >= 1
                return answer.status_code, answer.json().get("type", "").rpartition("/")[2]

            found = [await put("192.0.2.1") for _ in range(5)]
            assert found == [(201, "")] * 4 + [(429, "source-rate")]
            while (found[-1:]) != [(507, "store-full")]:
                found.append(await put(f"198.51.100.{len(found)}"))
                assert len(found) < 20
            assert await put("203.0.113.1") == (507, "store-full")
        nursery.cancel_scope.cancel()


async def test_a_blob_may_be_kept_for_less(tmp_path, database_url, pool):
    """`ttl`, in the settings' own spelling; cut to the relay's; anything else is 422."""
    key = secrets.token_hex(32)
    async with inboxes(tmp_path, database_url, pool) as (house, store):

        async def left(ttl: str) -> float:
            answer = await house.client.post(
                f"/api/v1/devices/{key}/blobs", params={"ttl": ttl}, content=b"x"
            )
            assert answer.status_code == 201, answer.text
            until = datetime.fromisoformat(answer.json()["expires_at"])
            return (until - datetime.now(UTC)).total_seconds()

        for ttl, seconds in (("90", 90), ("30m", 1800), ("0.5h", 1800), ("7d", 3600), ("1h", 3600)):
            assert await left(ttl) == pytest.approx(seconds, abs=30), ttl
        assert await left("5ms") < 1
        for ttl in ("0", "0.0s", "-1", "soon", "1w", "1e9", "٣"):
            answer = await house.client.post(
                f"/api/v1/devices/{key}/blobs", params={"ttl": ttl}, content=b"x"
            )
            assert answer.status_code == 422, ttl
        await eventually(
            lambda: store.flush(bytes.fromhex(key)),
            "one is over",
            until=lambda blobs: len(blobs) == 5,
        )


async def test_the_operator_sees_the_fullest_inboxes(tmp_path, database_url, pool):
    """With the scope admin alone; totals, ages, and sessions."""
    key = secrets.token_bytes(32)
    store = SqliteStore(tmp_path / "devices.db", ttl=3600.0)
    async with trio.open_nursery() as nursery:  # the store looks at its start, then now and then
        await nursery.start(store.run)
        for _ in range(3):
            await store.put(key, b"12345")
        nursery.cancel_scope.cancel()
    async with inboxes(tmp_path, database_url, pool) as (house, store):
        assert (await house.client.get("/api/v1/devices")).status_code == 401
        reader = await house.key("read")
        assert (await house.client.get("/api/v1/devices", headers=reader)).status_code == 403

        async def look() -> Any:
            answer = await house.client.get("/api/v1/devices", headers=house.admin)
            return answer.json()

        seen = await eventually(
            look, "they are counted", until=lambda seen: seen["blobs"], within=40.0, every=0.1
        )
        assert (seen["blobs"], seen["bytes"], seen["inboxes"]) == (3, 15, 1)
        assert (seen["push_sessions"], seen["receive_sessions"]) == (0, 0)
        assert seen["fullest"] == [{"key": key.hex(), "blobs": 3, "bytes": 15, "sessions": 0}]


async def test_readiness_asks_the_device_store(tmp_path, database_url, pool):
    """200 while it answers; 503 with the reason when it does not."""
    store = SqliteStore(tmp_path / "devices.db", ttl=3600.0)
    device_inbox = DeviceInbox(store, Intake(store))
    async with open_house(database_url, pool, devices=device_inbox) as house:
        answer = await house.client.get("/readyz")
        assert answer.status_code == 503
        assert "device store" in answer.json()["detail"]
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            assert (await house.client.get("/readyz")).status_code == 200
            nursery.cancel_scope.cancel()
