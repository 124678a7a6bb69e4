"""`GET /api/v1/info`: what a client must know to use this relay, by any credential."""

from __future__ import annotations

from quart import Response, request

from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.routing import Api


class Info(View):
    """This relay: its ports as host:port (null: not served here), and what it takes mail for."""

    version: str
    smtp: str | None
    submission: str | None
    domains: list[str]
    capture: bool
    public_url: str


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps

    @api.add(
        "GET",
        "/api/v1/info",
        Operation(
            "Say where this relay takes mail, and for which domains",
            "operations",
            Access.SCOPE,
            (Answer(200, "its ports, domains and address", Info),),
            details="Any key will do. `capture`: whether mail for other domains is kept.",
        ),
    )
    async def info(call: Call) -> Response:
        return json_response(
            {
                "version": deps.version,
                "smtp": deps.smtp,
                "submission": deps.submission,
                "domains": list(deps.store.domains),
                "capture": deps.captures,
                "public_url": deps.public_url or request.host_url.rstrip("/"),
            }
        )
