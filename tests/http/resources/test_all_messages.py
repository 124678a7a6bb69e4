"""The messages of all mailboxes at once over HTTP: lists, waits, streams, bulk calls, tags."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.ids import new_id
from relay.mailboxes.query import MOST_TERMS
from tests.eventually import eventually
from tests.http.conftest import SMALL, House, open_house
from tests.http.resources.test_streams import in_thread

BASE = "/api/v1/messages"


def letter(subject: str, sender: str = "Ada <ada@example.org>", text: str = "text") -> bytes:
    """A small message."""
    return f"From: {sender}\r\nSubject: {subject}\r\n\r\n{text}\r\n".encode()


async def mailbox_of(house: House, key: dict[str, str]) -> str:
    """Make a mailbox with a key; its address."""
    address: str = (await house.client.post("/api/v1/mailboxes", headers=key)).json()["address"]
    return address


async def listed(house: House, headers: dict[str, str], **params: Any) -> list[dict[str, Any]]:
    """What the list shows."""
    answer = await house.client.get(BASE, params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()
    return found


@pytest.mark.parametrize("path", [BASE, f"{BASE}/wait", "/api/v1/mailboxes"])
async def test_a_token_that_is_unknown_is_said_to_be(house: House, path: str):
    """Whoever sent one does not look for how to send one; whoever sent none is told what to."""

    async def said(**headers: str) -> str:
        answer = await house.client.get(path, headers=headers)
        assert answer.status_code == 401
        return str(answer.json()["detail"])

    assert await said(Authorization="Bearer rk_0123") == "The token is unknown or revoked."
    for headers in ({}, {"Authorization": "Basic x"}, {"X-Session-Token": "gone"}):
        assert "unknown" not in await said(**headers)


async def test_each_credential_has_its_own(house: House):
    """A session token its one mailbox, a key its own, the administrator all; with what is new."""
    address, token = await house.mailbox()
    key, other = await house.key("read"), await house.key("read")
    boxes = [await mailbox_of(house, key) for _ in range(2)]
    await house.deliver(address, letter("anonymous"))
    for number, box in enumerate(boxes):
        await house.deliver(box, letter(f"of the key {number}"))
    entry = (await listed(house, token))[0]
    assert [entry["subject"], entry["mailbox"], entry["tags"], entry["snippet"]] == [
        "anonymous", address, [], "text",
    ]  # fmt: skip
    own = (await house.client.get(f"/api/v1/mailboxes/{address}/messages", headers=token)).json()
    assert own[0].items() <= entry.items()
    assert [one["mailbox"] for one in await listed(house, key)] == boxes[::-1]
    assert await listed(house, other) == []
    assert len(await listed(house, house.admin)) == 3
    assert len(await listed(house, house.admin, q="subject:key from:ada")) == 2
    await house.expire(address)
    assert (await house.client.get(BASE, headers=token)).status_code == 401
    assert len(await listed(house, house.admin)) == 2


async def test_captured_mail_is_the_administrators_alone(house: House):
    """No key lists, finds or waits for it, nor one with the scope admin; the token does."""
    key = await house.key("admin")
    address, _ = await house.mailbox()
    await house.pool.execute(
        """
        UPDATE relay.mailboxes
        SET owner_type = 'capture', owner_id = %s, token_hash = NULL, captured_at = now()
        WHERE address = %s
        """,
        (ADMINISTRATOR_ID, address),
    )
    await house.deliver(address, letter("captured"))
    (seen,) = await listed(house, house.admin, q=f"to:{address}")
    mailbox, wait = f"/api/v1/mailboxes/{address}", f"{BASE}/wait?timeout=0&to={address}"
    message = f"{mailbox}/messages/{seen['id']}"
    for path in (mailbox, f"{mailbox}/messages", message, f"{message}/raw", wait):
        assert (await house.client.get(path, headers=house.admin)).status_code == 200, path
        refused = await house.client.get(path, headers=key)
        assert refused.status_code == (204 if path == wait else 404), path
    assert await listed(house, key) == []
    assert (await house.client.get("/api/v1/mailboxes", headers=key)).json() == []
    gone = await house.client.delete(f"{BASE}?q=*", headers=key)
    assert (gone.status_code, gone.json()) == (200, {"count": 0})


async def test_pages_by_the_link(house: House):
    """The next page is in Link, with the query kept."""
    key = await house.key("read")
    box = await mailbox_of(house, key)
    for number in range(5):
        await house.deliver(box, letter(f"order {number}"))
    seen: list[str] = []
    url = f"{BASE}?q=order&limit=2"
    while url:
        answer = await house.client.get(url, headers=key)
        seen += [one["subject"] for one in answer.json()]
        url = answer.headers.get("Link", "").partition("<")[2].partition(">")[0]
    assert seen == [f"order {number}" for number in reversed(range(5))]


@pytest.mark.parametrize(
    ("method", "path", "q", "said"),
    [
        ("GET", BASE, "frm:ada", "frm:"),
        ("GET", BASE, " ".join(map(str, range(MOST_TERMS + 1))), "terms"),
        ("GET", BASE, "x " * 1000, "q"),
        ("GET", BASE, "before:soon", "before:"),
        ("DELETE", BASE, "", "everything"),
        ("DELETE", BASE, None, "everything"),
        ("DELETE", BASE, '""', "everything"),
        ("POST", f"{BASE}/read", " ", "everything"),
        ("POST", f"{BASE}/read", None, "everything"),
    ],
)
async def test_refuses_what_it_cannot_mean(
    house: House, method: str, path: str, q: str | None, said: str
):
    """422, and the sentence says what is wrong; nothing was changed."""
    address, token = await house.mailbox()
    await house.deliver(address)
    params = {} if q is None else {"q": q}
    answer = await house.client.request(method, path, params=params, headers=token)
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid"
    assert said in answer.json()["detail"]
    assert [one["is_read"] for one in await listed(house, token)] == [False]


async def test_the_list_of_one_mailbox_reads_the_same_language(house: House):
    """Operators, and an unknown one refused."""
    address, token = await house.mailbox()
    await house.deliver(address, letter("one", text="see https://shop.example/a"))
    await house.deliver(address, letter("two", "Bob <bob@example.org>"))

    async def subjects(q: str) -> list[str]:
        answer = await house.client.get(
            f"/api/v1/mailboxes/{address}/messages", params={"q": q}, headers=token
        )
        assert answer.status_code == 200, answer.text
        return [one["subject"] for one in answer.json()]

    assert await subjects("from:ada") == ["one"]
    assert await subjects("-from:ada") == ["two"]
    assert await subjects("https://shop.example/") == ["one"]
    assert await subjects("is:unread") == ["two", "one"]
    assert await subjects("*") == ["two", "one"]
    wrong = await house.client.get(
        f"/api/v1/mailboxes/{address}/messages", params={"q": "frm:ada"}, headers=token
    )
    assert wrong.status_code == 422


async def test_bulk_calls_answer_how_many(house: House):
    """Read, then deleted; a key that only reads may not delete; nobody touches another's."""
    reader, key = await house.key("read"), await house.key("read", "send")
    theirs, mine = await mailbox_of(house, reader), await mailbox_of(house, key)
    for box in (theirs, mine, mine):
        await house.deliver(box, letter("order"))
    await house.deliver(mine, letter("other"))
    for params, count in (({"q": "order"}, 2), ({}, 3), ({"q": "is:read"}, 0)):
        answer = await house.client.get(f"{BASE}/count", params=params, headers=key)
        assert (answer.status_code, answer.json()) == (200, {"count": count, "more": False})
    one = f"/api/v1/mailboxes/{theirs}/messages/count"
    answer = await house.client.get(one, headers=reader)
    assert answer.json() == {"count": 1, "more": False}
    assert (await house.client.get(one, headers=key)).status_code == 404
    answer = await house.client.post(f"{BASE}/read", params={"q": "order"}, headers=key)
    assert (answer.status_code, answer.json()) == (200, {"count": 2})
    assert len(await listed(house, key, q="is:read")) == 2
    assert await listed(house, reader, q="is:read") == []
    refused = await house.client.delete(BASE, params={"q": "*"}, headers=reader)
    assert refused.status_code == 403
    answer = await house.client.delete(BASE, params={"q": "order"}, headers=key)
    assert (answer.status_code, answer.json()) == (200, {"count": 2})
    assert [one["subject"] for one in await listed(house, key)] == ["other"]
    answer = await house.client.delete(BASE, params={"q": "*"}, headers=key)
    assert answer.json() == {"count": 1}
    assert len(await listed(house, reader)) == 1
    assert (await house.client.delete(BASE, params={"q": "*"}, headers=key)).json() == {"count": 0}


