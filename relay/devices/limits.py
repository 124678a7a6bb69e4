"""What one device peer, and all of them together, may take.  Pure.

The numbers of the wire format stand in docs/devices.md and are what a client may rely on; the caps
on sessions bound memory and file descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DeviceLimits:
    """Every cap and deadline of device sessions; durations in seconds, sizes in bytes."""

    handshake: float = 10.0
    """From the connection to the end of the handshake."""
    push_idle: float = 30.0
    """How long a push session may be without a whole frame."""
    receive_idle: float = 75.0
    """How long a receive session may be without one: three heartbeats unanswered."""
    heartbeat_every: float = 25.0
    """A receive session's silence after which the relay asks, and asks again."""
    window_blobs: int = 64
    """Delivers of one session that may be unacknowledged."""
    window_bytes: int = 1 << 20
    """Bytes of their envelopes; one Deliver may always be."""
    page_bytes: int = 64 << 10
    """Bytes of envelopes that a session has in memory on their way to the socket."""
    sessions_per_key: int = 4
    """Receive sessions of one device, on one node."""
    rescan_every: float = 300.0
    """How often an idle session looks into the store though nothing was announced."""
    max_push_sessions: int = 4096
    """Connections on the push port, where there are file descriptors for so many."""
    max_receive_sessions: int = 50_000
    """Connections on the receive port, likewise."""
    idle_patience: float = 2.0
    """How long a push session may be idle before it gives its place to a newcomer without one."""
    linger: float = 2.0
    """How long a session that the relay ends waits for the peer to read the last frames."""
    drain: float = 10.0
    """How long pushes in hand may take to finish after SIGTERM."""
