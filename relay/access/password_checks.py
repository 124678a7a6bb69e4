"""Whose password is checked when: the limit of guesses, one for POP3 and submission together.

A session that was told a password waits for a `Turn`, and has the password checked within it.
What a wrong password costs is taken before it is checked, and given back if it was right; so nobody
saves anything by hanging up, by many connections, or by another port.

                            its password was right      any other password
                            here not long ago
    from this machine       at once                     a credit of 100 wrong ones, and 10 a second
    from another network    at once                     a credit of 10, and one in 2 s; and its turn
                                                        among the networks (below)

A network is an IPv4 address, or an IPv6 /64.  One without credit waits for more: its sessions in
the order they came, `patience` seconds each; then they are told to come again.  How many wait, the
ports bound, by their places.  Networks of other machines have `places` checks at once between them,
one network after another (of IPv6 a /48 after another; those first that have said no wrong one
lately), and a place rests for a moment after a wrong password: strangers who guess, however many,
have about a hundred checks a second.

Who can keep whom out:

    guessers …              an owner who signed in here  one who did not, since the relay started
    on this machine         never                        may be told to come again, while more than
                                                         150 sessions there guess at once
    in the owner's network  never                        likewise, while more than seven do
    elsewhere               never                        is slowed: by a turn for each network whose
                                                         first guess waits, too

Whether a connection gets a place on its port at all is `relay.ports.peers`'s to say.

Promises
- No more wrong passwords of a network are checked than that, on all ports together, whatever its
  sessions do meanwhile.
- Whoever says a password that was right here lately waits for nobody.  This gives guessers nothing:
  passwords are tokens with 256 random bits, so such a one is no guess.  Whether it still is right
  is looked up as ever; if it is not, it is charged, and forgotten.
- A right password costs nothing, nor does one that cannot be judged now (`TemporaryFailure`).
- Memory is bounded: `remembered` right passwords (their hashes), `remembered` networks.

Fails with `TooManyWrong`.

Why not by account, as others do: whoever knows its name could lock its owner out.  Why not later
and later answers: those who hang up do not wait for them.

Kept by each relay for itself, and anew after each start.
"""

from __future__ import annotations

import heapq
import ipaddress
import math
from collections import OrderedDict, deque
from dataclasses import dataclass
from types import TracebackType

import trio
from prometheus_client import Counter

from relay.crypto import hash_token
from relay.errors import TemporaryFailure
from relay.gcra import Gcra
from relay.ip import ip_address
from relay.log import get_logger
from relay.metrics import registry
from relay.ports.peers import peer_key
from relay.throttle import Throttle

log = get_logger()

_THIS_MACHINE = "this machine"

_CHECKS = Counter(
    "relay_password_checks",
    "Passwords that were said to POP3 and submission ports, by what came of them: right, wrong, or"
    " limited (not checked, because too many wrong ones came from that network, or from all).",
    ["outcome"],
    registry=registry,
)
_right, _wrong, _limited = (_CHECKS.labels(one) for one in ("right", "wrong", "limited"))


class TooManyWrong(TemporaryFailure):
    """A password is not even checked: too many wrong ones came from its network, or from all."""


@dataclass(frozen=True)
class PasswordLimits:
    """How many wrong passwords are listened to; durations in seconds."""

    wrong_in_session: int = 3
    """Wrong passwords in one session, the last of which ends it, …"""
    wrong_delay: float = 1.0
    """… each answered so late: a program that tries the same one again and again is slowed."""
    credit: int = 10
    """Wrong passwords that a network may say at once, …"""
    every: float = 2.0
    """… and after which time one more."""
    local_credit: int = 100
    local_every: float = 0.1
    """Likewise, of all sessions from this machine."""
    patience: float = 15.0
    """How long a session waits for its turn."""
    places: int = 6
    """Passwords from other machines that are checked at once."""
    rest: float = 0.05
    """How long a place rests after a wrong one."""
    remembered: int = 20_000
    """Right passwords, and networks that said wrong ones."""


