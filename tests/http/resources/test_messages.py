"""Reading what arrived: lists, whole messages, raw bytes, previews, attachments."""

import base64
import contextlib
import functools
import os
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import trio

from relay.db.pool import Pool
from relay.mailboxes.messages import Messages
from tests.eventually import eventually
from tests.http.conftest import LETTER, SMALL, House, open_house, unread

BASE = "/api/v1/mailboxes"

MIXED = (
    b"From: Ada <ada@example.org>\r\nSubject: files\r\nMIME-Version: 1.0\r\n"
    b"Content-Type: multipart/mixed; boundary=b\r\n\r\n"
    b"--b\r\nContent-Type: text/html\r\n\r\n<script>alert(1)</script><p>Hi</p>\r\n"
    b"--b\r\nContent-Type: text/html; name=x.html\r\n"
    b"Content-Disposition: attachment; filename=\"../../etc/x.html\"\r\n"
    b"Content-Transfer-Encoding: base64\r\n\r\n" + base64.b64encode(b"<b>\x00\xff") + b"\r\n"
    b"--b--\r\n"
)  # fmt: skip


BODY = "\x01" * 800_000
CONTROLS = b"Subject: x\r\n\r\n" + BODY.encode()
"""Whose JSON has 4.8 MB: six bytes for each."""


async def test_messages_are_listed_newest_first_by_limit_offset_and_cursor(house: House):
    """Offset and cursor give the same rows; the last page has no Link."""
    address, token = await house.mailbox()
    ids = [str(await house.deliver(address)) for _ in range(5)][::-1]
    url = f"{BASE}/{address}/messages"
    everything = (await house.client.get(url, headers=token)).json()
    assert [item["id"] for item in everything] == ids
    assert everything[0] == {
        "id": ids[0],
        "from_address": "ada@example.org",
        "subject": "Hello",
        "received_at": everything[0]["received_at"],
        "is_read": False,
        "has_attachments": False,
        "size": len(LETTER),
        "mailbox": address,
        "tags": [],
        "snippet": everything[0]["snippet"],
        "from_name": everything[0]["from_name"],
        "otp": "482913",
    }
    assert "482913" in everything[0]["snippet"]
    part = await house.client.get(url, params={"limit": 2, "offset": 1}, headers=token)
    assert [item["id"] for item in part.json()] == ids[1:3]
    rest = await house.client.get(part.links["next"]["url"], headers=token)
    assert [item["id"] for item in rest.json()] == ids[3:]
    assert "next" not in rest.links
    for wrong in ({"limit": 0}, {"limit": "x"}, {"offset": -1}, {"cursor": "nonsense"}):
        assert (await house.client.get(url, params=wrong, headers=token)).status_code == 422


async def test_search_finds_sender_subject_and_body_in_any_case(house: House):
    """Patterns of SQL are only characters."""
    address, token = await house.mailbox()
    await house.deliver(address)
    url = f"{BASE}/{address}/messages"
    for needle, count in (("ADA@", 1), ("hello", 1), ("482913", 1), ("%", 0), ("\x00", 0)):
        found = await house.client.get(url, params={"q": needle}, headers=token)
        assert len(found.json()) == count, needle


CLIENT = Path(__file__).parents[3] / "clients/python/src"
SEARCHES = """
import sys
from relay_client import Relay

url, address, token = sys.argv[1:]
with Relay(url, None) as relay:
    print(*(one.id for one in relay.mailbox(address, token).search("needle")))
"""


async def test_a_search_that_finds_nothing_for_a_while_is_gone_on_with(
    database_url: str, pool: Pool
) -> None:
    """Its pages are empty until then, and each names the next; the Python client reads on."""
    slow = Messages(pool, seconds=0.0, longest=2)
    async with open_house(database_url, pool, messages=slow) as house:
        address, token = await house.mailbox()
        wanted = str(await house.deliver(address, LETTER.replace(b"Hello", b"needle")))
        for _ in range(6):
            await house.deliver(address)
        url, pages = f"{BASE}/{address}/messages?q=needle", []
        while url:
            answer = await house.client.get(url, headers=token)
            pages.append([one["id"] for one in answer.json()])
            url = answer.links.get("next", {}).get("url", "")
        assert pages == [[], [], [], [wanted]]
        done = await trio.run_process(
            [
                *(sys.executable, "-c", SEARCHES),
                *(str(house.client.base_url), address, token["X-Session-Token"]),
            ],
            env={**os.environ, "PYTHONPATH": str(CLIENT)},
            capture_stdout=True,
        )
        assert done.stdout.decode().split() == [wanted]


