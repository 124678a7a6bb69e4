"""A whole relay, and who unsubscribes from its bulk mail by what stands in it."""

from __future__ import annotations

import email
import email.policy
import logging
import re
import smtplib
import subprocess
import sys
import time
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import dkim
import httpx
import psycopg
import trio

from relay.checks.dkim import verify
from relay.checks.evidence import examine
from tests.checks.asking import answered, txt_of
from tests.eventually import eventually
from tests.outbound.sink import Sink, running_sink
from tests.relay_process import RelayProcess
from tests.webhooks.receiver import receiving

T = TypeVar("T")

PUBLIC = "https://news.shop.example/relay"
ENV = {
    "RELAY_OUTBOUND__UNSUBSCRIBE": "true",
    "RELAY_HTTP__PUBLIC_URL": PUBLIC,
    "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",
    "RELAY_SUBMISSION__BIND": "127.0.0.1:0",
}
ADA, BOB = "Ada@customer.example", "bob@customer.example"


class Shop:
    """A relay, the key of a shop that mails by it, and what came of that."""

    def __init__(self, relay: RelayProcess, sink: Sink) -> None:
        self.relay = relay
        self.sink = sink
        self.zone: dict[str, str] = {}
        self.key = ""

    async def call(self, method: str, path: str, token: str = "", **values: Any) -> httpx.Response:
        """Call the API; with the administrator's token, if there is no other."""

        def call() -> httpx.Response:
            headers = {"Authorization": f"Bearer {token or self.relay.run['admin_token']}"}
            with self.relay.http(**headers) as client:
                return client.request(method, f"/api/v1/{path}", **values)

        return await trio.to_thread.run_sync(call)

    async def send(self, *to: str, token: str = "", **values: Any) -> httpx.Response:
        message = {"from": "news@shop.example", "to": to, "subject": "s", "text": "t"}
        message |= {"priority": "bulk"} | values
        return await self.call("POST", "messages/send", token or self.key, json=message)

    async def gets(self, *to: str, token: str = "", **values: Any) -> list[bytes]:
        """Send, and return what the sink has got of it, in that order."""
        before = len(self.sink.received)
        answer = await self.send(*to, token=token, **values)
        assert answer.status_code == 202, answer.text
        return await self.got(before, len(to))

    async def got(self, before: int, count: int) -> list[bytes]:
        await self.sink.gets(before + count)
        came = self.sink.received[before:]
        return [one.data for one in sorted(came, key=lambda one: one.recipient)]

    async def submit(self, raw: bytes, *to: str) -> tuple[int, bytes]:
        """Submit a message with the shop's key; the answer to its dot."""

        def submit() -> tuple[int, bytes]:
            host, _, port = self.relay.run["submission"].rpartition(":")
            with smtplib.SMTP(host, int(port)) as client:
                client.login("shop", self.key)
                client.mail("news@shop.example")
                for one in to:
                    assert client.rcpt(one)[0] == 250
                return client.data(raw)

        return await trio.to_thread.run_sync(submit)

    async def sql(self, statement: str, *values: Any) -> Any:
        def run() -> Any:
            with psycopg.connect(self.relay.run["database_url"]) as connection:
                return connection.execute(statement.encode(), values).fetchone()

        return await trio.to_thread.run_sync(run)

    async def one_click(self, raw: bytes) -> int:
        """Do as a mail program does with a mail (RFC 8058): the status of the answer."""
        message = parsed(raw)
        assert message["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
        (url,) = re.findall("<(https://[^>]*)>", message["List-Unsubscribe"])
        assert url.startswith(f"{PUBLIC}/unsubscribe?token=")
        parts = urlsplit(url)

        def post() -> int:
            # As the proxy at the public address passes it on.
            with self.relay.http(Host=parts.netloc, Origin="https://mail.example") as client:
                return client.post(
                    f"/unsubscribe?{parts.query}", data={"List-Unsubscribe": "One-Click"}
                ).status_code

        return await trio.to_thread.run_sync(post)

    def check_signatures(self, raw: bytes) -> None:
        """Both verify, RSA's by dkimpy too, and cover the fields; with one changed, none does."""
        logging.getLogger("dkimpy").setLevel(logging.CRITICAL)
        two = re.findall(rb"(?im)^DKIM-Signature:(?:.*\r\n)(?:[ \t].*\r\n)*", raw)
        assert len(two) == 2
        for field in two:
            (names,) = re.findall(rb"\sh=([^;]*);", field)
            assert {b"list-unsubscribe", b"list-unsubscribe-post"} <= set(
                b"".join(names.split()).split(b":")
            )
        field = b"List-Unsubscribe: "
        changes = [
            *((b"?token=", b"?token=A"), (b"=One-Click", b"=One-CIick")),
            (field, field + b"<https://evil.example>\r\n" + field),
        ]
        for changed in (raw, *(raw.replace(*change, 1) for change in changes)):
            assert (changed == raw) == (changed is raw)
            zone = {(name, "TXT"): record for name, record in self.zone.items()}
            results = [
                answered(verify(one, time.time()), zone).result
                for one in examine(changed).signatures
            ]
            assert results == ["pass" if changed is raw else "fail"] * 2
            assert self.passes(changed) == (changed is raw)

    def passes(self, raw: bytes) -> bool:
        """What dkimpy says of the first signature, RSA's."""
        return bool(dkim.DKIM(raw).verify(0, dnsfunc=txt_of(self.zone)))


def parsed(raw: bytes) -> EmailMessage:
    message = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    assert len(message.get_all("List-Unsubscribe") or ()) <= 1
    return message


async def in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


async def test_who_clicks_gets_no_more_bulk_mail(tmp_path: Path) -> None:
    """By every way into the queue; signed; over a kill, a restart and a rotation; told once."""
    async with running_sink() as sink, receiving() as receiver:
        relay = RelayProcess(tmp_path / "var", env=ENV | {"RELAY_OUTBOUND__UPSTREAM": sink.url})
        await in_thread(relay.start)
        try:
            shop = Shop(relay, sink)
            made = await shop.call("POST", "keys", json={"owner": "shop", "scopes": ["send"]})
            shop.key = made.json()["token"]
            made = await shop.call("POST", "dkim", json={"domain": "shop.example"})
            shop.zone = {one["name"]: one["value"] for one in made.json()["records"]}
            hook = {"url": receiver.url, "events": ["message.unsubscribed"]}
            await shop.call("POST", "webhooks", shop.key, json=hook)

            ada, bob = await shop.gets(ADA, BOB)
            await mails_have_links(shop, ada, bob)
            waiting = await queued_before(shop)
            assert await shop.one_click(ada) == 200
            await receiver.wait_for(1)  # else its lease would outlast the kill
            await in_thread(relay.kill)
            await in_thread(relay.start)
            assert await shop.one_click(ada) == 200
            await stopped(shop, waiting)
            await shop.call("POST", "keyring/rotate")
            assert await shop.one_click(ada) == 200
            assert await shop.one_click(bob) == 200
            await receiver.wait_for(2)
            told = [(one["type"], one["data"]["recipient"]) for one in receiver.events()]
            assert told == [("message.unsubscribed", ADA), ("message.unsubscribed", BOB)]
            await taken_back(shop)
            log = relay.log_file.read_text().lower()
            assert "outbound.unsubscribed" in log
            assert ADA.lower() not in log
            assert "unsubscribe?" not in log
            assert "token=" not in log
        finally:
            await in_thread(relay.stop)


async def mails_have_links(shop: Shop, ada: bytes, bob: bytes) -> None:
    """Each recipient another; the owner reads what was sent; only bulk mail has any."""
    assert parsed(ada)["List-Unsubscribe"] != parsed(bob)["List-Unsubscribe"]
    for raw in (ada, bob):
        shop.check_signatures(raw)
    (one,) = re.findall(rb"Message-ID: <([0-9a-f-]+)@", ada)
    shown = await shop.call("GET", f"outbound/{one.decode()}/raw")
    assert ada.endswith(shown.content)
    assert shown.content.startswith(b"List-Unsubscribe: <")
    for values in ({"priority": "normal"}, {"priority": "high"}):
        (plain,) = await shop.gets(BOB, **values)
        assert b"list-unsubscribe:" not in plain.lower()
    (theirs,) = await shop.gets(BOB, headers={"List-Unsubscribe": "<mailto:no@shop.example>"})
    assert parsed(theirs)["List-Unsubscribe"] == "<mailto:no@shop.example>"
    assert "List-Unsubscribe-Post" not in parsed(theirs)
    (rich,) = await shop.gets(BOB, html="<p>é</p>", text="é", subject="Grüße")
    shop.check_signatures(rich)

    before = len(shop.sink.received)
    head = b"From: News <news@shop.example>\r\nX-Relay-Priority: Bulk\r\nSubject: s\r\n"
    assert (await shop.submit(head + b"\r\nwhole\r\n", BOB))[0] == 250
    (whole,) = await shop.got(before, 1)
    shop.check_signatures(whole)
    own = b"LIST-unsubscribe:\r\n\t<https://shop.example/u>\r\n"
    assert (await shop.submit(head + own + b"\r\nwhole\r\n", BOB))[0] == 250
    whole = (await shop.got(before + 1, 1))[0]
    assert parsed(whole)["List-Unsubscribe"].strip() == "<https://shop.example/u>"
    large = head + b"\r\n" + (b"0123456789" * 7 + b"\r\n") * 20_000
    assert (await shop.submit(large, BOB))[0] == 250
    shop.check_signatures((await shop.got(before + 2, 1))[0])

    (by_sql,) = await shop.sql(
        "SELECT relay.send('news@shop.example', %s, 'x', 'y', priority => 'bulk')", BOB
    )
    (mail,) = await shop.got(before + 3, 1)
    assert str(by_sql).encode() in mail
    shop.check_signatures(mail)


async def queued_before(shop: Shop) -> dict[str, str]:
    """What waits for Ada while the queue is paused: ids, and what each is to become."""
    await shop.call("POST", "queue/pause")
    wanted = {}
    admin = shop.relay.run["admin_token"]
    for token, priority, status in (
        *((shop.key, "bulk", "cancelled"), (shop.key, "normal", "sent")),
        *((shop.key, "high", "sent"), (admin, "bulk", "sent")),
    ):
        answer = await shop.send(ADA, token=token, priority=priority)
        wanted[answer.json()["messages"][0]["id"]] = status
    head = b"From: news@shop.example\r\nX-Relay-Priority: bulk\r\n\r\nx\r\n"
    code, reply = await shop.submit(head, ADA)
    assert code == 250
    wanted[reply.decode().rpartition(" ")[2]] = "cancelled"
    return wanted


async def stopped(shop: Shop, waiting: dict[str, str]) -> None:
    """New bulk is refused, what waited is cancelled, all else goes."""
    answer = await shop.send(BOB, ADA)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/suppressed")
    head = b"From: news@shop.example\r\nX-Relay-Priority: bulk\r\n\r\nx\r\n"
    code, reply = await shop.submit(head, BOB, ADA)
    assert (code, reply) == (
        550, b"5.7.1 A recipient is on the suppression list for such mail, so nothing was queued",
    )  # fmt: skip
    await shop.call("POST", "queue/resume")

    async def states() -> dict[str, str]:
        found = {}
        for one in waiting:
            found[one] = (await shop.call("GET", f"outbound/{one}")).json()["status"]
        return found

    await eventually(states, "each became what it was to be", until=lambda now: now == waiting)
    (listed,) = (await shop.call("GET", "suppressions", shop.key)).json()
    assert (listed["address"], listed["cause"]) == (ADA.lower(), "unsubscribed")
    assert (await shop.call("GET", "suppressions")).json() == []


async def taken_back(shop: Shop) -> None:
    """By the command line, with the shop's key."""

    def command(*words: str) -> str:
        done = subprocess.run(
            [
                sys.executable, "-m", "relay", "suppression", *words,
                "--token", shop.key, "--data-dir", str(shop.relay.data_dir),
            ],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        return done.stdout

    assert "unsubscribed" in await in_thread(lambda: command("list"))
    await in_thread(lambda: command("remove", ADA))
    assert "ada@" not in await in_thread(lambda: command("list"))
    await shop.gets(ADA)


async def test_mail_that_stays_has_links_too(tmp_path: Path) -> None:
    """loop: the mailbox shows what a receiver would get, and the link works."""
    relay = RelayProcess(tmp_path / "var", env=ENV)
    await in_thread(relay.start)
    try:
        address = await in_thread(relay.create_mailbox)

        def round_trip() -> None:
            with relay.http() as client:
                message = {"from": "news@shop.example", "to": [address], "subject": "s"}
                message |= {"text": "t", "priority": "bulk"}
                send = "/api/v1/messages/send"
                client.post(send, json=message).raise_for_status()
                wait = f"/api/v1/mailboxes/{address}/messages/wait?timeout=20"
                one = client.get(wait).json()
                raw = client.get(f"/api/v1/mailboxes/{address}/messages/{one['id']}/raw").content
                url = parsed(raw)["List-Unsubscribe"].strip("<>")
                assert url.startswith(PUBLIC)
                query = urlsplit(url).query
                body = {"List-Unsubscribe": "One-Click"}
                assert client.get(f"/unsubscribe?{query}").status_code == 200
                assert client.post(send, json=message).status_code == 202
                assert client.post(f"/unsubscribe?{query}", data=body).status_code == 200
                assert client.post(send, json=message).status_code == 422
                assert client.post(send, json=message | {"priority": "high"}).status_code == 202

        await in_thread(round_trip)
    finally:
        await in_thread(relay.stop)


def test_without_a_public_https_address_it_does_not_start(tmp_path: Path) -> None:
    """It ends with 78 and one sentence that says what to set."""
    relay = RelayProcess(
        tmp_path / "var", env=ENV | {"RELAY_HTTP__PUBLIC_URL": "http://news.shop.example"}
    )
    process = relay.spawn()
    assert process.wait(60) == 78
    assert "RELAY_HTTP__PUBLIC_URL" in relay.log_tail()
