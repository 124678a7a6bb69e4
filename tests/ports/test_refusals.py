"""Connections that are not let in: each hears why, and few are written down."""

from __future__ import annotations

import socket

import structlog.testing

from relay.ports.peers import TurnedAway
from relay.ports.refusals import SENTENCES, Refusals

REPLIES = {why: f"no: {text}\n".encode() for why, text in SENTENCES.items()}
PEER = ("192.0.2.1", 4711)


async def test_each_hears_why_and_one_is_logged() -> None:
    """All are counted; the log has the first of a second alone."""
    counted: list[None] = []
    refusals = Refusals("test.refused", REPLIES, counted=lambda: counted.append(None))
    ours, theirs = socket.socketpair()
    with ours, theirs, structlog.testing.capture_logs() as lines:
        for why in TurnedAway:
            refusals.turn_away(ours, PEER, why)
            assert theirs.recv(100) == REPLIES[why]
        refusals.turn_away(ours, PEER, TurnedAway.FULL, silent=True)
        ours.close()
        assert theirs.recv(100) == b"", "it waits for TLS, and what is in clear would be no record"
    assert len(counted) == len(TurnedAway) + 1
    assert lines == [
        {"event": "test.refused", "log_level": "warning", "peer": "192.0.2.1", "why": "peer"}
    ]


async def test_one_that_has_gone_hears_nothing() -> None:
    """And costs nobody an exception."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        ours.setblocking(False)
        Refusals("test.refused", REPLIES).turn_away(ours, PEER, TurnedAway.PAUSED)
