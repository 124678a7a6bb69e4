"""The gate before every call: credentials, Host, Origin, sizes, and what a refusal looks like."""

import contextlib
import functools
import http.client
import re
import socket
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
import trio

from actors.commands import Commands
from relay.history import History
from relay.http.app import RESOURCES
from relay.http.credentials.page_sessions import PageSessions
from relay.http.deps import Deps
from relay.http.gate.allowed_hosts import AllowedHosts
from relay.http.operations import Access
from relay.http.problems.details import Problem
from relay.http.routing import Api, Route
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.consumption import Consumption
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.mails import Mails
from relay.mailboxes.messages import Messages
from relay.mailboxes.misaddressed import Misaddressed
from relay.outbound.admin import QueueAdmin
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.routing.senders import Senders
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.webhooks.store import Webhooks
from tests.http.conftest import House

MISSING = "00000000-0000-7000-8000-000000000000"


def inert(house: House) -> Deps:
    """What an application needs that is looked at and never called."""
    return Deps(
        store=house.store,
        messages=Messages(house.pool),
        arrivals=Arrivals(house.pool),
        all_messages=AllMessages(house.pool),
        mails=Mails(house.pool, AllMessages(house.pool)),
        refused=house.refused,
        misaddressed=Misaddressed(house.pool),
        keys=house.keys,
        sessions=PageSessions(house.pool, house.keys, admin_token_hash=bytes(32)),
        hub=house.hub,
        accept=None,  # type: ignore[arg-type]  # nothing is called
        keep=None,  # type: ignore[arg-type]
        extract_attachment=None,  # type: ignore[arg-type]
        examine=None,  # type: ignore[arg-type]
        judge=None,  # type: ignore[arg-type]
        supervision=Commands(house.supervisor),
        logs=house.ring,
        admin_token_hash=b"",
        draining=trio.Event(),
        enqueue=functools.partial(enqueue, house.pool),
        queue_admin=QueueAdmin(house.pool),
        senders=Senders(house.pool, house.keyring.vault),
        suppressions=Suppressions(house.pool),
        unsubscribing=Unsubscribing("", lambda: house.keyring.signing),
        dkim_keys=DkimKeys(house.pool, house.keyring.vault),
        signer=Signer(DkimKeys(house.pool, house.keyring.vault), house.keyring.vault),
        domain_checks=None,  # type: ignore[arg-type]
        keyring=house.keyring,
        webhooks=Webhooks(house.pool),
        accounts=Accounts(house.pool),
        history=History(house.pool),
        unparsed=None,  # type: ignore[arg-type]
        consumption=Consumption(house.pool, lambda: house.keyring.signing),
        collector_report=None,  # type: ignore[arg-type]
        wake_outbound=lambda due_lanes: None,
    )


def routes(house: House) -> list[Route]:
    """Every declared call, from the application's own table."""
    api = Api(inert(house))
    for resource in RESOURCES:
        resource.register(api)
    return api.routes


