"""Cookies for the operator's page: what they open, for whom, and what they never do."""

import time
from http.cookies import SimpleCookie
from urllib.parse import quote

import httpx
import pytest
import trio
from websocket import WebSocketBadStatusException

from relay.crypto import hash_token
from relay.http import cookies
from tests.http.conftest import House
from tests.http.test_streams import connect, in_thread

KEYS = (b"k" * 32, b"o" * 32)
PAGE = {"X-Relay-Page": "1"}


def taken(response: httpx.Response) -> dict[str, str]:
    """The answer's cookie as a request's header, as a browser would send it."""
    jar = SimpleCookie(response.headers["Set-Cookie"])
    return {"Cookie": "; ".join(f"{name}={one.value}" for name, one in jar.items())}


def test_a_cookie_is_read_back_until_it_expires():
    """Hash for hash, by every key, and not one instant longer."""
    token_hash = hash_token("ra_x")
    value = cookies.issue(KEYS[1:], token_hash, 1000)
    assert cookies.read(KEYS, value, 999.9) == token_hash
    assert cookies.read(KEYS, value, 1000) is None
    assert cookies.read(KEYS[:1], value, 0) is None


def test_no_changed_cookie_is_read():
    """Each single character changed, cut or added is no cookie."""
    value = cookies.issue(KEYS, hash_token("ra_x"), 1000)
    for at in range(len(value)):
        for other in ("A", "B", ".", "9", "\0", "é"):
            if value[at] != other and not _same_bits(value, at, other):
                assert cookies.read(KEYS, value[:at] + other + value[at + 1 :], 0) is None
        assert cookies.read(KEYS, value[:at], 0) is None
    assert cookies.read(KEYS, value + "A", 0) is None
    assert cookies.read(KEYS, "", 0) is None


def _same_bits(value: str, at: int, other: str) -> bool:
    # The last character of 32 bytes in base64 has two bits that say nothing.
    return at == len(value) - 1 and other in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


async def test_signing_in_gives_a_cookie_that_scripts_and_other_sites_cannot_use(house: House):
    """HttpOnly, SameSite=Strict; it opens what its token opens, and signing out ends it."""
    answer = await house.client.post("/api/v1/session", json={"token": house.admin_token})
    assert answer.json() == {
        "owner": None, "scopes": ["read", "send", "admin"], "plan": "enterprise",
    }  # fmt: skip
    said = answer.headers["Set-Cookie"]
    assert "HttpOnly" in said
    assert "SameSite=Strict" in said
    assert "Path=/" in said
    assert house.admin_token not in said
    cookie = taken(answer)
    house.client.cookies.clear()
    assert (await house.client.get("/api/v1/session")).json()["scopes"] == []
    assert (await house.client.get("/api/v1/session", headers=cookie)).status_code == 200
    assert (await house.client.get("/api/v1/supervision", headers=cookie)).status_code == 200
    out = await house.client.request("DELETE", "/api/v1/session", headers=cookie | PAGE)
    assert out.status_code == 204
    assert "Max-Age=0" in out.headers["Set-Cookie"]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
async def test_a_cookie_from_elsewhere_is_none(house: House, site: str):
    """Other sites, and other ports of this host, do not use the page's cookie."""
    cookie = taken(await house.client.post("/api/v1/session", json={"token": house.admin_token}))
    house.client.cookies.clear()
    got = await house.client.get("/api/v1/queue", headers=cookie | {"Sec-Fetch-Site": site})
    assert got.status_code == 401


async def test_a_change_by_cookie_needs_the_pages_header(house: House):
    """A form of another page cannot send it, so it changes nothing."""
    cookie = taken(await house.client.post("/api/v1/session", json={"token": house.admin_token}))
    house.client.cookies.clear()
    bare = await house.client.post("/api/v1/queue/pause", headers=cookie)
    assert bare.status_code == 403
    assert bare.json()["type"] == "urn:relay:problem:not-from-the-page"
    assert (await house.client.get("/api/v1/queue", headers=cookie)).json()["paused"] is False
    done = await house.client.post("/api/v1/queue/pause", headers=cookie | PAGE)
    assert done.json()["paused"] is True
    await house.client.post("/api/v1/queue/resume", headers=house.admin)


async def test_a_wrong_token_signs_nobody_in_and_a_revoked_key_is_out(house: House):
    """No cookie for a wrong token; a key's cookie dies with the key."""
    wrong = await house.client.post("/api/v1/session", json={"token": "rk_wrong"})
    assert wrong.status_code == 401
    assert "Set-Cookie" not in wrong.headers
    key, token = await house.keys.create("someone", ["read"])
    cookie = taken(await house.client.post("/api/v1/session", json={"token": token}))
    house.client.cookies.clear()
    assert (await house.client.get("/api/v1/session", headers=cookie)).json()["owner"] == "someone"
    await house.keys.revoke(key.id)
    assert (await house.client.get("/api/v1/session", headers=cookie)).json()["scopes"] == []


