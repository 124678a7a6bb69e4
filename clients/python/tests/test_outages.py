"""A relay that goes away: each call ends with its result or with one clear error."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import anyio
import pytest
from cases import CASES
from restarting import restartable
from serving import reply, serving
from untrusted import plain, untrusted

from relay_client import AsyncRelay, Refused, Relay, RelayError, Unreachable, WaitTimeout
from relay_client._connect import connection
from relay_client._mailboxes import InboxHandle
from relay_client._smtp_server import SmtpServer
from relay_client._text import quoted

Tell = Callable[[str], None]
"""Hands on what a client says: its address, then what came."""


def _waits(url: str, tell: Tell) -> None:
    with Relay(url, token="") as relay, relay.inbox() as inbox:
        tell(inbox.address)
        tell(str(inbox.wait("Reset", timeout=60.0).subject))
        inbox.wait("Other", timeout=12.0)


async def _waits_async(url: str, tell: Tell) -> None:
    async with AsyncRelay(url, token="") as relay, relay.inbox() as inbox:
        tell(inbox.address)
        tell(str((await inbox.wait("Reset", timeout=60.0)).subject))
        await inbox.wait("Other", timeout=12.0)


_WAITERS: list[Callable[[str, Tell], None]] = [
    _waits,
    lambda url, tell: anyio.run(_waits_async, url, tell, backend="asyncio"),
    lambda url, tell: anyio.run(_waits_async, url, tell, backend="trio"),
]


def test_a_wait_outlives_a_relay_that_is_killed(tmp_path: Path) -> None:
    """Killed in the middle of a wait and started again, at the same place: the message comes.

    From one that is not started again comes one clear error.  Three wait at once: the client whose
    calls block, and the other on asyncio and on Trio.
    """
    said: Queue[str] = Queue()
    count = len(_WAITERS)
    with ThreadPoolExecutor(count) as threads, restartable(tmp_path) as relay:
        waiters = [threads.submit(one, relay.url, said.put) for one in _WAITERS]
        addresses = [said.get(timeout=20.0) for _ in range(count)]
        relay.until_waiting(count)
        relay.kill()
        relay.start(*addresses)
        assert [said.get(timeout=20.0) for _ in range(count)] == ["Reset"] * count
        relay.until_waiting(count)
        relay.kill()
        for one in waiters:
            with pytest.raises(Unreachable, match=rf"does not answer GET {relay.url}/.*/wait "):
                one.result(timeout=30.0)


@pytest.mark.parametrize("case", CASES["no_relay"], ids=lambda case: case["error"])
def test_what_is_no_relay_is_refused(case: dict[str, Any]) -> None:
    """Though it answers well, or leads elsewhere: mostly a proxy, or a wrong URL."""
    with _answers(reply(case["body"], case["status"], case["headers"])) as (url, _):
        with Relay(url) as relay, pytest.raises(Refused) as refused:
            relay.inbox()
    assert str(refused.value) == f"{case['error']} (POST {url}/api/v1/mailboxes)"
    assert refused.value.status == case["status"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/api/v1", r"404 not-found: .* \(POST {}/api/v1/api/v1/mailboxes\)"),
        ("/compat/mailpit", r"\d+ [a-z-]+: .* \(POST {}/compat/mailpit/api/v1/mailboxes\)"),
    ],
)
def test_a_path_that_leads_to_no_relay_is_named(relay: Relay, path: str, said: str) -> None:
    """With what was asked there, so that the path that is too much is seen."""
    with Relay(relay.url + path, relay.token) as wrong, pytest.raises(Refused) as refused:
        wrong.inbox()
    assert re.fullmatch(said.format(re.escape(relay.url)), str(refused.value), re.DOTALL)


_CALLS: dict[str, Callable[[Relay], object]] = {
    "inbox": lambda relay: relay.inbox(),
    "wait": lambda relay: relay.mailbox("a@b").wait(timeout=0.1),
    "messages": lambda relay: relay.mailbox("a@b").messages(),
    "send": lambda relay: relay.send(from_="a@b", to="c@d"),
    "outbound": lambda relay: relay.outbound("x").entry(),
    "info": lambda relay: relay.info(),
}


@pytest.mark.parametrize("case", CASES["no_answers"], ids=lambda case: f"{case}")
def test_what_no_relay_says_is_refused(case: dict[str, Any]) -> None:
    """Though it is JSON, or begins like it: no call ends in an error of Python's own."""
    body = case["body"] * case.get("times", 1)
    with _answers(reply(body)) as (url, _), Relay(url, "x") as relay:
        with pytest.raises(Refused) as refused:
            _CALLS[case["call"]](relay)
    said = f"200 unknown: no relay answered: {quoted(body[:10])}"
    assert str(refused.value).startswith(case.get("error", said[:-1]))


