"""Crowds: where many wait on one mailbox, one of each owner's looks in the database for them all.

One mail wakes everybody who waits on its mailbox, and most of them wait for another mail.  So where
more than `FEW` wait there, those of one owner are a crowd.  New mail wakes only its leader, the
member that joined first; the others are muted.  The leader reads what is new, without texts, and
rings for each member for whom one of these mails may be.

Promises
  * No member misses mail.  Each says up to which `seq` it has looked itself.  The leader looks from
    the lowest of these on, so that what came before a member joined, and after its own look, is
    found, too.  A leader that leaves before it has looked hands that on: the next one looks.
  * A look takes one turn for a look.  After one that was in vain the crowd may have to rest
    (`HeavyCalls.looked_in_vain`).  Turn and rest are the owner's, so that nobody waits for another
    owner's crowd.

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
