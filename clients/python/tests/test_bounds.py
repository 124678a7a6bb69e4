"""Answers that have no end, or lead elsewhere: each call ends, in little memory."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
from collections.abc import Awaitable
from functools import partial
from typing import Callable, cast

import anyio
import httpx
import pytest
from serving import ENTRY, MESSAGE, Answer, reply, serving

from relay_client import AsyncRelay, Refused, Relay, RelayError, Unreachable, WaitTimeout
from relay_client._current_test import CURRENT_TEST
from relay_client._exchange import Answer as _Answered
from relay_client._exchange import ApiRequest
from relay_client._http import run
from relay_client._mail_report import report
from relay_client._mailboxes import InboxHandle, remove_inbox

_HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


def _waits(url: str, client: str) -> None:
    if client == "sync":
        with Relay(url, "rk_secret") as relay:
            relay.mailbox("a@b").wait(timeout=0.2)
        return

    async def wait() -> None:
        async with AsyncRelay(url, "rk_secret") as relay:
            await relay.mailbox("a@b").wait(timeout=0.2)

    anyio.run(wait, backend=client)


clients = pytest.mark.parametrize("client", ["sync", "asyncio", "trio"])


def _trickle(head: bytes, drop: bytes) -> Answer:
    def serve(peer: socket.socket, request: bytes) -> None:
        peer.sendall(head)
        waits = threading.Event()
        while not waits.wait(0.02):
            peer.sendall(drop)

    return serve


@clients
@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (_HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"", b"HTTP/1.1 103 x\r\n\r\n"),
    ],
    ids=["body", "header", "hints"],
)
def test_what_comes_by_and_by_is_late(
    monkeypatch: pytest.MonkeyPatch, client: str, head: bytes, drop: bytes
) -> None:
    """A byte now and then does not make a wait last for ever, wherever in the answer it stands."""
    monkeypatch.setattr("relay_client._http.GRACE", 0.2)
    with serving(_trickle(head, drop)) as (url, _):
        with pytest.raises(Unreachable, match=r"/messages/wait \(for "):
            _waits(url, client)


@clients
def test_a_flood_is_cut_off(client: str) -> None:
    """The rest of what is more than any message has is not taken."""
    sent = 0

    def serve(peer: socket.socket, request: bytes) -> None:
        nonlocal sent
        peer.sendall(_HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        piece = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        while True:
            peer.sendall(piece)
            sent += 1

    with serving(serve) as (url, _):
        with pytest.raises(Refused, match="no relay answered: it says more than 32 MiB"):
            _waits(url, client)
    assert sent < 64


@clients
def test_what_is_packed_is_not_unpacked(client: str) -> None:
    """Nobody asked for it: it may become a thousand times as much."""
    body = gzip.compress(b" " * 10_000_000)
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(lambda peer, _: peer.sendall(_HEAD + head + body)) as (url, asked):
        with pytest.raises(Refused, match="no relay answered: it comes as 'gzip'"):
            _waits(url, client)
    assert b"accept-encoding: identity" in asked[0].lower()


def _pages(entries: list[object], following: str) -> Answer:
    def serve(peer: socket.socket, request: bytes) -> None:
        is_list = b"/messages?" in request
        body = json.dumps(entries if is_list else MESSAGE)
        link = {"Link": f'<{following}>; rel="next"'} if is_list else {}
        peer.sendall(reply(body, headers=link))

    return serve


@pytest.mark.parametrize("count", [0, 1])
def test_a_list_that_leads_to_itself_ends(count: int) -> None:
    """At the page that names itself, whether or not there is something on it."""
    same = "/api/v1/mailboxes/a@b/messages?limit=100&cursor=1"
    with serving(_pages([MESSAGE] * count, same)) as (url, asked), Relay(url, "x") as relay:
        with pytest.raises(Refused, match="no relay answered: its next page is one that came be"):
            relay.mailbox("a@b").messages()
    assert len(asked) == 2


@clients
@pytest.mark.parametrize("entries", [[], [MESSAGE]], ids=["empty", "one"])
def test_a_list_ends_in_its_time(client: str, entries: list[object]) -> None:
    """Where each answer is a good one, and comes slowly; what each page has does not matter."""
    pages = 0

    def serve(peer: socket.socket, request: bytes) -> None:
        nonlocal pages
        pages += 1
        threading.Event().wait(0.05)
        _pages(entries, f"/api/v1/mailboxes/a@b/messages?limit=100&n={pages}")(peer, request)

    async def ask(url: str) -> None:
        async with AsyncRelay(url, "x") as relay:
            for one in (relay.mailbox("a@b").messages, partial(relay.mailbox("a@b").search, "q")):
                with pytest.raises(Unreachable, match=_LATE):
                    await one(10_000, timeout=0.2)

    with serving(serve) as (url, _):
        if client == "sync":
            with Relay(url, "x") as relay:
                for one in (
                    relay.mailbox("a@b").messages,
                    partial(relay.mailbox("a@b").search, "q"),
                ):
                    with pytest.raises(Unreachable, match=_LATE):
                        one(10_000, timeout=0.2)
        else:
            anyio.run(ask, url, backend=client)
    assert pages < 20


@clients
def test_a_list_ends_at_its_most(client: str) -> None:
    """Each answer is within its own bound; all together are within one, too."""
    pages = 0

    def serve(peer: socket.socket, _: bytes) -> None:
        nonlocal pages
        pages += 1
        body = b" " * (31 << 20) + json.dumps([MESSAGE] * 6).encode()
        head = b'Link: </x/messages?n=%d>; rel="next"\r\nContent-Length: %d\r\n\r\n'
        peer.sendall(_HEAD + head % (pages, len(body)) + body)

    async def ask(url: str) -> None:
        async with AsyncRelay(url, "x") as relay:
            await relay.mailbox("a@b").messages(60)

    with serving(serve) as (url, _), pytest.raises(RelayError) as caught:
        if client == "sync":
            with Relay(url, "x") as relay:
                relay.mailbox("a@b").messages(60)
        else:
            anyio.run(ask, url, backend=client)
    ended = "the list of a@b has more than 128 MiB: ask for fewer messages at once"
    assert str(caught.value) == ended
    assert pages == 5


@pytest.mark.parametrize(
    ("size", "pages", "said"),
    [
        (0, 1, "and more could not be read within 5 s"),
        (0, 0, "what came could not be read within 5 s"),
        (3, 2, "and more cannot be read: the list of a@b has more than 4 MiB: ask for .*"),
        (5, 1, "and more cannot be read: the list of a@b has more than 4 MiB: ask for .*"),
    ],
)
def test_a_report_has_what_was_read_before_it_ended(
    size: int, pages: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its time, which is all inboxes' of the test, or by its bytes; it says that, too."""
    ends = threading.Event()
    served = 0

    def serve(peer: socket.socket, _: bytes) -> None:
        nonlocal served
        served += 1
        if served > pages:
            ends.wait(30.0)
        link = {"Link": f'</api/v1/mailboxes/a@b/messages?n={served}>; rel="next"'}
        body = json.dumps([{**MESSAGE, "subject": f"page {served}"}])
        peer.sendall(reply(" " * (size << 20) + body, headers=link))

    monkeypatch.setattr(CURRENT_TEST, "reads_within", 0.3 if size == 0 else 30.0)
    with serving(serve) as (url, _), Relay(url, "x") as relay:
        text = run(relay._http, report(InboxHandle("a@b", None)))
        ends.set()
    *messages, end = text.split("\n\n----\n\n")
    assert re.fullmatch(said, end)
    assert len(messages) == pages
    assert text.count("<>: page 1\n") == min(pages, 1)


