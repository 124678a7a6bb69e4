"""`POST …/mailpit/api/v1/send`: what becomes of a mail that Mailpit's clients give as JSON."""

from __future__ import annotations

import email
from base64 import b64encode
from collections.abc import AsyncIterator
from dataclasses import replace
from email import policy
from typing import Any
from uuid import UUID

import httpx
import pytest

from relay.db.pool import Pool
from relay.http.compat.mailpit.sending import MOST_RECIPIENTS
from relay.mailboxes.capture import Capture
from tests.http.conftest import SMALL, House, open_house

SEND = "/compat/mailpit/api/v1/send"
FROM = {"Email": "shop@shop.example", "Name": "Shop"}
ADA = {"Email": "Ada@customer.example", "Name": 'Ada "the <first>", Countess'}


@pytest.fixture
async def capturing(database_url: str, pool: Pool) -> AsyncIterator[House]:
    """A control plane of a relay that captures mail for others' domains.  Nothing parses what it
    stores, so nobody waits for that."""
    capture = Capture.beside(["relay.localhost"], 3600.0, 100)
    limits = replace(SMALL, unparsed_timeout=0.0)
    async with open_house(database_url, pool, limits, capture=capture) as house:
        yield house


async def send(house: House, headers: dict[str, str], **mail: Any) -> httpx.Response:
    """Send a mail to Ada, or what is given."""
    body = {"From": FROM, "To": [ADA], "Subject": "Hi", "Text": "x", **mail}
    return await house.client.post(SEND, json=body, headers=headers)


async def stored(house: House) -> dict[str, tuple[UUID, str, bytes]]:
    """Id, reverse-path and bytes of each message, by the address of its mailbox."""
    rows = await house.pool.fetch(
        "SELECT b.address, m.id, m.reverse_path, m.raw_email FROM relay.messages m"
        " JOIN relay.mailboxes b ON b.id = m.mailbox_id"
    )
    assert len({address for address, *_ in rows}) == len(rows)
    return {address: (id_, path, bytes(raw)) for address, id_, path, raw in rows}


async def test_a_mail_is_captured_for_all_of_its_recipients_and_queued_for_nobody(
    capturing: House,
):
    """Header fields, both texts, files and tags as they were given; Bcc in no header."""
    local, _ = await capturing.mailbox()
    answer = await send(
        capturing,
        capturing.admin,
        To=[ADA, {"Email": local}],
        Cc=[{"Email": "cc@customer.example", "Name": "Ünal, C"}],
        Bcc=["bcc@customer.example"],
        ReplyTo=[{"Email": "help@shop.example"}],
        Subject="Grüße",
        Text="Your code is 482913.",
        HTML="<b>482913</b>",
        Headers={"X-Order": "7"},
        Tags=["a tag", "two,three", "!"],
        Attachments=[
            {"Filename": "a.pdf", "Content": b64encode(b"%PDF").decode()},
            {"Filename": "b", "ContentType": "text/x-b", "Content": "eA=="},
        ],
    )
    assert answer.status_code == 200, answer.text
    found = await stored(capturing)
    assert set(found) == {
        *("ada@customer.example", "cc@customer.example", "bcc@customer.example", local)
    }
    assert {path for _, path, _ in found.values()} == {"shop@shop.example"}
    (raw,) = {raw for _, _, raw in found.values()}
    assert answer.json() == {"ID": str(min(id_ for id_, _, _ in found.values()))}
    mail = email.message_from_bytes(raw, policy=policy.default)
    assert [str(mail[name]) for name in ("From", "Reply-To", "Subject", "X-Order", "X-Tags")] == [
        *("Shop <shop@shop.example>", "help@shop.example", "Grüße", "7", "a tag, two three")
    ]
    assert [one.display_name for one in (*mail["To"].addresses, *mail["Cc"].addresses)] == [
        *(ADA["Name"], "", "Ünal, C")
    ]
    assert b"bcc" not in raw.lower()
    for kind, said in (("plain", "Your code is 482913."), ("html", "<b>482913</b>")):
        body = mail.get_body((kind,))
        assert body is not None
        assert body.get_content().strip() == said
    files = [
        (one.get_filename(), one.get_content_type(), one.get_payload(decode=True))
        for one in mail.iter_attachments()
    ]
    assert files == [("a.pdf", "application/pdf", b"%PDF"), ("b", "text/x-b", b"x")]
    assert await capturing.pool.fetch_value("SELECT count(*) FROM relay.outbound_messages") == 0


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"From": None}, "From: it must be an object."),
    ({"From": {"Email": "x"}}, "From: it is not an address (local-part@domain)."),
    ({"From": {**FROM, "Name": "a\nBcc: b"}}, "From: it holds a control character"),
    ({"To": None}, "To: it names nobody."),
    ({"To": ADA}, "To: it must be a list."),
    ({"Cc": ["a@b.example"]}, "Cc[0]: it must be an object."),
    ({"Bcc": [{"Email": "a@b.example"}]}, "Bcc[0]: it must be a text."),
    ({"Bcc": ["a@b.example"] * MOST_RECIPIENTS}, "To: it has over 100 recipients"),
    ({"Subject": "a\r\nBcc: b@c.example"}, "subject: it holds a control character"),
    ({"Subject": 7}, "Subject: it must be a text."),
    ({"Text": "x" * 5_000_001}, "Text: it has over 5,000,000 characters."),
    ({"Headers": {"X-A": "a\nb"}}, "holds a control character or a line break."),
    ({"Headers": {"Message-ID": "<a@b>"}}, "is made by the relay and cannot be given."),
    ({"Headers": {"cc": "a@b.example"}, "Cc": [ADA]}, "'cc', which another member makes."),
    ({"Headers": ["X-A"]}, "Headers: it must be an object."),
    ({"Headers": {"X-A": 7}}, "Headers.X-A: it must be a text."),
    ({"Tags": "a"}, "Tags: it must be a list."),
    ({"Tags": [7]}, "Tags[0]: it must be a text."),
    ({"Attachments": [{"Filename": 7}]}, "Attachments[0].Filename: it must be a text."),
    ({"Attachments": [{"Content": "!"}]}, "Attachments[0].Content: it is not base64."),
    ({"Attachments": [{"Content": "", "ContentID": "a"}]}, "Attachments[0].ContentID: it is not"),
    ({"To": [{"Email": "a@relay.localhost"}, ADA]}, "captured for: a@relay.localhost."),
]