async def test_a_message_is_listed_before_it_is_parsed(house: House):
    """Until then the reverse-path stands for the sender and the subject is null."""
    address, token = await house.mailbox()
    await house.deliver(address, parse=False)
    (entry,) = (await house.client.get(f"{BASE}/{address}/messages", headers=token)).json()
    assert entry["from_address"] == "bounce@example.org"
    assert entry["subject"] is None


@pytest.mark.parametrize("q", [None, "hello"])
async def test_a_list_of_whole_messages_is_what_reading_each_gives(house: House, q: str | None):
    """And where it is, besides, as lists show it; each is marked read, and pages go on."""
    address, token = await house.mailbox()
    ids = [str(await house.deliver(address)) for _ in range(3)][::-1]
    url = f"{BASE}/{address}/messages"
    asked = {"whole": "true", "limit": "2", **({} if q is None else {"q": q})}
    first = await house.client.get(url, params=asked, headers=token)
    entries = (await house.client.get(url, headers=token)).json()
    assert [entry["is_read"] for entry in entries] == [True, True, False]
    rest = await house.client.get(first.links["next"]["url"], headers=token)
    assert "next" not in rest.links
    whole = [*first.json(), *rest.json()]
    entries = (await house.client.get(url, headers=token)).json()
    read = [(await house.client.get(f"{url}/{one}", headers=token)).json() for one in ids]
    assert whole == [one | entry for one, entry in zip(read, entries, strict=True)]
    wrong = await house.client.get(url, params={"whole": "maybe"}, headers=token)
    assert wrong.status_code == 422


@pytest.mark.parametrize("q", [None, "hello"])
async def test_a_list_of_whole_messages_waits_for_what_has_come(house: House, q: str | None):
    """Who lists or searches right after a 250 is given all of it, parsed; a list of lines, a page
    behind a cursor and another mailbox's reader wait for none of it."""
    address, token = await house.mailbox()
    other, theirs = await house.mailbox()
    before = [str(await house.deliver(address)) for _ in range(2)]
    url, asked = f"{BASE}/{address}/messages", {"whole": "true"} | ({} if q is None else {"q": q})
    first = await house.client.get(url, params=asked | {"limit": "1"}, headers=token)
    accepted = await house.deliver(address, parse=False)
    with trio.fail_after(SMALL.unparsed_timeout):
        rest = await house.client.get(first.links["next"]["url"], headers=token)
        lines = await house.client.get(url, headers=token)
        others = await house.client.get(f"{BASE}/{other}/messages", params=asked, headers=theirs)
    assert [one["id"] for one in rest.json()] == before[:1]
    assert [one["subject"] for one in lines.json()] == [None, "Hello", "Hello"]
    assert others.json() == []
    answers: list[httpx.Response] = []

    async def ask() -> None:
        answers.append(await house.client.get(url, params=asked, headers=token))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await house.waiting()
        assert answers == []
        await house.parse(accepted)
    found = answers[0].json()
    assert [one["id"] for one in found] == [str(accepted), *before[::-1]]
    assert (found[0]["subject"], found[0]["otp"]) == ("Hello", "482913")


async def test_a_list_of_whole_messages_does_not_wait_long(database_url: str, pool: Pool):
    """What cannot be parsed is given as it is, after the time that a list waits."""
    async with open_house(database_url, pool, replace(SMALL, unparsed_timeout=0.3)) as house:
        address, token = await house.mailbox()
        wanted = await house.deliver(address, parse=False)
        url, began = f"{BASE}/{address}/messages", trio.current_time()
        found = await house.client.get(url, params={"whole": "true"}, headers=token)
        assert trio.current_time() - began >= 0.3
        assert [(one["id"], one["subject"]) for one in found.json()] == [(str(wanted), None)]


