"""What one mail reader, and all of them together, may take of this process.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class Pop3Limits:
    """Every cap and deadline of a POP3 session; sizes in bytes, durations in seconds."""

    max_connections: int = 200
    max_connections_per_peer: int = 50
    idle_patience: float = 10.0
    """How long a session may be idle before it gives its place to a newcomer who would get none."""
    signed_in_patience: float = 60.0
    """How much longer one that has signed in may."""
    max_line_bytes: int = 1024
    """A command with its line end; RFC 2449 asks for 255, a token has more."""
    max_errors: int = 50
    """Commands that were refused since the last that was obeyed, before the session ends."""
    max_messages: int = 100_000
    """The newest so many are shown."""
    max_buffered_bytes: int = 64 * MIB
    """All snapshots and all pieces of messages together."""
    sign_in_timeout: float = 60.0
    """For each command of a peer that has not signed in."""
    idle_timeout: float = 600.0
    """For each command of one that has (RFC 1939, 3: ten minutes at least)."""
    handshake_timeout: float = 30.0
    """For all of a TLS handshake, however steadily bytes drip in."""
    reply_timeout: float = 60.0
    """How long a peer may take nothing of what is sent to it."""
    linger_timeout: float = 2.0
    """How long a peer that is still sending is read so that it can read the last reply."""
    guesses: int = 3
    """Wrong passwords in one session, …"""
    wrong_password: float = 1.0
    """… each answered so late at least, …"""
    free_misses: int = 10
    """… and ever later, over all sessions of a peer, from so many on."""
    trust: float = 1.0
    """How long a key that was found good is believed."""