async def call(
    house: House,
    route: Route,
    address: str,
    headers: dict[str, str],
    query: dict[str, str] | None = None,
) -> httpx.Response:
    """Make a call with values that name nothing but the mailbox."""
    path = route.rule.replace("<address>", address).replace("<name>", "nobody")
    path = re.sub(r"<(message_id|key_id|hook_id|account_id|event_id)>", MISSING, path)
    path = path.replace("<index>", "0").replace("<path>", "app.js").replace("<entry>", address)
    params = query or ({"timeout": "0"} if path.endswith("/wait") else None)
    if route.operation.websocket:
        headers = {
            **headers,
            "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }  # fmt: skip
    if route.operation.stream and not path.endswith("/wait"):
        path += f"?{urlencode(params)}" if params else ""
        return await trio.to_thread.run_sync(_head_of, house, path, headers)
    body = b'{"owner": "x", "local_part": "a b"}'
    content = body if route.method in {"POST", "PATCH"} else None
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
    administrator; each gets what docs/http.md says."""
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
                assert await status(weak if operation.scope == "read" else reader) == 403, where
                if operation.scope in {"accounts", "admin"}:
                    assert await status(weak) == 403, where
            allowed = await status(house.admin)
            assert allowed not in (401, 403), where
            assert allowed == await status(strong), where
        elif operation.access is Access.OWN:
            for stranger in ({}, bearer, {"X-Session-Token": "rs_wrong"}):
                assert await status(stranger) == 401, where
            assert await status(weak if operation.scope == "read" else reader) == 403, where
            # The gate is passed; a bulk call has to say what it changes.
            wanted = {200, 204} if route.method == "GET" else {422}
            for known in (token, house.admin, strong):
                assert await status(known) in wanted, where
        elif operation.access is Access.MAILBOX and route.method != "DELETE":
            message = "<message_id>" in route.rule
            for stranger in ({}, bearer, weak, strong, {"X-Session-Token": "rs_wrong"}):
                assert await status(stranger) == 404, where
            if not message:
                # The gate is passed; where there are values, they are wrong.
                wanted = {422} if operation.body else {101, 200, 201, 204}
                assert await status(token) in wanted, where
                assert await status(house.admin) in wanted, where
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


async def test_no_call_takes_a_parameter_that_it_does_not_declare(house: House):
    """Route by route: a name that the description has not is a 422 that says it and the nearest;
    every name that the description has is let pass."""
    address, _ = await house.mailbox()
    described = (await house.client.get("/openapi.json")).json()["paths"]
    for route in routes(house):
        where = f"{route.method} {route.rule}"
        refused = await call(house, route, address, house.admin, {"subjct": "x"})
        assert refused.status_code == 422, where
        if not route.operation.websocket:
            problem = refused.json()
            assert problem["type"] == "/problems/unknown-parameter", where
            assert "'subjct'" in problem["detail"], where
        path = re.sub(r"<(\w+)>", r"{\1}", route.rule)
        operation = described[path][route.method.lower()]
        assert "422" in operation["responses"], where
        names = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
        if names and not route.operation.stream:
            taken = await call(house, route, address, house.admin, dict.fromkeys(names, "\0"))
            assert b"unknown-parameter" not in taken.content, where


async def test_no_parameter_with_a_nul_is_the_relays_fault(house: House):
    """Call by call, each alone: PostgreSQL has no such text, and whoever asked may know."""
    address, _ = await house.mailbox()
    await house.deliver(address, b"Subject: x\r\n\r\ntext\r\n")
    described = (await house.client.get("/openapi.json")).json()["paths"]
    asked = 0
    for route in routes(house):
        if route.operation.stream or route.operation.websocket:
            continue
        path = re.sub(r"<(\w+)>", r"{\1}", route.rule)
        operation = described[path][route.method.lower()]
        names = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
        for name in names:
            soon = {"timeout": "0"} if "timeout" in names else {}
            answer = await call(house, route, address, house.admin, soon | {name: "\0"})
            assert answer.status_code < 500, f"{route.method} {route.rule} {name}"
            asked += 1
    assert asked > 80


async def test_a_misspelt_parameter_is_told_the_right_one(house: House):
    """One sentence for each, with the nearest name, or all there are."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}/messages/wait?subjct=x&sender=y&timeout=0"
    refused = await house.client.get(path, headers=token)
    assert refused.status_code == 422
    near, far = refused.json()["errors"]
    assert near == "There is no query parameter 'subjct' here; did you mean subject?"
    assert far.endswith("this call takes after, empty, from, subject, timeout.")
    strange = await house.client.get("/healthz?" + "&".join(f"x{n}=1" for n in range(1000)))
    assert len(strange.json()["errors"]) == 8
    assert strange.json()["detail"].endswith("this call takes none.")
    hidden = await house.client.get(path)
    assert hidden.status_code == 404  # a stranger learns nothing from a wrong name


async def test_a_value_that_is_given_twice_is_refused(house: House):
    """In the query and in JSON, at any depth: which of the two was meant, nobody knows."""
    address, token = await house.mailbox()
    path = f"/api/v1/mailboxes/{address}/messages/wait?subject=a&subject=b&timeout=0"
    refused = await house.client.get(path, headers=token)
    assert refused.status_code == 422
    assert refused.json()["type"] == "/problems/repeated-parameter"
    assert refused.json()["errors"] == ["The query parameter 'subject' is given more than once."]
    for body in ('{"ttl_minutes": 1, "ttl_minutes": 50}', '{"a": {"\\ud800": 1, "\\ud800": 1}}'):
        refused = await house.client.post(
            "/api/v1/mailboxes", content=body, headers={"Content-Type": "application/json"}
        )
        assert refused.status_code == 422
        assert refused.json()["type"] == "/problems/repeated-parameter"


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


async def test_a_key_that_reads_deletes_nothing(house: House):
    """403 for its own mailbox and messages, which stay; 404, as ever, for another's."""
    key, token = await house.keys.create("reader", ["read"])
    reader = {"Authorization": f"Bearer {token}"}
    address = (await house.store.create(owner_id=key.id)).mailbox.address
    message = await house.deliver(address)
    other, _ = await house.mailbox()
    own = f"/api/v1/mailboxes/{address}"
    for query in ("", "?purge=true"):
        for path in (own, f"{own}/messages/{message}"):
            answer = await house.client.delete(path + query, headers=reader)
            assert answer.status_code == 403
            assert answer.json()["type"] == "/problems/missing-scope"
        strange = await house.client.delete(f"/api/v1/mailboxes/{other}{query}", headers=reader)
        assert strange.status_code == 404
    shown = await house.client.get(f"{own}/messages/{message}", headers=reader)
    assert shown.status_code == 200


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
    response = await house.client.get("/openapi.json", headers=headers)
    assert response.status_code == status
    if response.json().get("type") == "/problems/foreign-host":
        assert "RELAY_HTTP__PUBLIC_URL" in response.json()["detail"]
    assert (await house.client.post("/nowhere", headers=headers)).status_code in (403, 404)


@pytest.mark.parametrize("host", ["relay:8025", "host.docker.internal", "10.1.2.3", ""])
@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_is_asked_under_any_host(house: House, path: str, host: str):
    """A probe names what it found; a page of another origin may not ask all the same."""
    assert (await house.client.get(path, headers={"Host": host})).status_code == 200
    foreign = {"Host": host, "Origin": "http://evil.example"}
    assert (await house.client.get(path, headers=foreign)).status_code == 403


def test_every_public_address_is_our_own():
    """Each of PUBLIC_URL's hosts passes, and each origin; no other."""
    hosts = AllowedHosts(("", "https://relay.example", "http://relay:8025"))
    hosts.check("relay:8025", "http://relay:8025", "10.0.0.1", False)
    hosts.check("relay:8025", "https://relay.example", "10.0.0.1", False)
    with pytest.raises(Problem):
        hosts.check("relay:8025", "http://relay:8026", "10.0.0.1", False)


def test_the_public_address_is_our_own():
    """The host of PUBLIC_URL passes, its origin too, a like name does not."""
    hosts = AllowedHosts(["https://relay.example"])
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
    assert missing.json()["type"] == "/problems/not-found"
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
    assert response.json()["type"] == "/problems/too-large"


@pytest.mark.parametrize("pace", ["at once", "slowly"])
async def test_a_refused_body_is_taken_in_whole(house: House, pace: str):
    """Python's http.client sends all five megabytes before it reads; it gets the 413, no reset,
    however long it takes to send them."""

    def pieces() -> Iterator[bytes]:
        for _ in range(5):
            time.sleep(0.4)  # twice as long in all as a silent peer is waited for
            yield b"x" * 1_000_000

    def send() -> int:
        client = http.client.HTTPConnection("127.0.0.1", house.port, timeout=20)
        head = {"Content-Type": "application/json", "Content-Length": "5000000"}
        body: Any = b"x" * 5_000_000 if pace == "at once" else pieces()
        client.request("POST", "/api/v1/mailboxes", body=body, headers=head)
        with client.getresponse() as response:
            response.read()
        client.close()
        return response.status

    with trio.fail_after(20):
        assert await trio.to_thread.run_sync(send) == 413


async def test_a_refused_body_without_an_end_is_cut_off(house: House):
    """What is thrown away for a peer's sake has a bound."""
    async with await trio.open_tcp_stream("127.0.0.1", house.port) as stream:
        await stream.send_all(
            b"POST /api/v1/mailboxes HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 1000000000\r\n\r\n"
        )
        with trio.fail_after(20), pytest.raises(trio.BrokenResourceError):
            for _ in range(1000):
                await stream.send_all(b"x" * 1_000_000)


async def test_two_headers_that_frame_a_body_are_a_400_and_the_end(house: House):
    """A proxy may have believed the other one: what it took for a body is no request of ours."""
    order = ("Content-Length: 4", "Transfer-Encoding: chunked")
    for lines in (order, order[::-1]):
        async with await trio.open_tcp_stream("127.0.0.1", house.port) as stream:
            head = "\r\n".join(["POST /activate HTTP/1.1", "Host: localhost", *lines])
            smuggled = "0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            await stream.send_all(f"{head}\r\n\r\n{smuggled}".encode())
            with trio.fail_after(10):
                answer = b"".join([bytes(chunk) async for chunk in stream])
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1


def ask(port: int, data: bytes) -> bytes:
    """Send bytes; everything that is answered until the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
        peer.sendall(data)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while chunk := peer.recv(65536):
                answer += chunk
        return answer


_HANDSHAKE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.mark.parametrize(
    "head",
    [
        f"GET /healthz HTTP/1.1\r\n{_HANDSHAKE}Content-Length: 5\r\n",
        f"GET /healthz HTTP/1.1\r\n{_HANDSHAKE}Transfer-Encoding: chunked\r\n",
        "GET http://[ HTTP/1.1\r\n",
        "GET http:///healthz HTTP/1.1\r\n",
        "GET ftp://localhost/healthz HTTP/1.1\r\n",
        "GET healthz HTTP/1.1\r\n",
        "CONNECT localhost:443 HTTP/1.1\r\n",
    ],
)
async def test_what_a_stranger_breaks_is_no_error_in_the_log(
    house: House, capfd: pytest.CaptureFixture[str], head: str
):
    """A handshake with a body, a target that is none: refused, and without a traceback."""
    data = f"{head}Host: localhost\r\n\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    answer = await trio.to_thread.run_sync(ask, house.port, data)
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 403 "))
    assert answer.count(b"HTTP/1.1") == 1
    assert (await house.client.get("/healthz")).status_code == 200
    logged = "".join(capfd.readouterr())
    assert "Traceback" not in logged
    assert "connection_failed" not in logged


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/metrics", "localhost", 403),
        ("http://localhost/metrics", "evil.example", 200),
        ("https://localhost/healthz", "localhost", 200),
        ("http://localhost/api/v1/outbound?x=1", "localhost", 401),
        ("http://a@localhost/metrics", "localhost", 403),
        ("http://%5B", "localhost", 403),
    ],
)
async def test_the_authority_of_a_url_is_the_host_that_counts(
    house: House, target: str, host: str, status: int
):
    """What is asked for by a whole URL is judged by that, whatever Host says (RFC 9112)."""
    data = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
    answer = await trio.to_thread.run_sync(ask, house.port, data)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_post_that_breaks_off_is_no_error_of_ours(
    house: House, capfd: pytest.CaptureFixture[str]
):
    """Whenever it does, whatever had come: no traceback, and the server goes on."""
    reset = b"\x01\0\0\0\0\0\0\0"  # linger for no time: closing is a reset

    def break_off(framing: str, size: int, pause: float, hard: bool) -> None:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", house.port), timeout=10) as peer,
        ):
            if hard:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            head = f"POST /api/v1/mailboxes HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n"
            body = b"x" * size
            if size and "chunked" in framing:
                body = b"%x\r\n%b" % (size, body)
            peer.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            time.sleep(pause)

    def all_of_them() -> None:
        for framing in (
            "Content-Length: 100000", "Content-Length: 3000000", "Transfer-Encoding: chunked",
        ):  # fmt: skip
            for size in (0, 1, 50_000, 2_000_000):
                for pause in (0.0, 0.01):
                    for hard in (True, False):
                        break_off(framing, size, pause, hard)

    await trio.to_thread.run_sync(all_of_them)
    assert (await house.client.get("/healthz")).status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


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
        "type": "/problems/internal",
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
