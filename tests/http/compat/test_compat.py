"""`/compat`: who may call, what they see, and what becomes of what cannot be read."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import replace
from email.message import EmailMessage
from typing import Any

import httpx
import pytest
import trio
from websocket import WebSocketBadStatusException

from relay.db.pool import Pool
from relay.http.app import COMPAT
from relay.http.compat import mailhog
from relay.http.compat.shared import Window
from relay.http.operations import Access
from relay.http.routing import Api, Route
from relay.ids import new_ids
from relay.mailboxes.accept import insert_one
from relay.metrics import registry
from tests.eventually import eventually
from tests.http.conftest import SMALL, House, open_house, unread
from tests.http.resources.test_all_messages import mailbox_of
from tests.http.resources.test_streams import connect, in_thread
from tests.http.test_gate import MISSING, inert

MAILPIT, MAILHOG = "/compat/mailpit/api/v1", "/compat/mailhog/api"


def declared(house: House) -> list[Route]:
    """Every call that stands in for another program's."""
    api = Api(inert(house))
    for resource in COMPAT:
        resource.register(api)
    return api.routes


async def call(house: House, route: Route, **given: Any) -> httpx.Response:
    """Make a call with values that name nothing."""
    path = route.rule.replace("<message_id>", MISSING).replace("<index>", "1")
    path = path.replace("<name>", "x.txt")
    return await house.client.request(route.method, path, **given)


def basic(headers: dict[str, str]) -> httpx.BasicAuth:
    """The same credential as a password."""
    return httpx.BasicAuth("anybody", headers["Authorization"].removeprefix("Bearer "))


def letter(to: str = "ada@x.example", **fields: str) -> bytes:
    """A mail."""
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Shop <shop@x.example>", to, "Hello"
    for name, value in fields.items():
        message[name] = value
    message.set_content("Your code is 482913.")
    return message.as_bytes()


async def listed(house: House, headers: dict[str, str], query: str = "") -> dict[str, Any]:
    """Mailpit's list, or its search."""
    path = f"{MAILPIT}/search" if query else f"{MAILPIT}/messages"
    params = {"query": query} if query else {}
    answer = await house.client.get(path, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_every_call_needs_a_credential(house: House):
    """None, a wrong one and a session's: 401 in plain text, with a challenge; without the scope
    403.  Basic and Bearer open the same, and no other call takes Basic."""
    _, session = await house.mailbox()
    weak = {"read": await house.key("send"), "send": await house.key("read"),
            "admin": await house.key("read", "send")}  # fmt: skip
    asked = 0
    for route in declared(house):
        operation, where = route.operation, f"{route.method} {route.rule}"
        if operation.access is Access.OPEN:
            assert (await call(house, route)).text == "ok", where
            continue
        asked += 1
        for headers in ({}, session, {"Authorization": "Basic ???"}, {"Authorization": "Basic"}):
            refused = await call(house, route, headers=headers)
            assert refused.status_code == 401, where
            assert refused.headers["WWW-Authenticate"].startswith("Basic "), where
            assert refused.headers["Content-Type"].startswith("text/plain"), where
        wrong = httpx.BasicAuth(house.admin_token, "ra_wrong")
        assert (await call(house, route, auth=wrong)).status_code == 401, where
        assert operation.scope is not None, where
        refused = await call(house, route, auth=basic(weak[operation.scope]))
        assert (refused.status_code, refused.headers["Content-Type"][:10]) == (403, "text/plain")
        passed = await call(house, route, auth=basic(house.admin))
        assert passed.status_code in {200, 400, 404}, where
        bearer = await call(house, route, headers=house.admin)
        assert bearer.status_code == passed.status_code, where
    assert asked > 25
    own = await house.client.get("/api/v1/messages", auth=basic(house.admin))
    assert own.status_code == 401


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/v1/message/latest", "; Mailpit's calls are under /compat/mailpit."),
        ("/api/v1/search?query=from:shop", "; Mailpit's calls are under /compat/mailpit."),
        ("/api/v2/messages", "; MailHog's calls are under /compat/mailhog."),
        ("/api/v3/messages", "."),
    ],
)
async def test_who_calls_another_program_at_its_own_path_is_told_where_it_is(
    house: House, path: str, said: str
):
    """Port 8025 is theirs, too; with the credential or without."""
    for headers in ({}, house.admin):
        answer = await house.client.get(path, headers=headers)
        assert answer.status_code == 404
        assert answer.json()["detail"] == f"There is nothing at this address{said}"
        assert answer.json()["type"].endswith("not-found")