async def test_reading_a_message_gives_everything_and_marks_it_read(house: House):
    """The code is found; the list shows it as read afterwards; deleting removes it."""
    address, token = await house.mailbox()
    wanted = await house.deliver(address)
    url = f"{BASE}/{address}/messages/{wanted}"
    message = (await house.client.get(url, headers=token)).json()
    assert message["otp"] == "482913"
    assert message["to"] == address
    assert message["headers"]["Subject"] == "Hello"
    assert message["is_read"] is True
    (entry,) = (await house.client.get(f"{BASE}/{address}/messages", headers=token)).json()
    assert entry["is_read"] is True
    assert (await house.client.delete(url, headers=token)).status_code == 204
    gone = await house.client.get(url, headers=token)
    assert gone.status_code == 404
    assert gone.json()["type"] == "/problems/message-not-found"


async def test_another_mailboxs_message_is_not_there(house: House):
    """A message id of a stranger opens nothing in one's own mailbox."""
    theirs, _ = await house.mailbox()
    address, token = await house.mailbox()
    wanted = await house.deliver(theirs)
    for suffix in ("", "/raw", "/html", "/attachments/0"):
        url = f"{BASE}/{address}/messages/{wanted}{suffix}"
        assert (await house.client.get(url, headers=token)).status_code == 404
    nonsense = f"{BASE}/{address}/messages/nonsense"
    assert (await house.client.get(nonsense, headers=token)).status_code == 404


async def test_raw_is_byte_for_byte_also_when_large(house: House):
    """Every byte value and megabytes of them come back as they were."""
    address, token = await house.mailbox()
    raw = b"Subject: x\r\n\r\n" + bytes(range(256)) * 20_000
    wanted = await house.deliver(address, raw, parse=False)
    response = await house.client.get(f"{BASE}/{address}/messages/{wanted}/raw", headers=token)
    assert response.content == raw
    assert response.headers["Content-Type"] == "message/rfc822"
    assert response.headers["Content-Length"] == str(len(raw))


async def test_slow_readers_keep_nobody_from_reading(database_url: str, pool: Pool):
    """Whoever reads slowly holds a piece, not the message, and of all pieces a quarter."""
    limits = replace(SMALL, download_bytes=4 << 20)
    async with open_house(database_url, pool, limits) as house:
        address, token = await house.mailbox()
        raw = b"Subject: x\r\n\r\n" + bytes(8_000_000)
        wanted = await house.deliver(address, raw, parse=False)
        path = f"{BASE}/{address}/messages/{wanted}/raw"
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, token) for _ in range(5)]
            assert answers == [b"HTTP/1.1 200"] * 4 + [b"HTTP/1.1 503"]
            shown = await house.client.get(path, headers=house.admin)
            assert shown.content == raw
        # What they held comes back.
        await eventually(
            lambda: house.client.get(path, headers=token),
            "it is shown again",
            until=lambda answer: answer.content == raw,
        )


@pytest.mark.parametrize(
    "path",
    [
        f"{BASE}/{{address}}/messages/{{id}}",
        f"{BASE}/{{address}}/messages?whole=true",
        f"{BASE}/{{address}}/messages/wait",
        "/api/v1/messages/wait",
    ],
)
async def test_large_json_is_held_until_it_was_sent(database_url: str, pool: Pool, path: str):
    """Whoever does not read has a quarter of the memory, counted as it is sent: six bytes for one
    of the mail."""
    limits = replace(SMALL, streams_per_mailbox=9, download_bytes=80 << 20)
    async with open_house(database_url, pool, limits) as house:
        address, token = await house.mailbox()
        wanted = await house.deliver(address, CONTROLS)
        path = path.format(address=address, id=wanted)
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, token) for _ in range(5)]
            assert answers == [b"HTTP/1.1 200"] * 4 + [b"HTTP/1.1 503"]
            shown = await house.client.get(path, headers=house.admin)
            assert shown.headers["Content-Length"] == str(len(shown.content))
            found = shown.json()
            assert (found[0] if isinstance(found, list) else found)["body_text"] == BODY
        await eventually(
            lambda: house.client.get(path, headers=token),
            "it is given again",
            until=lambda answer: answer.status_code == 200,
        )


