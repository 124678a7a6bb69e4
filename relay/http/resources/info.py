"""`GET /api/v1/info`: what a client must know to use this relay, by any credential."""

from __future__ import annotations

from dataclasses import asdict

from quart import Response, request

from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.routing import Api
from relay.outbound.routing.senders import LOOP


class Info(View):
    """This relay: its ports, and what it takes mail for.

    A port is host:port, `lmtp` the path of a socket; null: not served here.  `…_tls`: with TLS from
    the first byte.  `starttls`: whether the others begin TLS by a command.  `release`: whether what
    came in may be sent on to anybody.
    """

    version: str
    smtp: str | None
    lmtp: str | None
    submission: str | None
    submission_tls: str | None
    pop3: str | None
    pop3_tls: str | None
    starttls: bool
    domains: list[str]
    capture: bool
    release: bool
    public_url: str


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps

    @api.add(
        "GET",
        "/api/v1/info",
        Operation(
            "getInfo",
            "Say where this relay takes mail, and for which domains",
            "operations",
            Access.SCOPE,
            (Answer(200, "its ports, domains and address", Info),),
            details="Any key will do. Ports are host:port, `lmtp` is the path of a socket; null:"
            " not served here. Those that end in `_tls` begin with TLS; `starttls`: whether the"
            " others, but for LMTP, have STARTTLS or STLS. `capture`: whether mail for other"
            " domains is kept. `release`: whether a message that was received can be sent on to"
            " anybody, since RELAY_OUTBOUND__RELEASE_TO names some and there is an upstream that"
            " leads there.",
        ),
    )
    async def info(call: Call) -> Response:
        # A sender may have an upstream of its own where the relay's leads nowhere.
        release = bool(deps.release_to) and (
            deps.upstream != LOOP or await deps.senders.leads_out(call.caller.owner_id)
        )
        return json_response(
            {
                "version": deps.version,
                **asdict(deps.mail_ports),
                "domains": list(deps.store.domains),
                "capture": deps.captures,
                "release": release,
                "public_url": deps.public_url or request.host_url.rstrip("/"),
            }
        )