async def test_other_sites_reach_nothing(house: House):
    """A foreign Host or Origin is refused before the credential is looked at."""
    for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        for method in ("GET", "DELETE"):
            answer = await house.client.request(
                method, f"{MAILPIT}/messages", headers={**house.admin, **headers}
            )
            assert answer.status_code == 403


async def test_the_description_has_none_of_it(house: House):
    """Generated clients are of this relay's own API."""
    document = (await house.client.get("/openapi.json")).json()
    assert not [path for path in document["paths"] if path.startswith("/compat")]


async def test_each_key_sees_changes_and_deletes_its_own(house: House):
    """Lists, single mails, marks, tags and deletions stay within the caller's reach."""
    mine, theirs = await house.key("read", "send"), await house.key("read", "send")
    await house.deliver(await mailbox_of(house, mine), letter())
    other = str(await house.deliver(await mailbox_of(house, theirs), letter()))
    assert (await listed(house, mine))["total"] == 1
    assert (await listed(house, house.admin))["total"] == 2
    for path in ("", "/headers", "/raw", "/part/1"):
        answer = await house.client.get(f"{MAILPIT}/message/{other}{path}", headers=mine)
        assert answer.status_code == 404
    before = await listed(house, theirs)
    changes: tuple[tuple[str, str, Any], ...] = (
        ("PUT", "messages", {"IDs": [other], "Read": True}),
        ("PUT", "messages", {"Read": True}),
        ("PUT", "messages", {"Search": "hello", "Read": True}),
        ("PUT", "tags", {"IDs": [other], "Tags": ["x"]}),
        ("DELETE", "messages", {"IDs": [other]}),
        ("DELETE", "search?query=hello", None),
        ("DELETE", "messages", None),
    )
    for method, path, body in changes:
        answer = await house.client.request(method, f"{MAILPIT}/{path}", json=body, headers=mine)
        assert (answer.status_code, answer.text) == (200, "ok"), path
    assert await listed(house, theirs) == before
    assert (await listed(house, mine))["total"] == 0
    gone = await house.client.get(f"{MAILHOG}/v1/messages/{other}", headers=mine)
    assert gone.status_code == 404
    await house.client.delete(f"{MAILHOG}/v1/messages", headers=mine)
    assert await listed(house, theirs) == before


async def test_what_is_not_there_says_so(house: House):
    """What the others have and this relay has not: a 400 with a sentence that names what to do, on
    the paths that their clients ask."""
    pit, hog = "/compat/mailpit/api", MAILHOG
    message = f"{pit}/v1/message/{MISSING}"
    for method, path, named in (
        ("GET", f"{message}/html-check", "/checks"),
        ("GET", f"{message}/link-check", "/checks"),
        ("GET", f"{message}/sa-check", "/checks"),
        ("GET", f"{message}/part/1/thumb", "the part itself"),
        ("POST", f"{pit}/v1/send", "POST /api/v1/messages/send"),
        ("GET", f"{pit}/events", "GET /api/v1/messages/events"),
        ("POST", f"{hog}/v1/messages/{MISSING}/release", "/release"),
        ("GET", f"{hog}/v1/events", "GET /api/v1/messages/events"),
        ("GET", f"{hog}/v2/websocket", "GET /api/v1/messages/events"),
        ("GET", f"{hog}/v2/outgoing-smtp", "/release"),
        ("POST", f"{hog}/v2/jim", "RELAY_SMTP__CHAOS"),
        ("PUT", f"{hog}/v2/jim", "RELAY_SMTP__CHAOS"),
    ):
        answer = await house.client.request(method, path, auth=basic(house.admin))
        assert answer.status_code == 400, path
        assert answer.headers["Content-Type"].startswith("text/plain"), path
        assert named in answer.text, path
        assert answer.text.endswith("."), path