async def test_messages_are_deleted_by_their_ids(house: House):
    """What is another's, of another mailbox or gone already is passed over; more than one statement
    takes go, too; what is no list of ids is refused."""
    reader, key = await house.key("read"), await house.key("read", "send")
    theirs, mine = await mailbox_of(house, reader), await mailbox_of(house, key)
    address, token = await house.mailbox()
    other, in_theirs = [str(await house.deliver(box)) for box in (mine, theirs)]
    own = [str(await house.deliver(address)) for _ in range(2)]

    async def delete(path: str, headers: dict[str, str], *ids: str) -> tuple[int, object]:
        answer = await house.client.post(f"{path}/delete", json={"ids": ids}, headers=headers)
        said = answer.json()
        return answer.status_code, said.get("count", said.get("type"))

    one = f"/api/v1/mailboxes/{address}/messages"
    assert await delete(one, token, own[0], own[0], other, in_theirs) == (200, 1)
    assert await delete(BASE, token, *own, other) == (200, 1)
    assert await delete(BASE, reader, in_theirs) == (403, "/problems/missing-scope")
    assert await delete(BASE, key) == (422, "/problems/invalid")
    assert await delete(BASE, key, "*") == (422, "/problems/invalid")
    nobodys = [str(new_id()) for _ in range(999)]
    assert await delete(BASE, key, *nobodys, other, in_theirs) == (422, "/problems/invalid")
    assert await delete(BASE, key, *nobodys, other) == (200, 1)
    assert [seen["id"] for seen in await listed(house, house.admin)] == [in_theirs]
    await house.expire(address)
    assert await delete(one, token, *own) == (404, "/problems/mailbox-not-found")