@pytest.mark.parametrize("case", CASES["urls"], ids=lambda case: str(case["url"]))
def test_no_error_has_what_a_url_hides(
    case: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can be no relay's URL says so with its scheme and host, and with no more of it; by the
    variable, where that says it."""
    with pytest.raises(RelayError) as error:
        Relay(case["url"])
    assert str(error.value) == case["error"]
    monkeypatch.setenv("RELAY_URL", case["url"])
    with pytest.raises(RelayError) as error:
        AsyncRelay()
    assert str(error.value) == case["error"].replace("a relay's URL", "RELAY_URL")


@pytest.mark.parametrize("token", ["rk_se cret", "rk_se\ncret", "rk_s\xe9cret", "rk_secret\x00"])
def test_what_can_be_no_token_is_refused_at_once(token: str) -> None:
    """And is not in the error; blanks around one are none of its."""
    for client in (Relay, AsyncRelay):
        with pytest.raises(RelayError, match=r"^the token has characters that no token has$"):
            client("http://127.0.0.1:1", token)
        assert client("http://127.0.0.1:1 ", " rk_secret\r\n").token == "rk_secret"
    assert Relay(token="\n").token is None
    with pytest.raises(RelayError, match=r"^the inbox's token has characters that no token has$"):
        Relay().mailbox("a@b", token)
    assert Relay().mailbox("a@b", "rs_secret\n").session_token == "rs_secret"


def test_a_header_that_nobody_can_be_sent_fails_at_once() -> None:
    """What it was to have is not said: others have secrets."""
    with serving(lambda peer, _: None) as (url, _), Relay(url, None) as relay:
        with pytest.raises(RelayError) as error:
            relay.send(from_="a@b", to="c@d", idempotency_key="se\ncret")
    assert str(error.value) == "a header of the call has characters that none can have"


def test_no_repr_has_what_opens_anything() -> None:
    """Of what a report of pytest's shows of the calls that have led to a failure."""
    handle = InboxHandle("a@b.example", "rs_secret")
    shown = [handle, handle.get("/messages"), connection("http://a.example", "rk_secret")]
    assert "secret" not in repr(shown)


@pytest.mark.parametrize("call", ["info", "outbound", "send"])
def test_what_is_no_message_has_two_mebibytes_at_most(call: str) -> None:
    """Read, small objects take thirty times as much memory as they have letters."""
    body = "[" + "{}," * 700_000 + "{}]"
    with _answers(reply(body)) as (url, _), Relay(url, "x") as relay:
        with pytest.raises(Refused, match="no relay answered: it says more than 2 MiB"):
            _CALLS[call](relay)


def test_where_null_comes_at_once_nobody_is_asked_without_a_rest() -> None:
    """Some thousand times in a second, it was."""
    with _answers(reply("null")) as (url, asked), Relay(url, "x") as relay:
        with pytest.raises(WaitTimeout):
            relay.mailbox("a@b").wait(timeout=0.4)
    waits = [one for one in asked if b"/wait?" in one]
    assert 2 < len(waits) < 10


@pytest.mark.parametrize("case", CASES["problems"], ids=lambda case: str(case["error"]))
def test_a_refusal_drives_nothing(case: dict[str, Any]) -> None:
    """Neither its text nor its `repr`; its attributes are as they were said."""
    with _answers(reply(case["body"], case["status"])) as (url, _), Relay(url, "x") as relay:
        with pytest.raises(Refused) as refused:
            relay.info()
    assert str(refused.value) == case["error"]
    assert "##[" not in repr(refused.value)
    assert refused.value.detail == json.loads(case["body"])["detail"]


@pytest.mark.parametrize("timeout", [0.0, 0.4])
def test_what_was_sent_is_waited_for_as_long_as_is_said(timeout: float) -> None:
    """Not as long as another call is repeated: while no relay is there, or none that answers."""
    for silent in (False, True):
        with _silent() if silent else _answers(b"") as (url, _), Relay(url) as relay:
            began = time.monotonic()
            with pytest.raises(Unreachable, match=r"GET http.*/api/v1/outbound/x "):
                relay.outbound("x").wait(timeout=timeout)
            assert timeout <= time.monotonic() - began < timeout + 3.0


def test_what_was_sent_is_waited_for_longer_than_another_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the time is over, which was asked for."""
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.1)
    with _answers(b"") as (url, asked), Relay(url) as relay:
        began = time.monotonic()
        with pytest.raises(Unreachable):
            relay.outbound("x").wait(timeout=3.0)
        assert time.monotonic() - began > 1.5
        assert len(asked) > 3


def test_an_inbox_is_closed_soon_where_nothing_answers() -> None:
    """Its time ends it: a test's end waits for nobody."""
    with _silent() as (url, _), Relay(url) as relay:
        began = time.monotonic()
        relay.mailbox("a@b").close()
        assert time.monotonic() - began < 4.0


def test_what_came_is_listed_soon_or_left_out() -> None:
    """A relay that stands still after a wait in vain does not hold it up."""
    with _answers(reply("null"), only=b"/wait?") as (url, _), Relay(url) as relay:
        began = time.monotonic()
        with pytest.raises(WaitTimeout, match=r"for any mail; what came cannot be listed: the rel"):
            relay.mailbox("a@b").wait(timeout=0.1)
        assert time.monotonic() - began < 4.0


def test_a_wait_takes_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try asks for what is left of the time; a relay that stands still is given up soon after
    it."""
    monkeypatch.setattr("relay_client._http.GRACE", 0.1)
    with _answers(b"") as (url, asked), Relay(url) as relay:
        with pytest.raises(Unreachable, match=f"GET {url}/api/v1/mailboxes/a@b/messages/wait "):
            relay.mailbox("a@b").wait(timeout=0.4)
    waits = [float(str(one).partition("timeout=")[2].partition(" ")[0]) for one in asked]
    assert 0.4 >= waits[0] > waits[-1]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with Relay(f"http://127.0.0.1:{listener.getsockname()[1]}") as relay:
            began = time.monotonic()
            with pytest.raises(Unreachable, match="does not answer"):
                relay.mailbox("a@b").wait(timeout=0.2)
            assert time.monotonic() - began < 5.0


def test_a_server_that_hangs_up_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that reads is repeated until its deadline; one that makes something is not."""
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.5)
    with _answers(b"") as (url, asked), Relay(url) as relay:
        with pytest.raises(Unreachable, match=r"GET http.*/api/v1/info"):
            relay.info()
        assert len(asked) > 1
        del asked[:]
        with pytest.raises(Unreachable, match=r"POST http.*/api/v1/mailboxes"):
            relay.inbox()
        assert len(asked) == 1


