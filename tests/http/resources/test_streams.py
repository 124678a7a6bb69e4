"""Waiting for mail: long poll, Server-Sent Events, WebSocket; wake-ups, ends, limits."""

import dataclasses
import functools
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from typing import Any

import httpx
import pytest
import trio
import websocket

from relay.access.keys import ApiKey, Keys
from relay.access.owners import ADMINISTRATOR_ID
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.http.problems.details import unavailable
from relay.http.responses.downloads import Downloads
from relay.mailboxes.store import Store
from supervisor import Stuck
from tests.actors.running import at_rest
from tests.db.cluster import Cluster
from tests.eventually import eventually
from tests.http.conftest import SMALL, House, open_house

BASE = "/api/v1/mailboxes"


def letter(sender: str = "ada@example.org", subject: str = "Hello") -> bytes:
    """A small message."""
    return f"From: {sender}\r\nSubject: {subject}\r\n\r\ntext\r\n".encode()


@asynccontextmanager
async def waiting(
    house: House, address: str, headers: dict[str, str], **params: Any
) -> AsyncIterator[list[httpx.Response]]:
    """A wait call under way; its answer is in the list after the block."""
    answers: list[httpx.Response] = []
    wanted: dict[str, Any] = {"timeout": 20, **params}

    async def call() -> None:
        answers.append(
            await house.client.get(
                f"{BASE}/{address}/messages/wait",
                params=wanted,
                headers=headers,
            )
        )

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await house.waiting()
            yield answers


async def test_wait_answers_at_once_when_a_match_is_there(house: House):
    """The oldest match is given whole, and stays unread."""
    address, token = await house.mailbox()
    first = await house.deliver(address, letter(subject="one 111222 code"))
    await house.deliver(address, letter(subject="two"))
    response = await house.client.get(f"{BASE}/{address}/messages/wait?timeout=0", headers=token)
    assert response.status_code == 200
    message = response.json()
    assert message["id"] == str(first)
    assert message["is_read"] is False
    assert message["body_text"].strip() == "text"


async def test_a_wait_looks_up_no_mailbox_that_its_caller_made(house: House):
    """The one that a credential has made or found here is known; to others it is looked up."""
    address, token = await house.mailbox()
    await house.deliver(address)
    await house.pool.execute("UPDATE relay.mailboxes SET address = 'moved@relay.localhost'")
    waits = f"{BASE}/{address}/messages/wait?timeout=0"
    for _ in range(2):
        assert (await house.client.get(waits, headers=token)).status_code == 200
    for stranger in (house.admin, await house.key(), {"X-Session-Token": "rs_x"}, {}):
        assert (await house.client.get(waits, headers=stranger)).status_code == 404
    listed = await house.client.get(f"{BASE}/{address}/messages", headers=token)
    assert listed.status_code == 404
    assert (await house.client.get(waits, headers=token)).status_code == 404


async def test_a_wait_ends_with_its_mailbox_though_there_is_another_at_the_address(house: House):
    """It was there when the wait began."""
    body = {"local_part": "ada"}
    made = await house.client.post("/api/v1/mailboxes", json=body, headers=house.admin)
    address = made.json()["address"]
    async with waiting(house, address, house.admin) as answers, house.pool.transaction() as conn:
        await conn.execute("DELETE FROM relay.mailboxes")
        await conn.execute(
            "INSERT INTO relay.mailboxes (address, plan, owner_type, owner_id, expires_at)"
            " VALUES (%s, 'enterprise', 'api', %s, now() + interval '1 hour')",
            (address, ADMINISTRATOR_ID),
        )
    assert answers[0].status_code == 404


