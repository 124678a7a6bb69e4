"""What one stranger, and all of them together, may take of this process.

`SmtpLimits` is the whole set of numbers.  Connections are counted by `relay.ports.peers`, bytes by
`relay.ports.memory_budget`, and guesses by `relay.smtp.misses`.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relay.ports.memory_budget import MemoryBudget, PooledBudget
from relay.smtp.misses import Misses


@dataclass(frozen=True)
class SmtpLimits:
    """Every cap and deadline of an SMTP session; sizes in bytes, durations in seconds."""

    max_message_bytes: int = 26_214_400
    max_connections: int = 1000
    max_connections_per_peer: int = 100
    idle_patience: float = 10.0
    """How long a session may be idle before it gives its place to a newcomer who would get none."""
    max_recipients: int = 100
    max_stored_bytes: int = 256 << 20
    """The bytes of a message times its recipients, who get a copy each: what one may add."""
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
    slow_after: float = 10.0
    """While there is no room, a message that has taken longer than this must …"""
    slow_rate: int = 256 * 1024
    """… come faster than this, bytes a second, or its place is given to another."""
    room_timeout: float = 120.0
    """How long a message over 64 KiB waits for room, unread, while other large ones have it all;
    a sender waits for three minutes until we take more (RFC 5321, 4.5.3.2.5)."""
    discard_factor: int = 10
    """A message is read and discarded up to this many times the limit, then the session ends."""
    free_misses: int = 100
    """Unknown recipients that a peer may name, over all its sessions, without being slowed."""
    miss_delay: float = 0.05
    """Seconds that each one more makes it wait longer for the answer, …"""
    longest_miss: float = 5.0
    """… up to these."""
    misses_forgotten: float = 1.0
    """Misses of a peer that are forgotten a second."""
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
    proxy_timeout: float = 5.0
    """From a trusted proxy's connection to the end of its PROXY header."""
    handshake_timeout: float = 30.0
    """From STARTTLS to the end of the TLS handshake, however steadily bytes drip in."""
    reply_timeout: float = 60.0
    """How long a peer may leave our replies unread."""
    linger_timeout: float = 2.0
    """How long a peer that is still sending is drained so that it can read the last reply."""
    bare_line_timeout: float = 2.0
    """How long a command that held a bare CR or LF may go on without its CRLF."""
    smuggling_silence: float = 0.25
    """How long a peer is listened to behind a message with bare line ends, before its 554."""

    @property
    def buffered_bytes(self) -> int:
        """The cap on the bytes of all messages in flight."""
        if self.max_buffered_bytes is not None:
            return self.max_buffered_bytes
        return max(64 << 20, 2 * self.max_message_bytes)

    def memory_budget(self) -> MemoryBudget:
        """Return the budget of the bytes of all messages in flight."""
        return MemoryBudget(
            self.buffered_bytes,
            slow_after=self.slow_after,
            slow_rate=self.slow_rate,
            largest=self.max_message_bytes,
            patience=self.room_timeout,
        )

    def pooled_budget(self, board: memoryview, place: int) -> PooledBudget:
        """Return the part of it of the process at a place of the board that all of them see."""
        return PooledBudget(
            board,
            place,
            self.buffered_bytes,
            largest=self.max_message_bytes,
            slow_after=self.slow_after,
            slow_rate=self.slow_rate,
            patience=self.room_timeout,
        )

    def misses(self) -> Misses:
        """Return what counts unknown recipients."""
        return Misses(
            self.free_misses,
            delay=self.miss_delay,
            longest=self.longest_miss,
            forgotten=self.misses_forgotten,
        )


def part_of(limits: SmtpLimits, places: int) -> SmtpLimits:
    """Return the limits of one of so many processes, where each counts for itself.

    Of what a peer may guess each takes a part, as its sessions may be anywhere.  Connections are
    counted by who accepts them, and bytes by all together (`PooledBudget`).
    """
    return replace(
        limits,
        free_misses=limits.free_misses // places,
        misses_forgotten=limits.misses_forgotten / places,
    )