class PasswordChecks:
    """Says when a password is checked, for all ports of one relay."""

    def __init__(self, limits: PasswordLimits | None = None) -> None:
        self.limits = limits = PasswordLimits() if limits is None else limits
        self._credit = Gcra[str](limits.remembered)
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._queues: dict[str, _CreditQueue] = {}
        self._places = _Places(limits.places)
        self._said = Throttle(60.0)

    def turn(self, host: str, password: str) -> Turn:
        """Return the turn of a password from the address `host`, to be waited for."""
        return Turn(self, host, password)

    def _knows(self, token_hash: bytes) -> bool:
        return token_hash in self._known

    def _come_nowait(self, turn: Turn) -> bool:
        """Take for a turn what it needs, if all of it is there and nobody waits for it."""
        now = trio.current_time()
        if turn.network in self._queues:
            return False
        if turn.site is not None and not self._places.take_nowait(now):
            return False
        if self._credit.take(turn.network, now, *self._cost(turn.network)):
            if turn.site is not None:
                self._places.give(now)
            return False
        turn.charged, turn.placed = True, turn.site is not None
        return True

    async def _come(self, turn: Turn) -> None:
        """Take for a turn what it needs, waiting for it."""
        with trio.move_on_after(self.limits.patience):
            at_rest = turn.network not in self._queues and not self._credit.used(
                turn.network, trio.current_time()
            )
            await self._charge(turn.network)
            turn.charged = True
            if turn.site is not None:
                await self._places.take(turn.site, first=at_rest)
                turn.placed = True
            return
        _limited.inc()
        if self._said.ready(turn.network):
            log.warning("passwords.limited", network=turn.network)
        raise TooManyWrong("too many wrong passwords")

    # ------------------------------------------------------------------------ a network's credit

    async def _charge(self, network: str) -> None:
        """Take a wrong password's cost off what a network has; wait until it has that."""
        queue = self._queues.setdefault(network, _CreditQueue())
        queue.length += 1
        cost, burst = self._cost(network)
        try:
            async with queue.first:
                while left := self._credit.take(network, trio.current_time(), cost, burst):
                    queue.given_back = trio.Event()
                    with trio.move_on_after(left):
                        await queue.given_back.wait()
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[network]

    def _give_back(self, network: str) -> None:
        self._credit.give_back(network, self._cost(network)[0])
        queue = self._queues.get(network)
        if queue is not None:
            queue.given_back.set()

    def _cost(self, network: str) -> tuple[float, float]:
        """What one wrong password costs, and how much a network may have: seconds (`Gcra`)."""
        limits = self.limits
        if network == _THIS_MACHINE:
            return limits.local_every, limits.local_every * limits.local_credit
        return limits.every, limits.every * limits.credit

    # ------------------------------------------------------------------------ what came of it

    def _was_right(self, turn: Turn) -> None:
        _right.inc()
        self._known[turn.token_hash] = None
        self._known.move_to_end(turn.token_hash)
        if len(self._known) > self.limits.remembered:
            self._known.popitem(last=False)

    def _was_wrong(self, turn: Turn) -> float:
        """Charge it, and return how long its place rests."""
        _wrong.inc()
        self._known.pop(turn.token_hash, None)
        if not turn.charged:
            cost, _ = self._cost(turn.network)
            self._credit.spend(turn.network, trio.current_time(), cost)
        turn.charged = False  # and stays so
        return self.limits.rest

    def _leave(self, turn: Turn, rest: float) -> None:
        if turn.charged:
            self._give_back(turn.network)
        if turn.placed:
            self._places.give(trio.current_time() + rest)


