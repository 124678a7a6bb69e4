"""The gate before every call: credentials, Host, Origin, sizes, and what a refusal looks like."""

import functools
import re
import socket
from typing import Any

import httpx
import pytest
import trio

from relay.http.app import RESOURCES, Api, Route
from relay.http.auth import Hosts
from relay.http.deps import Deps
from relay.http.operations import Access
from relay.http.problems import Problem
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.consumption import Consumption
from relay.outbound.desk import Desk
from relay.outbound.enqueue import enqueue
from relay.outbound.senders import Senders
from relay.outbound.suppressions import Suppressions
from relay.outbound.webhooks import Webhooks
from tests.http.conftest import House

MISSING = "00000000-0000-7000-8000-000000000000"


def inert(house: House) -> Deps:
    """What an application needs that is looked at and never called."""
    return Deps(
        store=house.store,
        keys=house.keys,
        hub=house.hub,
        accept=None,  # type: ignore[arg-type]  # nothing is called
        attachment=None,  # type: ignore[arg-type]
        supervision=house.supervisor,
        logs=house.ring,
        admin_token_hash=b"",
        draining=trio.Event(),
        enqueue=functools.partial(enqueue, house.pool),
        desk=Desk(house.pool),
        senders=Senders(house.pool, house.keyring.vault),
        suppressions=Suppressions(house.pool),
        keyring=house.keyring,
        webhooks=Webhooks(house.pool),
        accounts=Accounts(house.pool),
        consumption=Consumption(house.pool, lambda: house.keyring.signing),
        collector=None,  # type: ignore[arg-type]
        wake_outbound=lambda strips: None,
    )


def routes(house: House) -> list[Route]:
    """Every declared call, from the application's own table."""
    api = Api(inert(house))
    for resource in RESOURCES:
        resource.register(api)
    return api.routes


async def call(house: House, route: Route, address: str, headers: dict[str, str]) -> httpx.Response:
    """Make a call with values that name nothing but the mailbox."""
    path = route.rule.replace("<address>", address).replace("<name>", "nobody")
    path = re.sub(r"<(message_id|key_id|hook_id|account_id|event_id)>", MISSING, path)
    path = path.replace("<index>", "0").replace("<path>", "app.js").replace("<entry>", address)
    params = {"timeout": "0"} if path.endswith("/wait") else None
    if route.operation.websocket:
        headers = {
            **headers,
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }  # fmt: skip
    if route.operation.stream and not path.endswith("/wait"):
        return await trio.to_thread.run_sync(_head_of, house, path, headers)
    content = b'{"owner": "x", "local_part": "a b"}' if route.method == "POST" else None
    return await house.client.request(
        route.method, path, params=params, headers=headers, content=content
    )


def _head_of(house: House, path: str, headers: dict[str, str]) -> httpx.Response:
    url = f"http://127.0.0.1:{house.port}{path}"
    with httpx.stream("GET", url, headers=headers, timeout=10) as response:
        if response.is_error:
            response.read()
        return response