async def test_a_websocket_where_there_is_none_is_refused(house: House):
    """As the events of both are asked for; and a plain call where there is one alone."""
    for path in ("/compat/mailpit/api/events", f"{MAILHOG}/v2/websocket", "/api/v1/info"):
        with pytest.raises(WebSocketBadStatusException) as refused:
            await in_thread(connect, house, path)
        assert refused.value.status_code == 400, path
        assert "no WebSocket" in json.loads(refused.value.resp_body or "")["detail"], path
    plain = await house.client.get("/api/v1/mailboxes/a@relay.localhost/ws")
    assert plain.status_code == 400
    assert "a WebSocket" in plain.json()["detail"]


async def test_what_cannot_be_read_changes_nothing(house: House):
    """Where Mailpit would take it for everything: bad JSON, wrong types, unknown parameters, and
    searches that look for nothing."""
    address, _ = await house.mailbox()
    mail = str(await house.deliver(address, letter()))
    for method, path, content in (
        ("DELETE", "messages", b'{"IDs": ["'),
        ("DELETE", "messages", b"[]"),
        ("DELETE", "messages", b'{"IDs": "x"}'),
        ("DELETE", "messages?query=nothing", b""),
        ("DELETE", "search", b""),
        ("DELETE", "search?query=before:soon", b""),
        ("DELETE", "search?query=%22%22", b""),
        ("DELETE", "search?query=%00", b""),
        ("DELETE", "search?query=***%20-", b""),
        ("PUT", "messages", b'{"Read": true, "Search": "-"}'),
        ("PUT", "messages", b'{"Read": true, "Search": " "}'),
        ("PUT", "messages", b'{"Read": "yes"}'),
        ("PUT", "messages", b'{"IDs": ["x"], "Search": "x"}'),
        ("PUT", "tags", b'{"IDs": [1]}'),
        ("PUT", "tags/x", b"{}"),
    ):
        answer = await house.client.request(
            method, f"{MAILPIT}/{path}", content=content, headers=house.admin
        )
        assert (answer.status_code, answer.headers["Content-Type"][:10]) == (400, "text/plain")
    answer = await house.client.request(
        "DELETE", f"{MAILPIT}/messages", json={"ids": ["no-id", MISSING]}, headers=house.admin
    )
    assert answer.text == "ok"
    answer = await house.client.delete(f"{MAILPIT}/tags/no%00tag", headers=house.admin)
    assert answer.text == "ok"
    (entry,) = (await listed(house, house.admin))["messages"]
    assert (entry["ID"], entry["Read"], entry["Tags"]) == (mail, False, [])


async def test_a_mail_to_several_is_one(house: House):
    """Found by any of its recipients, read, tagged and deleted as a whole; who is not named is
    Bcc.  The same mail again is another."""
    boxes = [(await house.mailbox())[0] for _ in range(3)]
    raw = letter(f"{boxes[0]}, {boxes[1]}")
    ids = new_ids(3)
    await insert_one(house.pool, "bounce@x.example", list(zip(ids, boxes, strict=True)), raw)
    for one in ids:
        await house.parse(one)
    first = [str(one) for one in ids]
    page = await listed(house, house.admin)
    (entry,) = page["messages"]
    assert (page["total"], page["unread"], entry["ID"]) == (1, 1, first[0])
    assert [one["Address"] for one in entry["To"]] == boxes[:2]
    assert [one["Address"] for one in entry["Bcc"]] == boxes[2:]
    for box in boxes:
        found = await listed(house, house.admin, f"addressed:{box}")
        assert [one["ID"] for one in found["messages"]] == [first[0]]
    read = await house.client.get(f"{MAILPIT}/message/{first[2]}", headers=house.admin)
    assert read.json()["ID"] == first[0]
    assert (await listed(house, house.admin, "is:unread"))["messages_count"] == 0
    again = str(await house.deliver(boxes[0], raw))
    assert (await listed(house, house.admin))["total"] == 2
    hog = (await house.client.get(f"{MAILHOG}/v2/messages", headers=house.admin)).json()
    assert [len(one["To"]) for one in hog["items"]] == [1, 3]
    await house.client.request(
        "DELETE", f"{MAILPIT}/messages", json={"IDs": [first[1]]}, headers=house.admin
    )
    assert [one["ID"] for one in (await listed(house, house.admin))["messages"]] == [again]


