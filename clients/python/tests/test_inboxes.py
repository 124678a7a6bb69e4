"""Inboxes and messages, of Relay and AsyncRelay."""

from __future__ import annotations

import inspect
import json
import re
import smtplib
import socket
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, get_args

import anyio
import httpx
import pytest
from cases import CASES
from conftest import Deliver
from serving import reply, serving

import relay_client
from relay_client import (
    AsyncRelay,
    Headers,
    Inbox,
    NoSuchLink,
    NotDelivered,
    OutboundEntry,
    Refused,
    Relay,
    RelayError,
    State,
    UnexpectedMail,
    Unreachable,
    WaitTimeout,
)
from relay_client._links import is_like
from relay_client._records import MessageData
from relay_client._waiting import _PART
from relay_client.pytest_plugin import SmtpServer


def test_a_message_has_its_parts(inbox: Inbox, deliver: Deliver) -> None:
    """Each attribute says what was sent."""
    deliver(inbox.address, invoice=b"%PDF")
    message = inbox.wait(subject="reset", sender="SHOP.EXAMPLE")
    assert message.code == "271828"
    assert message.sender == "a@shop.example"
    assert message.to == inbox.address
    assert message.subject == "Reset"
    assert message.headers["subject"] == message.headers["Subject"] == "Reset"
    assert "X-None" not in message.headers
    assert message.text is not None
    assert message.text.startswith("Your code")
    assert message.html is None
    assert message.raw.endswith(b"--\r\n")
    assert len(message.raw) == message.size
    (file,) = message.attachments
    assert (file.filename, file.content_type, file.size) == ("invoice.pdf", "application/pdf", 4)
    assert file.content == b"%PDF"
    assert datetime.now(timezone.utc) - message.received_at < timedelta(minutes=1)
    checks = message.checks()
    assert checks.dkim.result == "none"
    assert "no-date" in [finding.id for finding in checks.findings]
    assert "-0.1 no-date" in checks.reasons
    message.delete()
    assert inbox.messages() == []
    message.delete()  # twice does no harm


def test_a_header_field_that_repeats_has_all_of_its_values() -> None:
    """By its name it is the first, as text."""
    headers = Headers({"Received": ["from b", "from a"], "Subject": "Hi"})
    assert headers["received"] == "from b"
    assert headers.get_all("Received") == ["from b", "from a"]
    assert (headers.get_all("subject"), headers.get_all("To")) == (["Hi"], [])


def test_a_link_is_found_by_path_host_or_pattern(inbox: Inbox, deliver: Deliver) -> None:
    """What is like none says which there are."""
    deliver(inbox.address)
    message = inbox.wait()
    link = "https://id.shop.example/reset?token=1"
    assert message.links == [link]
    for match in (
        None,
        "/reset",
        "token=",
        "shop.example",
        "id.shop.example",
        re.compile("^https"),
    ):
        assert message.link(match) == link
    for match in ("/id.shop", "hop.example", "example.com", re.compile("^http:")):
        with pytest.raises(NoSuchLink, match=r"id\.shop\.example/reset"):
            message.link(match)


def test_a_wait_ends_as_the_message_comes(inbox: Inbox, deliver: Deliver) -> None:
    """It is no poll: mail that comes later is there at once; `after` leaves out what was."""
    deliver(inbox.address, "One")
    first = inbox.wait()
    timer = threading.Timer(0.3, deliver, (inbox.address, "Two"))
    timer.start()
    second = inbox.wait(after=first, timeout=20)
    assert second.subject == "Two"
    assert [one.id for one in inbox.wait_many(2)] == [first.id, second.id]
    assert inbox.wait(after=first.id).id == second.id
    timer.join()


@pytest.mark.parametrize("q", [None, "reset"])
def test_mail_is_listed_whole_as_soon_as_it_was_sent(
    relay: Relay, inbox: Inbox, deliver: Deliver, q: str | None
) -> None:
    """However long the relay takes to parse it: here it does so only while a list waits."""

    def summariser(verb: str) -> None:
        url = f"{relay.url}/api/v1/supervision/summariser/{verb}"
        headers = {"Authorization": f"Bearer {relay.token}"}
        httpx.post(url, headers=headers, trust_env=False).raise_for_status()

    summariser("pause")
    timer = threading.Timer(0.3, summariser, ("resume",))
    try:
        deliver(inbox.address)
        timer.start()
        (found,) = inbox.messages() if q is None else inbox.search(q)
    finally:
        summariser("resume")
    timer.join()
    assert (found.subject, found.code) == ("Reset", "271828")
    assert found.text


