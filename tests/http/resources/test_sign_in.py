"""Page sessions: what their two secrets open together, for whom and how long, and what none of
them opens alone."""

import base64
import hmac
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
import trio
import trio.testing
from websocket import WebSocketBadStatusException

from relay.access.keys import SCOPES, Keys
from relay.crypto import hash_token
from relay.db.channels import SESSIONS
from relay.db.listen import Hub
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.http.credentials import tickets
from relay.http.credentials.cookies import Shown
from relay.http.credentials.page_sessions import SESSION_AGE, Holder, Opened, PageSessions
from relay.http.credentials.tickets import PREVIEW, STREAM
from relay.http.deps import Limits
from relay.http.paths import spelt
from tests.db.cluster import Cluster
from tests.eventually import eventually
from tests.http.conftest import House, open_house
from tests.http.gate.test_gate import MISSING, routes
from tests.http.resources.test_streams import connect, in_thread

KEYS = (b"k" * 32, b"o" * 32)
HEADER = "X-Relay-Page-Key"
PATIENT = Limits(keep_alive_every=600.0)  # no look at a credential comes by itself within a test
HTML = (
    b"From: ada@example.org\r\nSubject: Hello\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: text/html\r\n\r\n<p>plover</p>\r\n"
)


def taken(response: httpx.Response) -> dict[str, str]:
    """The answer's cookie as a request's header, as a browser would send it."""
    jar = SimpleCookie(response.headers["Set-Cookie"])
    return {"Cookie": "; ".join(f"{name}={one.value}" for name, one in jar.items())}


async def signed_in(
    house: House, token: str | None = None
) -> tuple[dict[str, str], dict[str, str]]:
    """Sign in as the administrator, or with a key: the cookie, and the page's key, as headers."""
    answer = await house.client.post("/api/v1/session", json={"token": token or house.admin_token})
    assert answer.status_code == 200
    house.client.cookies.clear()
    return taken(answer), {HEADER: answer.json()["page_key"]}


def merged(parts: tuple[dict[str, str], dict[str, str]]) -> dict[str, str]:
    """Both secrets' headers as one."""
    return parts[0] | parts[1]


async def opened(house: House, address: str, token: dict[str, str]) -> dict[str, str]:
    """Open an anonymous mailbox to a browser: cookie and page key, as headers."""
    answer = await house.client.post(f"/api/v1/mailboxes/{address}/session", headers=token)
    assert answer.status_code == 200
    house.client.cookies.clear()
    return taken(answer) | {HEADER: answer.json()["page_key"]}


async def ticket(house: House, page: dict[str, str], path: str) -> str:
    """The URL that opens a path of a mailbox for a while."""
    address = path.split("/")[4]
    answer = await house.client.post(
        f"/api/v1/mailboxes/{address}/tickets", json={"path": path}, headers=page
    )
    assert answer.status_code == 201, answer.text
    return str(answer.json()["url"])


@asynccontextmanager
async def following(house: House, url: str, headers: dict[str, str]) -> AsyncIterator[trio.Event]:
    """A stream that is open; the event is set when it has ended."""
    over, begun = trio.Event(), trio.Event()

    async def read() -> None:
        async with house.client.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200
            begun.set()
            async for _ in response.aiter_raw():
                pass
        over.set()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await begun.wait()
            yield over
            nursery.cancel_scope.cancel()


# Signing in and out ------------------------------------------------------------------------------


async def test_signing_in_gives_a_cookie_and_a_page_key(house: House):
    """HttpOnly, SameSite=Strict, for the API alone; together they open what the token opens."""
    answer = await house.client.post("/api/v1/session", json={"token": house.admin_token})
    page_key = answer.json().pop("page_key")
    assert answer.json() == {
        "owner": None, "scopes": list(SCOPES), "plan": "enterprise",
        "page_key": page_key, "expires_at": answer.json()["expires_at"],
    }  # fmt: skip
    said = answer.headers["Set-Cookie"]
    for attribute in ("HttpOnly", "SameSite=Strict", "Path=/api/v1;", f"Max-Age={12 * 3600}"):
        assert attribute in said + ";"
    assert "Secure" not in said
    for secret in (house.admin_token, page_key):
        assert secret not in said
    cookie, key = taken(answer), {HEADER: page_key}
    house.client.cookies.clear()
    assert (await house.client.get("/api/v1/session")).json()["scopes"] == []
    got = await house.client.get("/api/v1/session", headers=cookie | key)
    assert got.json()["scopes"] == list(SCOPES)
    assert "page_key" not in got.json()
    assert (await house.client.get("/api/v1/supervision", headers=cookie | key)).status_code == 200
    done = await house.client.post("/api/v1/queue/pause", headers=cookie | key)
    assert done.json()["paused"] is True
    await house.client.post("/api/v1/queue/resume", headers=house.admin)


