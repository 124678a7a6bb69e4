"""The bytes that all sessions of a port may hold together, whatever each of them announces.

`MemoryBudget` counts the bytes of messages that are being received or stored, each with a `Share`
of it.  When there is no room, slow messages lose their shares to others, so that nobody keeps it
for as long as a message may drip.  `PooledBudget` is one that several processes share.

Small messages take what there is.  One that grows to `SMALL` bytes takes what is left beside the
rooms of two that are as large as can be; when that is used up it waits for a room of its own, which
is as large as it may become, and so it need not wait again.  Who waits reads nothing (`Waiting`).

    who might keep others waiting        what becomes of that
    -----------------------------------  -----------------------------------------------------------
    large messages, small ones           a sixteenth is never for large ones; where that is used up,
                                         those that wait are lost, the last in line first
    a large one that stalls, others      looked at every second: its room is taken back, and it goes
                                         on with what is beside the rooms, behind those that came
                                         fast; where it has too much for that, it is lost after
                                         `slow_after` seconds of it
    many that come slowly, one that      who has come slowly waits behind who has not
    comes fast
    many of one peer, those of others    who waits goes before others of a peer that has a room
    large ones that wait for each other  a room is given whole, and always fits beside what those
                                         without one may have
    who announces less than it sends     it gives its room back; if those in line have all there is,
                                         the last of them is lost
    all of them, somebody                who has waited for `patience` seconds is lost
    who waits and is gone                has no room yet, or ends as soon as it is read from again

Promises: nothing here waits, nothing here allocates by what a peer sends, and what was taken is
given back exactly once.  A message that is lost is refused at its end, and its text is forgotten at
once.

Fails: by saying no, never by raising.

Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

SMALL = 64 * 1024
"""Bytes that a message may have without waiting; at most so many more come at once."""
_TRIAL = 1.0  # s; for so long a room is held before it is asked how fast its message comes


class Waiting:
    """A wait for a room, over when it is `settled` (`relay.smtp.waits.Answer`)."""

    __slots__ = ("_then", "settled")

    def __init__(self) -> None:
        self.settled = False
        """Whether it is over: go on, with a room or with nothing to keep."""
        self._then: Callable[[], object] | None = None

    def then(self, call: Callable[[], object]) -> None:
        """Have `call`, which raises nothing, called once it is over; the last one given."""
        if self.settled:
            call()
        else:
            self._then = call

    def result(self) -> None:
        """Nothing is said but that it is over."""

    def settle(self) -> None:
        """It is over."""
        self.settled = True
        call, self._then = self._then, None
        if call is not None:
            call()


class MemoryBudget:
    """The bytes that all sessions share.  Times are seconds of any clock that only rises."""

    def __init__(
        self,
        total: int,
        *,
        slow_after: float = math.inf,
        slow_rate: float = 0.0,
        largest: int = 0,
        patience: float = math.inf,
    ) -> None:
        """`total` bytes; a message that takes longer than `slow_after` seconds and comes with less
        than `slow_rate` bytes a second loses its share where there is no room for others.

        `largest`: bytes that a message may have; 0: none waits, what finds no room is lost.
        `patience`: seconds for which one waits.
        """
        self.total = total
        self.used = 0
        self._slow_after, self._slow_rate = slow_after, slow_rate
        self._largest, self._patience = largest, patience
        self._arriving: set[Share] = set()
        self._kept = 0  # bytes of rooms that are not filled yet
        self._rooms: dict[Share, None] = {}
        self._line: dict[Share, None] = {}  # those that wait
        self._beside = 0  # bytes of large ones without a room, and what comes of them next
        self._serving = self._again = False

    def share(
        self, began: float, forget: Callable[[], object], announced: int = 0, peer: str = ""
    ) -> Share:
        """Let a message begin; `forget` is called if it loses what it has to others.

        `announced`: bytes that it will have; 0: as many as any may have.  `peer`: whose it is.
        """
        return Share(self, began, forget, announced or self._largest, peer)

    def hold(self, size: int) -> bool:
        """Take room for a message that is whole, if there is some left: nobody makes any for it."""
        if self.used + size > self.total:
            return False
        self.used += size
        return True

    def free(self, size: int) -> None:
        """Give back what was held so, once."""
        self.used -= size

    def relieve(self, now: float) -> None:
        """Look, about every second, that nobody waits for those that come slowly, or for ever."""
        self._relieve(now, contended=bool(self._line))

    # ------------------------------------------------------------------------ any message

    def _look(self) -> None:
        """See how much there is."""

    def _fits(self, count: int, asking: Share, now: float) -> bool:
        """Whether there is room for `count` bytes more, made if need be."""
        lacking = self.used + count - self.total
        if lacking <= 0:
            return True
        losers: list[Share] = []
        for share in self._losers(asking, asking.size + count, now):
            if share is asking:
                return False
            losers.append(share)
            lacking -= share.size
            if lacking <= 0:
                for loser in losers:
                    loser._drop()
                return True
        return False

    def _losers(self, asking: Share, size: int, now: float) -> Iterable[Share]:
        yield from self._slow_shares(now)
        if size < SMALL or asking.room:
            yield from [share for share in reversed(self._line) if share is not asking]

    def _slow_shares(self, now: float) -> list[Share]:
        """Return those of messages that come too slowly, the slowest first."""
        slow = [share for share in self._arriving if self._slow(share, now)]
        return sorted(slow, key=lambda share: share.size / (now - share.began))

    def _slow(self, share: Share, now: float) -> bool:
        took = now - share.began
        return took > self._slow_after and share.size < took * self._slow_rate and not share.held_up

    # ------------------------------------------------------------------------ large ones

    @property
    def _for_large(self) -> int:
        """What messages of `SMALL` bytes and more may have, with their rooms."""
        return self.total - self.total // 16

    @property
    def _most(self) -> int:
        """That, once all that is stored now has been."""
        return self._for_large

    @property
    def _for_line(self) -> int:
        """What those may have that wait, and all others without a room: one fits beside them."""
        most = self._most
        return max(most - self._largest, most // 4)

    @property
    def _beside_rooms(self) -> int:
        """What those may have that have no room."""
        most = self._for_large
        two = most - 2 * self._largest
        return (two if two >= 0 else max(0, most - self._largest)) // 2  # and those that wait

    def _let(self, share: Share, now: float) -> Waiting | None:
        """Let a large message that has no room go on, or wait."""
        if not self._largest:
            return None
        self._count(share, share.size)
        if share.waiting is None:
            if not self._line:
                self._look()
                if self._goes_on(share):
                    share.marked, share.marked_at = share.size, now
                    return None
            if self._beside > self._for_line:
                share.lose()
                return None
            share.waiting, share.asked, share.held_up = Waiting(), now, True
            share.tardy = share.tardy or self._came_slowly(share, now)
            self._line[share] = None
        return share.waiting

    def _goes_on(self, share: Share) -> bool:
        """Have it go on if it can."""
        if self._beside - share.beside + share.size + SMALL <= self._beside_rooms:
            self._count(share, share.size + SMALL)
            return True
        return self._give_room(share)

    def _count(self, share: Share, beside: int) -> None:
        self._beside += beside - share.beside
        share.beside = beside

    def _lacking(self, share: Share) -> int:
        """Bytes that must be given back before it has a room; 0 or less: none."""
        most = self._for_large
        return self.used + self._kept + min(share.most, most) - share.size - most

    def _give_room(self, share: Share) -> bool:
        if self._lacking(share) > 0:
            return False
        share.free = max(0, min(share.most, self._for_large) - share.size)
        self._kept += share.free
        share.room, share.marked_at = True, math.nan
        self._rooms[share] = None
        self._count(share, 0)
        return True

    def _take_room(self, share: Share) -> None:
        """Take back what it has not filled."""
        if share.room:
            share.room = False
            del self._rooms[share]
            self._kept -= share.free
            share.free = 0

    def _came_slowly(self, share: Share, now: float) -> bool:
        took = now - share.began
        return took > _TRIAL and share.size < self._slow_rate * took

    def _serve(self) -> None:
        """Let those go on that wait, in their order, as far as there is room."""
        if self._serving:  # by what is settled below
            self._again = True
            return
        self._serving = self._again = True
        while self._again:
            self._again = False
            self._look()
            while self._line:
                share = self._next()
                if not self._goes_on(share):
                    break
                self._leave_line(share)
        self._serving = False

    def _next(self) -> Share:
        """Who goes on first: behind the others are those that came slowly, and those whose peers
        have a room."""
        having = {share.peer for share in self._rooms}
        return min(self._line, key=lambda share: (share.tardy, share.peer in having))

    def _leave_line(self, share: Share) -> None:
        waiting, share.waiting = share.waiting, None
        if waiting is not None:
            del self._line[share]
            waiting.settle()

    def _relieve(self, now: float, *, contended: bool) -> None:
        for share in [one for one in self._line if now - one.asked > self._patience]:
            if share.waiting is not None:  # nobody who was lost before it has made room for it
                share.lose()
        if not contended:
            return
        for share in list(self._rooms):
            if share.room:
                self._judge(share, now)
        self._serve()
        if not self._line:
            return
        lacking = self._lacking(self._next())
        losers: list[Share] = []
        for share in self._slow_shares(now):
            losers.append(share)
            lacking -= share.size + share.free
            if lacking <= 0:
                break
        if lacking > 0:
            losers = self._in_the_way(self._next())
        if lacking <= 0 or losers:
            for share in losers:
                share._drop()
            self._serve()

    def _in_the_way(self, first: Share) -> list[Share]:
        """Return those at the end of the line without whom the first could have a room, if it is
        for them alone that it never will."""
        lacking = self._beside + min(first.most, self._most) - first.size - self._most
        losers: list[Share] = []
        for share in reversed(self._line):
            if lacking <= 0:
                break
            if share is not first:
                losers.append(share)
                lacking -= share.size
        return losers

    def _judge(self, share: Share, now: float) -> None:
        """Take its room back if it comes slowly; others wait."""
        if math.isnan(share.marked_at):  # it has not gone on yet
            share.marked, share.marked_at = share.size, now
        took = now - share.marked_at
        if took < _TRIAL:
            return
        if share.size - share.marked >= self._slow_rate * took:
            share.lagged = 0.0
        elif self._beside + share.size + SMALL <= self._beside_rooms:
            share.tardy = True
            self._take_room(share)
            self._count(share, share.size + SMALL)
        else:
            share.lagged += took
            if share.lagged > self._slow_after:
                share._drop()
        share.marked, share.marked_at = share.size, now


class Share:
    """What one message has of a budget, from its beginning until it is stored or refused."""

    __slots__ = (
        "_budget",
        "_forget",
        "asked",
        "began",
        "beside",
        "free",
        "held_up",
        "lagged",
        "lost",
        "marked",
        "marked_at",
        "most",
        "peer",
        "room",
        "size",
        "tardy",
        "waiting",
    )

    def __init__(
        self,
        budget: MemoryBudget,
        began: float,
        forget: Callable[[], object],
        most: int,
        peer: str,
    ) -> None:
        self._budget = budget
        self._forget = forget
        self.began = began
        """Since when it comes, the time for which it had to wait left out."""
        self.size = 0
        """Bytes that are its own."""
        self.free = 0
        """Bytes of its room that it has not filled."""
        self.lost = False
        """Whether the share was refused, or given to others: it gets no room any more."""
        self.most = most
        """Bytes that it may become, as far as is known."""
        self.peer = peer
        self.room = False
        """Whether it has a room."""
        self.beside = 0
        """What of it is counted beside the rooms."""
        self.waiting: Waiting | None = None
        self.asked = 0.0
        """Since when it waits."""
        self.held_up = False
        """Whether it is we who read nothing of it: from then on, until it has gone on."""
        self.tardy = False
        """Whether it comes slowly by its own fault, so that others go first."""
        self.marked, self.marked_at, self.lagged = 0, math.nan, 0.0
        """How much of it had come when, in its room, and for how long too little came."""
        budget._arriving.add(self)

    def grow(self, size: int, now: float) -> Waiting | None:
        """Hold `size` bytes in all; where there is no room for them, none: the share is lost.

        What is returned is to be waited for before more of the message is read, and then `go_on`
        called; it may be left unread for good.
        """
        if self.lost:
            return None
        budget = self._budget
        more = size - self.size
        if more < 0:  # it keeps nothing any more, and need not
            budget._take_room(self)
            budget._count(self, 0)
            budget._leave_line(self)
        elif size > self.most > 0:
            self.most = max(budget._largest, size)
            budget._take_room(self)
        if more > 0 and not budget._fits(more, self, now):
            self.lose()
            return None
        budget.used += more
        self.size = size
        if self.room:
            filled = min(more, self.free)
            budget._kept -= filled
            self.free -= filled
        elif size >= SMALL:
            return budget._let(self, now)
        return None

    def go_on(self, now: float) -> None:
        """The wait is over, and more is read from now on."""
        if self.held_up:
            self.held_up = False
            self.began += now - self.asked
        self.marked, self.marked_at = self.size, now

    def lose(self) -> None:
        """Have the message forgotten: what it had is for the others now."""
        self._drop()
        self._budget._serve()

    def _drop(self) -> None:
        self.lost = True
        self._forget()
        self._give_back()

    def keep(self) -> None:
        """The message is whole: from now on nobody takes its place."""
        budget = self._budget
        budget._arriving.discard(self)
        if self.room or self.beside:
            budget._take_room(self)
            budget._count(self, 0)
            budget._leave_line(self)
            budget._serve()

    def end(self) -> None:
        """Give everything back; a second time does nothing."""
        large = self.size >= SMALL
        self._give_back()
        if large:
            self._budget._serve()

    def _give_back(self) -> None:
        budget = self._budget
        budget._arriving.discard(self)
        budget._take_room(self)
        budget._count(self, 0)
        budget.used -= self.size
        self.size = 0
        budget._leave_line(self)


class PooledBudget(MemoryBudget):
    """A process's part of a budget that several processes share through a board in memory.

    The board has three numbers for each process: the bytes that its messages hold, those of rooms
    that they have not filled, and those for which it had no room lately.  Each writes its own
    alone, so nothing is locked; whoever asks for room adds up what all hold.  What two might take
    at the same instant is kept free from the start (`AT_ONCE`), so the budget holds for all
    together; a room that two took at the same instant both give back.

    Slow messages lose their shares here as in one process; where it is another process that
    lacks room, `relieve` has them lose it, a second later.
    """

    NUMBERS = 3
    """On the board, for each process."""
    AT_ONCE = 128 * 1024
    """More bytes than one message grows by at once."""
    REMEMBERED = 3.0
    """Seconds for which the others are shown that there was no room."""

    def __init__(
        self,
        board: memoryview,
        place: int,
        total: int,
        *,
        largest: int,
        slow_after: float = math.inf,
        slow_rate: float = 0.0,
        patience: float = math.inf,
    ) -> None:
        """`board`: signed 64-bit numbers, three for each process; ours are those of `place`.

        `total`: of all together, of which there is always room for one message of `largest` bytes;
        the others as of any budget.
        """
        places = len(board) // self.NUMBERS
        self._held, self._unfilled = board[:places], board[places : 2 * places]
        self._lacked = board[2 * places :]
        self._place = place
        self._shown_until = -1.0
        super().__init__(
            total, slow_after=slow_after, slow_rate=slow_rate, largest=largest, patience=patience
        )
        self._whole = max(largest, total - (places - 1) * self.AT_ONCE)

    @property
    def used(self) -> int:
        """The bytes that this process's messages hold."""
        return self._held[self._place]

    @used.setter
    def used(self, used: int) -> None:
        self._held[self._place] = used

    @property
    def _kept(self) -> int:
        return self._unfilled[self._place]

    @_kept.setter
    def _kept(self, kept: int) -> None:
        self._unfilled[self._place] = kept

    @property
    def _most(self) -> int:
        return self._whole - self._whole // 16

    @property
    def _for_large(self) -> int:
        return super()._for_large - (sum(self._unfilled) - self._kept)

    def relieve(self, now: float) -> None:
        """As in one process, and give what slow messages hold to the others, if they lack it."""
        if self._shown_until < now:
            self._lacked[self._place] = 0
        lacking = sum(self._lacked) - self._lacked[self._place]
        self._look()
        self._relieve(now, contended=bool(self._line) or lacking > 0)
        if lacking > 0:
            for share in self._slow_shares(now):
                lacking -= share.size + share.free
                share.lose()
                if lacking <= 0:
                    break
        if self._line:
            self._show(max(1, self._lacking(self._next())), now)

    def _show(self, lacking: int, now: float) -> None:
        self._lacked[self._place] = lacking
        self._shown_until = now + self.REMEMBERED

    def _give_room(self, share: Share) -> bool:
        if not super()._give_room(share):
            return False
        self._look()
        if self.used + self._kept <= self._for_large:
            return True
        # Another process has taken it in the same instant.
        self._take_room(share)
        self._count(share, share.size)
        return False

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
            self._show(count, now)
        return fits