def test_a_wait_in_vain_says_what_came(inbox: Inbox, deliver: Deliver) -> None:
    """Each other message has a line."""
    with pytest.raises(WaitTimeout, match=r"waited 0\.1 s for any mail; nothing came"):
        inbox.wait(timeout=0.1)
    inbox.wait_none(0.1)
    deliver(inbox.address, "Welcome")
    inbox.wait("Welcome")  # it is parsed
    with pytest.raises(WaitTimeout) as one:
        inbox.wait("Reset", sender="bank", timeout=0.1)
    assert re.fullmatch(
        r"waited 0\.1 s for mail from 'bank' with 'Reset' in the subject; 1 other came:\n"
        r"  20\S+Z from a@shop\.example: 'Welcome'",
        str(one.value),
    )
    assert (one.value.timeout, len(one.value.others)) == (0.1, 1)
    with pytest.raises(WaitTimeout, match=r"3 messages; 1 came, and nothing else$"):
        inbox.wait_many(3, timeout=0.1)
    with pytest.raises(UnexpectedMail, match="'Welcome'"):
        inbox.wait_none(5)
    inbox.wait_none(0.1, subject="Reset")
    with pytest.raises(TimeoutError):
        inbox.wait("Reset", timeout=0)


@pytest.mark.parametrize("case", CASES["timeouts"], ids=lambda case: case["text"][:60])
def test_both_clients_say_the_same_of_a_wait_in_vain(case: dict[str, Any]) -> None:
    """What came, who was refused, and for whom mail was captured."""
    instead = "1 other came" if case["others"] else "nothing came"
    astray = case["rejected"], case.get("captured", ()), case.get("hint", "")
    error = WaitTimeout("'Reset'", 2.0, instead, case["others"], *astray)
    assert str(error) == case["text"]


def test_an_inbox_has_a_timeout_of_its_own(relay: Relay) -> None:
    """Where a wait names none; another's stays as it was."""
    with relay.inbox() as inbox, relay.inbox() as other:
        inbox.timeout = 0.0
        with pytest.raises(WaitTimeout, match="waited 0 s for any mail"):
            inbox.wait()
        with pytest.raises(WaitTimeout, match="waited 0 s for 2 messages"):
            inbox.wait_many(2)
        with pytest.raises(WaitTimeout, match=r"waited 0\.01 s"):
            inbox.wait(timeout=0.01)
        assert other.timeout == 10.0


def test_a_wait_in_vain_says_who_was_refused(inbox: Inbox, deliver: Deliver) -> None:
    """As where an application mails a mistyped address."""
    mistyped = inbox.address.replace("@", "x@")
    with pytest.raises(smtplib.SMTPRecipientsRefused):
        deliver(mistyped)
    with pytest.raises(WaitTimeout) as one:
        inbox.wait("Reset", timeout=0.1)
    assert str(one.value) == (
        "waited 0.1 s for mail with 'Reset' in the subject; nothing came; 1 recipient was refused"
        f" since the inbox was made: {mistyped} (550 5.1.1 No such mailbox here)"
    )


def test_a_wait_in_vain_leaves_out_whom_other_tests_mistyped(
    inbox: Inbox, smtp_server: SmtpServer
) -> None:
    """What the test's own application named is said, however far it is from the inbox."""
    domain, own = inbox.address.partition("@")[2], smtp_server.user
    for user, address in (("another-test", "ada"), (own, "bob"), ("third", "cid")):
        with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
            smtp.login(user, smtp_server.password)
            with pytest.raises(smtplib.SMTPRecipientsRefused):
                smtp.sendmail("a@shop.example", [f"{address}.{user}@{domain}"], "x")
    with pytest.raises(WaitTimeout) as one:
        inbox.wait(timeout=0.1)
    mistyped = f"bob.{own}@{domain}"
    assert one.value.rejected_recipients == (f"{mistyped} (550 5.1.1 No such mailbox here)",)
    with Relay(inbox._relay.url, inbox._relay.token) as other:
        unknown = other.mailbox(inbox.address)
        unknown._handle.login = None  # as outside of a test
        with pytest.raises(WaitTimeout, match=r"; nothing came$"):
            unknown.wait(timeout=0.1)