@pytest.mark.parametrize("named", [True, False])
async def test_a_wait_finds_the_mailbox_that_another_relay_made_at_the_address(
    house: House, named: bool
):
    """What was known there is over: the wait is on the one that lives, or there is none."""
    body = {"local_part": "ada"}
    made = await house.client.post("/api/v1/mailboxes", json=body, headers=house.admin)
    address = made.json()["address"]
    waits = f"{BASE}/{address}/messages/wait?timeout=0"
    assert (await house.client.get(waits, headers=house.admin)).status_code == 204
    await house.pool.execute("DELETE FROM relay.mailboxes")
    if named:
        other = Store(house.pool, ["relay.localhost"])
        await other.create(local_part="ada", owner_id=ADMINISTRATOR_ID, plan="enterprise")
        wanted = await house.deliver(address)
    answer = await house.client.get(waits, headers=house.admin)
    assert answer.status_code == (200 if named else 404)
    assert not named or answer.json()["id"] == str(wanted)


async def test_wait_wakes_at_the_commit_of_a_match(house: House):
    """A message that does not match does not end the wait; the one that does, does."""
    address, token = await house.mailbox()
    async with waiting(house, address, token, **{"from": "BOB@", "subject": "invoice"}) as answers:
        await house.deliver(address, letter("eve@example.org", "Invoice"))
        await house.deliver(address, letter("bob@example.org", "nothing"))
        wanted = await house.deliver(address, letter("Bob <bob@example.org>", "Your INVOICE"))
    assert answers[0].json()["id"] == str(wanted)


async def test_wait_ends_empty_at_its_time_out(house: House):
    """No message in time is a 204 without a body."""
    address, token = await house.mailbox()
    response = await house.client.get(f"{BASE}/{address}/messages/wait?timeout=0.05", headers=token)
    assert response.status_code == 204
    assert response.content == b""


async def test_one_address_does_not_use_up_the_waits_of_others(database_url: str, pool: Pool):
    """On however many mailboxes it waits, the last places are the administrator's."""
    limits = dataclasses.replace(SMALL, streams=32, streams_per_mailbox=8)
    async with open_house(database_url, pool, limits) as house:
        inboxes = [await house.mailbox() for _ in range(2)]
        for opens in [await house.key() for _ in range(3)]:
            made = await house.client.post("/api/v1/mailboxes", headers=opens)
            inboxes.append((made.json()["address"], opens))
        async with trio.open_nursery() as nursery:
            for address, token in inboxes:
                for _ in range(6):
                    url = f"{BASE}/{address}/messages/wait?timeout=60"
                    nursery.start_soon(functools.partial(house.client.get, url, headers=token))
            await house.waiting(count=30)
            address, token = inboxes[0]
            url = f"{BASE}/{address}/messages/wait?timeout=0"
            refused = await house.client.get(url, headers=token)
            assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (
                429, "too-many-waits",
            )  # fmt: skip
            assert (await house.client.get(url, headers=house.admin)).status_code == 204
            nursery.cancel_scope.cancel()


async def test_one_key_does_not_use_up_the_waits_of_others(database_url: str, pool: Pool):
    """On however many mailboxes it gets a quarter of all places; those without one get half."""
    limits = dataclasses.replace(SMALL, streams=16, streams_per_mailbox=8)
    async with open_house(database_url, pool, limits) as house:
        ours, theirs = await house.key(), await house.key()

        async def wait_on_a_new_one(opens: dict[str, str], seconds: int) -> httpx.Response:
            made = (await house.client.post("/api/v1/mailboxes", headers=opens)).json()
            headers = opens or {"X-Session-Token": made["session_token"]}
            url = f"{BASE}/{made['address']}/messages/wait?timeout={seconds}"
            return await house.client.get(url, headers=headers)

        async with trio.open_nursery() as nursery:
            held = 0
            for opens, most in ((theirs, 4), ({}, 8)):
                for _ in range(most):
                    nursery.start_soon(wait_on_a_new_one, opens, 60)
                held += most
                await house.waiting(count=held)
                refused = await wait_on_a_new_one(opens, 0)
                assert (refused.status_code, refused.json()["type"].rpartition("/")[2]) == (
                    429, "too-many-waits",
                )  # fmt: skip
            for opens in (ours, house.admin):
                assert (await wait_on_a_new_one(opens, 0)).status_code == 204
            nursery.cancel_scope.cancel()


