"""How late those who guess at recipients are answered.

Promises: nothing here waits, and memory is bounded, whatever strangers send.

Fails: never.

Pure: no I/O, no clock.
"""

from __future__ import annotations


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

    def __init__(self, free: float, *, delay: float, longest: float, forgotten: float) -> None:
        """`free` misses of a peer cost it nothing; each one more is answered `delay` seconds later
        than the one before, at most `longest`; `forgotten` are a second."""
        self._free, self._delay, self._longest, self._forgotten = free, delay, longest, forgotten
        self._most = free + (longest / delay if delay > 0 else 0.0)
        self._peers: dict[str, tuple[float, float]] = {}  # misses not forgotten yet, as of a time

    def __len__(self) -> int:
        return len(self._peers)

    def note(self, peer: str, now: float) -> float:
        """Count a miss of `peer` (a `peer_key`); return the seconds after which it is answered."""
        count, since = self._peers.pop(peer, (0.0, now))
        count = max(0.0, count - (now - since) * self._forgotten) + 1
        count = min(count, self._most)
        if len(self._peers) >= self.PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[peer] = count, now
        return min(max(0.0, count - self._free) * self._delay, self._longest)
