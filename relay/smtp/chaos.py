"""Faults on demand, so that an application can be seen to handle them: by address, and by chance.

An address at `chaos.relay.localhost` says what goes wrong for mail to it, or from it:

    550-5.1.1@…         the reply to RCPT (to MAIL); without the second part 5.0.0 or 4.0.0
    slow-20s@…          the reply to RCPT (to MAIL) comes so late
    drop-at-dot@…       the connection breaks: at mail, rcpt, data or dot, before the reply

And any command of a kind may be refused, with a code and at a rate (`Chaos.rates`).

Promises: without an address of it and without rates nothing goes wrong; what is dropped at the dot
is not stored.  Where it is on, no mail is ordinary: each command is looked at.

Fails with `ValueError` for a fault that there is not, and a session with `SessionOver` where it is
to break.  All but `Faults`, which has a session's go wrong, is pure, but for chance.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from relay.chance import new_rng
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.responder import Responder

DOMAIN = "chaos.relay.localhost"
"""The domain whose addresses are faults."""

PHASES = ("mail", "rcpt", "data", "dot")
"""Where something can go wrong: MAIL, RCPT, DATA, and the final dot."""

LONGEST_DELAY = 300
"""Seconds; no client waits longer (RFC 5321, 4.5.3.2)."""

_REPLY = re.compile(r"([245][0-9]{2})(?:-([245]\.[0-9]{1,3}\.[0-9]{1,3}))?")
_SLOW = re.compile(r"slow-([0-9]{1,3})s")
_DROP = re.compile(r"drop-at-(mail|rcpt|data|dot)")


@dataclass(frozen=True)
class Fault:
    """What goes wrong: a reply, a delay in seconds before it, or the phase of a broken connection.

    All empty: nothing.
    """

    reply: str = ""
    delay: int = 0
    drop: str = ""


@dataclass(frozen=True)
class Rate:
    """A reply code, and the share of commands that get it, from 0 to 1."""

    code: int
    rate: float


@dataclass
class Chaos:
    """What goes wrong by chance, by phase; `rates` may be replaced at any time."""

    rates: Mapping[str, Rate] = field(default_factory=dict)
    rng: random.Random = field(default_factory=new_rng)

    def refusal_of(self, phase: str) -> str:
        """Return the reply that a command of this phase is refused with this time, or nothing."""
        rate = self.rates.get(phase)
        if rate is None or self.rng.random() >= rate.rate:
            return ""
        return said(rate.code)

    @property
    def notice(self) -> str | None:
        """What an operator should know, in a sentence; None while no rate is set."""
        rates = [
            f"{phase} {one.rate:.0%} with {one.code}"
            for phase, one in self.rates.items()
            if one.rate > 0
        ]
        if not rates:
            return None
        return f"SMTP commands are refused by chance, as asked (/api/v1/chaos): {', '.join(rates)}"


def fault_of(address: str) -> Fault:
    """Return what an address asks for; ValueError where it is at the domain and means none."""
    name, _, domain = address.lower().rpartition("@")
    if domain != DOMAIN:
        return Fault()
    if match := _REPLY.fullmatch(name):
        # 2xx is what there would be without it.
        return Fault() if name[0] == "2" else Fault(reply=said(int(match[1]), match[2]))
    if (match := _SLOW.fullmatch(name)) and int(match[1]) <= LONGEST_DELAY:
        return Fault(delay=int(match[1]))
    if match := _DROP.fullmatch(name):
        return Fault(drop=match[1])
    raise ValueError("no fault is named so")


def said(code: int, enhanced: str | None = None) -> str:
    """Return a reply with this code."""
    return f"{code} {enhanced or f'{code // 100}.0.0'} Chaos, as you asked"


class Faults:
    """What goes wrong in one session."""

    __slots__ = ("_chaos", "_dropping", "_lines", "_responder")

    def __init__(self, chaos: Chaos, lines: Lines, responder: Responder) -> None:
        self._chaos = chaos
        self._lines = lines
        self._responder = responder
        self._dropping: set[str] = set()  # phases of this transaction: it breaks there

    def forget(self) -> None:
        """The transaction is over."""
        self._dropping.clear()

    async def inject(self, phase: str, address: str = "") -> str | None:
        """Let go wrong what was asked for, by address or by chance; None: nothing does."""
        try:
            fault = fault_of(address)
        except ValueError:
            return "550 5.1.1 Chaos: no fault is named so"
        if fault.drop:
            if PHASES.index(fault.drop) < PHASES.index(phase):
                return "550 5.1.1 Chaos: it is too late for that fault"
            self._dropping.add(fault.drop)
        if phase in self._dropping:
            self._lines.replies.clear()
            raise SessionOver("chaos")
        if fault.delay:
            self._lines.due = math.inf
            await self._lines.flush()
            await self._responder.keep_waiting(fault.delay)
        reply = fault.reply or self._chaos.refusal_of(phase)
        if reply[:3] == "421":
            raise SessionOver("chaos", reply)
        return reply or None
