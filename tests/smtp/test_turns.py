"""What one peer's commands may cost the others: none holds the loop, whatever it says."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.addresses import canonical
from relay.smtp.limits import SmtpLimits
from relay.smtp.session import Session
from relay.smtp.shared import Shared
from relay.smtp.trampoline import Trampoline
from tests.smtp.test_dialogue import Someone

SLOW = b"RCPT TO:<" + b"a " * 150 + b"@b>\r\n"  # a millisecond and more to parse
BEYOND = b"RCPT TO:<" + b"a " * 1000 + b"@b>\r\n"  # forty


@asynccontextmanager
async def a_session(limits: SmtpLimits) -> AsyncIterator[socket.socket]:
    """A peer in a transaction that has one recipient."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    trampoline = Trampoline()
    shared = Shared(Someone(), canonical, limits=limits)
    with theirs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trampoline.run)
            session = Session(shared, ours, trampoline.waits(ours), ("127.0.0.1", 1))
            nursery.start_soon(session.run)
            theirs.send(b"EHLO x\r\nMAIL FROM:<a@b>\r\nRCPT TO:<r@x>\r\n")
            await wait_all_tasks_blocked()
            assert theirs.recv(4096).endswith(b"250 2.1.5 OK\r\n")
            yield theirs
            nursery.cancel_scope.cancel()


async def turns_during(peer: socket.socket, said: bytes) -> tuple[int, list[bytes]]:
    """How often another task has its turn until all is answered; and the replies."""
    turns = 0
    answered = b""
    peer.send(said)
    with trio.fail_after(30):
        while answered.count(b"\r\n") < said.count(b"\r\n"):
            await trio.lowlevel.checkpoint()
            turns += 1
            try:
                answered += peer.recv(1 << 16)
            except BlockingIOError:
                continue
    return turns, answered.splitlines()


async def test_others_have_a_turn_between_addresses_that_are_slow_to_parse():
    """However many come in one read."""
    async with a_session(SmtpLimits(max_recipients=1000)) as peer:
        turns, replies = await turns_during(peer, SLOW * 20)
    assert turns > 5
    assert {reply[:3] for reply in replies} == {b"501"}


async def test_others_have_a_turn_between_commands_that_are_not_ordinary():
    """Cheap as they are."""
    async with a_session(SmtpLimits()) as peer:
        turns, replies = await turns_during(peer, b"NOOP\r\n" * 640)
    assert turns > 9
    assert {reply[:3] for reply in replies} == {b"250"}


@pytest.mark.parametrize(
    ("limits", "said", "reply"),
    [
        (SmtpLimits(), BEYOND, b"501 5.1.3"),
        (SmtpLimits(max_recipients=1), BEYOND, b"452 4.5.3"),
        (SmtpLimits(max_recipients=1), SLOW, b"452 4.5.3"),
    ],
)
async def test_what_is_refused_anyway_is_not_parsed(
    monkeypatch: pytest.MonkeyPatch, limits: SmtpLimits, said: bytes, reply: bytes
):
    """A path longer than any address, and a recipient beyond the last."""
    parsed = []
    monkeypatch.setattr("aiosmtpd.smtp.get_angle_addr", lambda arg: parsed.append(arg))
    async with a_session(limits) as peer:
        _, replies = await turns_during(peer, said * 3)
    assert [each[:9] for each in replies] == [reply] * 3
    assert not parsed
