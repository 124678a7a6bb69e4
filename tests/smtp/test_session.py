"""Ordinary mail, which is read by one expression a command, against aiosmtpd's general parser."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from uuid import UUID

import structlog.testing
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.accepted import Accepted, Origin, Why
from relay.addresses import canonical
from relay.futures import Future
from relay.smtp.limits import SmtpLimits
from relay.smtp.session import Session
from relay.smtp.shared import Shared
from relay.smtp.syntax import MAIL, RCPT
from tests.smtp.plain import PlainWaits

LIMITS = SmtpLimits(max_message_bytes=5000, max_recipients=2)

Seen = list[tuple[str, ...]]


class Everybody:
    """Mailboxes that take everything, and remember what they were asked."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen

    def find(self, address: str) -> Future[Why | None]:
        """Everybody lives here."""
        self._seen.append(("find", address))
        answer: Future[Why | None] = Future()
        answer.settle(None)
        return answer

    def store(
        self,
        reverse_path: str,
        recipients: Mapping[str, str],
        raw: bytes,
        login: object,
        origin: Origin | None,
    ) -> Future[Accepted]:
        """It is stored."""
        self._seen.append(("store", reverse_path, *recipients))
        answer: Future[Accepted] = Future()
        answer.settle(Accepted({next(iter(recipients)): UUID(int=0)}))
        return answer


async def said(commands: Sequence[bytes]) -> tuple[list[bytes], Seen]:
    """What a session replies to a pipelined group, and what it asked of the mailboxes."""
    seen: Seen = []
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        theirs.sendall(b"".join(command + b"\r\n" for command in commands))
        shared = Shared(Everybody(seen), canonical, limits=LIMITS)
        session = Session(shared, ours, PlainWaits(ours), ("127.0.0.1", 1))
        with trio.fail_after(10), structlog.testing.capture_logs():
            await session.run()
        # The words of a refusal may differ, what they mean may not.
        return [reply[:9] for reply in theirs.recv(65536).splitlines()], seen


atoms = st.text("abcXYZ019!#$%&'*+/=?^_`{|}~-", min_size=1, max_size=8)
locals_ = st.lists(atoms, min_size=1, max_size=3).map(".".join)
domains = st.lists(st.text("abcZ09", min_size=1, max_size=8), min_size=1, max_size=3).map(".".join)
addresses = st.builds("{}@{}".format, locals_, domains)
parameters = st.sampled_from(
    ["", " SIZE=10", " SIZE=4999", " SIZE=5001", " BODY=8BITMIME", " size=7 body=7bit", " "]
)
spelling = st.sampled_from([str.upper, str.lower, str.title])


@settings(max_examples=100, deadline=None)
@given(
    sender=addresses | st.just(""),
    parameter=parameters,
    recipients=st.lists(addresses, min_size=1, max_size=4),
    spell=spelling,
    greeting=st.sampled_from([b"EHLO x", b"HELO x"]),
)
async def test_ordinary_mail_is_what_the_general_parser_makes_of_it(
    sender, parameter, recipients, spell, greeting
):
    """The same replies, the same questions and the same envelope, however it is spelt.

    A second blank behind the colon is out of the ordinary, and the general parser drops it.
    """
    verbs = spell("MAIL FROM:"), spell("RCPT TO:")
    mail = f"{verbs[0]}<{sender}>{parameter}".encode()
    rcpts = [f"{verbs[1]}<{recipient}>".encode() for recipient in recipients]
    assert MAIL.fullmatch(mail)
    assert all(map(RCPT.fullmatch, rcpts))
    general = [line.replace(b":<", b":  <") for line in (mail, *rcpts)]
    assert MAIL.fullmatch(general[0]) is None
    assert not any(map(RCPT.fullmatch, general[1:]))
    rest = [b"DATA", b"Subject: x\r\n\r\nx\r\n.", b"QUIT"]
    ordinary = await said([greeting, mail, *rcpts, *rest])
    assert ordinary == await said([greeting, *general, *rest])