def test_inboxes_that_do_not_end_have_one_time_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes of it what it has waited in vain; one that is asked to say so has its own."""
    monkeypatch.setattr(CURRENT_TEST, "closes_within", 1.0)

    def seconds(*, strict: bool = False) -> float:
        flow = remove_inbox(InboxHandle("a@b", None), strict=strict)
        request = next(flow)
        assert isinstance(request, ApiRequest)
        assert request.time_limit is not None
        flow.close()  # as where its caller is cancelled
        return request.time_limit

    assert 0.5 < seconds() <= 1.0
    assert CURRENT_TEST.closes_within < 1.0
    CURRENT_TEST.closes_within = -1.0
    assert seconds() == 0.05
    assert seconds(strict=True) > 1.0


_LATE = r"the list of a@b has not ended after 0\.2 s|does not answer GET .*/messages"


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -1.0])
def test_a_list_that_would_never_end_is_refused_at_once(timeout: float) -> None:
    """As a wait is."""
    with Relay("http://127.0.0.1:9", "x") as relay:
        with pytest.raises(RelayError, match="a time to wait is a number of seconds"):
            relay.mailbox("a@b").messages(timeout=timeout)


@clients
def test_what_came_is_listed_however_long_its_subjects(client: str) -> None:
    """A stranger chooses them: those of many mails are more than any other answer has."""
    entries: list[object] = [{**ENTRY, "id": str(n), "subject": "x" * 65_536} for n in range(60)]
    listed = _pages(entries, "/x")

    def serve(peer: socket.socket, request: bytes) -> None:
        if b"/messages/wait" in request:
            peer.sendall(reply("null"))
        else:
            listed(peer, request)

    with serving(serve) as (url, _):
        with pytest.raises(WaitTimeout, match="others came, the newest 20:") as caught:
            _waits(url, client)
    assert len(str(caught.value)) < 6_000


@pytest.mark.parametrize(
    "following",
    ["http://127.0.0.1:{}/x", "//127.0.0.1:{}/x", "/\\\\127.0.0.1:{}/x", "1/steal", "?x"],
)
def test_no_token_goes_to_another_place(following: str) -> None:
    """The next page is the relay's own: nobody else is asked, and hears the token."""
    with serving(lambda peer, _: None) as (foreign, heard):
        elsewhere = following.format(foreign.rpartition(":")[2])
        with serving(_pages([MESSAGE], elsewhere)) as (url, asked), Relay(url, "x") as relay:
            with pytest.raises(Refused) as refused:
                relay.mailbox("a@b").messages()
    assert str(refused.value).startswith("200 unknown: no relay answered: its next page is at '")
    assert (len(heard), len(asked)) == (0, 1)