async def test_wait_ends_with_a_json_null_for_those_who_ask(house: House):
    """`empty=null`: a client that reads JSON without looking at the status reads null."""
    address, token = await house.mailbox()
    url = f"{BASE}/{address}/messages/wait"
    nothing = await house.client.get(url, params={"timeout": 0, "empty": "null"}, headers=token)
    assert (nothing.status_code, nothing.json()) == (200, None)
    wrong = await house.client.get(url, params={"timeout": 0, "empty": "none"}, headers=token)
    assert wrong.status_code == 422


async def test_wait_after_a_message_or_a_time_is_exclusive(house: House):
    """`after` skips what was seen, by id or by time."""
    address, token = await house.mailbox()
    ids = [str(await house.deliver(address, letter(subject=str(n)))) for n in range(3)]
    url = f"{BASE}/{address}/messages/wait"
    for after, wanted in ((ids[0], ids[1]), (ids[1], ids[2])):
        response = await house.client.get(url, params={"after": after}, headers=token)
        assert response.json()["id"] == wanted
    nothing = {"after": ids[2], "timeout": "0"}
    assert (await house.client.get(url, params=nothing, headers=token)).status_code == 204
    at = (await house.client.get(url, params={"after": ids[0]}, headers=token)).json()
    later = await house.client.get(url, params={"after": at["received_at"]}, headers=token)
    assert later.json()["id"] == ids[2]
    wrong = await house.client.get(url, params={"after": "yesterday"}, headers=token)
    assert wrong.status_code == 422


@pytest.mark.parametrize("how", ["due", "moved", "deleted", "removed"])
async def test_wait_answers_404_at_once_when_the_mailbox_ends(house: House, how: str):
    """Expiry in due time, a changed time, a DELETE and a removed row all end a wait."""
    address, token = await house.mailbox()
    if how == "due":
        await house.expire(address, 1.0)
    async with waiting(house, address, token) as answers:
        if how == "moved":
            await house.expire(address)
        elif how == "deleted":
            await house.client.delete(f"{BASE}/{address}", headers=token)
        elif how == "removed":
            await house.pool.execute("DELETE FROM relay.mailboxes WHERE address = %s", (address,))
    assert answers[0].status_code == 404
    assert answers[0].json()["type"] == "/problems/mailbox-not-found"


async def test_too_many_waits_on_one_mailbox_are_told_to_come_back(house: House):
    """Beyond the cap a wait is a 429 with Retry-After; other mailboxes are not concerned."""
    address, token = await house.mailbox()
    other, other_token = await house.mailbox()
    url = f"{BASE}/{address}/messages/wait"
    async with trio.open_nursery() as nursery:
        for _ in range(SMALL.streams_per_mailbox):
            nursery.start_soon(lambda: house.client.get(url, headers=token))
        await house.waiting(count=SMALL.streams_per_mailbox)
        refused = await house.client.get(url, headers=token)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0
        elsewhere = await house.client.get(
            f"{BASE}/{other}/messages/wait?timeout=0", headers=other_token
        )
        assert elsewhere.status_code == 204
        await house.deliver(address)


async def test_a_caller_that_hangs_up_frees_its_place(house: House):
    """A closed connection ends the wait behind it and its subscription."""
    address, token = await house.mailbox()
    with trio.move_on_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: house.client.get(f"{BASE}/{address}/messages/wait", headers=token)
            )
            await house.waiting()
            nursery.cancel_scope.cancel()
    await house.waiting(count=0)


def events_of(
    house: House, address: str, headers: dict[str, str], count: int, found: list[dict[str, str]]
) -> None:
    """Read the next events of a stream; blocking, as httpx leaves half-read streams to the GC."""
    url = f"http://127.0.0.1:{house.port}{BASE}/{address}/events"
    event: dict[str, str] = {}
    with httpx.stream("GET", url, headers=headers, timeout=10) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for line in response.iter_lines():
            name, _, value = line.partition(": ")
            if not line and "data" in event:
                found.append(event)
                if len(found) == count:
                    return
            event = {**event, name: value} if line else {}


