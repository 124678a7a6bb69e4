"""The page of a bulk mail's link, and what mail programs post to it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
import structlog
import trio
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.datadir import DataDir
from relay.db.migrate import migrate
from relay.db.pool import Pool
from relay.http.mailed import texts
from relay.http.mailed.pages import POLICY
from relay.http.mailed.texts import (
    UNSUBSCRIBE,
    UNSUBSCRIBE_ASK,
    UNSUBSCRIBE_DEAD,
    UNSUBSCRIBED,
    UNSUBSCRIBED_HINT,
)
from relay.keyring import Keyring
from relay.outbound.suppression.unsubscribing import Link, Unsubscribing
from relay.webhooks.kinds import KINDS
from relay.webhooks.store import Webhooks
from tests.db.cluster import Cluster
from tests.http.conftest import House, open_house
from tests.http.resources.test_tokens import Form
from tests.outbound.node import put

ADA = "ada@x.example"
PAGE = "/unsubscribe"
ONE_CLICK = b"List-Unsubscribe=One-Click"
URLENCODED = "application/x-www-form-urlencoded"


def token_of(link: Link, keyring: Keyring) -> str:
    url = Unsubscribing("https://relay.example", lambda: keyring.signing).url_of(link)
    return url.partition("?token=")[2]


async def mailed(house: House, owner: UUID = ADMINISTRATOR_ID, to: str = ADA) -> str:
    """Queue a bulk mail; the token of its link."""
    (queued,) = await put(house.pool, to, owner=owner, priority="bulk")
    return token_of(Link(owner, queued.id, to), house.keyring)


async def click(
    house: House, token: str, body: bytes = ONE_CLICK, kind: str | None = URLENCODED, **headers: str
) -> httpx.Response:
    """Post what a mail program posts."""
    if kind is not None:
        headers["Content-Type"] = kind
    return await house.client.post(PAGE, params={"token": token}, content=body, headers=headers)


async def unsubscribed(pool: Pool) -> list[tuple[UUID, str, str]]:
    """Owner, address and cause of every suppression."""
    rows = await pool.fetch("SELECT owner, address, cause FROM relay.suppressions ORDER BY 1, 2")
    return [(row[0], row[1], row[2]) for row in rows]


DONE = [(ADMINISTRATOR_ID, ADA, "unsubscribed")]


def form(answer: httpx.Response) -> Form:
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert "set-cookie" not in answer.headers
    return Form(answer.text)


async def test_a_person_is_asked_and_a_look_changes_nothing(house: House):
    """GET and HEAD; the page says whose mail to whom it is about, and not whether it was used."""
    token = await mailed(house)
    answer = await house.client.get(PAGE, params={"token": token})
    assert answer.status_code == 200
    page = form(answer)
    assert page.action == "unsubscribe"
    assert page.fields == {"token": token, "List-Unsubscribe": "One-Click"}
    assert "script" not in page.tags
    assert f"<dd>{ADA}</dd>" in answer.text
    assert "<dt>From</dt><dd>sender@example.org</dd>" in answer.text
    assert (await house.client.head(PAGE, params={"token": token})).status_code == 200
    assert await unsubscribed(house.pool) == []
    # A browser posts the form to the page's own directory, with its origin.
    origin = f"http://127.0.0.1:{house.port}"
    done = await house.client.post(page.action, data=page.fields, headers={"Origin": origin})
    assert done.status_code == 200
    assert form(done).action is None
    assert "You are unsubscribed" in done.text
    assert ADA in done.text
    assert await unsubscribed(house.pool) == DONE
    again = await house.client.get(PAGE, params={"token": token})
    assert (again.status_code, again.content) == (200, answer.content)


async def test_a_forgotten_message_is_named_by_its_address_alone(house: House):
    """Nobody knows any more who sent it; and a link that is not one of ours names nobody."""
    token = token_of(Link(ADMINISTRATOR_ID, UUID(int=7), "<b>@x.example"), house.keyring)
    asked = await house.client.get(PAGE, params={"token": token})
    assert "<dl><dt>To</dt><dd>&lt;b&gt;@x.example</dd></dl>" in asked.text
    dead = await house.client.get(PAGE, params={"token": token[:-1]})
    assert dead.status_code == 400
    assert "x.example" not in dead.text


BOUNDARY = "multipart/form-data; boundary=x"
PARTS = (
    b'--x\r\nContent-Disposition: form-data; name="List-Unsubscribe"\r\n\r\nOne-Click\r\n--x--\r\n'
)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (URLENCODED, ONE_CLICK),
        (f"{URLENCODED}; charset=UTF-8", ONE_CLICK + b"&more=1"),
        (URLENCODED, b"list-unsubscribe=one-click%0D%0A"),
        (URLENCODED, ONE_CLICK + b"\r\n"),
        (None, ONE_CLICK),
        ("text/plain", ONE_CLICK),
        (BOUNDARY, PARTS),
        ('Multipart/Form-Data; BOUNDARY="x"', b"\r\n" + PARTS),
        (BOUNDARY, PARTS.replace(b"--x\r\n", b"--x\r\nContent-Type: text/plain\r\n", 1)),
    ],
)
@pytest.mark.parametrize("origin", [None, "null", "https://webmail.example"])
async def test_a_mail_program_is_not_asked(
    house: House, kind: str | None, body: bytes, origin: str | None
):
    """Either form, from any origin, with whatever it says of itself; as often as it likes."""
    token = await mailed(house)
    headers = {} if origin is None else {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    for _ in range(2):
        answer = await click(house, token, body, kind, **headers)
        assert answer.status_code == 200, answer.text
        assert not answer.history
        form(answer)
        assert await unsubscribed(house.pool) == DONE


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (URLENCODED, b""),
        (URLENCODED, b"List-Unsubscribe="),
        (URLENCODED, b"List-Unsubscribe=Two-Clicks"),
        (URLENCODED, b"Unsubscribe=One-Click"),
        (URLENCODED, b"List-Unsubscribe%00=One-Click"),
        (URLENCODED, b"\xff\xfe=\x00"),
        ("application/json", b'{"List-Unsubscribe": "One-Click"}'),
        ("multipart/form-data", PARTS),
        (BOUNDARY, PARTS[:-20]),
        (BOUNDARY, b"--x\r\n" * 100),
        (BOUNDARY, PARTS.replace(b"One-Click", b"x")),
        (f"multipart/form-data; boundary={'x' * 500}", PARTS),
        (BOUNDARY, PARTS.replace(b'"List-Unsubscribe"', b'"List-Unsubscribe"; filename="a"')),
    ],
)
async def test_what_does_not_say_so_changes_nothing(house: House, kind: str, body: bytes):
    """400, and the person is asked."""
    token = await mailed(house)
    answer = await click(house, token, body, kind)
    assert answer.status_code == 400
    assert form(answer).fields["token"] == token
    assert await unsubscribed(house.pool) == []


async def test_a_body_that_is_too_long_is_not_read(house: House):
    """413."""
    answer = await click(house, await mailed(house), ONE_CLICK + b"&" + b"x" * 5000)
    assert answer.status_code == 413
    assert await unsubscribed(house.pool) == []


async def test_a_link_of_nobody_is_one_page_and_changes_nothing(house: House):
    """Forged, cut, of other keys, hostile: 400, byte for byte the same, for GET and POST."""
    token = await mailed(house)
    strangers = Keyring(DataDir(Path("none")), "6b" * 32, Fernet.generate_key().decode())
    link = Link(ADMINISTRATOR_ID, UUID(int=1), ADA)
    seen = set()
    for hostile in (
        *(token[:-1], token[1:], token + "A", token.swapcase(), "", "x", token * 5),
        *(token_of(link, strangers), "<script>alert(1)</script>", '"><img src=x>', "\0", "é" * 70),
        *("%", "../../etc/passwd", "' OR '1'='1", "A" * 86),
    ):
        for answer in (
            await house.client.get(PAGE, params={"token": hostile}),
            await click(house, hostile),
            await click(house, "", ONE_CLICK + b"&token=" + quote(hostile).encode()),
        ):
            assert answer.status_code == 400, hostile
            assert form(answer).action is None
            seen.add(answer.content)
    seen.add((await house.client.get(PAGE)).content)
    assert len(seen) == 1
    assert await unsubscribed(house.pool) == []
    twice = await house.client.post(f"{PAGE}?token={token}&token={token}", content=ONE_CLICK)
    assert twice.status_code == 422
    assert await unsubscribed(house.pool) == []


async def test_only_other_methods_are_refused(house: House):
    """Nothing else than GET, HEAD and POST is there."""
    token = await mailed(house)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = await house.client.request(method, PAGE, params={"token": token})
        assert answer.status_code == 405
    assert await unsubscribed(house.pool) == []


async def test_a_link_counts_for_its_own_owner(house: House):
    """Not for the administrator nor another key; its owner sees it, and takes it back."""
    one, token = await house.keys.create("one", ["send"], "pro")
    headers = {"Authorization": f"Bearer {token}"}
    other = await house.key("send")
    assert (await click(house, await mailed(house, one.id))).status_code == 200
    assert await unsubscribed(house.pool) == [(one.id, ADA, "unsubscribed")]

    async def listed(by: dict[str, str]) -> Any:
        return (await house.client.get("/api/v1/suppressions", headers=by)).json()

    (entry,) = await listed(headers)
    assert (entry["address"], entry["cause"]) == (ADA, "unsubscribed")
    assert await listed(other) == await listed(house.admin) == []

    async def send(by: dict[str, str], priority: str) -> httpx.Response:
        message = {"from": "s@x.example", "to": ["Bob@x.example", ADA], "subject": "s", "text": "t"}
        return await house.client.post(
            "/api/v1/messages/send", json={**message, "priority": priority}, headers=by
        )

    refused = await send(headers, "bulk")
    assert (refused.status_code, refused.json()["type"]) == (422, "/problems/suppressed")
    assert ADA not in refused.json()["detail"]
    for by, priority in ((headers, "normal"), (headers, "high"), (other, "bulk")):
        assert (await send(by, priority)).status_code == 202
    url = f"/api/v1/suppressions/{ADA}"
    assert (await house.client.delete(url, headers=other)).status_code == 404
    assert (await house.client.delete(url, headers=headers)).status_code == 204
    assert (await send(headers, "bulk")).status_code == 202


async def test_links_outlast_rotations_until_their_key_is_forgotten(
    database_url: str, pool: Pool, tmp_path: Path
):
    """The fifth rotation forgets it: then the link is nobody's."""
    keyring = Keyring(DataDir(tmp_path))
    async with open_house(database_url, pool, keyring=keyring) as house:
        old = await mailed(house)
        for _ in range(Keyring.OLD_SIGNING_KEYS):
            keyring.renew_signing()
        assert (await house.client.get(PAGE, params={"token": old})).status_code == 200
        keyring.renew_signing()
        assert (await click(house, old)).status_code == 400
        assert await unsubscribed(pool) == []
        assert (await click(house, await mailed(house))).status_code == 200