async def test_many_are_marked_and_tagged_by_one_call(house: House):
    """A key that reads may; only what it makes a difference to counts; it must say what it means;
    what is not parsed yet is a 503, and the rest is done."""
    key, other = await house.key("read"), await house.key("read")
    mine, theirs = await mailbox_of(house, key), await mailbox_of(house, other)
    for box in (mine, mine, theirs):
        await house.deliver(box, letter("order"))

    async def patch(q: str, **values: Any) -> Any:
        answer = await house.client.patch(BASE, params={"q": q}, json=values, headers=key)
        return answer.json()["count"] if answer.status_code == 200 else answer

    assert await patch("order", is_read=True, add_tags=["a", "b"]) == 2
    assert await patch("tag:a", is_read=True, add_tags=["A"]) == 0
    assert await patch("*", remove_tags=["B"]) == 2
    assert [one["tags"] for one in await listed(house, key)] == [["a"], ["a"]]
    assert await patch("is:read", is_read=False) == 2
    assert await patch("*", tags=[]) == 2
    assert await listed(house, other, q="is:read") == []
    for q, values in (("", {"is_read": True}), ("*", {}), ("*", {"add_tags": [""]}),
                      ("*", {"is_read": None}), ("*", {"is_read": 0}),
                      ("frm:x", {"is_read": True})):  # fmt: skip
        assert (await patch(q, **values)).status_code == 422, values
    await house.deliver(mine, letter("late"), parse=False)
    late = await patch("*", add_tags=["c"])
    assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
    assert late.json()["detail"] == (
        "Some of the messages (1) are being parsed; the others are changed. Try again."
    )
    assert len(await listed(house, key, q="tag:c")) == 2


