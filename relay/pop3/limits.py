"""What one mail reader, and all of them together, may take of this process.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    max_idle_commands: int = 50
    """Commands that lead nowhere, before the session ends: all until somebody has signed in, and
    later what no mail reader says (`NoCommand`) one after another."""
    max_messages: int = 100_000
    """The newest so many are shown."""
    max_buffered_bytes: int = 64 << 20
    """All snapshots and all pieces of messages together."""
    sign_in_timeout: float = 60.0
    """For each command of a peer that has not signed in."""
    idle_timeout: float = 600.0
    """For each command of one that has (RFC 1939, 3: ten minutes at least)."""
    proxy_timeout: float = 5.0
    """From a trusted proxy's connection to the end of its PROXY header."""
    handshake_timeout: float = 30.0
    """For all of a TLS handshake, however steadily bytes drip in."""
    reply_timeout: float = 60.0
    """How long a peer may take nothing of what is sent to it."""
    linger_timeout: float = 2.0
    """How long a peer that is still sending is read so that it can read the last reply."""
    trust: float = 1.0
    """How long a key that was found good is believed."""