async def test_events_tell_of_each_message_once_in_the_order_of_becoming_readable(house: House):
    """A message that was stored first and parsed last comes last, and is not skipped."""
    address, token = await house.mailbox()
    await house.deliver(address, letter(subject="before the stream"))
    seen: list[dict[str, str]] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, events_of, house, address, token, 2, seen)
        await house.waiting()
        slow = await house.deliver(address, letter(subject="slow"), parse=False)
        quick = await house.deliver(address, letter(subject="quick"))
        await house.parse(slow)
    assert [event["id"] for event in seen] == [str(quick), str(slow)]
    assert {event["event"] for event in seen} == {"new_message"}
    data = json.loads(seen[0]["data"])
    assert set(data) == {
        "id", "from_address", "subject", "received_at", "is_read", "has_attachments", "size",
        "mailbox", "tags", "snippet", "otp", "from_name",
    }  # fmt: skip
    assert data["subject"] == "quick"


@pytest.mark.parametrize("deleted", [False, True])
async def test_events_go_on_behind_the_last_one_seen(house: House, deleted: bool):
    """Last-Event-ID resumes exactly, also when that message was deleted meanwhile."""
    address, token = await house.mailbox()
    ids = [str(await house.deliver(address, letter(subject=str(n)))) for n in range(3)]
    if deleted:
        await house.client.delete(f"{BASE}/{address}/messages/{ids[0]}", headers=token)
    headers = {**token, "Last-Event-ID": ids[0]}
    seen: list[dict[str, str]] = []
    await in_thread(events_of, house, address, headers, 2, seen)
    assert [event["id"] for event in seen] == ids[1:]


async def test_events_keep_a_silent_stream_alive_and_end_with_the_mailbox(house: House):
    """Comments come while nothing happens; at expiry the body ends cleanly."""
    address, token = await house.mailbox()
    await house.expire(address, 1.0)
    url = f"{BASE}/{address}/events?token={token['X-Session-Token']}"
    with trio.fail_after(10):
        async with house.client.stream("GET", url) as response:
            text = "".join([part async for part in response.aiter_text()])
    assert text.count(": still here") >= 3
    await house.waiting(count=0)


async def test_events_tell_what_others_change(house: House):
    """A message that is read, tagged and deleted elsewhere, and that there are too many to name;
    none of another mailbox.  These events have no id: a stream goes on behind a message."""
    address, token = await house.mailbox()
    other, other_token = await house.mailbox()
    mine = [str(await house.deliver(address)) for _ in range(2)]
    await house.deliver(other)
    seen: list[dict[str, str]] = []
    path = f"{BASE}/{address}/messages"

    async def told(count: int) -> dict[str, Any]:
        await eventually(lambda: len(seen), f"{count} events", until=lambda have: have >= count)
        assert (seen[-1]["event"], "id" in seen[-1]) == ("messages_changed", False)
        data: dict[str, Any] = json.loads(seen[-1]["data"])
        return data

    async with trio.open_nursery() as nursery:
        nursery.start_soon(in_thread, events_of, house, address, token, 5, seen)
        await house.waiting("relay_changes")
        await house.client.patch(f"{path}/{mine[0]}", json={"is_read": True}, headers=token)
        change = {"id": mine[0], "is_read": True, "tags": []}
        assert await told(1) == {"changed": [change], "deleted": [], "reread": False}
        await house.client.patch(f"{path}/{mine[0]}", json={"tags": ["x"]}, headers=token)
        assert (await told(2))["changed"] == [change | {"tags": ["x"]}]
        await house.client.delete(f"{BASE}/{other}/messages?q=*", headers=other_token)
        await house.client.delete(f"{path}/{mine[0]}", headers=token)
        assert await told(3) == {"changed": [], "deleted": mine[:1], "reread": False}
        await house.pool.execute(
            "INSERT INTO relay.messages (mailbox_id, raw_email)"
            " SELECT mailbox_id, '' FROM relay.messages, generate_series(1, 150) WHERE id = %s",
            (mine[1],),
        )
        await house.client.delete(f"{path}?q=*", headers=token)
        assert await told(4) == {"changed": [], "deleted": [], "reread": True}
        await house.deliver(address)
    assert seen[-1]["event"] == "new_message"


