"""What one stranger, and all of them together, may take of this process.

`SmtpLimits` is the whole set of numbers.  `Gate` counts connections, in all and by peer.
`Budget` counts the bytes of messages that are being received or stored: the sum of what all
sessions hold is bounded, whatever each of them announces.

Promises: nothing here waits, nothing here allocates by what a peer sends, and what was let in
or taken is given back exactly once by the caller.

Fails: by saying no (a reply text, or False), never by raising.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True)
class SmtpLimits:
    """Every cap and deadline of an SMTP session; sizes in bytes, durations in seconds."""

    max_message_bytes: int = 26_214_400
    max_connections: int = 1000
    max_connections_per_peer: int = 100
    max_recipients: int = 100
    max_line_bytes: int = 2048
    """A command with its CRLF; RFC 5321 asks for 512, SMTPUTF8 and parameters for more."""
    max_errors: int = 100
    """5xx replies since the last accepted message, before the session is closed with 421."""
    max_unknown: int = 20
    """Commands that do not exist, likewise."""
    max_idle_commands: int = 1000
    """Commands that lead nowhere (NOOP, RSET, VRFY, EHLO …), likewise."""
    max_buffered_bytes: int | None = None
    """All messages in flight together; None: 64 MiB, or two messages if those are larger."""
    discard_factor: int = 10
    """A message is read and discarded up to this many times the limit, then the session ends."""
    command_timeout: float = 300.0
    """From one reply to the end of the next command (RFC 5321, 4.5.3.2.7)."""
    data_timeout: float = 180.0
    """Between two chunks of a message (RFC 5321, 4.5.3.2.5)."""
    transaction_timeout: float = 1800.0
    """From MAIL to the final dot, however steadily bytes drip in."""
    store_timeout: float = 60.0
    """How long a session waits to hear that its message is durable."""
    filter_timeout: float = 30.0
    """How long a session waits for the operator's filter."""
    reply_timeout: float = 60.0
    """How long a peer may leave our replies unread."""
    linger_timeout: float = 2.0
    """How long a peer that is still sending is drained so that it can read the last reply."""
    bare_line_timeout: float = 2.0
    """How long a command that held a bare CR or LF may go on without its CRLF."""

    @property
    def buffered_bytes(self) -> int:
        """The cap on the bytes of all messages in flight."""
        if self.max_buffered_bytes is not None:
            return self.max_buffered_bytes
        return max(64 * MIB, 2 * self.max_message_bytes)


def peer_key(host: str) -> str:
    """Return what a peer is counted by: its IPv4 address, or its IPv6 /64.

    One subscriber commonly has a whole /64, so a single IPv6 address identifies nobody.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class Gate:
    """Counts open sessions and refuses those above a cap."""

    def __init__(self, limits: SmtpLimits) -> None:
        self._limits = limits
        self._peers: dict[str, int] = {}
        self.open = 0

    def enter(self, key: str) -> str | None:
        """Let a peer in, or return the reply that refuses it."""
        if self.open >= self._limits.max_connections:
            return "421 4.3.2 Too many connections, try again later"
        mine = self._peers.get(key, 0)
        if mine >= self._limits.max_connections_per_peer:
            return "421 4.7.0 Too many connections from your address"
        self._peers[key] = mine + 1
        self.open += 1
        return None

    def leave(self, key: str) -> None:
        """Give back what `enter` let in."""
        self.open -= 1
        left = self._peers[key] - 1
        if left:
            self._peers[key] = left
        else:
            del self._peers[key]


class Budget:
    """A number of bytes that many sessions share."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0

    def take(self, count: int) -> bool:
        """Take `count` bytes, or return False and take nothing."""
        if self.used + count > self.total:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Return `count` bytes."""
        self.used -= count
