"""`/api/v1/domains/{domain}/check`: does a domain publish what its mail needs?

Promises: the DNS is asked within a deadline, for a few callers at a time; nothing is stored.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from quart import Response

from relay.http.limits.fair_limiter import Crowded, FairLimiter
from relay.http.operations import Access, Answer, Call, Operation, Query, View, json_response
from relay.http.problems.details import unavailable
from relay.http.routing import Api
from relay.outbound.signing.dkim_keys import domain_name

_AT_ONCE, _OF_ONE, _WAITING = 8, 4, 16
_PATIENCE = 15.0  # s until a check begins


class DomainQuery(Query):
    """Which records are asked for."""

    record: Annotated[
        Literal["DKIM"] | None,
        Field(description="the keys' alone, within seconds; all if left out"),
    ] = None


class PublishedRecord(View):
    """One record of the domain: what is there, and what is to be there.

    `name` is where it is to be published (of a policy, its URL); `found` and `wanted` are values as
    DNS tools want them typed, a line for each record. `wanted` is null where nothing is to be done.
    """

    record: Annotated[
        str,
        Field(
            description="MX, SPF, DKIM, DMARC, MTA-STS, MTA-STS policy, TLS-RPT, DANE (whether "
            "mail that leaves by mx: heeds receivers' TLSA records) or PTR; Domain alone: the name "
            "is not public, and nothing was asked"
        ),
    ]
    name: str
    type: Annotated[
        str, Field(description="MX, TXT, TLSA or PTR; HTTPS: a file at that URL; empty of a Domain")
    ]
    found: str | None
    wanted: str | None
    ok: Annotated[
        bool | None, Field(description="null: nobody can say, for instance as the DNS failed")
    ]
    detail: Annotated[str, Field(description="why, in a sentence")]
    optional: Annotated[
        bool, Field(description="mail goes without it: to publish what is missing is advice")
    ]


def register(api: Api) -> None:
    """Declare the call."""
    checks = api.deps.domain_checks
    turns = FairLimiter(_AT_ONCE, _OF_ONE, kept=1, waiting=_WAITING)

    @api.add(
        "GET",
        "/api/v1/domains/<domain>/check",
        Operation(
            "listDomainRecords",
            "Say whether a domain publishes what its mail needs, and what to publish",
            "sending",
            Access.SCOPE,
            (
                Answer(200, "its records, one by one", list[PublishedRecord]),
                Answer(503, "a store does not answer, or too many are checked at once"),
            ),
            scope="admin",
            query=DomainQuery,
            details="Asks the DNS anew each time, and fetches the policy of MTA-STS. DKIM: each "
            "active and standby key of this relay. SPF: the hosts that mail of the domain is "
            "handed to, as far as they are known here.",
        ),
    )
    async def check(call: Call, domain: str) -> Response:
        wanted = domain_name(domain)
        try:
            async with turns.turn(call.caller.owner_id, _PATIENCE):
                ask = checks.check if call.query.record is None else checks.signatures
                found = await ask(wanted)
        except Crowded:
            raise unavailable("Too many domains are being checked; try again.") from None
        return json_response([entry._asdict() for entry in found])
