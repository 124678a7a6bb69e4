"""Mailpit's chaos: how often senders and recipients are refused, of which this relay has rates.

Fails with 400 where chaos is not enabled, and for refusing to sign in by chance.
"""

from __future__ import annotations

from quart import Response

from relay.http.compat.answers import bad
from relay.http.compat.bodies import Members, Unreadable, members_of
from relay.http.compat.declarations import compat
from relay.http.compat.mailpit.shared import API
from relay.http.operations import Call, json_response
from relay.http.routing import Api
from relay.smtp.chaos import Chaos, Rate

_TRIGGERS = {"Sender": "mail", "Recipient": "rcpt"}
_NO_CHAOS = "Chaos is not enabled: set RELAY_SMTP__CHAOS=true and start the relay again."


def register(api: Api) -> None:
    """Declare the calls."""

    @api.add("GET", f"{API}/chaos", compat("mailpitChaos", "admin"))
    async def chaos(call: Call) -> Response:
        return json_response(_triggers(_chaos(api.deps.chaos)))

    triggering = compat("mailpitSetChaos", "admin", body=True)

    @api.add("PUT", f"{API}/chaos", triggering)
    async def set_chaos(call: Call) -> Response:
        now, members = _chaos(api.deps.chaos), await members_of(triggering)
        if _rate(members, "Authentication", 535) is not None:
            raise bad("Authentication is not refused by chance here; Sender and Recipient are.")
        rates = {phase: _rate(members, name, 451) for name, phase in _TRIGGERS.items()}
        now.rates = {phase: rate for phase, rate in rates.items() if rate is not None}
        return json_response(_triggers(now))


def _chaos(chaos: Chaos | None) -> Chaos:
    if chaos is None:
        raise bad(_NO_CHAOS)
    return chaos


def _triggers(chaos: Chaos) -> dict[str, dict[str, int]]:
    found = {}
    for name, phase in _TRIGGERS.items():
        rate = chaos.rates.get(phase, Rate(451, 0))
        found[name] = {"ErrorCode": rate.code, "Probability": round(100 * rate.rate)}
    return {**found, "Authentication": {"ErrorCode": 535, "Probability": 0}}


def _rate(members: Members, name: str, default: int) -> Rate | None:
    """A trigger of a body as a rate; None where it is off."""
    trigger = members.object(name)
    if trigger is None:
        return None
    code = trigger.number("ErrorCode") or default
    if not 400 <= code <= 599:
        raise Unreadable(trigger.at("ErrorCode"), "must be from 400 to 599")
    chance = trigger.number("Probability")
    if not 0 <= chance <= 100:
        raise Unreadable(trigger.at("Probability"), "must be from 0 to 100")
    return Rate(code, chance / 100) if chance else None