async def test_it_is_told_once_and_the_log_names_no_address(house: House):
    """One event; log lines have the message's id, and neither token nor address."""
    await Webhooks(house.pool).put(ADMINISTRATOR_ID, "https://shop.example/hook", KINDS)
    token = await mailed(house)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            await click(house, token)
        await click(house, token[:-1])
        await house.client.get(PAGE, params={"token": token})
    kinds = await house.pool.fetch("SELECT kind, subject_id FROM relay.webhook_events")
    ((message,),) = await house.pool.fetch("SELECT id FROM relay.outbound_letters")
    assert kinds == [("message.unsubscribed", message)]
    told = [line for line in lines if line["event"] == "outbound.unsubscribed"]
    assert [line["id"] for line in told] == [str(message)]
    assert ADA not in str(lines)
    assert token[:20] not in str(lines)


async def test_nothing_is_promised_while_the_database_is_away(own_server: Cluster):
    """503 with the form and a Retry-After; the page itself needs no database."""
    await migrate(own_server.dsn("relay"))
    pool = Pool(own_server.dsn("relay"), call_timeout=3.0)
    async with open_house(own_server.dsn("relay"), pool) as house:
        token = await mailed(house)
        await trio.to_thread.run_sync(own_server.stop)
        answer = await click(house, token)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "2"
        assert form(answer).fields["token"] == token
        assert (await house.client.get(PAGE, params={"token": token})).status_code == 200
        await trio.to_thread.run_sync(own_server.start)
        with trio.fail_after(30):
            while (await click(house, token)).status_code == 503:
                await trio.sleep(0.1)
        assert await unsubscribed(pool) == DONE
    await pool.close()