@pytest.mark.parametrize(
    "following", ["/a\tb", "/\xe9", "/" + "a" * 8192], ids=["control", "letter", "long"]
)
def test_a_next_page_is_a_path_of_a_relay(following: str) -> None:
    """All else is said by none, and asked of nobody."""
    with serving(_pages([MESSAGE], following)) as (url, asked), Relay(url, "x") as relay:
        with pytest.raises(Refused, match=r"no relay answered: its (next page is at|Link has)"):
            relay.mailbox("a@b").messages()
    assert len(asked) == 1


def test_a_header_that_begins_without_end_is_looked_through_once() -> None:
    """Not once from each of its beginnings."""
    answered = _Answered(200, httpx.Headers({"Link": "<" * 8192}), b"")
    assert answered.following is None
    longer = _Answered(200, httpx.Headers({"Link": "<" * 95_000}), b"")
    with pytest.raises(Refused, match="its Link has more than 8 KiB"):
        _ = longer.following


def test_an_id_leads_nowhere_else() -> None:
    """What was sent is one part of a path, whatever it is called."""
    with serving(_pages([], "")) as (url, asked), Relay(url, "x") as relay:
        with pytest.raises(Refused):
            relay.outbound("../x?y").entry()
    assert asked[0].split()[1] == b"/api/v1/outbound/..%2Fx%3Fy"


_CALLED_SO = r"is called so|half a character cannot be sent: '\\ud800'|no such call|no token has"


@clients
def test_what_nothing_is_called_is_asked_of_nobody(client: str) -> None:
    """Half a character is in no path, what is too long in no URL, and a line's end in no header."""

    def asks(relay: Relay) -> list[Callable[[], object]]:
        return [
            lambda: relay.mailbox("\ud800@b").messages(),
            lambda: relay.mailbox("a@b").wait(after="\ud800", timeout=0),
            lambda: relay.mailbox("a" * 70_000 + "@b").messages(),
            lambda: relay.mailbox("a@b", "rs_se\ncret").messages(),
            lambda: relay.outbound("\ud800").entry(),
            lambda: relay.send(from_="\ud800", to="c@d"),
            lambda: relay.inbox(local_part="a\ud800"),
        ]

    async def ask(url: str) -> None:
        async with AsyncRelay(url, "x") as relay:
            for one in asks(cast("Relay", relay)):
                with pytest.raises(RelayError, match=_CALLED_SO) as error:
                    await cast("Awaitable[object]", one())
                assert "cret" not in str(error.value)

    with serving(lambda peer, _: None) as (url, asked):
        if client == "sync":
            with Relay(url, "x") as relay:
                for one in asks(relay):
                    with pytest.raises(RelayError, match=_CALLED_SO):
                        one()
        else:
            anyio.run(ask, url, backend=client)
    assert asked == []


def test_what_is_sent_to_who_reads_slowly_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing has the same end as reading."""
    monkeypatch.setattr("relay_client._http.ANSWER_TIMEOUT", 0.5)
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.1)

    def serve(peer: socket.socket, request: bytes) -> None:
        waits = threading.Event()
        while not waits.wait(0.02) and peer.recv(4096):
            pass

    with serving(serve) as (url, _), Relay(url, "x") as relay:
        with pytest.raises(RelayError, match=re.escape("does not answer POST")):
            relay.send(from_="a@b", to="c@d", attachments=[("a", bytes(20_000_000))])