async def test_bcc_is_found_as_it_is_shown(house: House):
    """Who is no more than a part of a name is not named; who may be named where nobody has read is
    left out of both."""
    address, _ = await house.mailbox()
    for to, named in (
        (f"b{address}", False),
        (f"Somebody <{address}>", True),
        (f"{', '.join(f'ada{n}@x.example' for n in range(3000))}, {address}", True),
    ):
        mail = str(await house.deliver(address, letter(to)))
        (entry,) = (await listed(house, house.admin))["messages"]
        assert [one["Address"] for one in entry["Bcc"]] == [address] * (not named)
        found = (await listed(house, house.admin, f"bcc:{address}"))["messages"]
        assert [one["ID"] for one in found] == [mail] * (not named)
        whole = await house.client.get(f"{MAILPIT}/message/{mail}", headers=house.admin)
        assert whole.json()["Bcc"] == entry["Bcc"]
        await house.client.delete(f"{MAILPIT}/messages", headers=house.admin)


TO = ", ".join(f"{'😀' * 90} <ada{n}@x.example>" for n in range(40))


def nested(levels: int, length: int) -> bytes:
    """Parts in parts, of control characters, which are six bytes each in JSON."""
    inner = "Content-Type: text/plain\r\n\r\n" + "\x01" * length
    for level in range(levels):
        kind = f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n"
        inner = f"{kind}--b{level}\r\n{inner}\r\n--b{level}--\r\n"
    return f"Subject: nested\r\nMIME-Version: 1.0\r\n{inner}".encode()


async def test_mailhogs_answer_is_bounded_by_its_own_size(house: House):
    """Whatever its parts in parts make of a message: a list ends early, one alone is cut."""
    address, _ = await house.mailbox()
    for length in (50_000, 50_000, 50_000, 900_000):
        await house.deliver(address, nested(5, length))
        listed = await house.client.get(f"{MAILHOG}/v2/messages", headers=house.admin)
        assert len(listed.content) <= mailhog.AT_ONCE + 200
    found = listed.json()
    assert (found["total"], found["count"], len(found["items"])) == (4, 1, 1)
    (shown,) = found["items"]
    assert 0 < shown["Raw"]["Data"].count("\x01") < 900_000
    alone = await house.client.get(f"{MAILHOG}/v1/messages/{shown['ID']}", headers=house.admin)
    assert alone.json() == shown
    second = await house.client.get(f"{MAILHOG}/v2/messages?start=1", headers=house.admin)
    assert [one["Raw"]["Data"].count("\x01") for one in second.json()["items"]] == [50_000]


async def test_mailhogs_answer_is_held_until_it_was_sent(database_url: str, pool: Pool):
    """Who does not read it has a quarter of the memory that there is for such answers."""
    limits = replace(SMALL, download_bytes=128 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        address = await mailbox_of(house, key)
        await house.deliver(address, nested(2, 150_000))
        path = f"{MAILHOG}/v2/messages"
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, key) for _ in range(3)]
            assert answers == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 503"]
            assert (await house.client.get(path, headers=house.admin)).status_code == 200
        await eventually(
            lambda: house.client.get(path, headers=key),
            "it is given again",
            until=lambda answer: answer.status_code == 200,
        )


async def test_mailpits_message_is_held_until_it_was_sent(database_url: str, pool: Pool):
    """Likewise; what there is no room for stays unread."""
    limits = replace(SMALL, download_bytes=128 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        address = await mailbox_of(house, key)
        paths = [
            f"{MAILPIT}/message/{await house.deliver(address, nested(0, 800_000))}"
            for _ in range(2)
        ]
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, key) for path in paths]
            assert answers == [b"HTTP/1.1 200", b"HTTP/1.1 503"]
            assert (await listed(house, key))["unread"] == 1
        await eventually(
            lambda: house.client.get(paths[1], headers=key),
            "it is given",
            until=lambda answer: answer.status_code == 200,
        )
        assert (await listed(house, key))["unread"] == 0


