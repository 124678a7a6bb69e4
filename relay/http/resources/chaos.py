"""`/api/v1/chaos`: how often SMTP commands are refused, so that an application can be tested.

Fails with 409 `chaos-off` where `RELAY_SMTP__CHAOS` is false.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from quart import Response

from relay.http.operations import Access, Answer, Call, Form, Operation, json_response
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.smtp.chaos import PHASES, Chaos, Rate

_OFF = Answer(409, "this relay was started without RELAY_SMTP__CHAOS", cases=("chaos-off",))


class FaultRate(Form):
    """A reply code, and the share of commands that get it."""

    code: Annotated[int, Field(ge=400, le=599)]
    rate: Annotated[float, Field(ge=0, le=1)]


class FaultRates(Form):
    """What is refused by chance: MAIL, RCPT, DATA, the final dot; null or left out: nothing."""

    mail: FaultRate | None = None
    rcpt: FaultRate | None = None
    data: FaultRate | None = None
    dot: FaultRate | None = None


def register(api: Api) -> None:
    """Declare the calls."""

    @api.add(
        "GET",
        "/api/v1/chaos",
        Operation(
            "getChaos",
            "See how often SMTP commands are refused",
            "supervision",
            Access.SCOPE,
            (Answer(200, "now", FaultRates), _OFF),
            scope="admin",
        ),
    )
    async def show(call: Call) -> Response:
        return json_response(_shown(_on(api)))

    @api.add(
        "PUT",
        "/api/v1/chaos",
        Operation(
            "setChaos",
            "Have SMTP commands refused, at a rate",
            "supervision",
            Access.SCOPE,
            (Answer(200, "from now on, until the relay stops", FaultRates), _OFF),
            scope="admin",
            body=FaultRates,
            details="A phase that is left out is refused no longer.  Addresses at "
            "chaos.relay.localhost go wrong without it: docs/smtp.md.",
        ),
    )
    async def change(call: Call) -> Response:
        chaos = _on(api)
        wanted: FaultRates = call.body
        given = {phase: getattr(wanted, phase) for phase in PHASES}
        chaos.rates = {
            phase: Rate(one.code, one.rate) for phase, one in given.items() if one is not None
        }
        return json_response(_shown(chaos))


def _on(api: Api) -> Chaos:
    if api.deps.chaos is None:
        raise Problem(409, "chaos-off", "Set RELAY_SMTP__CHAOS=true and start the relay again.")
    return api.deps.chaos


def _shown(chaos: Chaos) -> dict[str, dict[str, float] | None]:
    rates = chaos.rates
    return {
        phase: {"code": rates[phase].code, "rate": rates[phase].rate} if phase in rates else None
        for phase in PHASES
    }