class Turn:
    """One password's: in its block it comes (`come_nowait`, or `come`), and then is checked.

    It was wrong unless `right` is called; it is not known where the block ends with
    `TemporaryFailure`.  Who breaks it off any other way once the turn has come has guessed wrong.
    """

    __slots__ = (
        "_checks", "_right", "came_at", "charged", "network", "placed", "site", "token_hash",
    )  # fmt: skip

    def __init__(self, checks: PasswordChecks, host: str, password: str) -> None:
        self._checks = checks
        self.network, self.site = _networks(host)
        self.token_hash = hash_token(password)
        self.charged = self.placed = self._right = False
        self.came_at = math.inf
        """Since when the password may be checked."""

    def come_nowait(self) -> bool:
        """Return whether the password may be checked at once; if not, `come` is to be awaited."""
        if not (self._checks._knows(self.token_hash) or self._checks._come_nowait(self)):
            return False
        self.came_at = trio.current_time()
        return True

    async def come(self) -> None:
        """Wait until the password may be checked.

        Raises `TooManyWrong` where that takes too long.
        """
        await self._checks._come(self)
        self.came_at = trio.current_time()

    def right(self) -> None:
        """Take note that the password opens what it was said for."""
        self._right = True

    def __enter__(self) -> Turn:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        rest = 0.0
        if self._right:
            self._checks._was_right(self)
        elif self.came_at < math.inf and not isinstance(error, TemporaryFailure):
            rest = self._checks._was_wrong(self)
        self._checks._leave(self, rest)


class _CreditQueue:
    """The sessions of one network that wait for credit: the first for that, the others for it."""

    def __init__(self) -> None:
        self.first = trio.Lock()
        self.given_back = trio.Event()
        self.length = 0


class _Waiter:
    def __init__(self) -> None:
        self.called = trio.Event()
        self.rested_at: float | None = None  # of the place that it is given


_SiteQueues = OrderedDict[str, deque[_Waiter]]
"""Who waits, by site; the site whose turn is next comes first."""


class _Places:
    """So many at once, one network after another.

    A place that must rest is given away all the same: it rests in the hands of who has it next.
    """

    def __init__(self, count: int) -> None:
        self._free = [0.0] * count  # when each has rested; a heap
        self._first: _SiteQueues = OrderedDict()
        self._others: _SiteQueues = OrderedDict()

    def take_nowait(self, now: float) -> bool:
        """Have a place if one is free that has rested."""
        if not self._free or self._free[0] > now:
            return False
        heapq.heappop(self._free)
        return True

    async def take(self, site: str, *, first: bool) -> None:
        """Have a place, when it is the turn of `site`; `first`: before all that are not.

        It is to be given back.
        """
        if self._free:
            rested_at = heapq.heappop(self._free)
        else:
            rested_at = await self._wait(site, self._first if first else self._others)
        try:
            await trio.sleep_until(rested_at)
        except BaseException:
            self.give(rested_at)
            raise

    def give(self, rested_at: float) -> None:
        """Have the next one take a place, which must rest until an instant of Trio's clock."""
        queues = self._first or self._others
        if not queues:
            heapq.heappush(self._free, rested_at)
            return
        site, waiters = queues.popitem(last=False)
        waiter = waiters.popleft()
        if waiters:
            queues[site] = waiters
        waiter.rested_at = rested_at
        waiter.called.set()

    async def _wait(self, site: str, queues: _SiteQueues) -> float:
        waiter = _Waiter()
        queues.setdefault(site, deque()).append(waiter)
        try:
            await waiter.called.wait()
        except BaseException:
            if waiter.rested_at is not None:
                self.give(waiter.rested_at)
            else:
                waiters = queues[site]
                waiters.remove(waiter)
                if not waiters:
                    del queues[site]
            raise
        assert waiter.rested_at is not None
        return waiter.rested_at


def _networks(host: str) -> tuple[str, str | None]:
    """Return a peer's network, by which its wrong passwords are counted, and its site, by which it
    waits among others: the network, or of IPv6 the /48 around it.

    The site is None for this machine, which waits for no others.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return _THIS_MACHINE, None  # by a Unix socket
    if address.is_loopback:
        return _THIS_MACHINE, None
    network = peer_key(host)
    if address.version == 4:
        return network, network
    return network, str(ipaddress.IPv6Network((int(address) >> 80 << 80, 48)))