@pytest.mark.parametrize("path", ["{id}", "?whole=true&q=is:unread"])
async def test_what_there_is_no_room_for_staysunread(database_url: str, pool: Pool, path: str):
    """And is marked once it could be given."""
    limits = replace(SMALL, download_bytes=4 << 20)
    async with open_house(database_url, pool, limits) as house:
        address, token = await house.mailbox()
        base = f"{BASE}/{address}/messages"
        held = f"{base}/{await house.deliver(address, CONTROLS)}"
        async with contextlib.AsyncExitStack() as peers:
            assert await unread(peers, house.port, held, token) == b"HTTP/1.1 200"
            wanted = await house.deliver(address, CONTROLS)
            url = f"{base}/{path.format(id=wanted)}".replace("/?", "?")
            refused = await house.client.get(url, headers=token)
            assert refused.status_code == 503
            listed = await house.client.get(base, headers=token)
            assert [one["is_read"] for one in listed.json()] == [False, True]
        given = await eventually(
            lambda: house.client.get(url, headers=token),
            "it is given",
            until=lambda answer: answer.status_code == 200,
        )
        found = given.json()
        assert (found[0] if isinstance(found, list) else found)["is_read"] is True
        listed = await house.client.get(base, headers=token)
        assert [one["is_read"] for one in listed.json()] == [True, True]


@pytest.mark.parametrize("path", [f"{BASE}/{{address}}/messages", "/api/v1/messages"])
async def test_lists_show_the_beginning_of_a_long_subject(house: House, path: str):
    """And of one that is no longer than a line may be, all; a message itself has all of both."""
    address, _ = await house.mailbox()
    for length in (16_000, 1000):
        await house.deliver(address, f"Subject: {'€' * length}\r\n\r\n".encode())
    listed = await house.client.get(path.format(address=address), headers=house.admin)
    assert [one["subject"] for one in listed.json()] == ["€" * 1000, "€" * 999 + "…"]
    url = f"{BASE}/{address}/messages/{listed.json()[1]['id']}"
    shown = await house.client.get(url, headers=house.admin)
    assert shown.json()["subject"] == "€" * 16_000


WIDE = f"Subject: {'😀' * 16_000}\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{'😀' * 5000}"
"""Whose entry takes 20 KB: four bytes for each character."""