def test_a_wait_in_vain_says_what_was_captured(
    relay: Relay, inbox: Inbox, smtp_server: SmtpServer, deliver: Deliver
) -> None:
    """To the inbox's name at another domain, or as this test's user; no other test's, nor old.
    Where there is none, what nobody signed in for."""

    def signed_in(user: str, to: str) -> None:
        with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
            smtp.login(user, smtp_server.password)
            smtp.sendmail("a@shop.example", [to], "Subject: Reset\r\n\r\nx")

    name = inbox.address.partition("@")[0]
    domain = f"{name}.example"
    for user in ("another-test", smtp_server.user, smtp_server.user):
        signed_in(user, f"ops@{domain}")
    signed_in("another-test", f"{name}x@{domain}")
    deliver(f"{name}@{domain}")
    with pytest.raises(WaitTimeout) as one:
        inbox.wait("Reset", timeout=0.1)
    assert str(one.value) == (
        "waited 0.1 s for mail with 'Reset' in the subject; nothing came; mail to 2 other"
        " recipients was captured since the inbox was made:"
        f"\n  {name}@{domain}\n  ops@{domain} (2 messages)"
    )
    with relay.inbox() as later:
        with pytest.raises(WaitTimeout, match=r"nothing came$"):
            later.wait(timeout=0.1)
        deliver("ada@customer.example")
        deliver("ada@customer.example")
        with pytest.raises(WaitTimeout) as unsigned:
            later.wait(timeout=0.1)
    said = "ada@customer.example (2 messages; nobody signed in: perhaps another test's)"
    assert unsigned.value.captured == (said,)
    with Relay(relay.url, None) as nobody, nobody.inbox() as theirs:
        signed_in(smtp_server.user, f"ops@{domain}")
        with pytest.raises(WaitTimeout, match=r"nothing came\n.* is not shown without a token"):
            theirs.wait(timeout=0.1)


def test_an_asynchronous_inbox_says_that_too(relay: Relay, smtp_server: SmtpServer) -> None:
    """It knows of which test it is."""

    def signed_in(to: str) -> None:
        with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
            smtp.login(smtp_server.user, smtp_server.password)
            smtp.sendmail("a@shop.example", [to], "Subject: Reset\r\n\r\nx")

    async def in_vain() -> None:
        async with AsyncRelay(relay.url, relay.token) as client, client.inbox() as inbox:
            ops = f"ops@{inbox.address.partition('@')[0]}.example"
            await anyio.to_thread.run_sync(signed_in, ops)
            with pytest.raises(WaitTimeout) as one:
                await inbox.wait("Reset", timeout=0.1)
        assert one.value.captured == (ops,)

    anyio.run(in_vain)


def test_a_wait_in_vain_says_that_a_key_is_not_told_what_was_captured(
    relay: Relay, deliver: Deliver
) -> None:
    """Where nothing came; what did come is explanation enough."""
    made = relay._http.post("/api/v1/keys", json={"owner": "tests", "scopes": ["read", "send"]})
    with Relay(relay.url, made.json()["token"]) as tests, tests.inbox() as inbox:
        with pytest.raises(WaitTimeout) as one:
            inbox.wait(timeout=0.1)
        assert str(one.value) == (
            "waited 0.1 s for any mail; nothing came\n"
            "If the application mailed another address, that is not shown to an API key. Look for"
            " it on the relay's page (relay open), or set RELAY_TOKEN to the administrator's token:"
            " admin_token in run/relay.json of the relay's data directory."
        )
        deliver(inbox.address)
        with pytest.raises(WaitTimeout, match=r"1 other came:\n.*'Reset'$"):
            inbox.wait("Other", timeout=0.1)


def test_a_wait_in_vain_says_that_nobody_is_told_without_a_token(relay: Relay) -> None:
    """Which an empty RELAY_TOKEN is, too."""
    with Relay(relay.url, "") as tests, tests.inbox() as inbox:
        with pytest.raises(
            WaitTimeout, match=r"; nothing came\n.* is not shown without a token\. "
        ):
            inbox.wait(timeout=0.1)


@pytest.mark.parametrize("token", ["", "rk_unknown"])
def test_what_no_token_opens_is_told_what_does(relay: Relay, token: str) -> None:
    """And where: a key of another relay opens nothing here."""
    with Relay(relay.url, token) as tests, pytest.raises(Refused, match=r"^401 un") as refused:
        tests.send(from_="a@relay.localhost", to="b@relay.localhost", text="x")
    assert str(refused.value).endswith(
        f" (POST {relay.url}/api/v1/messages/send) Set RELAY_TOKEN to a key that is made at this"
        " relay (relay key create --owner tests --scope read,send)."
    )


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_wait_in_vain_says_that_it_held_up_an_event_loop(relay: Relay, backend: str) -> None:
    """The calls of a coroutine's own thread do, in whatever function; no others, such as beside a
    loop that runs in the thread and has not called it."""
    said = "\nThis wait held up the event loop that it was called in"

    def in_vain(inbox: Inbox) -> str:
        with pytest.raises(WaitTimeout) as one:
            inbox.wait(timeout=0)
        return str(one.value)

    async def within(inbox: Inbox) -> None:
        assert said in in_vain(inbox)
        assert said not in await anyio.to_thread.run_sync(in_vain, inbox)
        async with AsyncRelay(relay.url, relay.token) as client, client.inbox() as other:
            with pytest.raises(WaitTimeout, match=r"nothing came$"):
                await other.wait(timeout=0)

    with relay.inbox() as inbox:
        anyio.run(within, inbox, backend=backend)
        assert said not in in_vain(inbox)


