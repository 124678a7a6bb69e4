"""Turns for heavy calls (searches, long pages, changes of all that a search finds), and for looks.

A search may read through much mail, for a second and more, and keeps one of the pool's connections
meanwhile; a page of whole messages, or of more than `SHORT` entries, is as much work as a hundred
other calls, for the relay's one thread. So few run at once, of one owner fewer; the others wait, as
a rule some milliseconds.  Calls that are not heavy take no turn, and never wait.

Whoever waits for mail, or follows it, looks whenever some came: one mail may wake very many. Looks
at what is new take turns of their own. Meanwhile more mail may come, and is seen by the same look.

Promises
  * At most `AT_ONCE` heavy calls run at once, `OF_ONE` of them for one owner; one is the
    administrator's (`FairLimiter`).  So it is with looks.
  * Looks of waits that mail wakes, and that find nothing, are so many a second for one owner other
    than the administrator: a wait that has made one too many rests. Others are never kept waiting.
  * A look is one step among what one mailbox got, or goes by no text: else it takes a heavy call's
    turn.

Fails with 503 after `PATIENCE` seconds without a heavy call's turn; looks wait for theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio
from quart import request

from relay.access.owners import ADMINISTRATOR_ID
from relay.gcra import Gcra
from relay.http.credentials.callers import owner_of
from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.operations import Call
from relay.http.problems.details import unavailable
from relay.ports.proxy import Network

AT_ONCE, OF_ONE = 4, 2
"""Calls that run, and looks: half of a small pool, and for one owner half of that."""
SHORT = 50
"""Entries of a list that is given without a turn."""
PATIENCE = 10.0
"""Seconds that one waits for its turn, at most."""
_IN_VAIN = 50.0  # looks in vain of one owner, a second
_BURST = 2.0  # seconds' worth of them at once
_LONGEST_REST = 5.0  # s
_OWNERS = 20_000  # that are remembered


class HeavyCalls:
    """The heavy calls of one relay."""

    def __init__(self, trusted_proxies: Collection[Network]) -> None:
        self._trusted = trusted_proxies
        self._turns = FairLimiter(AT_ONCE, OF_ONE, kept=1)
        self._looks = FairLimiter(AT_ONCE, OF_ONE, kept=1)
        self._in_vain = Gcra[Hashable](_OWNERS)

    def looked_in_vain(self, owner: Hashable) -> float:
        """Count a look of a wait that mail woke and that found nothing; return for how many seconds
        that wait is to look no more."""
        if owner == ADMINISTRATOR_ID:
            return 0.0
        now, cost = trio.current_time(), 1 / _IN_VAIN
        rest = self._in_vain.wait(owner, now, cost, _BURST)
        if rest < _LONGEST_REST:
            self._in_vain.spend(owner, now, cost)
        return min(rest, _LONGEST_REST)

    def look(self, owner: Hashable) -> AbstractAsyncContextManager[None]:
        """Hold a turn for a look at what is new, within the block."""
        return self._looks.turn(owner)

    @asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        """Hold a turn for the block."""
        try:
            async with self._turns.turn(owner_of(call.caller, request, self._trusted), PATIENCE):
                yield
        except Crowded:
            said = "Too many searches and long lists run at once; try again."
            raise unavailable(said) from None