async def test_under_tls_the_cookie_is_the_hosts_alone(database_url: str, pool: Pool):
    """`__Host-` with Secure and the path that it demands; a mailbox's keeps its narrow path."""
    async with open_house(database_url, pool, public_url="https://localhost") as house:
        house.client.headers["Host"] = "localhost"
        answer = await house.client.post("/api/v1/session", json={"token": house.admin_token})
        said = answer.headers["Set-Cookie"]
        assert said.startswith("__Host-relay_session=")
        for attribute in ("; Secure", "; HttpOnly", "; SameSite=Strict", "; Path=/;"):
            assert attribute in said + ";"
        headers = taken(answer) | {HEADER: answer.json()["page_key"]}
        house.client.cookies.clear()
        assert (await house.client.get("/api/v1/queue", headers=headers)).status_code == 200
        # What plain HTTP could have set, on any port of the host, is not even looked at.
        plain = {**headers, "Cookie": headers["Cookie"].removeprefix("__Host-")}
        assert (await house.client.get("/api/v1/queue", headers=plain)).status_code == 401
        address, token = await house.mailbox()
        answer = await house.client.post(f"/api/v1/mailboxes/{address}/session", headers=token)
        assert answer.headers["Set-Cookie"].startswith("__Secure-relay_mailbox=")
        assert f"Path=/api/v1/mailboxes/{quote(address)}" in answer.headers["Set-Cookie"]


async def test_relays_at_two_ports_keep_their_cookies_apart(house: House):
    """The browser has one jar for all ports of a host; each relay's cookie has its port's name."""
    for port in (8025, 8026):
        house.client.headers["Host"] = f"127.0.0.1:{port}"
        answer = await house.client.post("/api/v1/session", json={"token": house.admin_token})
        assert answer.headers["Set-Cookie"].startswith(f"relay_session_{port}=")
        key = {HEADER: answer.json()["page_key"]}
        house.client.cookies.clear()
        cookie = taken(answer)
        assert (await house.client.get("/api/v1/queue", headers=cookie | key)).status_code == 200
        other = {"Cookie": cookie["Cookie"].replace(str(port), "9")}
        assert (await house.client.get("/api/v1/queue", headers=other | key)).status_code == 401
        out = await house.client.delete("/api/v1/session", headers=cookie | key)
        assert out.headers["Set-Cookie"].startswith(f"relay_session_{port}=;")


async def test_neither_secret_opens_anything_without_the_other(house: House):
    """The cookie, the key, either with another session's other half: 401, and nothing changes."""
    cookie, key = await signed_in(house)
    other_cookie, other_key = await signed_in(house)
    for half in (cookie, key, cookie | other_key, other_cookie | key, cookie | {HEADER: "rp_x"}):
        assert (await house.client.get("/api/v1/queue", headers=half)).status_code == 401
        assert (await house.client.post("/api/v1/queue/pause", headers=half)).status_code == 401
        assert (await house.client.get("/api/v1/session", headers=half)).json()["scopes"] == []
        # Nor does it sign anybody out.
        assert (await house.client.delete("/api/v1/session", headers=half)).status_code == 204
    for whole in (cookie | key, other_cookie | other_key):
        state = await house.client.get("/api/v1/queue", headers=whole)
        assert state.json()["paused"] is False


async def test_a_replayed_cookie_is_worth_nothing_on_any_route(house: House):
    """Every call of /openapi.json, with the cookies of an administrator and of a mailbox, as any
    server on another port of this host is sent them: each answers as to a stranger, and the walk
    has signed nobody out."""
    address, token = await house.mailbox()
    message = await house.deliver(address, HTML)
    cookie, key = await signed_in(house)
    own = await opened(house, address, token)
    cookies = {"Cookie": f"{cookie['Cookie']}; {own['Cookie']}"}
    document = (await house.client.get("/openapi.json")).json()
    websockets = {r.rule for r in routes(house) if r.operation.websocket}
    walked, guarded = 0, 0
    for rule, methods in document["paths"].items():
        path = rule.replace("{address}", address).replace("{message_id}", str(message))
        path = path.replace("{name}", "reaper").replace("{key}", "5a" * 32).replace("{index}", "0")
        path = re.sub(r"\{(entry|path)\}", "x", path)
        path = re.sub(r"\{\w+\}", MISSING, path)
        for method, operation in methods.items():
            walked += 1
            headers = dict(cookies)
            if rule.replace("{address}", "<address>") in websockets:
                headers |= {
                    "Connection": "Upgrade", "Upgrade": "websocket",
                    "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
                }  # fmt: skip
            # A body that nothing would refuse for its form, so that only the credential is left.
            body = b"{}" if "requestBody" in operation else None
            if body is not None:
                headers["Content-Type"] = "application/json"
            async with httpx.AsyncClient(base_url=house.client.base_url) as neighbour:
                answer = await neighbour.request(
                    method.upper(),
                    path,
                    headers=headers,
                    content=body,
                    params={"timeout": 0} if path.endswith("/wait") else None,
                )
            security = operation["security"]
            if security and {} not in security:
                guarded += 1
                wanted = 404 if "{address}" in rule else 401
                assert answer.status_code == wanted, f"{method} {path}: {answer.status_code}"
            assert "plover" not in answer.text, path
    assert walked == len(routes(house))
    assert guarded > 50
    for whole in (cookie | key, own):
        got = await house.client.get(f"/api/v1/mailboxes/{address}", headers=whole)
        assert (got.status_code, got.json()["message_count"]) == (200, 1)


