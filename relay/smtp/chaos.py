"""Faults on demand, so that an application can be seen to handle them: by address, and by chance.

An address at `chaos.relay.localhost` says what goes wrong for mail to it, or from it:

    550-5.1.1@…         the reply to RCPT (to MAIL); without the second part 5.0.0 or 4.0.0
    slow-20s@…          the reply to RCPT (to MAIL) comes so late
    drop-at-dot@…       the connection breaks: at mail, rcpt, data or dot, before the reply

And any command of a kind may be refused, with a code and at a rate (`Chaos.rates`).

Promises: without an address of it and without rates nothing goes wrong; what is dropped at the dot
is not stored.  Where it is on, no mail is ordinary: each command is looked at.

Fails with `ValueError` for a fault that there is not.  Pure, but for chance.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

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
    rng: random.Random = field(default_factory=random.Random)

    def strike(self, phase: str) -> str:
        """Return the reply that a command of this phase is refused with this time, or nothing."""
        rate = self.rates.get(phase)
        if rate is None or self.rng.random() >= rate.rate:
            return ""
        return said(rate.code)


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