def test_a_captured_mailbox_is_waited_for_before_its_first_mail(
    relay: Relay, inbox: Inbox, deliver: Deliver
) -> None:
    """With the administrator's token.  A key is told what it lacks; an own domain's is a 404."""
    name, _, own = inbox.address.partition("@")
    captured = relay.mailbox(f"ada@{name}.example")
    said = "waited 0.1 s for mail with 'Reset' in the subject; nothing came, so it has no mailbox"
    with pytest.raises(WaitTimeout) as one:
        captured.wait("Reset", timeout=0.1)
    assert str(one.value) == f"{said} yet"
    later = threading.Timer(0.3, deliver, (captured.address,))
    later.start()
    assert captured.wait("Reset").code == "271828"
    later.join()
    never = f"never.{name}@{own}"
    with pytest.raises(Refused, match=rf"404 mailbox-not-found: .* not yours\. \({never}\)$"):
        relay.mailbox(never).wait(timeout=5)
    made = relay._http.post("/api/v1/keys", json={"owner": "tests", "scopes": ["read"]})
    with Relay(relay.url, made.json()["token"]) as tests:
        with pytest.raises(Refused, match=r"not yours\. \(ada@.*\) Captured mail opens only"):
            tests.mailbox(captured.address).wait(timeout=5)


def test_a_wait_in_vain_names_what_has_just_come(relay: Relay, deliver: Deliver) -> None:
    """It is parsed by the time it is listed: it has a subject."""
    lists: list[str] = []

    def asked(request: httpx.Request) -> None:
        if request.url.path.endswith("/messages"):
            lists.append(request.url.path)
            if len(lists) == 1:
                deliver(inbox.address, "Welcome")

    with Relay(relay.url, relay.token) as other, other.inbox() as inbox:
        for _ in range(20):
            lists.clear()
            other._http.event_hooks = {"request": [asked]}
            with pytest.raises(WaitTimeout, match=r"'Welcome'") as one:
                inbox.wait("Reset", timeout=0.0)
            assert "(no subject)" not in str(one.value)