async def test_no_description_of_a_call_takes_the_cookie_alone(house: House):
    """What /openapi.json says of credentials never has the cookie without key or ticket."""
    document = (await house.client.get("/openapi.json")).json()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for needed in operation["security"]:
                if "page_cookie" in needed:
                    assert len(needed) == 2, f"{method} {path}"


def forged(signing: bytes, token_hash: bytes) -> str:
    """A cookie as a relay once signed them, which a backup's thief could make."""

    def text(raw: bytes) -> str:
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()

    signed = f"{int(time.time()) + 3600}.{text(token_hash)}"
    key = hmac.digest(signing, b"relay cookie", "sha256")
    return f"{signed}.{text(hmac.digest(key, signed.encode(), 'sha256'))}"


async def test_what_a_backup_holds_makes_no_session(house: House):
    """Signing key and hashes of tokens, of cookies and of page keys: none passes for a secret."""
    _, token = await house.keys.create("someone", ["admin"])
    cookie, _ = await signed_in(house, token)
    rows = await house.pool.fetch("SELECT cookie_hash, page_key_hash FROM relay.page_sessions")
    stored = [bytes(value) for row in rows for value in row]
    assert hash_token(cookie["Cookie"].partition("=")[2]) in stored
    tried = [forged(house.keyring.signing[0], hash_token(t)) for t in (token, house.admin_token)]
    tried += [form(value) for value in stored for form in (bytes.hex, _base64)]
    for value in tried:
        for key in tried:
            headers = {"Cookie": f"relay_session_{house.port}={value}", HEADER: key}
            got = await house.client.get("/api/v1/queue", headers=headers)
            assert got.status_code == 401


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


async def test_signing_out_ends_everything_at_once_on_every_relay(database_url: str, pool: Pool):
    """Cookie and key, tickets, and streams that are open, on the other relay of the database."""
    async with (
        open_house(database_url, pool, PATIENT, node="one") as house,
        open_house(database_url, pool, PATIENT, node="two") as other,
    ):
        other.client.headers["Host"] = f"127.0.0.1:{house.port}"  # behind one name, as both are
        address, _ = await house.mailbox()
        message = await house.deliver(address, HTML)
        cookie, key = await signed_in(house)
        page = cookie | key
        path = f"/api/v1/mailboxes/{address}"
        url = await ticket(other, page, f"{path}/messages/{message}/html")
        assert "plover" in (await house.client.get(url, headers=cookie)).text
        stream = await ticket(other, page, f"{path}/events")
        async with (
            following(other, "/api/v1/supervision/events", page) as tree,
            following(other, "/api/v1/logs?follow=1", page) as lines,
            following(other, f"{path}/events", page) as mail,
            following(other, stream, cookie) as by_ticket,
        ):
            out = await house.client.delete("/api/v1/session", headers=page)
            assert out.status_code == 204
            assert "Max-Age=0" in out.headers["Set-Cookie"]
            for over in (tree, lines, mail, by_ticket):
                await over.wait()
        for where in (house, other):
            assert (await where.client.get("/api/v1/queue", headers=page)).status_code == 401
            assert (await where.client.get(path, headers=page)).status_code == 404
            assert (await where.client.get(url, headers=cookie)).status_code == 404
            assert (await where.client.get(url, headers=page)).status_code == 404


async def test_a_wait_and_a_socket_end_with_the_session(database_url: str, pool: Pool):
    """The wait with the answer that a new one would get, the socket by closing."""
    async with open_house(database_url, pool, PATIENT) as house:
        address, _ = await house.mailbox()
        path = f"/api/v1/mailboxes/{address}"
        cookie, key = await signed_in(house)
        page = cookie | key
        url = await ticket(house, page, f"{path}/ws")
        socket = await in_thread(connect, house, url, cookie=cookie["Cookie"])
        answers: list[int] = []

        async def wait() -> None:
            got = await house.client.get(f"{path}/messages/wait?timeout=60", headers=page)
            answers.append(got.status_code)

        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await house.waiting(count=2)
                await house.client.delete("/api/v1/session", headers=page)
            assert answers == [404]
            assert await in_thread(socket.recv) == ""
        socket.shutdown()


