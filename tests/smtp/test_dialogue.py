"""The ordinary part of a session without I/O, and that a session says the same without it."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import structlog.testing
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from relay.accepted import Accepted, Origin, Why
from relay.addresses import canonical
from relay.errors import DatabaseUnavailable, OverQuota
from relay.futures import Future
from relay.smtp.dialogue import Dialogue
from relay.smtp.limits import SmtpLimits
from relay.smtp.session import Session
from relay.smtp.shared import Shared
from relay.smtp.trampoline import Trampoline
from tests.smtp.plain import Plain

LIMITS = SmtpLimits(
    max_message_bytes=60,
    discard_factor=1000,  # where it ends a session depends on the pieces
    max_recipients=3,
    max_line_bytes=60,
    max_errors=4,
    max_idle_commands=6,
    max_unknown=2,
    max_buffered_bytes=100,
)


class Someone:
    """Mailboxes that take what their address says, at once or when told to, and remember."""

    def __init__(self, *, later: bool = False) -> None:
        self.seen: list[tuple[Any, ...]] = []
        self.open: list[Future[Any]] = []
        self._later = later

    def _answer(self, value: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if isinstance(value, Exception):
            answer.fail(value)
        elif self._later:
            self.open.append(answer)
        else:
            answer.settle(value)
        return answer

    def find(self, address: str) -> Future[Why | None]:
        """By the local part."""
        self.seen.append(("find", address))
        known: dict[str, str | Exception] = {
            "no": "unknown",
            "full": OverQuota("full"),
            "away": DatabaseUnavailable("away"),
            "odd": ZeroDivisionError("odd"),
        }
        return self._answer(known.get(address.partition("@")[0]))

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        """By the text."""
        self.seen.append(("store", reverse_path, tuple(recipients), raw))
        if raw.startswith(b"broken"):
            return self._answer(ZeroDivisionError("broken"))
        return self._answer(
            {
                b"error": Accepted({}, "trouble"),
                b"gone": Accepted({}),
                b"full": Accepted({}, full=frozenset(recipients)),
            }.get(
                raw.partition(b"\r\n")[0],
                Accepted({next(iter(recipients)): UUID(int=len(self.seen))}),
            )
        )


class Agrees:
    """A filter that agrees to every message: with it no mail is ordinary."""

    hooks = frozenset({"DATA"})

    async def ask(self, *_: object) -> str:
        """Well."""
        return "250 OK"


async def said(chunks: Sequence[bytes], scheduling: Any, *, ordinary: bool) -> tuple[bytes, Any]:
    """What a session replies to what it is sent, chunk by chunk, and what mailboxes were asked."""
    mailboxes = Someone()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    shared = Shared(mailboxes, canonical, limits=LIMITS, filter_=None if ordinary else Agrees())
    heard = b""
    with theirs, structlog.testing.capture_logs():
        session = Session(shared, ours, scheduling.waits(ours), ("127.0.0.1", 1))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scheduling.run)
            async with trio.open_nursery() as sessions:
                sessions.start_soon(session.run)
                for chunk in chunks:
                    await wait_all_tasks_blocked()
                    try:
                        theirs.send(chunk)
                    except BrokenPipeError:
                        break
                await wait_all_tasks_blocked()
                theirs.shutdown(socket.SHUT_WR)
            while True:
                try:
                    more = theirs.recv(65536)
                except (BlockingIOError, ConnectionResetError):
                    break
                if not more:
                    break
                heard += more
            nursery.cancel_scope.cancel()
    assert shared.budget.used == 0
    return heard, mailboxes.seen


COMMANDS = st.sampled_from(
    [
        b"EHLO x",
        b"HELO x",
        b"MAIL FROM:<a@b.example>",
        b"mail from:<> SIZE=40",
        b"MAIL FROM:<a@b.example> SIZE=61 BODY=8BITMIME",
        b"MAIL FROM:<a@b.example> SMTPUTF8",
        b"MAIL FROM:  <a@b.example>",
        b"RCPT TO:<bob@x.example>",
        b"RCPT TO:<Bob@X.example>",
        b"rcpt to:<eve@x.example>",
        b"RCPT TO:<ann@x.example> ",
        b"RCPT TO:<no@x.example>",
        b"RCPT TO:<full@x.example>",
        b"RCPT TO:<away@x.example>",
        b"RCPT TO:<odd@x.example>",
        b'RCPT TO:<"q"@x.example>',
        b"RCPT TO:<" + b"x" * 65 + b"@x>",
        b"DATA",
        b"data",
        b"DATA x",
        b"RSET",
        b"NOOP",
        b"QUIT",
        b"WHAT",
        b"MAIL FROM:<a@b.example>\x00",
        b"",
    ]
)
TEXTS = st.sampled_from(
    [
        b".",
        b"x\r\n.",
        b"..x\r\n.",
        b"x\r\n..\r\n\r\n.",
        b"x" * 58 + b"\r\n.",
        b"x" * 59 + b"\r\n.",
        b"error\r\n.",
        b"gone\r\n.",
        b"full\r\n.",
        b"broken\r\n.",
        b"x" * 700,
        # What some take for the end of a message.
        *(
            b"x" + ending + b"MAIL FROM:<c@d.example>\r\nRCPT TO:<bob@x.example>\r\nDATA\r\ny\r\n."
            for ending in (b"\n.\n", b"\n.\r\n", b"\r\n.\n", b"\r.\r", b"\r\n.\r", b"\r\n.\0\r\n")
        ),
    ]
)
ORDINARY = st.builds(
    lambda text: [b"MAIL FROM:<a@b.example>", b"RCPT TO:<bob@x.example>", b"DATA", text], TEXTS
)
WIRES = st.lists(ORDINARY | st.lists(COMMANDS | TEXTS, max_size=4), max_size=5).map(
    lambda groups: b"".join(line + b"\r\n" for line in [b"EHLO x", *chain(*groups)])
)


@pytest.mark.parametrize("make", [Trampoline, Plain])
@settings(max_examples=150, deadline=None)
@given(wire=WIRES, data=st.data())
async def test_a_session_says_the_same_without_it(make, wire, data):
    """Every reply and every question, whatever comes, in whatever pieces."""
    cuts = data.draw(st.lists(st.integers(0, len(wire)), max_size=6).map(sorted))
    chunks = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True) if a < b]
    with trio.fail_after(20):
        expected = await said([wire], Plain(), ordinary=False)
        assert await said(chunks, make(), ordinary=True) == expected


def dialogue(mailboxes: Someone, stored: Any = lambda size, ids: None, **limits: Any) -> Any:
    """A dialogue with a peer that has said EHLO, what it shares, and its replies."""
    shared = Shared(mailboxes, canonical, limits=SmtpLimits(**limits))
    replies: list[bytes] = []
    greeted = SimpleNamespace(host_name="x", extended_smtp=True)
    return Dialogue(shared, greeted, replies, stored), shared, replies


MAIL = b"MAIL FROM:<a@b.example>\r\n"
RCPT = b"RCPT TO:<bob@x.example>\r\n"


def test_it_says_what_is_next():
    """More bytes, an answer, or the session; and nothing of what it does not know is read."""
    sizes: list[int] = []
    mailboxes = Someone(later=True)
    talk, shared, replies = dialogue(mailboxes, lambda size, ids: sizes.append(size))
    assert talk.receive(MAIL, 1.0) is True
    assert talk.receive(RCPT + b"DATA\r\nx\r\n", 2.0) is mailboxes.open[0]
    assert replies == [b"250 2.1.0 OK\r\n"]
    mailboxes.open[0].settle(None)
    assert talk.answered(3.0) is True
    assert talk.receiving
    assert replies[1:] == [b"250 2.1.5 OK\r\n", b"354 End data with <CR><LF>.<CR><LF>\r\n"]
    assert talk.receive(b".\r\nNOOP\r\n", 4.0) is mailboxes.open[1]
    assert shared.budget.used
    mailboxes.open[1].settle(Accepted({"bob@x.example": UUID(int=1)}))
    assert talk.answered(5.0) is False
    assert talk.unread() == b"NOOP\r\n"
    assert (replies[3][:9], sizes, shared.budget.used) == (b"250 2.6.0", [3], 0)
    assert mailboxes.seen[1] == ("store", "a@b.example", ("bob@x.example",), b"x\r\n")


@pytest.mark.parametrize("text", [b"x\r\n.\r\n", b".x\r\n.\r\n"])
def test_a_message_is_counted_until_it_is_stored(text):
    """Also when its session ends before it hears of it, as an ordinary message and as any."""
    mailboxes = Someone(later=True)
    talk, shared, _ = dialogue(mailboxes)
    talk.receive(MAIL + RCPT, 0.0)
    mailboxes.open.pop().settle(None)
    talk.answered(0.0)
    talk.receive(b"DATA\r\n" + text, 0.0)
    held = shared.budget.used
    assert held >= 3
    talk.release()
    assert shared.budget.used == held
    mailboxes.open.pop().settle(Accepted({}))
    assert shared.budget.used == 0
    talk.release()
    assert shared.budget.used == 0


def test_a_drain_leaves_what_has_not_begun():
    """Commands are left to the session; a message that is arriving is taken."""
    mailboxes = Someone()
    talk, shared, replies = dialogue(mailboxes)
    step = talk.receive(MAIL + RCPT, 0.0)
    assert step is not True
    assert talk.answered(0.0) is True
    talk.receive(b"DATA\r\n", 0.0)
    shared.draining = True
    assert talk.receive(b"x\r\n.\r\n" + MAIL, 0.0) is not True
    assert talk.answered(0.0) is False
    assert talk.unread() == MAIL
    assert replies[-1][:9] == b"250 2.6.0"


def test_a_recipient_that_is_refused_is_asked_for_once():
    """The session gets the line, and the answer that is there already."""
    mailboxes = Someone()
    talk, _, replies = dialogue(mailboxes)
    refused = b"RCPT TO:<no@x.example>\r\n"
    answer = talk.receive(MAIL + refused + RCPT, 0.0)
    assert talk.answered(0.0) is False
    assert talk.unread() == refused + RCPT
    assert talk.find("no@x.example") is answer
    assert talk.find("no@x.example") is not answer
    assert replies == [b"250 2.1.0 OK\r\n"]