async def test_many_of_one_mailbox_are_changed_by_one_call(house: House):
    """By its session token, its owner's key or the administrator, however the address is spelled;
    nothing of another mailbox, and nothing without a `q`; for anybody else there is no mailbox."""
    address, token = await house.mailbox()
    key, reader = await house.key("read", "send"), await house.key("read")
    mine, other = await mailbox_of(house, key), await mailbox_of(house, key)
    for box in (address, address, mine, other):
        await house.deliver(box, letter("order"))

    async def change(
        box: str, headers: dict[str, str], q: str | None = "order", **values: Any
    ) -> tuple[int, Any]:
        answer = await house.client.request(
            "PATCH" if values else "DELETE",
            f"/api/v1/mailboxes/{box}/messages",
            params={} if q is None else {"q": q},
            headers=headers,
            json=values or None,
        )
        said = answer.json()
        return answer.status_code, said["count"] if answer.is_success else said["type"]

    assert await change(address.upper(), token, "*", is_read=True, add_tags=["a"]) == (200, 2)
    assert await change(address, token, "tag:a", is_read=True) == (200, 0)
    assert await change(mine, key, is_read=True) == (200, 1)
    assert await change(mine, house.admin, remove_tags=["b"], is_read=False) == (200, 1)
    assert await listed(house, key, q="is:read") == []
    for q in (None, "", " "):
        assert await change(address, token, q) == (422, "/problems/invalid")
        assert await change(address, token, q, is_read=True) == (422, "/problems/invalid")
    for headers in (token, reader, {}):
        assert await change(mine, headers) == (404, "/problems/mailbox-not-found")
        assert await change(mine, headers, is_read=True) == (404, "/problems/mailbox-not-found")
    owned = await mailbox_of(house, reader)
    assert await change(owned, reader, "*") == (403, "/problems/missing-scope")
    assert await change(owned, reader, "*", is_read=True) == (200, 0)
    assert await change(address, token, "-order") == (200, 0)
    assert await change(address, token) == (200, 2)
    assert await change(mine, key, "*") == (200, 1)
    assert [one["mailbox"] for one in await listed(house, house.admin)] == [other]
    await house.expire(address)
    assert await change(address, token, "*") == (404, "/problems/mailbox-not-found")


async def test_a_bulk_call_that_is_cut_short_says_that_it_may_be_called_again(
    database_url: str, pool: Pool
):
    """503 for each of them, whatever it has done by then."""
    async with open_house(database_url, pool, replace(SMALL, commit_timeout=0.0)) as house:
        for method, path in (("DELETE", BASE), ("POST", f"{BASE}/read"), ("PATCH", BASE)):
            answer = await house.client.request(
                method, path, params={"q": "*"}, headers=house.admin,
                json={"is_read": True} if method == "PATCH" else None,
            )  # fmt: skip
            assert answer.status_code == 503
            assert answer.json()["detail"].endswith("call again for the rest.")