async def test_a_mailboxs_cookie_opens_that_mailbox_alone(house: House):
    """It stands for the session token, on the mailbox's own path."""
    address, token = await house.mailbox()
    other, _ = await house.mailbox()
    path = f"/api/v1/mailboxes/{quote(address, safe='')}"
    answer = await house.client.post(f"{path}/session", headers=token)
    assert answer.status_code == 204
    assert f"Path={path}" in answer.headers["Set-Cookie"]
    cookie = taken(answer)
    house.client.cookies.clear()
    assert (await house.client.get(path, headers=cookie)).status_code == 200
    assert (await house.client.get(f"{path}/messages", headers=cookie)).json() == []
    assert (await house.client.get(f"/api/v1/mailboxes/{other}", headers=cookie)).status_code == 404
    assert (await house.client.delete(path, headers=cookie)).status_code == 403
    assert (await house.client.delete(path, headers=cookie | PAGE)).status_code == 204
    for stranger in ({}, {"X-Session-Token": "rs_wrong"}):
        gone = await house.client.post(f"{path}/session", headers=stranger)
        assert gone.status_code == 404


async def test_streams_take_a_cookie_from_the_pages_own_origin_alone(house: House):
    """A WebSocket of another port of this host is refused, and its event stream sees nothing."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}"
    cookie = taken(await house.client.post(f"{path}/session", headers=token))
    house.client.cookies.clear()
    own = f"http://127.0.0.1:{house.port}"
    for origin, status in (("http://127.0.0.1:1", 403), ("https://elsewhere.example", 403)):
        with pytest.raises(WebSocketBadStatusException) as refused:
            await in_thread(connect, house, f"{path}/ws", cookie=cookie["Cookie"], origin=origin)
        assert refused.value.status_code == status
    stream = await in_thread(connect, house, f"{path}/ws", cookie=cookie["Cookie"], origin=own)
    stream.shutdown()
    for site, status in (("same-origin", 200), ("same-site", 404)):
        headers = cookie | {"Sec-Fetch-Site": site}
        async with house.client.stream("GET", f"{path}/events", headers=headers) as answer:
            assert answer.status_code == status


async def test_a_cookie_does_not_mend_a_wrong_header(house: House):
    """Beside a header that names a credential no cookie counts, on mailboxes too."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}"
    cookie = taken(await house.client.post(f"{path}/session", headers=token))
    house.client.cookies.clear()
    assert (await house.client.get(path, headers=cookie)).status_code == 200
    for wrong in (
        {"Authorization": "Bearer rk_wrong"}, {"Authorization": "Basic eDp5"},
        {"X-Session-Token": ""}, {"X-Session-Token": "rs_" + "x" * 600},
    ):  # fmt: skip
        assert (await house.client.get(path, headers=cookie | wrong)).status_code == 404


async def test_the_next_page_is_on_the_path_of_the_mailboxs_cookie(house: House):
    """A browser compares both letter by letter; odd characters are as its scripts encode them."""
    address, token = await house.mailbox(local_part="o'neil!a%2f*~?")
    path = "/api/v1/mailboxes/o'neil!a%252f*~%3F%40relay.localhost"
    answer = await house.client.post(f"{path}/session", headers=token)
    assert f"Path={path};" in answer.headers["Set-Cookie"]
    for _ in range(2):
        await house.deliver(address)
    listed = await house.client.get(f"{path}/messages", params={"limit": 1}, headers=token)
    assert listed.headers["Link"].startswith(f"<{path}/messages?")


async def test_an_expired_mailboxs_cookie_ends_with_it(house: House):
    """Its age is the mailbox's."""
    address, token = await house.mailbox(ttl_minutes=0.5)
    answer = await house.client.post(f"/api/v1/mailboxes/{address}/session", headers=token)
    value = SimpleCookie(answer.headers["Set-Cookie"])["relay_mailbox"].value
    assert 0 < int(value.partition(".")[0]) - time.time() <= 30


async def test_a_stream_ends_soon_after_its_cookie_expired(house: House):
    """What a signed-in page follows, it does not follow for longer than it is signed in."""
    value = cookies.issue(house.keyring.signing, hash_token(house.admin_token), time.time() + 2)
    cookie = {"Cookie": f"relay_session={value}"}
    path = "/api/v1/supervision/events"
    with trio.fail_after(10):
        async with house.client.stream("GET", path, headers=cookie) as response:
            assert response.status_code == 200
            async for _ in response.aiter_raw():
                pass
    assert (await house.client.get(path, headers=cookie)).status_code == 401