async def test_every_call_keeps_its_access_for_every_credential(house: House):
    """Route by route: nobody, a wrong token, a foreign key, a key without the scope, the
    administrator; each gets what the contract says."""
    address, token = await house.mailbox()
    bearer = {"Authorization": "Bearer rk_wrong"}
    reader, weak = await house.key("read"), await house.key("send")
    strong = await house.key("read", "send", "admin")
    refused: set[bytes] = set()
    covered = 0
    for route in routes(house):
        operation = route.operation
        covered += 1

        async def status(headers: dict[str, str], route: Route = route) -> int:
            response = await call(house, route, address, headers)
            if response.status_code == 404 and route.operation.access is Access.MAILBOX:
                refused.add(response.content)
            page = any(
                (one.status, one.media_type) == (response.status_code, "text/html")
                for one in route.operation.answers
            )
            if response.status_code >= 400 and not route.operation.websocket and not page:
                assert response.headers["Content-Type"] == "application/problem+json"
                assert set(response.json()) >= {"type", "title", "status", "detail"}
            return response.status_code

        where = f"{route.method} {route.rule}"
        if operation.access is Access.SCOPE:
            assert await status({}) == 401, where
            assert await status(token) == 401, where
            assert await status({"Authorization": "Basic eDp5"}) == 401, where
            assert await status(bearer) == 401, where
            if operation.scope is not None:
                assert await status(reader if operation.scope == "send" else weak) == 403, where
            allowed = await status(house.admin)
            assert allowed not in (401, 403), where
            assert allowed == await status(strong), where
        elif operation.access is Access.MAILBOX and route.method != "DELETE":
            message = "<message_id>" in route.rule
            for stranger in ({}, bearer, weak, strong, {"X-Session-Token": "rs_wrong"}):
                assert await status(stranger) == 404, where
            if not message:
                assert await status(token) < 400, where
                assert await status(house.admin) < 400, where
        elif operation.access is Access.MAILBOX:
            for stranger in ({}, bearer, weak, strong, {"X-Session-Token": "rs_wrong"}):
                assert await status(stranger) == 404, where
        elif operation.access is Access.OPTIONAL:
            assert await status(bearer) == 401, where
            if operation.scope is not None:
                assert await status(weak) == 403, where
            # The gate is passed; where there are values, they are wrong.
            assert await status({}) == (422 if operation.body_or_query else 200), where
        else:
            assert await status({}) == await status(bearer), where
    assert covered == len(routes(house)) > 20
    assert len(refused) == 1, "all mailboxes that are not the caller's look alike"


async def test_an_owner_whose_key_lacks_the_scope_is_told_so(house: House):
    """Only the owner gets the 403; the same key on another's mailbox gets the 404."""
    key, token = await house.keys.create("weak", ["send"])
    headers = {"Authorization": f"Bearer {token}"}
    made = await house.store.create(owner_id=key.id)
    own = await house.client.get(f"/api/v1/mailboxes/{made.mailbox.address}", headers=headers)
    assert own.status_code == 403
    address, _ = await house.mailbox()
    other = await house.client.get(f"/api/v1/mailboxes/{address}", headers=headers)
    assert other.status_code == 404


async def test_a_revoked_key_opens_nothing(house: House):
    """Revocation holds from the next call on."""
    made = await house.client.post(
        "/api/v1/keys", json={"owner": "ci", "scopes": "read,send"}, headers=house.admin
    )
    assert made.status_code == 201
    key = made.json()
    headers = {"Authorization": f"Bearer {key['token']}"}
    assert (await house.client.get("/api/v1/mailboxes", headers=headers)).status_code == 200
    listed = await house.client.get("/api/v1/keys", headers=house.admin)
    assert "token" not in listed.json()[0]
    revoked = await house.client.delete(f"/api/v1/keys/{key['id']}", headers=house.admin)
    assert revoked.status_code == 204
    assert (await house.client.get("/api/v1/mailboxes", headers=headers)).status_code == 401
    again = await house.client.delete(f"/api/v1/keys/{key['id']}", headers=house.admin)
    assert again.status_code == 404


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LocalHost:1234"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": "evil@localhost"}, 403),
        ({"Host": "192.0.2.1"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://localhost:1"}, 403),
        ({"Origin": "file://"}, 403),
        ({"Host": "localhost:7", "Origin": "http://127.0.0.1:7"}, 200),
        ({"Host": "localhost", "Origin": "http://localhost"}, 200),
    ],
)
async def test_foreign_hosts_and_origins_are_refused(
    house: House, headers: dict[str, str], status: int
):
    """Only names of this machine may be asked for, and only by the relay's own pages."""
    response = await house.client.get("/healthz", headers=headers)
    assert response.status_code == status
    assert (await house.client.post("/nowhere", headers=headers)).status_code in (403, 404)