def test_a_long_wait_is_asked_for_in_parts(
    relay: Relay, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mail of a later part ends it, though it came between two; in vain it ends as another does."""
    assert _PART == 20.0  # what stands between waits a minute, or half of one
    monkeypatch.setattr("relay_client._waiting._PART", 0.3)
    parts: list[float] = []

    def asked(request: httpx.Request) -> None:
        if request.url.path.endswith("/wait"):
            parts.append(float(request.url.params["timeout"]))
            if len(parts) == 3:
                deliver(inbox.address)

    with Relay(relay.url, relay.token) as other, other.inbox() as inbox:
        other._http.event_hooks = {"request": [asked]}
        assert inbox.wait("Reset", timeout=30.0).code == "271828"
        assert parts == [0.3, 0.3, 0.3]
        with pytest.raises(
            WaitTimeout, match=r"^waited 2 s for mail with 'Other' in.*; 1 other came:\n.*'Reset'$"
        ):
            inbox.wait("Other", timeout=2.0)
        assert parts[3] == 0.3
        assert 4 < len(parts) < 20


def test_a_pattern_is_waited_for(relay: Relay, deliver: Deliver) -> None:
    """By a call for each message that comes, and no other; however short the time, by what is there
    already, too."""
    waits: list[str] = []

    def asked(request: httpx.Request) -> None:
        if request.url.path.endswith("/wait"):
            waits.append(str(request.url.params.get("subject")))

    with Relay(relay.url, relay.token) as other, other.inbox() as inbox:
        for subject in ("Welcome", "Order"):
            deliver(inbox.address, subject)
        inbox.wait_many(2)
        other._http.event_hooks = {"request": [asked]}
        number = re.compile(r"Order \d+")
        with pytest.raises(WaitTimeout) as one:
            inbox.wait(number, timeout=0)
        head, *lines = str(one.value).splitlines()
        assert head == r"waited 0 s for mail with /Order \d+/ in the subject; 2 others came:"
        assert len(lines) == 2
        inbox.wait_none(0, subject=number)
        waits.clear()
        timers = [
            threading.Timer(0.3 * at, deliver, (inbox.address, f"Order {at}")) for at in (1, 2)
        ]
        for timer in timers:
            timer.start()
        assert [one.subject for one in inbox.wait_many(2, subject=number)] == ["Order 1", "Order 2"]
        for timer in timers:
            timer.join()
        assert len(waits) <= 5, "one each, and those that find nobody parsed yet"
        assert inbox.wait(re.compile("^order$", re.I), re.compile("^a@shop")).subject == "Order"
        waits.clear()
        assert inbox.wait("ORDER", re.compile("^a@shop")).subject == "Order"
        assert waits == ["ORDER"]
        with pytest.raises(
            WaitTimeout, match=r"from /\^bob@/ with 'Order' in the subject; 4 others"
        ):
            inbox.wait("Order", re.compile("^bob@"), timeout=0.1)
        with pytest.raises(UnexpectedMail, match="'Order 1'"):
            inbox.wait_none(1, subject=number)
        after = inbox.messages(1)[0]
        with pytest.raises(WaitTimeout, match=f" after {after.id};"):
            inbox.wait(number, after=after, timeout=0)


@pytest.mark.parametrize("match", [5, b"Order", re.compile(b"Order"), ["Order"]])
def test_what_is_no_part_of_a_subject_is_refused_at_once(relay: Relay, match: Any) -> None:
    """And no sender's."""
    inbox = relay.mailbox("a@b")
    with pytest.raises(RelayError, match=r"^a subject is waited for by a part of it or a pattern"):
        inbox.wait(match)
    with pytest.raises(RelayError, match=r"^a sender is waited for by .* of text, not "):
        inbox.wait_many(1, sender=match)


@pytest.mark.parametrize("timeout", [float("nan"), -1, float("inf"), "10", None, 1j])
def test_a_wait_that_would_never_end_is_refused_at_once(relay: Relay, timeout: Any) -> None:
    """And one that cannot be meant."""
    inbox = relay.mailbox("a@b")
    waits: list[Callable[[], object]] = [
        lambda: inbox.wait(timeout=timeout),
        lambda: inbox.wait_none(timeout),
        lambda: inbox.wait_many(1, timeout=timeout),
        lambda: relay.outbound("x").wait(timeout=timeout),
    ]
    for wait in waits:
        with pytest.raises(RelayError, match="a time to wait is a number of seconds, 0 or more"):
            wait()


def test_what_is_no_number_is_refused_at_once(relay: Relay) -> None:
    """How many are waited for, and how long an inbox lives."""
    number: Any
    for number in (float("nan"), -1, 1.5, "3"):
        with pytest.raises(RelayError, match="so many messages cannot be waited for"):
            relay.mailbox("a@b").wait_many(number)
    for number in (float("nan"), "5", 0, -1):
        with pytest.raises(RelayError, match="an inbox's ttl is a number of minutes above 0, not "):
            relay.inbox(ttl=number)


def test_a_wait_in_vain_leaves_out_what_was_waited_for(inbox: Inbox, deliver: Deliver) -> None:
    """Of more than twenty others the newest are listed, and that there are more is said."""
    deliver(inbox.address, "Reset")
    for number in range(20):
        deliver(inbox.address, f"Other {number}")
    inbox.wait_many(21)
    with pytest.raises(WaitTimeout) as some:
        inbox.wait_many(2, subject="Reset", timeout=0.1)
    head, *lines = str(some.value).splitlines()
    said = "waited 0.1 s for 2 messages with 'Reset' in the subject; 1 came, and"
    assert head == f"{said} 20 others:"
    assert [line.rpartition(": ")[2] for line in lines[:2]] == ["'Other 19'", "'Other 18'"]
    assert len(lines) == 20
    with pytest.raises(WaitTimeout) as many:
        inbox.wait("Welcome", timeout=0.1)
    head, *lines = str(many.value).splitlines()
    assert head.endswith("for mail with 'Welcome' in the subject; others came, the newest 20:")
    assert len(lines) == 20


@pytest.mark.parametrize("case", CASES["links"], ids=lambda case: str(case["subject"]))
def test_both_clients_find_the_same_links(case: dict[str, Any]) -> None:
    """And say in the same words that there is none."""
    others = ("id", "from_address", "to", "size", "body_text", "body_html", "otp")
    found: dict[str, Any] = {
        **dict.fromkeys(others),
        "subject": case["subject"],
        "received_at": "2026-01-01T00:00:00Z",
        "links": case["links"],
        "headers": {},
    }
    message = MessageData(found)
    for match in case["finds"]:
        assert message.link(match) == case.get("found", case["links"][0])
    for match, said in case["misses"].items():
        with pytest.raises(NoSuchLink) as missed:
            message.link(match)
        assert str(missed.value) == said


def test_a_host_that_is_too_long_is_not_encoded() -> None:
    """That takes the square of its length, and the mail is a stranger's: here minutes."""
    assert not is_like(f"https://{''.join(map(chr, range(0x4E00, 0x9E00))) * 2}/a", "shop.example")


def test_a_list_and_a_search(inbox: Inbox, deliver: Deliver) -> None:
    """The newest first, and marked read; an operator that there is none of is refused, in words."""
    for number in range(3):
        deliver(inbox.address, f"Number {number}")
    inbox.wait_many(3)
    assert [one.subject for one in inbox.messages(limit=2)] == ["Number 2", "Number 1"]
    assert [one.subject for one in inbox.search("is:unread")] == ["Number 0"]
    assert [one.subject for one in inbox.messages()] == ["Number 2", "Number 1", "Number 0"]
    assert inbox.messages(0) == inbox.search("number", 0) == []
    assert [one.subject for one in inbox.search("subject:1 -from:bank")] == ["Number 1"]
    with pytest.raises(Refused, match=r"422 invalid: .*no operator") as refused:
        inbox.search("form:shop")
    assert (refused.value.status, refused.value.problem) == (422, "invalid")


def test_an_inbox_ends_with_its_block(relay: Relay, deliver: Deliver) -> None:
    """Afterwards it is not there, nor is its mail, which is said; one that was opened stays."""
    local_part = f"a/b?{time.time_ns()}"
    with relay.inbox(ttl=10, local_part=local_part) as inbox:
        address = inbox.address
        assert address.startswith(f"{local_part}@")
        assert str(inbox) == address
        with relay.mailbox(address) as same:
            assert same.messages() == []
        assert inbox.messages() == []
        deliver(address, terms=b"Be kind.")
        message = inbox.wait()
    with pytest.raises(Refused, match="404 mailbox-not-found"):
        relay.mailbox(address).wait(timeout=5)
    for read in (
        lambda: inbox.wait(timeout=5),
        lambda: inbox.wait_none(),
        lambda: inbox.wait_many(1),
        inbox.messages,
        lambda: inbox.search("x"),
        lambda: message.raw,
        lambda: message.attachments[0].content,
        message.checks,
        message.delete,
    ):
        with pytest.raises(RelayError) as gone:
            read()
        said = f"the inbox {address} was closed, and its mail is gone: read it before that"
        assert str(gone.value) == said
    inbox.close()  # twice does no harm, unless one wants to know
    with pytest.raises(Refused, match="404 mailbox-not-found"):
        inbox.close(strict=True)


@pytest.mark.parametrize(("ttl", "minutes"), [(5, 5), (120, 60)])
def test_an_inbox_says_when_it_ends(relay: Relay, ttl: float, minutes: float) -> None:
    """Which is no later than its plan allows; of one that was there already it is not known."""
    with Relay(relay.url, None) as anonymous, anonymous.inbox(ttl=ttl) as inbox:
        assert inbox.expires_at is not None
        left = inbox.expires_at - datetime.now(timezone.utc)
        assert minutes - 1 < left.total_seconds() / 60 < minutes + 1
        assert anonymous.mailbox(inbox.address).expires_at is None


def test_an_inbox_whose_time_has_ended_is_named(relay: Relay) -> None:
    """With the time, which the relay has said; also where it ends while mail is waited for."""
    inbox = relay.inbox(ttl=0.3 / 60)
    assert inbox.expires_at is not None
    ended = f"{inbox.expires_at:%Y-%m-%dT%H:%M:%SZ}"
    said = f"The inbox {inbox.address} is over: its time ended at {ended}."
    for read in (lambda: inbox.wait(timeout=10), inbox.messages):
        with pytest.raises(Refused) as gone:
            read()
        assert str(gone.value) == f"404 mailbox-not-found: {said}"


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["says"])
def test_a_refusal_names_the_inbox(case: dict[str, Any]) -> None:
    """That is not there, or cannot be made, and says what is to be done."""
    made = {"address": "jane@shop.example", "session_token": None, **case["made"]}
    problem = reply(json.dumps({"type": f"/problems/{case['problem']}", "detail": "No."}), 400)

    def answer(peer: socket.socket, request: bytes) -> None:
        makes = request.startswith(b"POST") and case["made"]
        peer.sendall(reply(json.dumps(made), 201) if makes else problem)

    with serving(answer) as (url, _), Relay(url, "rk_x") as relay:
        for call in ("wait", "messages"):
            with pytest.raises(Refused) as refused:
                getattr(relay.inbox(**case["wanted"]), call)()
            assert str(refused.value) == f"400 {case['problem']}: {case['says']}"


