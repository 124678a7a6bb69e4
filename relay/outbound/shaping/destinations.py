"""What one node holds back: each destination in one line, with the one reason for it.

Gates (`relay.outbound.pacing.gates`), what receivers have asked for and the limits that are reached
(`traffic.py`) each know of their own; a destination may stand behind several of them at once.

Promises
- A domain is named in one line, or in one for each owner whose mail alone is held back: in that of
  what holds it back most.  First what is shut, then who does not answer, then what lets least
  through; where that is the same, a rule before a limit, a limit before a peer that is slow.  A
  route that leads to an upstream has a line of its own.
- Where a receiver has all connections that it is given, that is the reason, and neither its rate
  nor that it is slow; how slow is said with it.
- As many go at once as the gate and the limits of the receiver let through, whichever is less.

Fails: never.  Pure; instants are handed in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from relay.outbound.mx.sites import SiteKey
from relay.outbound.pacing.held_back import SAYS, Standing, Why
from relay.outbound.shaping.traffic import Receiver, Traffic, receiver_of

_NOBODY = {Why.SUSPENDED, Why.SILENT, Why.HANGING, Why.NO_DNS, Why.POLICY}
_LAST = [Why.DEFERRING, Why.SLOWED, Why.LIMITED, Why.SLOW, Why.NO_ROOM]


class Gating(Protocol):
    """What knows of shut and narrow gates: `relay.outbound.pacing.gates.Gates`."""

    def statistics(
        self, now: float, owner: Hashable = None, domain: str | None = None
    ) -> list[Standing]:
        """What holds mail back."""


def destinations(
    gates: Gating,
    traffic: Traffic,
    now: float,
    owner: Hashable = None,
    domain: str | None = None,
) -> list[Standing]:
    """What is held back, the worst first.

    `owner`: only what holds back mail of his, None: all; `domain`: only of mail to it.
    """
    limited = traffic.limited(now, owner, domain)
    limits = {_receiver(one): one for one in reversed(limited)}
    found = [_for_its_limit(one, limits) for one in gates.statistics(now, owner, domain)]
    every = sorted([*found, *traffic.statistics(now, owner, domain), *limited], key=_worst_first)
    named: dict[Hashable, set[str]] = {}
    led_to: set[Receiver] = set()
    kept = []
    for one in every:
        receiver, names = _receiver(one), one.names
        before = named.setdefault(one.owner if owner is None else None, set())
        is_route = receiver is None and one.domain is None and one.why is not Why.LIMITED
        if names <= before and not is_route and (names or receiver in led_to):
            continue  # it is told of already, for what is worse
        left = names - before
        before |= left
        if receiver is not None:
            led_to.add(receiver)
        if one.domain is None:
            one = replace(one, domains=tuple(sorted(left)))
        kept.append(_capped(one, receiver, traffic, now))
    return kept


def why_held(
    gates: Gating, traffic: Traffic, now: float, owner: Hashable, domain: str
) -> tuple[str, str] | None:
    """Why an owner's mail to a domain waits, most of all: an enhanced status code, and in words."""
    found = destinations(gates, traffic, now, owner, domain)
    if not found:
        return None
    return found[0].code, "; ".join(filter(None, (SAYS[found[0].why], found[0].reason)))


def by_domain(found: Iterable[Standing]) -> dict[str, Standing]:
    """That of each domain which holds back everybody's mail to it."""
    return {name: one for one in found if one.owner is None for name in one.names}


def _receiver(one: Standing) -> Receiver | None:
    """Whose a line is."""
    if isinstance(one.key, SiteKey):
        return receiver_of(one.key)
    last = one.key[-1] if isinstance(one.key, tuple) and one.key else None
    return last if isinstance(last, Receiver) else None


def _for_its_limit(one: Standing, limits: dict[Receiver | None, Standing]) -> Standing:
    """The same, for a limit of its receiver's where that is reached, and not for being slow."""
    receiver = _receiver(one)
    limit = limits.get(receiver)
    if receiver is None or limit is None or one.why not in {Why.SLOW, Why.NO_ROOM}:
        return one
    reason = limit.reason if one.reason is None else f"{limit.reason}; {one.reason}"
    return replace(
        one,
        why=Why.LIMITED,
        window=limit.window,
        reason=reason,
        rule=limit.rule,
        held_for=limit.held_for,
    )


def _capped(one: Standing, receiver: Receiver | None, traffic: Traffic, now: float) -> Standing:
    most = None if receiver is None else traffic.limits(receiver, now).connections
    if most is None or (one.window is not None and one.window <= most):
        return one
    return replace(one, window=most)


def _worst_first(one: Standing) -> tuple[float, bool, float, int, int, str]:
    answers = one.why not in _NOBODY and not one.strikes
    window = math.inf if one.window is None else one.window
    rank = _LAST.index(one.why) if one.why in _LAST else -1
    return (-one.opens_in, answers, window, -one.strikes, rank, one.domain or "")
