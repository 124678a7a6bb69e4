"""Mailpit's calls: their lists and searches, what they hold, what they change."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import httpx
import pytest
import trio

from relay.db.pool import Pool
from relay.metrics import registry
from relay.smtp.chaos import Rate
from tests.eventually import eventually
from tests.http.compat.test_compat import MAILPIT, letter, listed, nested
from tests.http.conftest import SMALL, House, open_house, unread
from tests.http.gate.test_gate import MISSING
from tests.http.resources.test_all_messages import mailbox_of

TO = ", ".join(f"{'😀' * 90} <ada{n}@x.example>" for n in range(40))


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
        ("PUT", "tags", b'{"IDs": [null]}'),
        ("PUT", "tags/x", b"{}"),
        ("PUT", "tags/x", b'{"Name": 7}'),
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


async def test_chaos_is_set_by_names_in_any_letters(house: House):
    """Of the triggers and of what is in them; what is out of range changes nothing."""

    async def put(**triggers: object) -> httpx.Response:
        return await house.client.put(f"{MAILPIT}/chaos", json=triggers, headers=house.admin)

    for names in (("Sender", "ErrorCode", "Probability"), ("sender", "errorcode", "probability")):
        trigger, code, probability = names
        assert (await put()).json()["Sender"]["Probability"] == 0
        assert (await put(**{trigger: {code: 450, probability: 100}})).status_code == 200
        assert house.chaos.rates == {"mail": Rate(450, 1.0)}
    faults: list[tuple[dict[str, object], str]] = [
        ({"Sender": 7}, "Sender: it must be an object."),
        ({"Sender": {"errorcode": 250}}, "Sender.ErrorCode: it must be from 400 to 599."),
        ({"Sender": {"ErrorCode": "451"}}, "Sender.ErrorCode: it must be a whole number."),
        ({"Sender": {"probability": 101}}, "Sender.Probability: it must be from 0 to 100."),
        ({"Sender": {"Probability": True}}, "Sender.Probability: it must be a whole number."),
    ]
    for triggers, said in faults:
        answer = await put(**triggers)
        assert (answer.status_code, answer.text) == (400, said)
    assert house.chaos.rates == {"mail": Rate(450, 1.0)}


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


async def test_filters_that_look_at_headers(house: House):
    """cc, bcc, reply-to, message-id, is:tagged and has:inline, and their opposites."""
    address, _ = await house.mailbox()
    plain = str(await house.deliver(address, letter(address)))
    fields = {"Cc": "Carl <carl@x.example>", "Reply-To": "r@x.example", "Message-ID": "<one@x>"}
    message = message_from_bytes(letter(**fields), EmailMessage, policy=policy.default)
    message.add_alternative('<img src="cid:logo@x.example">', subtype="html")
    _, html = message.iter_parts()
    html.add_related(b"PNG", "image", "png", cid="<logo@x.example>")
    full = str(await house.deliver(address, message.as_bytes()))
    await house.client.put(
        f"{MAILPIT}/tags", json={"IDs": [full], "Tags": ["a/b"]}, headers=house.admin
    )
    for query, wanted in (
        ("cc:CARL", [full]), ("-cc:carl", [plain]), ("reply-to:r@x", [full]),
        ("message-id:one@", [full]), (f"bcc:{address}", [full]), ("is:tagged", [full]),
        ("!is:tagged", [plain]), ("has:inline", [full]), ("-has:inline", [plain]),
        ('tag:"A B"', [full]), ("hello -message-id:one", [plain]),
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