def test_the_public_address_is_our_own():
    """The host of PUBLIC_URL passes, its origin too, a like name does not."""
    hosts = Hosts("https://relay.example")
    hosts.check("relay.example", None, "10.0.0.1", False)
    hosts.check("relay.example", "https://relay.example", "10.0.0.1", False)
    hosts.check("10.0.0.1:8025", "http://10.0.0.1:8025", "10.0.0.1", False)
    for host, origin in (
        ("xrelay.example", None),
        ("relay.example", "https://relay.example.evil.example"),
        ("relay.example", "https://relay.example:444"),
    ):
        with pytest.raises(Problem):
            hosts.check(host, origin, "10.0.0.1", False)


async def test_what_is_not_there_is_a_problem_document_too(house: House):
    """Unknown addresses are a 404, wrong methods a 405 that names the right ones."""
    missing = await house.client.get("/api/v1/nothing")
    wrong = await house.client.put("/api/v1/mailboxes")
    assert missing.json()["type"] == "urn:relay:problem:not-found"
    assert wrong.status_code == 405
    assert wrong.headers["Allow"] == "GET, HEAD, POST"
    for response in (missing, wrong):
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("how", ["announced", "chunked"])
async def test_a_body_that_is_too_large_is_refused_and_read_by_its_sender(house: House, how: str):
    """A 413 reaches a client that sends all of its body first."""

    def send() -> httpx.Response:
        big: Any = b"x" * 3_000_000 if how == "announced" else iter([b"x" * 100_000] * 30)
        return httpx.post(
            f"http://127.0.0.1:{house.port}/api/v1/mailboxes",
            content=big,
            headers={"Content-Type": "application/json"},
        )

    with trio.fail_after(10):
        response = await trio.to_thread.run_sync(send)
    assert response.status_code == 413
    assert response.json()["type"] == "urn:relay:problem:too-large"


async def test_a_body_that_drips_is_given_up(house: House):
    """A body that does not arrive in time is a 408."""

    def send() -> bytes:
        with socket.create_connection(("127.0.0.1", house.port), timeout=10) as peer:
            peer.sendall(
                b"POST /api/v1/mailboxes HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
            )
            return peer.recv(65536)

    assert (await trio.to_thread.run_sync(send)).startswith(b"HTTP/1.1 408 ")


async def test_malformed_requests_end_their_own_connection_only(house: House):
    """Garbage, broken upgrades and huge heads leave the server standing."""

    def send(data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", house.port), timeout=10) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            answer = b""
            try:
                while chunk := peer.recv(65536):
                    answer += chunk
            except ConnectionResetError:
                pass
            return answer

    upgrade = b"GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    for data in (
        b"\x00\x01\x02\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        upgrade + b"\r\n",
        upgrade + b"Sec-WebSocket-Extensions: \xff\r\n\r\n",
        b"POST /api/v1/mailboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    ):
        answer = await trio.to_thread.run_sync(send, data)
        assert not answer.startswith(b"HTTP/1.1 2"), data[:60]
    assert (await house.client.get("/healthz")).status_code == 200
    assert house.supervisor.tree().children[-1].restarts == 0


async def test_a_database_outage_is_a_503_and_an_unexpected_error_a_silent_500(house: House):
    """Neither says anything about the inside; the first says when to come back."""
    await house.pool.execute("ALTER TABLE relay.mailboxes RENAME TO mailboxes_hidden")
    broken = await house.client.post("/api/v1/mailboxes")
    assert broken.status_code == 500
    assert broken.json() == {
        "type": "urn:relay:problem:internal",
        "title": "Internal Server Error",
        "status": 500,
        "detail": "Something went wrong inside the relay; its log says what.",
    }
    await house.pool.close()
    response = await house.client.post("/api/v1/mailboxes")
    assert response.status_code == 503
    assert int(response.headers["Retry-After"]) > 0
    ready = await house.client.get("/readyz")
    assert ready.status_code == 503
    assert "PostgreSQL" in ready.json()["detail"]
    assert (await house.client.get("/healthz")).status_code == 200