@contextmanager
def slow_reader(house: House, path: str, headers: dict[str, str]) -> Iterator[socket.socket]:
    """A client that asks and then does not read."""
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", house.port))
        lines = [f"GET {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        peer.sendall("\r\n".join([*lines, "", ""]).encode())
        yield peer


async def test_a_reader_that_does_not_read_costs_others_nothing(house: House):
    """While one stream is stuck, other calls answer, and the relay can still stop."""
    address, token = await house.mailbox()
    for n in range(40):
        await house.deliver(address, letter(subject=f"{n} " + "x" * 10_000))
    with slow_reader(house, f"{BASE}/{address}/events", {**token, "Last-Event-ID": "start"}):
        with trio.fail_after(10):
            fetched = await house.client.get(f"{BASE}/{address}/messages?limit=200", headers=token)
            assert len(fetched.json()) == 40
            with house.supervisor.subscribe() as events:
                house.supervisor.shutdown()
                async for event in events:  # ends with the tree
                    assert not isinstance(event, Stuck)


def connect(house: House, path: str, **options: Any) -> websocket.WebSocket:
    """A WebSocket of a third-party client, which leaks its socket when it is refused."""
    peer = socket.create_connection(("127.0.0.1", house.port), timeout=10)
    options.setdefault("suppress_origin", "origin" not in options)
    try:
        return websocket.create_connection(
            f"ws://127.0.0.1:{house.port}{path}", timeout=10, socket=peer, **options
        )
    except websocket.WebSocketException:
        peer.close()
        raise


async def in_thread(function: Any, *args: Any, **options: Any) -> Any:
    """Run a blocking client."""
    return await trio.to_thread.run_sync(lambda: function(*args, **options))


@pytest.mark.parametrize("where", ["header", "query"])
async def test_a_websocket_tells_of_new_messages_and_closes_with_the_mailbox(
    house: House, where: str
):
    """The same entries as the event stream, with their type; 1000 at the end."""
    address, token = await house.mailbox()
    path = f"{BASE}/{address}/ws"
    options = {}
    if where == "query":
        path += f"?token={token['X-Session-Token']}"
    else:
        options["header"] = [f"X-Session-Token: {token['X-Session-Token']}"]
    client = await in_thread(connect, house, path, **options)
    await house.waiting()
    for _ in range(30):  # what a client sends is ignored, however much
        await in_thread(client.send, "chatter")
    wanted = await house.deliver(address, letter(subject="Grüße"))
    message = json.loads(await in_thread(client.recv))
    assert message["type"] == "new_message"
    assert message["id"] == str(wanted)
    await house.expire(address)
    opcode, data = await in_thread(client.recv_data)
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    assert int.from_bytes(data[:2], "big") == 1000
    client.shutdown()
    await house.waiting(count=0)


async def test_a_websocket_that_finds_no_memory_is_told_to_come_back(house: House, monkeypatch):
    """1013: a page is as much to load as others have left room for."""

    def full(_: Downloads, __: object, size: int) -> AbstractContextManager[None]:
        if size:  # the first page has nothing
            raise unavailable("Too much is being downloaded at once; try again.")
        return nullcontext()

    monkeypatch.setattr(Downloads, "held", full)
    address, token = await house.mailbox()
    header = [f"X-Session-Token: {token['X-Session-Token']}"]
    client = await in_thread(connect, house, f"{BASE}/{address}/ws", header=header)
    await house.waiting()
    await house.deliver(address)
    opcode, data = await in_thread(client.recv_data)
    assert opcode == websocket.ABNF.OPCODE_CLOSE
    assert (int.from_bytes(data[:2], "big"), data[2:].decode()) == (
        1013,
        "too much is being read; try again",
    )
    client.shutdown()
    await house.waiting(count=0)


async def test_a_websocket_is_refused_before_the_handshake(house: House):
    """A wrong token is the 404, a foreign page the 403, as answers to the upgrade."""
    address, token = await house.mailbox()
    path = f"{BASE}/{address}/ws"
    for options, status in (
        ({}, 404),
        ({"header": ["X-Session-Token: rs_wrong"]}, 404),
        (
            {
                "header": [f"X-Session-Token: {token['X-Session-Token']}"],
                "origin": "http://evil.example",
            },
            403,
        ),
        (
            {
                "header": [f"X-Session-Token: {token['X-Session-Token']}"],
                "host": "evil.example",
            },
            403,
        ),
    ):
        with pytest.raises(websocket.WebSocketBadStatusException) as refused:
            await in_thread(connect, house, path, **options)
        assert refused.value.status_code == status
    client = await in_thread(
        connect,
        house,
        path,
        header=[f"X-Session-Token: {token['X-Session-Token']}"],
        origin=f"http://127.0.0.1:{house.port}",
    )
    client.shutdown()


async def test_stopping_ends_waits_and_streams_at_once(database_url: str, pool: Pool):
    """A wait is told to ask again, a stream ends, a WebSocket closes with 1001."""
    async with open_house(database_url, pool) as house:
        address, token = await house.mailbox()
        client = await in_thread(
            connect, house, f"{BASE}/{address}/ws?token={token['X-Session-Token']}"
        )
        async with house.client.stream("GET", f"{BASE}/{address}/events", headers=token) as stream:
            answers: list[httpx.Response] = []

            async def wait() -> None:
                answers.append(
                    await house.client.get(f"{BASE}/{address}/messages/wait", headers=token)
                )

            with trio.fail_after(4):  # well below the grace of calls in hand
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait)
                    await house.waiting(count=3)
                    house.supervisor.shutdown()
                async for _ in stream.aiter_raw():
                    pass
                opcode, data = await in_thread(client.recv_data)
        assert answers[0].status_code == 503
        assert answers[0].headers["Retry-After"] == "1"
        assert opcode == websocket.ABNF.OPCODE_CLOSE
        assert int.from_bytes(data[:2], "big") == 1001
        client.shutdown()