async def test_mailpits_list_has_a_bounded_part_of_what_a_sender_wrote(house: House):
    """As many recipients as fit, each of them whole; the message itself has all."""
    key = await house.key("read", "send")
    address = await mailbox_of(house, key)
    to = ", ".join([*(f"ada{n}@x.example" for n in range(400)), address])
    filler = "".join(f"X-{n}: {900 * 'x'}\r\n" for n in range(90))
    raw = (
        f"To: {to}\r\nMessage-ID: <one@x.example>\r\n"
        f"Content-Type: multipart/mixed; boundary=b\r\n{filler}\r\n"
        "--b\r\n\r\ntext\r\n--b\r\nContent-Disposition: attachment\r\n\r\nx\r\n--b--\r\n"
    )
    wanted = await house.deliver(address, raw.encode())
    (entry,) = (await listed(house, key))["messages"]
    shown = [one["Address"] for one in entry["To"]]
    assert 200 < len(shown) < 300
    assert shown == [f"ada{n}@x.example" for n in range(len(shown))]
    assert (entry["MessageID"], entry["Attachments"], entry["Bcc"]) == ("one@x.example", 1, [])
    found = await house.client.get(f"{MAILPIT}/message/{wanted}", headers=key)
    assert len(found.json()["To"]) == 401
    assert len(found.json()["Attachments"]) == 1


async def test_mailpits_list_is_held_like_a_message(database_url: str, pool: Pool):
    """A large one is not given to who reads nothing of what was asked for before."""
    limits = replace(SMALL, download_bytes=4 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        address = await mailbox_of(house, key)
        first = await house.deliver(address, nested(0, 800_000))
        for _ in range(8):
            await house.deliver(address, f"Subject: {'😀' * 5000}\r\nTo: {TO}\r\n\r\n".encode())
        path = f"{MAILPIT}/messages"
        async with contextlib.AsyncExitStack() as peers:
            held = f"{MAILPIT}/message/{first}"
            assert await unread(peers, house.port, held, key) == b"HTTP/1.1 200"
            for query, headers, status in (
                ("", key, 503),
                ("?limit=1", key, 200),
                ("", house.admin, 200),
            ):
                answer = await house.client.get(f"{path}{query}", headers=headers)
                assert answer.status_code == status
        await eventually(
            lambda: house.client.get(path, headers=key),
            "it is given",
            until=lambda answer: answer.status_code == 200,
        )


@pytest.mark.parametrize("kind", ["txt", "html"])
async def test_mailpits_page_is_held_until_it_was_sent(database_url: str, pool: Pool, kind: str):
    """Likewise."""
    limits = replace(SMALL, download_bytes=128 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        address = await mailbox_of(house, key)
        long = await house.deliver(address, b"Subject: x\r\n\r\n" + 900_000 * b"x")
        paths = [f"/compat/mailpit/view/{long}.{kind}"] * 9
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, key) for path in paths]
            assert answers[0] == b"HTTP/1.1 200"
            assert answers[-1] == b"HTTP/1.1 503"
            other = await house.deliver(address, b"Subject: x\r\n\r\n" + 900_000 * b"x")
            path = f"/compat/mailpit/view/{other}.{kind}"
            assert await unread(peers, house.port, path, key) == b"HTTP/1.1 503"
            assert (await listed(house, key))["unread"] == 1
        answer = await eventually(
            lambda: house.client.get(path, headers=key),
            "it is given",
            until=lambda answer: answer.status_code == 200,
        )
        assert answer.text.count("x") >= 900_000
        assert (await listed(house, key))["unread"] == 0