def test_a_state_that_no_message_has_is_refused_at_once(relay: Relay) -> None:
    """Before anything is asked: a mistyped one would never come."""
    with pytest.raises(RelayError, match=r"^'snt' is no state of a message: .* queued, .*, held$"):
        relay.outbound("gone").wait("snt")


def test_a_wait_ends_when_its_inbox_is_closed(relay: Relay) -> None:
    """By another thread, as a test's time limit does."""
    inbox = relay.inbox()
    timer = threading.Timer(0.2, inbox.close)
    timer.start()
    what = "mail with 'Reset' in the subject"
    with pytest.raises(RelayError) as error:
        inbox.wait("Reset", timeout=20)
    assert str(error.value) == f"the inbox {inbox.address} was closed while {what} was waited for"
    timer.join()


def test_a_call_of_a_client_that_is_closed_fails(relay: Relay) -> None:
    """With an error of this client's, as everything; ending an inbox of it does no harm."""
    client = Relay(relay.url, relay.token)
    inbox = client.inbox()
    client.close()
    for call in (client.info, client.inbox, inbox.wait):
        with pytest.raises(RelayError, match=r"^the client is closed$"):
            call()
    inbox.close()
    relay.mailbox(inbox.address).close()


def test_without_a_token_an_inbox_has_its_own(
    relay: Relay, deliver: Deliver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It opens that inbox, and nothing else does.  An empty token is none, and so is None, whatever
    the environment has."""
    monkeypatch.setenv("RELAY_TOKEN", str(relay.token))
    with Relay(relay.url) as known, Relay(relay.url, None) as unknown:
        assert (known.token, unknown.token) == (relay.token, None)
        with known.inbox() as inbox:
            assert inbox.session_token is None
    with Relay(relay.url, token="") as anonymous, anonymous.inbox() as inbox:
        deliver(inbox.address)
        assert inbox.wait().code == "271828"
        assert len(anonymous.mailbox(inbox.address, inbox.session_token).messages()) == 1
        with pytest.raises(Refused, match="404"):
            anonymous.mailbox(inbox.address).messages()
        with pytest.raises(Refused, match="401"):
            anonymous.send(from_="a@relay.localhost", to=inbox.address, text="x")


def test_what_is_sent_is_followed(relay: Relay, inbox: Inbox, tmp_path: Path) -> None:
    """Once, though it is asked twice under one key; attachments from files and from bytes."""
    (tmp_path / "note.txt").write_bytes(b"read me")
    sent, again = [
        one
        for _ in range(2)
        for one in relay.send(
            from_="shop@relay.localhost",
            to=inbox.address,
            subject="Invoice",
            text="Here it is.",
            html="<p>Here it is.",
            attachments=[tmp_path / "note.txt", ("a.bin", b"\0"), ("b", b"1", "image/png")],
            idempotency_key=f"once-{inbox.address}",
        )
    ]
    for one in (sent, again):
        one.wait()
        assert (one.id, one.status) == (sent.id, "sent")
    message = inbox.wait("Invoice")
    assert [one.content for one in message.attachments] == [b"read me", b"\0", b"1"]
    assert message.attachments[0].content_type == "text/plain"
    assert len(inbox.messages()) == 1
    entry = relay.outbound(sent.id).entry()
    assert (entry.status, entry.attempts, entry.next_retry_at) == ("sent", 1, None)
    assert entry.sent_at is not None
    assert timedelta(0) <= entry.sent_at - entry.created_at < timedelta(minutes=1)
    (lost,) = relay.send(from_="shop@relay.localhost", to="nobody@relay.localhost", text="x")
    with pytest.raises(NotDelivered, match=r"the message is bounced, and will not be sent: .*550"):
        relay.outbound(lost.id).wait("sent")


def test_what_is_not_sent_in_time_says_what_it_is(relay: Relay, inbox: Inbox) -> None:
    """Not that something else came."""
    later = {"from": "a@relay.localhost", "to": inbox.address, "text": "x"}
    later["send_at"] = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
    (queued,) = relay._http.post("/api/v1/messages/send", json=later).json()["messages"]
    with pytest.raises(WaitTimeout) as waited:
        relay.outbound(queued["id"]).wait(timeout=0.1)
    assert str(waited.value) == f"waited 0.1 s for {queued['id']} to be sent; it is queued"


def _spelt(schema: dict[str, Any]) -> str:
    """A schema as `OutboundEntry` spells it."""
    if "anyOf" in schema:
        one, none = schema["anyOf"]
        assert none == {"type": "null"}
        return f"{_spelt(one)} | None"
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if schema.get("format") == "date-time":
        return "datetime"
    return {"string": "str", "integer": "int"}[schema["type"]]


def test_an_entry_has_the_types_that_the_relay_declares(relay: Relay) -> None:
    """`OutboundEntry` is what /openapi.json says of the call behind it, `State` its states."""
    answer = httpx.get(f"{relay.url}/openapi.json", trust_env=False)
    answer.raise_for_status()
    document = answer.json()
    schemas = document["components"]["schemas"]
    call = document["paths"]["/api/v1/outbound/{message_id}"]["get"]
    schema = call["responses"]["200"]["content"]["application/json"]["schema"]
    declared = schemas[schema["$ref"].rpartition("/")[2]]
    assert set(declared["required"]) == set(declared["properties"])
    assert {
        name: getattr(type_, "__forward_arg__", type_)
        for name, type_ in OutboundEntry.__annotations__.items()
    } == {name: _spelt(one) for name, one in declared["properties"].items()}
    assert list(get_args(State)) == schemas["State"]["enum"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_async_client_has_the_same_surface(
    relay: Relay, deliver: Deliver, backend: str
) -> None:
    """Each call once, on asyncio and on Trio."""

    async def everything() -> None:
        async with AsyncRelay(relay.url, relay.token) as client, client.inbox(ttl=5) as inbox:
            await inbox.wait_none(0.05)
            deliver(inbox.address, invoice=b"%PDF")
            message = await inbox.wait("Reset")
            assert (message.code, len(await message.raw)) == ("271828", message.size)
            assert [await one.content for one in message.attachments] == [b"%PDF"]
            assert (await message.checks()).spf.result == "none"
            assert [one.id for one in await inbox.messages()] == [message.id]
            assert [one.id for one in await inbox.search("from:shop")] == [message.id]
            (sent,) = await client.send(from_="a@relay.localhost", to=inbox.address, text="x")
            await sent.wait()
            assert await sent.status == "sent"
            assert (await client.outbound(sent.id).entry()).status == "sent"
            assert len(await inbox.wait_many(2)) == 2
            await message.delete()
            await message.delete()  # twice does no harm
            with pytest.raises(RelayError, match="a time to wait is a number of seconds"):
                await inbox.wait(timeout=float("nan"))
            async with client.mailbox(inbox.address) as same:
                assert len(await same.messages()) == 1
            making = client.inbox()
            other = await making
            assert await making is other
            await other.close()
            with pytest.raises(WaitTimeout, match="1 other came"):
                await inbox.wait("Reset", timeout=0.05)
            assert (await client.info()).domains == ("relay.localhost",)

    anyio.run(everything, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_inbox_ends_though_its_block_is_cancelled(relay: Relay, backend: str) -> None:
    """By the time limit of a test, or by Ctrl-C."""
    addresses: list[str] = []

    async def cancelled() -> None:
        async with AsyncRelay(relay.url, relay.token) as client:
            with anyio.move_on_after(5.0) as scope:
                async with client.inbox() as inbox:
                    addresses.append(inbox.address)
                    scope.cancel()
                    await inbox.wait()

    anyio.run(cancelled, backend=backend)
    with pytest.raises(Refused, match="404 mailbox-not-found") as error:
        relay.mailbox(addresses[0]).messages()
    assert error.value.title == "Mailbox not found"


def _surface(of: type) -> dict[str, tuple[object, ...]]:
    """What there is of a class, as it is with neither `Async` nor `await`."""

    def plain(annotation: object) -> str:
        text = str(annotation).replace("Async", "")
        awaited = re.fullmatch(r"Awaitable\[(.*)\]", text)
        return "Inbox" if text == "InboxContext" else awaited[1] if awaited else text

    found: dict[str, tuple[object, ...]] = {}
    for name, value in inspect.getmembers(of):
        if name.startswith("_") and name != "__init__":
            continue
        call: Any = value.fget if isinstance(value, property) else value
        told = inspect.signature(call)
        each = [
            (one.name, one.kind, one.default, plain(one.annotation))
            for one in told.parameters.values()
        ]
        kind = "property" if isinstance(value, property) else "call"
        found[name] = (kind, *each, plain(told.return_annotation))
    return found


@pytest.mark.parametrize("name", ["Relay", "Inbox", "Message", "Attachment", "Outbound"])
def test_relay_and_async_relay_have_the_same_surface(name: str) -> None:
    """What one can the other can: by the same parameters, with the same defaults and types."""
    surface = _surface(getattr(relay_client, name))
    assert surface == _surface(getattr(relay_client, f"Async{name}"))
    assert len(surface) > 1


def test_where_no_relay_is_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that may be repeated is, for a while; what is no URL is refused at once."""
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.3)
    began = time.monotonic()
    with Relay("http://127.0.0.1:9") as relay, pytest.raises(Unreachable, match="POST http://127"):
        relay.inbox()
    assert time.monotonic() - began >= 0.1
    for url in ("localhost:8025", "http://", "http://a b", "http://["):
        with pytest.raises(RelayError, match="must begin with http"):
            Relay(url)
