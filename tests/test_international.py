"""Captured mail of international domains and of quoted names: found however it is spelled."""

from __future__ import annotations

import poplib
import smtplib
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.eventually import eventually_sync
from tests.relay_process import RelayProcess


@pytest.fixture(scope="module")
def pop3_relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay that serves POP3, too."""
    folder = tmp_path_factory.mktemp("international")
    with RelayProcess(folder / "data", env={"RELAY_POP3__BIND": "127.0.0.1:0"}) as process:
        yield process


def send(relay: RelayProcess, word: str, *recipients: str) -> None:
    """Send a message to each, one by one, as an application with SMTPUTF8 does."""
    with smtplib.SMTP(*relay.smtp, timeout=30) as session:
        session.ehlo()
        for number, recipient in enumerate(recipients):
            letter = f"Subject: {word} {number}\r\n\r\nx\r\n"
            session.sendmail("a@shop.example", recipient, letter, mail_options=["SMTPUTF8"])


def listed(http: httpx.Client, path: str, **params: str) -> list[dict[str, Any]]:
    """What a list shows, newest first."""
    found: list[dict[str, Any]] = http.get(path, params=params).raise_for_status().json()
    return found


def fetched(relay: RelayProcess, user: str) -> int:
    """How many messages the administrator finds by POP3."""
    host, _, port = relay.run["pop3"].rpartition(":")
    client = poplib.POP3(host, int(port), timeout=20)
    client.user(user)
    client.pass_(relay.run["admin_token"])
    count = client.stat()[0]
    client.quit()
    return count


@pytest.mark.parametrize(
    ("said", "other", "part", "shown"),
    [
        ("grüße@bücher-{}.example", "grüße@{}.example", "ücher-{}", "grüße@bücher-{}.example"),
        ("user@{}.example", "USER@BÜCHER-{}.example", "BÜCHER-{}", "user@{}.example"),
        ("user@straße-{}.example", "user@{}.example", "straße-{}", "user@straße-{}.example"),
        ('"a b"@faß-{}.de', '"A\\ B"@{}.de', "faß-{}", '"a b"@faß-{}.de'),
    ],
)
def test_either_spelling_finds_it(
    pop3_relay: RelayProcess, said: str, other: str, part: str, shown: str
) -> None:
    """By `q`, `wait?to=`, the path of its mailbox and POP3; a part of it is enough for a search."""
    mark = uuid.uuid4().hex[:12]
    letters = next(
        each.format(mark)
        for text in (said, other, shown)
        for each in text.lower().rpartition("@")[2].split(".")
        if not each.isascii()
    )
    coded = f"xn--{letters.encode('punycode').decode()}"

    def spelled(text: str) -> str:
        return text.format(mark if any(not c.isascii() for c in text.partition("@")[2]) else coded)

    first, second, shown = spelled(said), spelled(other), spelled(shown)
    send(pop3_relay, mark, first, second)
    with pop3_relay.http() as http:
        found = eventually_sync(
            lambda: listed(http, "/api/v1/messages", q=f"subject:{mark}"),
            "both have come",
            until=lambda entries: len(entries) == 2 and all(one["snippet"] for one in entries),
        )
        assert [one["mailbox"] for one in found] == [shown, shown]
        ids = [one["id"] for one in found]
        domains = [spelled(text).rpartition("@")[2] for text in (said, other)]
        words = (*domains, part.format(mark))
        for q in (*words, *(f"to:{word}" for word in words)):
            assert [one["id"] for one in listed(http, "/api/v1/messages", q=q)] == ids, q
        for address in (first, second):
            to = address.replace("\\", "")
            waited = http.get("/api/v1/messages/wait", params={"to": to, "timeout": "5"})
            assert (waited.status_code, waited.json()["id"]) == (200, ids[1]), to
            assert waited.json()["to"] == shown
            box = f"/api/v1/mailboxes/{quote(address, safe='')}"
            assert [one["id"] for one in listed(http, f"{box}/messages")] == ids
            assert fetched(pop3_relay, address) == 2
        for q in domains:
            boxes = listed(http, "/api/v1/mailboxes", q=q)
            assert [one["address"] for one in boxes] == [shown]