async def test_a_session_ends_with_its_key_and_by_age(house: House):
    """Revoked, by whatever means, it is over at once, its streams too; and after its time."""
    key, token = await house.keys.create("someone", ["read", "admin"])
    cookie, page_key = await signed_in(house, token)
    page = cookie | page_key
    assert (await house.client.get("/api/v1/session", headers=page)).json()["owner"] == "someone"
    async with following(house, "/api/v1/supervision/events", page) as over:
        await house.pool.execute(
            "UPDATE relay.api_keys SET revoked_at = now() WHERE id = %s", (key.id,)
        )
        await over.wait()
    assert (await house.client.get("/api/v1/session", headers=page)).json()["scopes"] == []
    assert await house.pool.fetch_value("SELECT count(*) FROM relay.page_sessions") == 0

    page = merged(await signed_in(house))
    lasts = await house.pool.fetch_value(
        "SELECT extract(epoch FROM expires_at - created_at)::float8 FROM relay.page_sessions"
    )
    assert lasts == pytest.approx(SESSION_AGE, abs=5)
    async with following(house, "/api/v1/supervision/events", page) as over:
        await house.pool.execute("UPDATE relay.page_sessions SET expires_at = now()")
        await over.wait()
    assert (await house.client.get("/api/v1/queue", headers=page)).status_code == 401
    await signed_in(house)
    assert await house.pool.fetch_value("SELECT count(*) FROM relay.page_sessions") == 1


async def test_a_session_ends_with_a_key_that_ends_by_itself(house: House):
    """A key that nobody renewed opens no door any more, to whom it has let in either."""
    _, token = await house.keys.create("program", ["read", "admin"], expires_in=600)
    page = merged(await signed_in(house, token))
    assert (await house.client.get("/api/v1/queue", headers=page)).status_code == 200
    await house.pool.execute("UPDATE relay.api_keys SET expires_at = now()")
    assert (await house.client.get("/api/v1/queue", headers=page)).status_code == 401


async def test_the_administrators_session_ends_with_the_next_start(database_url: str, pool: Pool):
    """His token is of one start; what it opened goes with it, on the other relays too, whose own
    administrators' sessions, and those of keys, stay."""
    behind = {"Host": "localhost"}  # one name for all, as a proxy has
    async with open_house(database_url, pool, node="other") as other:
        other.client.headers.update(behind)
        elsewhere = merged(await signed_in(other))
        _, token = await other.keys.create("someone", ["send", "admin"])
        by_key = merged(await signed_in(other, token))
        async with open_house(database_url, pool, node="one") as house:
            house.client.headers.update(behind)
            here = merged(await signed_in(house))
            made = await house.client.post("/api/v1/session/links", headers=house.admin)
            assert (await other.client.get("/api/v1/queue", headers=here)).status_code == 200
        async with open_house(database_url, pool, node="one") as again:
            again.client.headers.update(behind)
            assert (await again.client.get("/api/v1/queue", headers=here)).status_code == 401
            code = {"code": made.json()["code"]}
            assert (await again.client.post("/api/v1/session", json=code)).status_code == 401
            await eventually(
                lambda: other.client.get("/api/v1/queue", headers=here),
                "the other relay hears of it",
                until=lambda answer: answer.status_code == 401,
            )
            for page in (elsewhere, by_key):
                for where in (other, again):
                    got = await where.client.get("/api/v1/queue", headers=page)
                    assert got.status_code == 200


async def test_signing_in_again_ends_the_session_before(house: House):
    """Of the same holder, whose cookie the browser still sends; another's goes on."""
    first = merged(await signed_in(house))
    _, token = await house.keys.create("someone", ["admin"])
    other = merged(await signed_in(house, token))
    both = {"Cookie": f"{first['Cookie']}; {other['Cookie']}"}
    answer = await house.client.post(
        "/api/v1/session", json={"token": house.admin_token}, headers=both
    )
    assert answer.status_code == 200
    house.client.cookies.clear()
    assert (await house.client.get("/api/v1/queue", headers=first)).status_code == 401
    assert (await house.client.get("/api/v1/queue", headers=other)).status_code == 200


async def test_no_holder_fills_the_table(house: House):
    """Of one key's sessions the newest hundred stay."""
    key, _ = await house.keys.create("someone", ["read"])
    sessions = PageSessions(house.pool, house.keys, admin_token_hash=bytes(32))
    made = [await sessions.open(Holder("key", key_id=key.id)) for _ in range(103)]
    rows = await house.pool.fetch("SELECT cookie_hash FROM relay.page_sessions")
    assert {bytes(row[0]) for row in rows} == {one.session.cookie_hash for one in made[3:]}


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
async def test_a_session_from_elsewhere_is_none(house: House, site: str):
    """Other sites, and other ports of this host, do not use the page's secrets from a browser."""
    page = merged(await signed_in(house))
    got = await house.client.get("/api/v1/queue", headers=page | {"Sec-Fetch-Site": site})
    assert got.status_code == 401