async def test_mail_is_there_right_after_its_250(house: House):
    """What was accepted and is not parsed yet is waited for by what lists, searches or changes; not
    what others see, nor what was deleted meanwhile."""
    mine, theirs = await house.key("read", "send"), await house.key("read", "send")
    address = await mailbox_of(house, mine)
    path = "?query=hello"
    calls = (
        ("GET", f"{MAILPIT}/messages"), ("GET", f"{MAILPIT}/search{path}"),
        ("GET", f"{MAILPIT}/message/latest"), ("GET", f"{MAILPIT}/tags"),
        ("GET", f"{MAILPIT}/info"), ("GET", f"{MAILHOG}/v1/messages"),
        ("GET", f"{MAILHOG}/v2/messages"), ("GET", f"{MAILHOG}/v2/search?kind=from&query=shop"),
        ("PUT", f"{MAILPIT}/messages"), ("DELETE", f"{MAILPIT}/search{path}"),
        ("DELETE", f"{MAILPIT}/messages"), ("DELETE", f"{MAILHOG}/v1/messages"),
    )  # fmt: skip
    for method, where in calls:
        accepted = await house.deliver(address, letter(), parse=False)
        answers: list[httpx.Response] = []

        async def ask(method: str = method, where: str = where, into: Any = answers) -> None:
            read = {"Read": True} if method == "PUT" else None
            into.append(await house.client.request(method, where, json=read, headers=mine))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await house.waiting()
            assert (await listed(house, theirs))["total"] == 0
            assert answers == [], f"{method} {where} has not waited"
            await house.parse(accepted)
        (answer,) = answers
        assert answer.status_code == 200, f"{method} {where}: {answer.text}"
        if method == "GET" and not where.endswith("tags"):
            assert "Hello" in answer.text or answer.json()["Messages"] == 1, where
        left = await listed(house, mine)
        assert left["unread" if method == "PUT" else "total"] == (method == "GET"), where
        await house.client.delete(f"{MAILPIT}/messages", headers=mine)
    await house.deliver(address, letter(), parse=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await house.waiting()
        await house.pool.execute("DELETE FROM relay.messages")
    assert (await listed(house, mine))["total"] == 0


async def test_what_the_relay_counted_is_the_administrators(house: House):
    """Messages and bytes by SMTP, as the counters say, memory, time and size; to a key all is 0."""

    async def info(headers: dict[str, str]) -> dict[str, Any]:
        answer = await house.client.get(f"{MAILPIT}/info", headers=headers)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    before = (await info(house.admin))["RuntimeStats"]
    registry.add([
        ("relay_smtp_messages", [
            ("relay_smtp_messages_total", {"outcome": "accepted"}, 3.0),
            ("relay_smtp_messages_total", {"outcome": "rejected"}, 2.0),
        ]),
        ("relay_smtp_received_bytes", [("relay_smtp_received_bytes_total", {}, 4567.0)]),
    ])  # fmt: skip
    found = await info(house.admin)
    after = found["RuntimeStats"]
    assert {name: after[name] - before[name] for name in after if name.startswith("SMTP")} == {
        "SMTPAccepted": 3, "SMTPAcceptedSize": 4567, "SMTPRejected": 2, "SMTPIgnored": 0,
    }  # fmt: skip
    assert 0 <= before["Uptime"] <= after["Uptime"] < 24 * 3600
    assert after["Memory"] > 10 << 20
    assert found["DatabaseSize"] > 1 << 20
    told = await info(await house.key("read", "send"))
    assert told["RuntimeStats"] == dict.fromkeys(after, 0)
    assert told["DatabaseSize"] == 0


async def test_what_cannot_be_parsed_is_not_waited_for_long(database_url: str, pool: Pool):
    """Calls answer without it, after the time that one waits."""
    limits = replace(SMALL, unshown_timeout=0.3)
    async with open_house(database_url, pool, limits) as house:
        address, _ = await house.mailbox()
        await house.deliver(address, letter(), parse=False)
        began = trio.current_time()
        assert (await listed(house, house.admin))["total"] == 0
        assert trio.current_time() - began >= 0.3


async def test_filters_that_look_at_headers(house: House):
    """cc, bcc, reply-to, message-id, is:tagged and has:inline, and their opposites."""
    address, _ = await house.mailbox()
    plain = str(await house.deliver(address, letter(address)))
    fields = {"Cc": "Carl <carl@x.example>", "Reply-To": "r@x.example", "Message-ID": "<one@x>"}
    full = str(await house.deliver(address, letter(**fields)))
    await house.client.put(
        f"{MAILPIT}/tags", json={"IDs": [full], "Tags": ["a/b"]}, headers=house.admin
    )
    for query, wanted in (
        ("cc:CARL", [full]), ("-cc:carl", [plain]), ("reply-to:r@x", [full]),
        ("message-id:one@", [full]), (f"bcc:{address}", [full]), ("is:tagged", [full]),
        ("!is:tagged", [plain]), ("has:inline", []), ('tag:"A B"', [full]),
        ("hello -message-id:one", [plain]),
    ):  # fmt: skip
        found = await listed(house, house.admin, query)
        assert [one["ID"] for one in found["messages"]] == wanted, query
        assert found["messages_count"] == len(wanted), query
    latest = await house.client.get(
        f"{MAILPIT}/message/latest", params={"query": "-cc:carl"}, headers=house.admin
    )
    assert latest.json()["ID"] == plain


async def test_long_headers_keep_nobody_waiting(house: House):
    """What strangers wrote is taken apart beside the loop, however much of it a list shows."""
    address, _ = await house.mailbox()
    hostile = b"".join(b"%b: %b\r\n" % (name, b'a"<' * 5000) for name in (b"To", b"Cc", b"Bcc") * 5)
    for _ in range(5):
        await house.deliver(address, hostile + b"From: a@x.example\r\n\r\nx")
    longest, since = 0.0, time.thread_time()

    async def tick() -> None:
        nonlocal longest, since
        while True:
            await trio.sleep(0.001)
            now = time.thread_time()
            longest, since = max(longest, now - since), now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        assert (await listed(house, house.admin))["count"] == 5
        assert (await listed(house, house.admin, "cc:nobody"))["count"] == 0
        nursery.cancel_scope.cancel()
    assert longest < 0.2, "seconds of the loop's thread at once"


async def test_a_page_begins_where_it_is_asked_to(house: House):
    """By its place, newest first; what is no number counts as left out."""
    address, _ = await house.mailbox()
    ids = [str(await house.deliver(address, letter())) for _ in range(5)][::-1]

    async def page(path: str, **params: str) -> dict[str, Any]:
        answer = await house.client.get(path, params=params, headers=house.admin)
        found: dict[str, Any] = answer.json()
        return found

    found = await page(f"{MAILPIT}/messages", start="1", limit="2")
    assert [one["ID"] for one in found["messages"]] == ids[1:3]
    assert (found["start"], found["count"], found["total"]) == (1, 2, 5)
    found = await page(f"{MAILHOG}/v2/messages", start="3", limit="x")
    assert [one["ID"] for one in found["items"]] == ids[3:]
    assert (found["start"], found["count"], found["total"]) == (3, 2, 5)
    assert (await page(f"{MAILPIT}/messages", start="99999999"))["messages"] == []
    assert (Window(start="10000").rows, Window(start="10001", limit="7").rows) == (50, 0)


async def test_a_mail_is_shown_where_it_can_do_nothing(house: House):
    """Its HTML in a sandbox, without its scripts' chance; a part as a download."""
    address, _ = await house.mailbox()
    message = EmailMessage()
    message["Subject"] = "x"
    message.set_content("<script>alert(1)</script><p>hi</p>", subtype="html")
    message.add_attachment("<script>", subtype="html", filename="a.html")
    mail = await house.deliver(address, message.as_bytes())
    view = await house.client.get(f"/compat/mailpit/view/{mail}.html", headers=house.admin)
    assert view.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    part = await house.client.get(f"{MAILPIT}/message/{mail}/part/1", headers=house.admin)
    assert part.headers["Content-Disposition"].startswith("attachment;")
    assert part.headers["Content-Security-Policy"].startswith("sandbox")
    for name in ("latest", "latest.png"):
        missing = await house.client.get(f"/compat/mailpit/view/{name}", headers=house.admin)
        assert missing.status_code == 404