async def test_what_is_wrong_is_named_and_nothing_is_kept(capturing: House):
    """In Mailpit's JSON of an error; one recipient that is nobody's is enough."""
    for mail, said in FAULTS:
        answer = await send(capturing, capturing.admin, **mail)
        assert answer.status_code == 400, mail
        assert list(answer.json()) == ["Error"]
        assert said in answer.json()["Error"], mail
    for body in (b"", b"[]", b"{", b"[" * 100_000):
        answer = await capturing.client.post(SEND, content=body, headers=capturing.admin)
        assert (answer.status_code, list(answer.json())) == (400, ["Error"]), body[:9]
    assert await stored(capturing) == {}


async def test_a_mail_is_as_large_as_smtp_would_take(database_url: str, pool: Pool):
    """And no larger."""
    async with open_house(database_url, pool, max_message_bytes=2000) as house:
        answer = await send(house, house.admin, Text="x" * 2000)
    assert (answer.status_code, answer.json()) == (400, {"Error": "The mail has over 2,000 bytes."})


async def test_where_nothing_is_captured_a_mailbox_is_needed(house: House):
    """As SMTP refuses such a recipient."""
    answer = await send(house, house.admin)
    said = "There is no such mailbox here, and nothing is captured for: Ada@customer.example."
    assert (answer.status_code, answer.json()) == (400, {"Error": said})
    assert await stored(house) == {}


async def test_a_key_puts_mail_into_its_own_mailboxes_alone(capturing: House):
    """Another's and what would be captured are refused, and so are names of the relay's own."""
    key = await capturing.key("send", "read")
    made = await capturing.client.post("/api/v1/mailboxes", headers=key)
    own, (other, _) = made.json()["address"], await capturing.mailbox()
    for address in ("ada@customer.example", other):
        answer = await send(capturing, key, To=[{"Email": own}], Bcc=[address])
        assert answer.status_code == 403
        assert address in answer.json()["Error"]
    named = {"Email": "postmaster@relay.localhost"}
    assert (await send(capturing, key, From=named, To=[{"Email": own}])).status_code == 403
    assert (await send(capturing, await capturing.key("read"))).status_code == 403
    assert await stored(capturing) == {}
    assert (await send(capturing, key, To=[{"Email": own}])).status_code == 200
    assert set(await stored(capturing)) == {own}