async def end_of(house: House, how: str, address: str, headers: dict[str, str]) -> int:
    """Follow a mailbox to the end: a wait's status, a socket's code, or 0 for a clean event stream.

    No message in it has the subject that the wait is for.
    """
    if how == "wait":
        url = f"{BASE}/{address}/messages/wait?timeout=60&subject=wanted"
        return (await house.client.get(url, headers=headers)).status_code
    if how == "sse":
        async with house.client.stream("GET", f"{BASE}/{address}/events", headers=headers) as got:
            assert got.status_code == 200
            async for _ in got.aiter_raw():
                pass
        return 0

    def follow() -> int:
        lines = [f"{name}: {value}" for name, value in headers.items()]
        client: Any = connect(house, f"{BASE}/{address}/ws", header=lines)
        opcode = websocket.ABNF.OPCODE_TEXT
        while opcode == websocket.ABNF.OPCODE_TEXT:
            opcode, data = client.recv_data()
        client.shutdown()
        return int.from_bytes(data[:2], "big")

    return int(await in_thread(follow))


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize(
    ("how", "revoked", "over"), [("wait", 404, 404), ("sse", 0, 0), ("ws", 1008, 1000)]
)
async def test_what_a_key_opened_ends_soon_after_it_was_revoked(
    house: House, how: str, revoked: int, over: int, busy: bool
):
    """Also where news leave no silence; others go on to follow the mailbox to its end."""
    key, token = await house.keys.create("someone", ["read"], "pro")
    address = (await house.store.create(owner_id=key.id)).mailbox.address
    ends: list[int] = []

    async def follow(headers: dict[str, str]) -> None:
        ends.append(await end_of(house, how, address, headers))

    async def news() -> None:
        while True:
            await house.deliver(address)
            await trio.sleep(SMALL.keep_alive_every / 10)

    with trio.fail_after(60):
        async with trio.open_nursery() as others:
            others.start_soon(follow, house.admin)
            async with trio.open_nursery() as writers:
                async with trio.open_nursery() as first:
                    first.start_soon(follow, {"Authorization": f"Bearer {token}"})
                    await house.waiting(count=2)
                    if busy:
                        writers.start_soon(news)
                    with trio.fail_after(20):
                        await house.keys.revoke(key.id)
                        await house.waiting(count=1)
                writers.cancel_scope.cancel()
            assert ends == [revoked]
            await house.expire(address)
    assert ends == [revoked, over]


