"""What one stranger, and all of them together, may take of this process.

`SmtpLimits` is the whole set of numbers; connections are counted by `relay.peers`.  `MemoryBudget`
counts the bytes of messages that are being received or stored, each with a `Share` of it: the sum
of what all sessions hold is bounded, whatever each of them announces.  When there is no room, slow
messages lose their shares to others, so that nobody keeps it for as long as a message may drip.

Promises: nothing here waits, nothing here allocates by what a peer sends, and what was let in
or taken is given back exactly once.

Fails: by saying no (a reply text, or False), never by raising.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

MIB = 1024 * 1024


@dataclass(frozen=True)
class SmtpLimits:
    """Every cap and deadline of an SMTP session; sizes in bytes, durations in seconds."""

    max_message_bytes: int = 26_214_400
    max_connections: int = 1000
    max_connections_per_peer: int = 100
    idle_patience: float = 10.0
    """How long a session may be idle before it gives its place to a newcomer who would get none."""
    max_recipients: int = 100
    max_stored_bytes: int = 256 * MIB
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
        return max(64 * MIB, 2 * self.max_message_bytes)


class Misses:
    """How long a peer waits to hear that a recipient is unknown; others never wait for it.

    A leaky bucket by peer: a few wrong addresses cost nothing, whoever guesses is told ever later,
    and all is forgotten with time.  Who asks for addresses that exist is not held up, so an honest
    sender behind the same address loses its own typing errors' time and no more.

    What is remembered of a peer is bounded by what makes it wait the longest: an hour of guessing
    is forgotten as soon as a minute's.  It counts misses alone, whatever an address is unknown for:
    one that has expired waits as long as one that never was.  Times are seconds of any clock that
    only rises.
    """

    PEERS = 10_000
    """How many peers are remembered; above, the one whose last miss is longest ago is forgotten."""

    def __init__(self, limits: SmtpLimits) -> None:
        self._limits = limits
        self._most = limits.free_misses + (
            limits.longest_miss / limits.miss_delay if limits.miss_delay > 0 else 0.0
        )
        self._peers: dict[str, tuple[float, float]] = {}  # misses not forgotten yet, as of a time

    def __len__(self) -> int:
        return len(self._peers)

    def note(self, peer: str, now: float) -> float:
        """Count a miss of `peer` (a `peer_key`); return the seconds after which it is answered."""
        limits = self._limits
        count, since = self._peers.pop(peer, (0.0, now))
        count = max(0.0, count - (now - since) * limits.misses_forgotten) + 1
        count = min(count, self._most)
        if len(self._peers) >= self.PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[peer] = count, now
        return min(max(0.0, count - limits.free_misses) * limits.miss_delay, limits.longest_miss)


class MemoryBudget:
    """The bytes that all messages share.  Times are seconds of any clock that only rises."""

    def __init__(self, limits: SmtpLimits) -> None:
        self.total = limits.buffered_bytes
        self.used = 0
        self._limits = limits
        self._arriving: set[Share] = set()

    def share(self, began: float, forget: Callable[[], object]) -> Share:
        """Let a message begin; `forget` is called if it loses what it has to others."""
        return Share(self, began, forget)

    def hold(self, size: int) -> bool:
        """Take room for a message that is whole, if there is some left: nobody makes any for it."""
        if self.used + size > self.total:
            return False
        self.used += size
        return True

    def free(self, size: int) -> None:
        """Give back what was held so, once."""
        self.used -= size

    def _fits(self, count: int, asking: Share, now: float) -> bool:
        """Whether there is room for `count` bytes more, made if need be."""
        lacking = self.used + count - self.total
        if lacking <= 0:
            return True
        losers: list[Share] = []
        for share in self._slow_shares(now):
            if share is asking:
                return False
            losers.append(share)
            lacking -= share.size
            if lacking <= 0:
                for loser in losers:
                    loser.lose()
                return True
        return False

    def _slow_shares(self, now: float) -> list[Share]:
        """Return those of messages that come too slowly, the slowest first."""
        slow = [share for share in self._arriving if self._slow(share, now)]
        return sorted(slow, key=lambda share: share.size / (now - share.began))

    def _slow(self, share: Share, now: float) -> bool:
        took = now - share.began
        return took > self._limits.slow_after and share.size < took * self._limits.slow_rate


class Share:
    """What one message has of a budget, from its beginning until it is stored or refused."""

    __slots__ = ("_budget", "_forget", "began", "lost", "size")

    def __init__(self, budget: MemoryBudget, began: float, forget: Callable[[], object]) -> None:
        self._budget = budget
        self._forget = forget
        self.began = began
        self.size = 0
        """Bytes that are its own."""
        self.lost = False
        """Whether the share was refused, or given to others: it gets no room any more."""
        budget._arriving.add(self)

    def grow(self, size: int, now: float) -> None:
        """Hold `size` bytes in all; where there is no room for them, none: the share is lost."""
        if self.lost:
            return
        more = size - self.size
        if self._budget._fits(more, self, now):
            self._budget.used += more
            self.size = size
        else:
            self.lose()

    def lose(self) -> None:
        """Have the message forgotten: what it had is for the others now."""
        self.lost = True
        self.end()
        self._forget()

    def keep(self) -> None:
        """The message is whole: from now on nobody takes its place."""
        self._budget._arriving.discard(self)

    def end(self) -> None:
        """Give everything back; a second time does nothing."""
        self.keep()
        self._budget.used -= self.size
        self.size = 0


class PooledBudget(MemoryBudget):
    """A process's part of a budget that several processes share through a board in memory.

    The board has two numbers for each process: the bytes that its messages hold, and those for
    which it had no room lately.  Each writes its own alone, so nothing is locked; whoever asks for
    room adds up what all hold.  What two might take at the same instant is kept free from the
    start (`AT_ONCE`), so the budget holds for all together.

    Slow messages lose their shares here as in one process; where it is another process that
    lacks room, `relieve` has them lose it, a second later.
    """

    AT_ONCE = 128 * 1024
    """More bytes than one message grows by at once."""
    REMEMBERED = 3.0
    """Seconds for which the others are shown that there was no room."""

    def __init__(self, limits: SmtpLimits, board: memoryview, place: int) -> None:
        """`board`: signed 64-bit numbers, two for each process; ours are those of `place`."""
        places = len(board) // 2
        self._held, self._lacked = board[:places], board[places:]
        self._place = place
        self._shown_until = -1.0
        super().__init__(limits)
        self._whole = max(
            limits.max_message_bytes, limits.buffered_bytes - (places - 1) * self.AT_ONCE
        )

    @property
    def used(self) -> int:
        """The bytes that this process's messages hold."""
        return self._held[self._place]

    @used.setter
    def used(self, used: int) -> None:
        self._held[self._place] = used

    def relieve(self, now: float) -> None:
        """Give what slow messages hold to the other processes, if they lack it."""
        if self._shown_until < now:
            self._lacked[self._place] = 0
        lacking = sum(self._lacked) - self._lacked[self._place]
        if lacking > 0:
            for share in self._slow_shares(now):
                lacking -= share.size
                share.lose()
                if lacking <= 0:
                    break

    def hold(self, size: int) -> bool:
        """As in one process."""
        self._look()
        return super().hold(size)

    def _look(self) -> None:
        """See what the others leave."""
        self.total = self._whole - (sum(self._held) - self._held[self._place])

    def _fits(self, count: int, asking: Share, now: float) -> bool:
        self._look()
        fits = super()._fits(count, asking, now)
        if not fits:
            self._lacked[self._place] = count
            self._shown_until = now + self.REMEMBERED
        return fits


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