async def test_a_message_is_tagged_and_marked_by_hand(house: House):
    """PATCH answers with the entry; what is left out stays; tags are found, whole."""
    address, token = await house.mailbox()
    message = await house.deliver(address, letter("one"))
    path = f"/api/v1/mailboxes/{address}/messages/{message}"

    async def patch(**values: Any) -> httpx.Response:
        return await house.client.patch(path, json=values, headers=token)

    answer = await patch(tags=["Shop", "a b", "Shop"])
    assert answer.status_code == 200
    assert answer.json() | {"tags": ["Shop", "a b"], "is_read": False} == answer.json()
    assert answer.json()["mailbox"] == address
    assert (await patch(is_read=True)).json()["tags"] == ["Shop", "a b"]
    assert [one["id"] for one in await listed(house, token, q='tag:shop tag:"A B" is:read')] == [
        str(message)
    ]
    assert await listed(house, token, q="tag:sho") == []
    assert (await patch(is_read=False)).json()["is_read"] is False
    assert (await patch(add_tags=["SHOP", "c"], remove_tags=["A b"])).json()["tags"] == [
        "Shop",
        "c",
    ]
    assert (await patch(tags=[])).json()["tags"] == []
    assert (await patch()).status_code == 200
    for wrong in ({"tags": [""]}, {"tags": ["x" * 101]}, {"tags": ["x"] * 21}, {"flag": 1},
                  {"tags": ["a\nb"]}, {"is_read": "perhaps"}):  # fmt: skip
        assert (await patch(**wrong)).status_code == 422, wrong
    gone = await house.client.patch(path[:-1], json={"is_read": True}, headers=token)
    assert gone.status_code == 404
    stranger = await house.client.patch(path, json={"is_read": True})
    assert stranger.status_code == 404


async def test_what_is_not_parsed_can_be_marked_and_not_tagged(house: House):
    """Tags are kept with the summary: until it is there, 503 and nothing is changed."""
    address, token = await house.mailbox()
    message = await house.deliver(address, letter("one"), parse=False)
    path = f"/api/v1/mailboxes/{address}/messages/{message}"
    answer = await house.client.patch(path, json={"is_read": True, "tags": ["x"]}, headers=token)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert [one["is_read"] for one in await listed(house, token)] == [False]
    answer = await house.client.patch(path, json={"is_read": True}, headers=token)
    assert (answer.json()["is_read"], answer.json()["snippet"]) == (True, None)


async def test_waits_in_all_mailboxes(house: House):
    """Woken by a commit in any mailbox that was not there when the wait began."""
    key = await house.key("read")
    answers: list[httpx.Response] = []

    async def wait(headers: dict[str, str], **params: Any) -> None:
        answers.append(
            await house.client.get(
                f"{BASE}/wait", params={"timeout": 20, **params}, headers=headers
            )
        )

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, key)
            await house.waiting()
            address, _ = await house.mailbox()
            await house.deliver(address, letter("somebody else's"))
            box = await mailbox_of(house, key)
            await house.deliver(box, letter("for the key"))
    assert (answers[0].json()["subject"], answers[0].json()["mailbox"]) == ("for the key", box)
    assert answers[0].json()["is_read"] is False
    assert answers[0].json()["body_text"].strip() == "text"
    nothing: dict[str, Any] = {"timeout": 0, "subject": "nowhere"}
    answer = await house.client.get(f"{BASE}/wait", params=nothing, headers=house.admin)
    assert answer.status_code == 204
    answer = await house.client.get(
        f"{BASE}/wait", params={**nothing, "empty": "null"}, headers=house.admin
    )
    assert (answer.status_code, answer.json()) == (200, None)
    for params in ({"to": box[:8]}, {"from": "ADA"}, {"subject": "the key"}):
        answer = await house.client.get(
            f"{BASE}/wait", params={"timeout": 0, **params}, headers=key
        )
        assert answer.json()["subject"] == "for the key", params
    assert (
        await house.client.get(f"{BASE}/wait?timeout=0&tag=nope", headers=key)
    ).status_code == 204
    after = answers[0].json()["id"]
    answer = await house.client.get(f"{BASE}/wait?timeout=0&after={after}", headers=house.admin)
    assert answer.status_code == 204


async def test_a_wait_with_a_session_token_ends_with_its_mailbox(house: House):
    """404 at the instant, as the wait in the mailbox itself."""
    address, token = await house.mailbox()
    answers: list[httpx.Response] = []

    async def wait() -> None:
        answers.append(await house.client.get(f"{BASE}/wait?timeout=20", headers=token))

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await house.waiting()
            await house.expire(address, 0.3)
            await house.pool.execute(
                "SELECT pg_notify('relay_mailboxes', id::text) FROM relay.mailboxes"
            )
    assert answers[0].status_code == 404