@pytest.mark.parametrize("server", ["untrusted", "plain"])
@pytest.mark.parametrize("client", ["sync", "asyncio", "trio"])
def test_who_cannot_be_trusted_is_asked_once(server: str, client: str, tmp_path: Path) -> None:
    """Or speaks no TLS: no second try would do better.  The error says why."""

    async def ask(url: str) -> None:
        async with AsyncRelay(url, "x") as relay:
            await relay.info()

    with untrusted(tmp_path) if server == "untrusted" else plain() as (url, came):
        trusts = "verify failed: self-signed certificate"
        why = trusts if server == "untrusted" else r"; it answers without TLS: is http:// meant\?$"
        began = time.monotonic()
        with pytest.raises(Unreachable, match=rf"^no TLS connection to {url}/api/v1/info: .*{why}"):
            if client == "sync":
                with Relay(url, "x") as relay:
                    relay.info()
            else:
                anyio.run(ask, url, backend=client)
        assert time.monotonic() - began < 5.0
        assert len(came) == 1


@pytest.mark.parametrize("client", ["sync", "asyncio", "trio"])
def test_who_speaks_no_http_is_asked_once(client: str, smtp_server: SmtpServer) -> None:
    """As the relay's own SMTP does, by a port that was mistaken: the error says who that is."""

    async def ask(url: str) -> None:
        async with AsyncRelay(url, "x") as relay:
            await relay.info()

    url = f"http://{smtp_server.host}:{smtp_server.port}"
    said = r"it says '220 \S+ ESMTP Relay', which is not HTTP; a relay's URL is that of its HTTP "
    began = time.monotonic()
    with pytest.raises(Unreachable, match=rf"^no relay answers at {url}/api/v1/info: {said}port,"):
        if client == "sync":
            with Relay(url, "x") as relay:
                relay.info()
        else:
            anyio.run(ask, url, backend=client)
    assert time.monotonic() - began < 5.0


def test_a_handshake_that_is_broken_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a relay's that is just started again."""
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.5)
    with _answers(b"") as (url, asked), Relay(url.replace("http", "https"), "x") as relay:
        with pytest.raises(Unreachable, match="does not answer GET https"):
            relay.info()
    assert len(asked) > 1


@contextmanager
def _answers(answer: bytes, only: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """Serve one answer to everybody, whatever they ask; with `only` to calls that have it alone."""
    over = threading.Event()

    def serve(peer: socket.socket, request: bytes) -> None:
        if only in request:
            peer.sendall(answer)
        else:
            over.wait()

    with serving(serve) as served:
        try:
            yield served
        finally:
            over.set()


@contextmanager
def _silent() -> Iterator[tuple[str, list[bytes]]]:
    """Take every connection, and answer nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", []