async def test_who_hangs_up_has_unsubscribed_all_the_same(house: House):
    """What has begun ends, for it was asked for."""
    token = await mailed(house)
    head = (
        f"POST {PAGE}?token={token} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: {URLENCODED}\r\nContent-Length: {len(ONE_CLICK)}\r\n\r\n"
    )

    def post() -> None:
        with socket.create_connection(("127.0.0.1", house.port), timeout=10) as peer:
            peer.sendall(head.encode() + ONE_CLICK)

    await trio.to_thread.run_sync(post)
    with trio.fail_after(10):
        while await unsubscribed(house.pool) != DONE:
            await trio.sleep(0.02)


async def test_it_costs_an_address_as_much_as_other_calls(limited: House):
    """Too many from one address are 429, whatever they post."""
    token = await mailed(limited)
    answers = [(await click(limited, "x" * 80)).status_code for _ in range(4)]
    assert answers == [400, 400, 400, 429]
    assert (await click(limited, token)).status_code == 429
    assert await unsubscribed(limited.pool) == []


async def test_who_reads_german_is_asked_in_german(house: House):
    """Whatever comes of it; and English where a browser asks for neither."""
    token = await mailed(house)
    german = {"Accept-Language": "de-AT,de;q=0.9,en;q=0.8"}
    asked = await house.client.get(PAGE, params={"token": token}, headers=german)
    dead = await house.client.get(PAGE, params={"token": "x"}, headers=german)
    done = await click(house, token, ONE_CLICK, URLENCODED, **german)
    for answer, title, text in (
        (asked, UNSUBSCRIBE, UNSUBSCRIBE_ASK),
        (dead, UNSUBSCRIBE, UNSUBSCRIBE_DEAD),
        (done, UNSUBSCRIBED, UNSUBSCRIBED_HINT),
    ):
        assert '<html lang="de">' in answer.text
        assert f"<h1>{title.de}</h1>" in answer.text
        assert text.de in answer.text
        assert answer.headers["vary"] == "Accept-Language"
        assert english(answer.text) == []
    other = await house.client.get(
        PAGE, params={"token": token}, headers={"Accept-Language": "fr, it;q=0.5"}
    )
    assert '<html lang="en">' in other.text
    assert UNSUBSCRIBE_ASK.en in other.text


def english(page: str) -> list[str]:
    """Which of the texts of these pages are in it in English."""
    every = [one for one in vars(texts).values() if isinstance(one, texts.Text)]
    assert len(every) > 20
    return [one.en for one in every if one.en != one.de and f">{one.en}<" in page]