async def test_a_wrong_token_signs_nobody_in(house: House):
    """No cookie for a wrong token, a wrong code, both or neither."""
    for body, status in (
        ({"token": "rk_wrong"}, 401),
        ({"code": "rl_wrong"}, 401),
        ({"code": house.admin_token}, 401),
        ({"token": house.admin_token, "code": "rl_wrong"}, 422),
        ({}, 422),
    ):
        wrong = await house.client.post("/api/v1/session", json=body)
        assert wrong.status_code == status
        assert "Set-Cookie" not in wrong.headers


async def test_cookies_that_a_neighbour_planted_lock_nobody_out(house: House):
    """A server on another port can set cookies of our name, which browsers may send first."""
    cookie, key = await signed_in(house)
    name = f"relay_session_{house.port}"
    planted = {"Cookie": f"{name}=junk; {name}={'x' * 600}; {cookie['Cookie']}"}
    assert (await house.client.get("/api/v1/queue", headers=planted | key)).status_code == 200


# Links that sign in -------------------------------------------------------------------------------


async def test_a_link_signs_the_administrator_in_once(house: House):
    """Its code is good once and for a short time, and only the administrator's token makes one."""
    made = await house.client.post("/api/v1/session/links", headers=house.admin)
    assert made.status_code == 201
    code = made.json()["code"]
    assert made.json()["url"] == f"http://127.0.0.1:{house.port}/#/signin?code={code}"
    answer = await house.client.post("/api/v1/session", json={"code": code})
    assert answer.json()["scopes"] == list(SCOPES)
    page = taken(answer) | {HEADER: answer.json()["page_key"]}
    house.client.cookies.clear()
    assert (await house.client.get("/api/v1/queue", headers=page)).status_code == 200
    assert (await house.client.post("/api/v1/session", json={"code": code})).status_code == 401

    late = await house.client.post(
        "/api/v1/session/links", json={"lasts": 300}, headers=house.admin
    )
    await house.pool.execute("UPDATE relay.page_links SET expires_at = clock_timestamp()")
    code = {"code": late.json()["code"]}
    assert (await house.client.post("/api/v1/session", json=code)).status_code == 401

    assert (await house.client.post("/api/v1/session/links", headers=page)).status_code == 403
    strong = await house.key("read", "send", "admin")
    assert (await house.client.post("/api/v1/session/links", headers=strong)).status_code == 403
    assert (await house.client.post("/api/v1/session/links")).status_code == 401


