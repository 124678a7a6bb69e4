"""`/compat`: who may call, what they see, and what becomes of what cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from email.message import EmailMessage
from typing import Any

import httpx
import pytest
import trio
from websocket import WebSocketBadStatusException

from relay.db.pool import Pool
from relay.http.app import COMPAT
from relay.http.compat.declarations import Window
from relay.http.operations import Access
from relay.http.routing import Api, Route
from relay.ids import new_ids
from relay.mailboxes.accept import insert_one
from tests.http.conftest import SMALL, House, open_house
from tests.http.gate.test_gate import MISSING, inert
from tests.http.resources.test_all_messages import mailbox_of
from tests.http.resources.test_streams import connect, in_thread

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


async def test_who_calls_it_where_this_relay_has_a_call_is_told_so_too(house: House):
    """Where nothing is said of who calls, or by Basic as there; not to who has the wrong token."""
    said = "This call needs an Authorization header with a bearer token; Mailpit's calls are under"
    for path in ("/api/v1/messages", "/api/v1/messages?limit=1", "/api/v1/info"):
        for headers in ({}, {"Authorization": "Basic YTpi"}):
            answer = await house.client.get(path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="relay"'
            assert answer.json()["detail"] == f"{said} /compat/mailpit."
    for path, headers in (
        ("/api/v1/messages", {"Authorization": "Bearer rk_unknown"}),
        ("/api/v1/queue", {}),
    ):
        answer = await house.client.get(path, headers=headers)
        assert answer.status_code == 401
        assert "Mailpit" not in answer.json()["detail"]


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
    """Lists, single mails, marks, tags and deletions stay within the caller's reach; that of the
    administrator is everything."""
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
    await house.client.delete(f"{MAILPIT}/messages", headers=house.admin)
    assert (await listed(house, theirs))["total"] == 0


async def test_what_is_not_there_says_so(house: House):
    """What the others have and this relay has not: a 400 with a sentence that names what to do, on
    the paths that their clients ask."""
    pit, hog = "/compat/mailpit/api", MAILHOG
    message = f"{pit}/v1/message/{MISSING}"
    for method, path, named in (
        ("GET", f"{message}/sa-check", "/checks"),
        ("GET", f"{message}/part/1/thumb", "the part itself"),
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


def nested(levels: int, length: int) -> bytes:
    """Parts in parts, of control characters, which are six bytes each in JSON."""
    inner = "Content-Type: text/plain\r\n\r\n" + "\x01" * length
    for level in range(levels):
        kind = f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n"
        inner = f"{kind}--b{level}\r\n{inner}\r\n--b{level}--\r\n"
    return f"Subject: nested\r\nMIME-Version: 1.0\r\n{inner}".encode()


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


async def test_what_cannot_be_parsed_is_not_waited_for_long(database_url: str, pool: Pool):
    """Calls answer without it, after the time that one waits."""
    limits = replace(SMALL, unparsed_timeout=0.3)
    async with open_house(database_url, pool, limits) as house:
        address, _ = await house.mailbox()
        await house.deliver(address, letter(), parse=False)
        began = trio.current_time()
        assert (await listed(house, house.admin))["total"] == 0
        assert trio.current_time() - began >= 0.3


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