def events_of(house: House, headers: dict[str, str], count: int, seen: list[Any]) -> None:
    """Read so many events, each as its id and its entry."""
    url = f"http://127.0.0.1:{house.port}{BASE}/events"
    with httpx.stream("GET", url, headers=house.admin | headers, timeout=20) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        last = ""
        for line in response.iter_lines():
            if line.startswith("id: "):
                last = line[4:]
            if line.startswith("data: "):
                seen.append((last, json.loads(line[6:])))
                if len(seen) == count:
                    return


async def test_streams_of_all_mailboxes(house: House):
    """Each message once, wherever it arrives, in order; on behind the last one that was seen."""
    first, _ = await house.mailbox()
    seen: list[tuple[str, dict[str, Any]]] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, events_of, house, {}, 2, seen)
            await house.waiting()
            ids = [str(await house.deliver(first, letter("one")))]
            second, _ = await house.mailbox()
            ids.append(str(await house.deliver(second, letter("two"))))
        assert [one for one, _ in seen] == ids
        assert [entry["subject"] for _, entry in seen] == ["one", "two"]
        assert [entry["mailbox"] for _, entry in seen] == [first, second]
        again: list[tuple[str, dict[str, Any]]] = []
        await in_thread(events_of, house, {"Last-Event-ID": ids[0]}, 1, again)
        assert [one for one, _ in again] == ids[1:]


async def test_streams_tell_of_what_their_owner_may_see_alone(house: House):
    """Of changes in an owner's mailboxes, and none of another's: not even that there are some."""
    key = await house.key("read", "send")
    foreign, token = await house.mailbox()
    mine = await mailbox_of(house, key)
    theirs = await house.deliver(foreign)
    ids = [str(await house.deliver(mine)) for _ in range(2)]
    seen: list[tuple[str, dict[str, Any]]] = []
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, events_of, house, key, 2, seen)
            await house.waiting("relay_changes")
            url = f"/api/v1/mailboxes/{foreign}/messages"
            await house.client.delete(f"{url}/{theirs}", headers=token)
            await house.client.patch(f"{BASE}?q=*", json={"add_tags": ["a"]}, headers=key)
            await eventually(lambda: seen, "the tags are told")
            answer = await house.client.post(f"{BASE}/delete", json={"ids": ids}, headers=key)
            assert answer.json() == {"count": 2}
    assert sorted(one["id"] for one in seen[0][1]["changed"]) == ids
    assert [one["tags"] for one in seen[0][1]["changed"]] == [["a"], ["a"]]
    assert sorted(seen[1][1]["deleted"]) == ids


@pytest.mark.parametrize("purge", [False, True])
async def test_streams_tell_that_mail_went_with_its_mailbox(house: House, purge: bool):
    """Which messages that were, or where their rows are deleted, too, that there were some; of an
    empty mailbox, and of another owner's, nothing."""
    key = await house.key("read", "send")
    foreign, token = await house.mailbox()
    await house.deliver(foreign)
    empty, full = await mailbox_of(house, key), await mailbox_of(house, key)
    ids = [str(await house.deliver(full)) for _ in range(2)]
    seen: list[tuple[str, dict[str, Any]]] = []
    how = "?purge=true" if purge else ""
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, events_of, house, key, 1, seen)
            await house.waiting("relay_mailboxes")
            for address, credential in ((foreign, token), (empty, key), (full, key)):
                url = f"/api/v1/mailboxes/{address}{how if address == full else ''}"
                assert (await house.client.delete(url, headers=credential)).status_code == 204
    ((_, data),) = seen
    if not purge:
        assert sorted(data["deleted"]) == ids
    assert data == {"changed": [], "deleted": data["deleted"], "reread": purge}