async def test_of_many_who_use_a_link_at_once_one_is_let_in(house: House):
    """The database decides."""
    made = await house.client.post("/api/v1/session/links", headers=house.admin)
    statuses: list[int] = []

    async def use() -> None:
        answer = await house.client.post("/api/v1/session", json={"code": made.json()["code"]})
        statuses.append(answer.status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(use)
    assert sorted(statuses) == [200] + [401] * 7


# Keys ---------------------------------------------------------------------------------------------


async def test_a_page_makes_keys_only_with_the_token_shown_again(house: House):
    """What takes a session over cannot keep what it opens; programs are asked nothing."""
    _, weak = await house.keys.create("weak", ["read", "send"])
    _, strong = await house.keys.create("strong", ["admin"])
    for page in (merged(await signed_in(house)), merged(await signed_in(house, strong))):
        wanted: dict[str, Any] = {"owner": "ci", "scopes": ["read"]}
        for confirm in (None, "", "ra_wrong", weak, page[HEADER]):
            got = await house.client.post(
                "/api/v1/keys", json={**wanted, "confirm": confirm}, headers=page
            )
            assert got.status_code == 403
            assert got.json()["type"] == "/problems/token-needed"
        for confirm in (house.admin_token, strong):
            got = await house.client.post(
                "/api/v1/keys", json={**wanted, "confirm": confirm}, headers=page
            )
            assert got.status_code == 201
        path = f"/api/v1/keys/{got.json()['id']}/renew"
        for confirm, status in ((None, 403), ("ra_wrong", 403), (weak, 403), (strong, 404)):
            got = await house.client.post(
                path, json={"expires_in": 60, "confirm": confirm}, headers=page
            )
            assert got.status_code == status  # it has no end, so none is renewed
        none = {"expires_in": 60, "confirm": strong}
        got = await house.client.post("/api/v1/keys/no-id/renew", json=none, headers=page)
        assert (got.status_code, got.json()["type"]) == (404, "/problems/key-not-found")
    assert [key.owner for key in await house.keys.list()] == ["ci"] * 4 + ["strong", "weak"]


# Tickets ------------------------------------------------------------------------------------------


def test_a_ticket_is_for_one_session_path_and_time():
    """Any other is refused, and so is each that has one character changed, cut or added."""
    session, page_key = uuid4(), hash_token("rp_x")
    made = tickets.issue(KEYS[1:], session, page_key, "/a", 1000.0)

    def opens(ticket: str = made, **other: Any) -> bool:
        values = {"signing": KEYS, "session": session, "page_key_hash": page_key, "path": "/a"}
        return tickets.opens(ticket, **{**values, "now": 1001.0, "lasts": 60.0, **other})

    assert opens()
    assert opens(now=1059.9)
    assert not opens(now=1060.0)
    assert not opens(now=900.0)
    assert not opens(signing=KEYS[:1])
    assert not opens(session=uuid4())
    assert not opens(page_key_hash=hash_token("rp_y"))
    for path in ("/", "/a/", "/A", "/a?", "/ab", ""):
        assert not opens(path=path)
    for at in range(len(made)):
        for other in ("A", "B", ".", "9", "\0", "é", "\n"):
            # The last character of 32 bytes in base64 has two bits that say nothing.
            if made[at] != other:
                assert not opens(made[:at] + other + made[at + 1 :])
        assert not opens(made[:at])
    assert not opens(made + "A")


async def test_a_ticket_opens_its_path_alone_and_beside_its_cookie(house: House):
    """Frames, downloads and streams of one path; other paths, other methods, other sessions, no
    cookie: nothing."""
    address, token = await house.mailbox()
    message, second = await house.deliver(address, HTML), await house.deliver(address, HTML)
    path = f"/api/v1/mailboxes/{address}"
    cookie, key = await signed_in(house)
    own = await opened(house, address, token)
    for page, alone in ((cookie | key, cookie), (own, {"Cookie": own["Cookie"]})):
        for part in ("html", "raw", "attachments/0"):
            url = await ticket(house, page, f"{path}/messages/{message}/{part}")
            got = await house.client.get(url, headers=alone)
            assert got.status_code == (404 if part == "attachments/0" else 200), part
            assert ("plover" in got.text) is (part != "attachments/0")
            signed = url.partition("?")[2]
            for other in (
                f"{path}/messages/{second}/{part}", f"{path}/messages/{message}", path,
                f"{path}/messages", f"{path}/events", f"{path}/messages/wait",
            ):  # fmt: skip
                got = await house.client.get(f"{other}?{signed}", headers=alone)
                assert got.status_code == 404, other
            got = await house.client.get(url)
            assert got.status_code == 404, "a link without the cookie"
        url = await ticket(house, page, path)
        assert (await house.client.delete(url, headers=alone)).status_code == 404
        assert (await house.client.get(url, headers=alone)).status_code == 404
    # Made for one session, it is none beside the cookie of the other.
    url = await ticket(house, own, f"{path}/messages/{message}/html")
    assert (await house.client.get(url, headers=cookie)).status_code == 404


async def test_a_ticket_is_good_for_a_short_time(house: House):
    """Two minutes for what is shown or downloaded, a quarter of one to begin a stream."""
    address, _ = await house.mailbox()
    message = await house.deliver(address, HTML)
    cookie, _ = await signed_in(house)
    row = await house.pool.fetch_row("SELECT id, page_key_hash FROM relay.page_sessions")
    assert row is not None
    for part, lasts in ((f"messages/{message}/html", PREVIEW), ("events", STREAM)):
        assert lasts <= 180
        path = f"/api/v1/mailboxes/{address}/{part}"
        for age, status in ((lasts - 5, 200), (lasts + 1, 404), (-60, 404)):
            made = tickets.issue(
                house.keyring.signing, row[0], bytes(row[1]), spelt(path), time.time() - age
            )
            url = f"{path}?ticket={made}"
            async with house.client.stream("GET", url, headers=cookie) as got:
                assert got.status_code == status


async def test_a_ticket_is_made_for_a_page_alone_and_for_paths_of_mailboxes(house: House):
    """Who can send a credential needs none; a path of anything else, or with a query, is none."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}"
    for headers, status in ((token, 403), (house.admin, 403), ({}, 404)):
        got = await house.client.post(
            f"{path}/tickets", json={"path": f"{path}/events"}, headers=headers
        )
        assert got.status_code == status
    page = merged(await signed_in(house))
    for odd in ("/api/v1/keys", "//elsewhere.example" + path, f"{path}/events?a=b",
                f"{path}/events#a", "https://elsewhere.example/", "x"):  # fmt: skip
        got = await house.client.post(f"{path}/tickets", json={"path": odd}, headers=page)
        assert got.status_code == 422, odd


# A mailbox's own ----------------------------------------------------------------------------------


async def test_a_mailboxs_session_opens_that_mailbox_alone(house: House):
    """It stands for the session token, on the mailbox's own path, and needs both secrets."""
    address, token = await house.mailbox()
    other, _ = await house.mailbox()
    path = f"/api/v1/mailboxes/{quote(address, safe='')}"
    answer = await house.client.post(f"{path}/session", headers=token)
    assert answer.status_code == 200
    assert f"Path={path}" in answer.headers["Set-Cookie"]
    cookie, key = taken(answer), {HEADER: answer.json()["page_key"]}
    house.client.cookies.clear()
    assert (await house.client.get(path, headers=cookie | key)).status_code == 200
    assert (await house.client.get(f"{path}/messages", headers=cookie | key)).json() == []
    foreign = await house.client.get(f"/api/v1/mailboxes/{other}", headers=cookie | key)
    assert foreign.status_code == 404
    for half in (cookie, key):
        assert (await house.client.get(path, headers=half)).status_code == 404
        assert (await house.client.delete(path, headers=half)).status_code == 404
    # Beside an operator's session, both keys are in one header.
    operator, operators_key = await signed_in(house)
    both = {"Cookie": f"{operator['Cookie']}; {cookie['Cookie']}",
            HEADER: f"{operators_key[HEADER]}, {key[HEADER]}"}  # fmt: skip
    assert (await house.client.get(path, headers=both)).status_code == 200
    elsewhere = await house.client.get(f"/api/v1/mailboxes/{other}", headers=both)
    assert elsewhere.status_code == 200
    assert (await house.client.get("/api/v1/queue", headers=cookie | key)).status_code == 401
    assert (await house.client.delete(path, headers=cookie | key)).status_code == 204
    for stranger in ({}, {"X-Session-Token": "rs_wrong"}):
        gone = await house.client.post(f"{path}/session", headers=stranger)
        assert gone.status_code == 404


async def test_a_socket_takes_a_ticket_from_the_pages_own_origin_alone(house: House):
    """A WebSocket of another port of this host is refused, and its event stream sees nothing."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}"
    page = await opened(house, address, token)
    cookie = {"Cookie": page["Cookie"]}
    url = await ticket(house, page, f"{path}/ws")
    own = f"http://127.0.0.1:{house.port}"
    for target, origin, status in (
        (url, "http://127.0.0.1:1", 403), (url, "https://elsewhere.example", 403),
        (f"{path}/ws", own, 404),
    ):  # fmt: skip
        with pytest.raises(WebSocketBadStatusException) as refused:
            await in_thread(connect, house, target, cookie=cookie["Cookie"], origin=origin)
        assert refused.value.status_code == status
    stream = await in_thread(connect, house, url, cookie=cookie["Cookie"], origin=own)
    stream.shutdown()
    url = await ticket(house, page, f"{path}/events")
    for site, status in (("same-origin", 200), ("same-site", 404)):
        headers = cookie | {"Sec-Fetch-Site": site}
        async with house.client.stream("GET", url, headers=headers) as answer:
            assert answer.status_code == status


async def test_a_wrong_credential_is_not_mended_by_a_right_session(house: House):
    """Who names a credential is told of that one."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}"
    page = await opened(house, address, token)
    assert (await house.client.get(path, headers=page)).status_code == 200
    for wrong in (
        {"Authorization": "Bearer rk_wrong"}, {"Authorization": "Basic eDp5"},
        {"X-Session-Token": ""}, {"X-Session-Token": "rs_" + "x" * 600},
    ):  # fmt: skip
        assert (await house.client.get(path, headers=page | wrong)).status_code == 404


async def test_the_next_page_is_on_the_path_of_the_mailboxs_cookie(house: House):
    """A browser compares both letter by letter; odd characters are as its scripts encode them."""
    made, token = await house.mailbox()
    address = "o'neil!a%2f*~?@relay.localhost"
    await house.pool.execute(
        "UPDATE relay.mailboxes SET address = %s WHERE address = %s", (address, made)
    )
    path = "/api/v1/mailboxes/o'neil!a%252f*~%3F%40relay.localhost"
    answer = await house.client.post(f"{path}/session", headers=token)
    assert f"Path={path};" in answer.headers["Set-Cookie"]
    for _ in range(2):
        await house.deliver(address)
    listed = await house.client.get(f"{path}/messages", params={"limit": 1}, headers=token)
    assert listed.headers["Link"].startswith(f"<{path}/messages?")
    page = taken(answer) | {HEADER: answer.json()["page_key"]}
    house.client.cookies.clear()
    given = await house.client.post(
        f"{path}/tickets", json={"path": f"{path}/events"}, headers=page
    )
    async with house.client.stream(
        "GET", given.json()["url"], headers={"Cookie": page["Cookie"]}
    ) as stream:
        assert stream.status_code == 200


async def test_an_expired_mailboxs_session_ends_with_it(house: House):
    """Its age is the mailbox's."""
    address, token = await house.mailbox(ttl_minutes=0.5)
    answer = await house.client.post(f"/api/v1/mailboxes/{address}/session", headers=token)
    assert (
        0
        < int(SimpleCookie(answer.headers["Set-Cookie"])[f"relay_mailbox_{house.port}"]["max-age"])
        <= 30
    )
    lasts = await house.pool.fetch_value(
        "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM relay.page_sessions"
    )
    assert 0 < lasts <= 30


# Outages ------------------------------------------------------------------------------------------


async def test_the_administrators_page_works_while_the_database_is_away(
    own_server: Cluster,
):
    """Sessions that this relay saw go on, signing in makes one of this relay alone; signed out,
    they are over here at once, and everywhere once the database answers again."""
    await migrate(own_server.dsn("relay"))
    pool = Pool(own_server.dsn("relay"))
    async with open_house(own_server.dsn("relay"), pool, node="one") as house:
        page, unseen = [merged(await signed_in(house)) for _ in range(2)]
        _, token = await house.keys.create("someone", ["admin"])
        keys = merged(await signed_in(house, token))
        for seen in (page, keys):
            got = await house.client.get("/api/v1/supervision", headers=seen)
            assert got.status_code == 200
        await in_thread(own_server.stop)

        async def status(headers: dict[str, str], method: str = "GET", path: str = "") -> int:
            path = path or "/api/v1/supervision"
            return (await house.client.request(method, path, headers=headers)).status_code

        assert await status(page) == 200
        assert await status({"Cookie": page["Cookie"]}) == 401
        assert await status(page | {HEADER: "rp_wrong"}) == 503
        assert await status(unseen) == 503
        assert await status(keys) == 503
        fresh = merged(await signed_in(house))
        assert await status(fresh) == 200
        assert await status({"Cookie": fresh["Cookie"]}) == 401
        assert await status(page, "DELETE", "/api/v1/session") == 503
        assert await status(page) == 503
        await in_thread(own_server.start)
        for headers, wanted in ((page, 401), (unseen, 200), (keys, 200), (fresh, 200)):
            assert await status(headers) == wanted
        assert await status(fresh, "DELETE", "/api/v1/session") == 204
        assert await status(fresh) == 401
        left = await pool.fetch_value("SELECT count(*) FROM relay.page_sessions")
        assert left == 2, "the sign-out that the database had not taken was made good"
    await pool.close()


async def test_a_sign_out_in_an_outage_holds_whatever_is_shown_and_seen_besides(
    own_server: Cluster,
):
    """One with another page key undoes none, a session that nobody saw lately is ended too, and
    neither other sessions' ends nor a thousand open inboxes put the administrator's page out."""
    await migrate(own_server.dsn("relay"))
    hub, pool = Hub(), Pool(own_server.dsn("relay"))
    sessions = PageSessions(pool, Keys(pool), admin_token_hash=bytes(32), node="one")
    seen, other, unseen, long_seen = [await sessions.open(sessions.administrator) for _ in range(4)]

    def secrets(one: Opened, page_key: bytes | None = None) -> Shown:
        return Shown((one.session.cookie_hash,), (page_key or one.session.page_key_hash,))

    async def lives(one: Opened) -> bool:
        try:
            return bool(await sessions.find(secrets(one), lambda session: True))
        except DatabaseUnavailable:
            return False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sessions.run, hub)
        await trio.testing.wait_all_tasks_blocked()
        for one in (seen, other, long_seen):
            assert await lives(one)
        inboxes = await pool.fetch(
            """
            INSERT INTO relay.page_sessions
                (id, kind, token_hash, cookie_hash, page_key_hash, expires_at)
            SELECT gen_random_uuid(), 'mailbox', sha256(n::text::bytea), sha256(n::text::bytea),
                   sha256(n::text::bytea), now() + interval '1 hour'
            FROM generate_series(1, 1500) AS n
            RETURNING cookie_hash
            """
        )
        everybody = Shown(tuple(bytes(row[0]) for row in inboxes), (bytes(32),))
        assert len(await sessions.find(everybody, lambda session: True)) == 1
        hub.publish(SESSIONS, [str(other.session.id), str(uuid4())])
        await trio.testing.wait_all_tasks_blocked()
        await in_thread(own_server.stop)
        assert await lives(seen)
        assert await lives(long_seen)
        assert not await lives(other)
        for one in (seen, unseen):
            with pytest.raises(DatabaseUnavailable):
                await sessions.close(secrets(one))
        assert not await lives(seen)
        await in_thread(own_server.start)
        for one in (seen, unseen):
            await sessions.close(secrets(one, bytes(32)))
            assert not await lives(one)
        assert await lives(other)
        assert await lives(long_seen)
        nursery.cancel_scope.cancel()
    left = await pool.fetch_value(
        "SELECT count(*) FROM relay.page_sessions WHERE kind <> 'mailbox'"
    )
    assert left == 2
    await pool.close()
