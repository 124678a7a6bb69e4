"""How often a caller may call: buckets by key and by address, on a virtual clock and for real."""

from datetime import UTC, datetime
from types import SimpleNamespace
from uuid import uuid4

import pytest
from trio.testing import MockClock
from werkzeug.datastructures import Headers

from relay.access.keys import ApiKey
from relay.db.pool import Pool
from relay.http.credentials.callers import address_of
from relay.http.credentials.page_sessions import Holder, PageSessions
from relay.http.limits.rate_limits import KnownKeys, RateLimits
from relay.http.problems.details import Problem
from relay.ports.proxy import networks
from tests.http.conftest import House, open_house


def passed(buckets: RateLimits, caller: object, rate: float, calls: int) -> int:
    """How many of so many calls at this instant pass."""
    count = 0
    for _ in range(calls):
        try:
            buckets.charge(caller, rate)
        except Problem as problem:
            assert problem.status == 429
        else:
            count += 1
    return count


async def test_a_burst_passes_then_the_rate_holds(mock_clock: MockClock):
    """Ten seconds' worth at once, then exactly the rate, and others are unhurt."""
    buckets = RateLimits()
    assert passed(buckets, "a", 5.0, 100) == 50
    mock_clock.jump(1.0)
    assert passed(buckets, "a", 5.0, 100) == 5
    assert passed(buckets, "b", 5.0, 3) == 3
    mock_clock.jump(60.0)
    assert passed(buckets, "a", 5.0, 100) == 50
    assert passed(buckets, "free of it", 0.0, 1000) == 1000


async def test_retry_after_says_when(mock_clock: MockClock):
    """The seconds in the refusal are enough for the next call."""
    buckets = RateLimits()
    passed(buckets, "a", 0.25, 10)
    with pytest.raises(Problem) as refusal:
        buckets.charge("a", 0.25)
    mock_clock.jump(float(refusal.value.headers["Retry-After"]))
    buckets.charge("a", 0.25)


async def test_memory_is_bounded(mock_clock: MockClock):
    """A flood of addresses makes the oldest forgotten, not the table grow."""
    buckets = RateLimits(most=100)
    for number in range(1000):
        buckets.charge(str(number), 0.001)
    assert len(buckets) <= 100
    mock_clock.jump(10_000)
    for number in range(150):
        buckets.charge(str(number), 0.001)
    assert len(buckets) <= 100


@pytest.mark.parametrize(
    ("client", "forwarded", "whom"),
    [
        ("192.0.2.7", None, "192.0.2.7"),
        ("192.0.2.7", "198.51.100.1", "192.0.2.7"),  # anybody may claim that
        ("10.0.0.1", "203.0.113.9, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "203.0.113.9\n198.51.100.1", "198.51.100.1"),  # HAProxy adds a line
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "::ffff:198.51.100.1", "198.51.100.1"),
        ("203.0.113.15", "198.51.100.1", "198.51.100.1"),
        ("203.0.113.16", "198.51.100.1", "203.0.113.16"),
        ("10.0.0.1", "no address", ""),
        ("", "198.51.100.1", ""),
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", None, "192.0.2.7"),
        ("fe80::1%eth0", None, "fe80::/64"),
    ],
)
def test_whom_a_call_is_charged_to(client: str, forwarded: str | None, whom: str):
    """The peer, unless it is a proxy that was named; of IPv6, its network."""
    lines = [] if forwarded is None else forwarded.split("\n")
    headers = Headers([("X-Forwarded-For", line) for line in lines])
    connection = SimpleNamespace(scope={"client": (client, 1)}, headers=headers)
    assert address_of(connection, networks(["10.0.0.1", "203.0.113.0/28"])) == whom


async def test_an_address_without_a_key_is_held_and_the_administrator_is_not(limited: House):
    """429 with Retry-After after the burst; guessing tokens is charged as well; pages are not."""
    client = limited.client
    statuses = [(await client.post("/api/v1/mailboxes")).status_code for _ in range(20)]
    assert statuses[:3] == [201] * 3
    assert statuses.count(429) >= 10
    for _ in range(5):  # a call may have come free meanwhile, and the next is refused then
        refused = await client.get("/api/v1/session", headers={"Authorization": "Bearer rk_wrong"})
        if refused.status_code == 429:
            break
    assert refused.status_code == 429
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert int(refused.headers["Retry-After"]) >= 1
    for _ in range(30):
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/api/v1/queue", headers=limited.admin)).status_code == 200