async def test_looking_at_a_streams_key_again_is_no_call(house: House):
    """A key that may not call once more keeps what it opened."""
    await house.pool.execute("UPDATE relay.plans SET calls_per_second = 0.001 WHERE name = 'pro'")
    key, token = await house.keys.create("someone", ["read"], "pro")
    made = await house.store.create(owner_id=key.id)
    await house.expire(made.mailbox.address, 1.5)
    url = f"{BASE}/{made.mailbox.address}/events"
    headers = {"Authorization": f"Bearer {token}"}
    with trio.fail_after(10):
        async with house.client.stream("GET", url, headers=headers) as response:
            text = "".join([part async for part in response.aiter_text()])
    assert text.count(": still here") >= 5
    assert (await house.client.get(url, headers=headers)).status_code == 429


async def test_an_outage_ends_no_stream_and_a_revocation_after_it_does(
    own_server: Cluster, monkeypatch: pytest.MonkeyPatch
):
    """A key that cannot be looked up is what it was; once it can be, its end counts."""
    in_vain, authenticate = 0, Keys.authenticate

    async def counted(self: Keys, token_hash: bytes) -> ApiKey | None:
        nonlocal in_vain
        try:
            return await authenticate(self, token_hash)
        except DatabaseUnavailable:
            in_vain += 1
            raise

    monkeypatch.setattr(Keys, "authenticate", counted)
    await migrate(own_server.dsn("relay"))
    pool = Pool(own_server.dsn("relay"))
    ends: dict[str, int] = {}
    async with open_house(own_server.dsn("relay"), pool) as house:
        key, token = await house.keys.create("someone", ["read", "admin"], "pro")
        address = (await house.store.create(owner_id=key.id)).mailbox.address
        headers = {"Authorization": f"Bearer {token}"}

        async def follow(how: str) -> None:
            ends[how] = await end_of(house, how, address, headers)

        async def log() -> None:
            url = "/api/v1/logs?follow=1"
            async with house.client.stream("GET", url, headers=headers) as got:
                async for _ in got.aiter_raw():
                    pass
            ends["log"] = got.status_code

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for how in ("wait", "sse", "ws"):
                    nursery.start_soon(follow, how)
                nursery.start_soon(log)
                await house.waiting(count=3)
                await at_rest(pool)  # they have looked once more since they wait
                await in_thread(own_server.stop)
                await eventually(
                    lambda: in_vain, "they look, and find no database", until=lambda n: n >= 12
                )
                assert ends == {}
                await in_thread(own_server.start)
                assert await house.keys.revoke(key.id)
    await pool.close()
    assert ends == {"wait": 404, "sse": 0, "ws": 1008, "log": 200}


@pytest.mark.parametrize("path", ["messages/wait?timeout=1_0", "messages?limit=1_0"])
async def test_numbers_are_those_of_everybody(house: House, path: str):
    """What only Python takes for a number is refused."""
    address, token = await house.mailbox()
    refused = await house.client.get(f"{BASE}/{address}/{path}", headers=token)
    assert refused.status_code == 422
    assert path.split("?")[1].split("=")[0] in refused.text
