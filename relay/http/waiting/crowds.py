"""Those of one owner who wait on a mailbox where many do: one of them looks, for all.

One mail wakes all who wait on its mailbox, and most of them wait for another.  So where there are
more than `FEW`, mail wakes one of each owner's alone, the leader: it reads what is new, without
texts, and rings for those for whom it may be.

Promises
  * Nobody misses mail: what came before one joins has rung for that one; what comes later the
    leader looks for, from where the look of whoever came least far ended; and where the leader goes
    before it has, another leads and looks.
  * A look takes one turn for a look; after one in vain they may rest
    (`HeavyCalls.looked_in_vain`).  Both are their owner's, so nobody waits for another's.

Fails with `DatabaseUnavailable` (temporary) from the pool, for the leader; then another leads.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from uuid import UUID

import trio

from relay.http.limits.heavy_calls import HeavyCalls
from relay.http.waiting.waiters import Watch
from relay.mailboxes.arrivals import Arrivals, Heads, Sought

FEW = 2
"""So many who wait on one mailbox, of whomever, look each for itself: a leader's look costs a query
more, where it finds something."""


class _Crowd:
    """Members in the order they came, of which the first leads.

    `asked`: the leader is to look; `quiet_until`: no sooner.
    """

    def __init__(self) -> None:
        self.members: dict[Member, None] = {}
        self.asked = False
        self.quiet_until = -math.inf

    def leads(self, member: Member) -> bool:
        return next(iter(self.members)) is member

    def hand_on(self) -> None:
        """Have another lead, and look if the last one has not."""
        leader = next(iter(self.members))
        leader.watch.mute(False)
        if self.asked:
            leader.watch.ring()


class Member:
    """One of those who wait: what it seeks above which `seq`, and what wakes it.

    `rung`: there may be what it seeks, and nobody looks for it any more.
    """

    def __init__(
        self, crowds: Crowds, crowd: _Crowd, mailbox_id: UUID, owner: Hashable, watch: Watch,
        sought: Sought, above: int,
    ) -> None:  # fmt: skip
        self._crowds, self._crowd = crowds, crowd
        self.mailbox_id, self.owner = mailbox_id, owner
        self.watch, self.sought, self.above = watch, sought, above
        self.rung = False

    async def wait(self, seconds: float) -> bool:
        """As `Watch.wait`: whether there may be what is sought, or else something to look at.

        The leader may return sooner.
        """
        crowd = self._crowd
        if crowd.asked and crowd.leads(self):
            seconds = min(seconds, crowd.quiet_until - trio.current_time())
        woken = await self.watch.wait(seconds)
        if not crowd.leads(self):
            return woken
        if await self.watch.heard():
            crowd.asked = True
        if not crowd.asked:
            return woken
        if trio.current_time() < crowd.quiet_until:
            return False
        crowd.asked = False
        try:
            return await self._crowds.look(crowd, self)
        except BaseException:
            crowd.asked = True
            raise

    def tell(self, heads: Heads) -> None:
        """Hear what is new."""
        for head in heads.found:
            if head.seq > self.above and self.sought.may_be(head):
                self.rung = True
                return
        self.above = max(self.above, heads.reached)


class Crowds:
    """The crowds of one relay."""

    def __init__(self, arrivals: Arrivals, heavy_calls: HeavyCalls) -> None:
        self._arrivals = arrivals
        self._heavy_calls = heavy_calls
        self._crowds: dict[tuple[UUID, Hashable], _Crowd] = {}

    @contextmanager
    def joined(
        self, mailbox_id: UUID, owner: Hashable, watch: Watch, sought: Sought, above: int
    ) -> Iterator[Member]:
        """Be one of those of an owner who wait on a mailbox, within the block.

        `above`: the `seq` up to which whoever joins has looked since it began to `watch`.
        """
        key = mailbox_id, owner
        crowd = self._crowds.setdefault(key, _Crowd())
        member = Member(self, crowd, mailbox_id, owner, watch, sought, above)
        crowd.members[member] = None
        watch.mute(not crowd.leads(member))
        try:
            yield member
        finally:
            led = crowd.leads(member)
            del crowd.members[member]
            watch.mute(False)
            if not crowd.members:
                del self._crowds[key]
            elif led:
                crowd.asked |= watch.has_mail
                crowd.hand_on()

    async def look(self, crowd: _Crowd, leader: Member) -> bool:
        """Look for all of a crowd; whether its leader has something to look at."""
        in_vain = True
        while those := [one for one in crowd.members if not one.rung]:
            async with self._heavy_calls.look(leader.owner):
                heads = await self._arrivals.heads(
                    leader.mailbox_id, min(one.above for one in those)
                )
            if heads is None:
                return True  # the mailbox is over: all hear of that
            for one in those:
                one.tell(heads)
                if one.rung:
                    in_vain = False
                    if one is not leader:
                        one.watch.ring()
            if not heads.cut:
                break
        if in_vain and (rest := self._heavy_calls.looked_in_vain(leader.owner)):
            crowd.quiet_until = trio.current_time() + rest
        return leader.rung