async def test_a_strangers_cookie_does_not_put_the_charge_off(database_url: str, pool: Pool):
    """Above the rate nothing is looked up, whatever cookies come along."""
    headers = {"Cookie": "other=1", "X-Session-Token": "rs_wrong"}
    async with open_house(database_url, pool, anonymous_rate=0.001) as house:
        for status in (404, 429):
            got = await house.client.get("/api/v1/mailboxes/x@relay.localhost", headers=headers)
            assert got.status_code == status
            await pool.execute("ALTER TABLE IF EXISTS relay.mailboxes RENAME TO elsewhere")


async def test_a_key_has_its_plans_rate(house: House):
    """Two keys of one address do not share a bucket, and the plan says how large it is."""
    await house.pool.execute("UPDATE relay.plans SET calls_per_second = 0.3 WHERE name = 'pro'")
    first, second = await house.key("read"), await house.key("read")
    statuses = [
        (await house.client.get("/api/v1/mailboxes", headers=first)).status_code for _ in range(20)
    ]
    assert statuses[:3] == [200] * 3
    assert statuses.count(429) >= 10
    other = await house.client.get("/api/v1/mailboxes", headers=second)
    assert other.status_code == 200


JUNK = (
    {"Authorization": "Bearer rk_wrong"},
    {"Authorization": "Basic eDp5"},
    {"Cookie": "relay_session=junk", "Host": "localhost"},
)


@pytest.mark.parametrize("junk", JUNK)
async def test_junk_does_not_put_the_charge_off(
    database_url: str, pool: Pool, junk: dict[str, str]
):
    """Above the rate no credential is looked up that was never good, nor what it asks for."""
    async with open_house(database_url, pool, anonymous_rate=0.001) as house:
        for status in (404, 429, 429):
            got = await house.client.get("/api/v1/mailboxes/x@relay.localhost", headers=junk)
            assert got.status_code == status
            for table in ("mailboxes", "api_keys"):
                await pool.execute(f"ALTER TABLE IF EXISTS relay.{table} RENAME TO no_{table}")
        assert (await house.client.get("/api/v1/mailboxes", headers=junk)).status_code == 429


@pytest.mark.parametrize("by", ["header", "cookie"])
async def test_a_key_that_was_seen_is_charged_as_a_key(database_url: str, pool: Pool, by: str):
    """What others of its address do, and its own 404s, leave it alone, until it is revoked."""
    async with open_house(database_url, pool, anonymous_rate=0.001) as house:
        key, token = await house.keys.create("someone", ["read"], "pro")
        credential = {"Authorization": f"Bearer {token}"}
        if by == "cookie":
            sessions = PageSessions(house.pool, house.keys, admin_token_hash=bytes(32))
            opened = await sessions.open(Holder("key", key_id=key.id))
            credential = {
                "Cookie": f"relay_session_{house.port}={opened.cookie}",
                "X-Relay-Page-Key": opened.page_key,
            }

        async def status(headers: dict[str, str], path: str = "/api/v1/mailboxes") -> int:
            return (await house.client.get(path, headers=headers)).status_code

        missing = "/api/v1/mailboxes/x@relay.localhost"
        assert await status(credential) == 200  # the first is its address's
        assert await status({}, missing) == 429
        for _ in range(3):
            assert await status(credential) == 200
            assert await status(credential, missing) == 404
            assert await status(house.admin, missing) == 404
        if by == "cookie":  # that does not count beside a header, so neither is its key charged
            assert await status(credential | {"X-Session-Token": "rs_wrong"}, missing) == 429
        assert await house.keys.revoke(key.id)
        # Of a page session that ended the relay hears, so the call may be the address's already.
        assert await status(credential) in ({401} if by == "header" else {401, 429})
        assert await status(credential) == 429


async def test_a_key_above_its_rate_costs_no_query(house: House):
    """Its bucket is asked before the store is."""
    await house.pool.execute("UPDATE relay.plans SET calls_per_second = 0.001 WHERE name = 'pro'")
    key = await house.key("read")
    for status in (200, 429):
        got = await house.client.get("/api/v1/mailboxes", headers=key)
        assert got.status_code == status
        await house.pool.execute("ALTER TABLE IF EXISTS relay.api_keys RENAME TO elsewhere")


def test_keys_that_were_seen_are_bounded():
    """The oldest is forgotten, and a revoked one at once."""
    seen, key = (
        KnownKeys(most=2),
        ApiKey(uuid4(), "x", ("read",), "pro", datetime.now(UTC), None, 1.0),
    )
    for token_hash in (b"a", b"b", b"a", b"c"):
        seen.note(token_hash, key)
    assert [seen.key(one) for one in (b"a", b"b", b"c")] == [key, None, key]
    seen.note(b"a", None)
    assert seen.key(b"a") is None