@pytest.mark.parametrize(
    "path",
    [
        f"{BASE}/{{address}}/messages",
        "/api/v1/messages",
        f"{BASE}/{{address}}/events?last_event_id={{id}}",
        "/api/v1/messages/events?last_event_id={id}",
    ],
)
async def test_large_entries_are_given_where_there_is_room(
    database_url: str, pool: Pool, path: str
):
    """Who reads nothing of what was asked for before gets no page of them; a stream ends."""
    limits = replace(SMALL, download_bytes=4 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        made = await house.client.post(BASE, json={}, headers=key)
        address = made.json()["address"]
        first = await house.deliver(address, CONTROLS)
        for _ in range(4):
            await house.deliver(address, WIDE.encode())
        path = path.format(address=address, id=first)

        def begins() -> bytes:
            found = b""
            url = f"http://127.0.0.1:{house.port}{path}"
            with httpx.stream("GET", url, headers=key, timeout=10) as answer:
                if answer.status_code == 503:
                    return found
                for piece in answer.iter_bytes():
                    found += piece
                    if "😀".encode() in found:
                        break
            return found

        async with contextlib.AsyncExitStack() as peers:
            held = f"{BASE}/{address}/messages/{first}"
            assert await unread(peers, house.port, held, key) == b"HTTP/1.1 200"
            assert await trio.to_thread.run_sync(begins) in (b"", b"retry: 1000\n\n")
        await eventually(
            lambda: trio.to_thread.run_sync(begins),
            "they are given",
            until=lambda found: len(found) > 100,
        )


@pytest.mark.parametrize("raw", [LETTER, CONTROLS], ids=["short", "long"])
@pytest.mark.parametrize(
    "path",
    [
        f"{BASE}/{{address}}/messages/{{id}}",
        f"{BASE}/{{address}}/messages?whole=true",
        "/compat/mailpit/api/v1/message/{id}",
    ],
)
async def test_head_marks_nothing_read(house: House, path: str, raw: bytes):
    """It has the headers of GET, which marks it."""
    address, _ = await house.mailbox()
    path = path.format(address=address, id=await house.deliver(address, raw))
    heads = []
    for method, is_read in (("HEAD", False), ("GET", True)):
        answer = await house.client.request(method, path, headers=house.admin)
        assert answer.status_code == 200
        heads.append(answer.headers["Content-Length"])
        (entry,) = (
            await house.client.get(f"{BASE}/{address}/messages", headers=house.admin)
        ).json()
        assert entry["is_read"] is is_read
    assert heads[0] == heads[1]


async def test_a_message_that_is_deleted_while_it_is_read_ends_short(
    house: House, capfd: pytest.CaptureFixture[str]
):
    """The reader sees that bytes are missing; it is no error of ours."""
    address, token = await house.mailbox()
    wanted = await house.deliver(address, bytes(16_000_000), parse=False)
    path = f"{BASE}/{address}/messages/{wanted}/raw"
    with pytest.raises(httpx.RemoteProtocolError):
        async with house.client.stream("GET", path, headers=token) as response:
            assert response.status_code == 200
            await house.pool.execute("DELETE FROM relay.messages WHERE id = %s", (wanted,))
            async for _ in response.aiter_bytes():
                pass
    assert (await house.client.get("/healthz")).status_code == 200
    assert "Traceback" not in "".join(capfd.readouterr())


async def test_raw_bytes_come_as_bytes_to_who_asks_for_those(house: House):
    """As `application/octet-stream` where Accept says that and no more; the log, too."""
    address, token = await house.mailbox()
    wanted = await house.deliver(address, MIXED)
    url = f"{BASE}/{address}/messages/{wanted}/raw"
    for path, headers, kind in (
        (url, token, "message/rfc822"),
        ("/api/v1/logs", house.admin, "application/x-ndjson"),
    ):
        for accept in ("*/*", "application/octet-stream, */*", kind):
            plain = await house.client.get(path, headers=headers | {"Accept": accept})
            assert plain.headers["Content-Type"] == kind
        asked = {"Accept": "application/octet-stream"}
        given = await house.client.get(path, headers=headers | asked)
        assert given.headers["Content-Type"] == "application/octet-stream"
    assert (await house.client.get(url, headers=token | asked)).content == MIXED


async def test_an_attachment_is_a_download_under_a_bare_name(house: House):
    """HTML is no page here: octet-stream, attachment, nosniff, no path in the name."""
    address, token = await house.mailbox()
    wanted = await house.deliver(address, MIXED)
    url = f"{BASE}/{address}/messages/{wanted}"
    (listed,) = (await house.client.get(url, headers=token)).json()["attachments"]
    response = await house.client.get(f"{url}/attachments/{listed['index']}", headers=token)
    assert response.content == b"<b>\x00\xff"
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Content-Disposition"].startswith('attachment; filename="x.html"')
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    for index in ("1", "99999999", "-1", "x"):
        missing = await house.client.get(f"{url}/attachments/{index}", headers=token)
        assert missing.status_code == 404


async def test_an_offset_that_skips_too_much_says_what_to_do(house: House, monkeypatch):
    """Not that a store is gone: the same call would end so again."""
    address, token = await house.mailbox()
    for number in range(3):
        await house.deliver(address, f"Subject: order {number}\r\n\r\nx".encode())
    too_slow = Messages(house.pool, seconds=-60, longest=1)
    page = functools.partial(Messages.page, too_slow)
    monkeypatch.setattr(Messages, "page", staticmethod(page))
    url = f"/api/v1/mailboxes/{address}/messages"
    params: dict[str, str | int] = {"q": "order", "limit": 1, "offset": 2}
    answer = await house.client.get(url, params=params, headers=token)
    assert answer.status_code == 503
    detail = answer.json()["detail"]
    assert detail.startswith("The offset skips more matches than a search finds")
    assert "cursor" in detail
    assert "before:" in detail
    del params["offset"]
    answer = await house.client.get(url, params=params, headers=token)
    assert answer.status_code == 200
