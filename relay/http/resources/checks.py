"""`GET …/{address}/messages/{id}/checks`: would the world take this mail?

Promises
  * A message is read where hostile mail hurts nobody (`Deps.examine`), within a memory budget, and
    the DNS is asked within a deadline; a few at a time, shared by owners (`relay.http.checking`).
  * Nothing is stored and nothing is refused because of it; each call asks anew.

Fails with 503 for a message that cannot be read within the parser's limits.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from quart import Response, request

from relay.checks.findings import Severity, score
from relay.http.credentials.callers import owner_of
from relay.http.operations import Access, Answer, Call, Operation, Query, View, json_response
from relay.http.problems.details import message_not_found
from relay.http.resources.messages import BASE, GONE
from relay.http.routing import Api


class Check(View):
    """One check: its result in the words of RFC 8601, and why."""

    result: Annotated[
        str,
        Field(
            description="pass, fail, softfail, neutral, none (nothing to go by), permerror (a "
            "mistake of the domain's), temperror (the DNS did not answer)"
        ),
    ]
    detail: str


class FindingEntry(View):
    """One thing to mend."""

    id: str
    severity: Severity
    text: str


class Checks(View):
    """What the world would say to a message."""

    spf: Check
    dkim: Check
    dmarc: Check
    score: Annotated[float, Field(ge=0, le=10, description="10: nothing to mend")]
    reasons: Annotated[list[str], Field(description="what the score is short of 10 for, and by")]
    findings: list[FindingEntry]


class ChecksQuery(Query):
    """What is looked at besides."""

    links: Annotated[
        bool,
        Field(description="true: ask whether its links answer (by HEAD, public addresses alone)"),
    ] = False


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps

    @api.add(
        "GET",
        f"{BASE}/<message_id>/checks",
        Operation(
            "checkMessage",
            "Say whether the world would take a message: SPF, DKIM, DMARC, and what readers miss",
            "messages",
            Access.MAILBOX,
            (
                Answer(200, "the verdict", Checks),
                GONE,
                Answer(503, "it cannot be read within the limits, or too many are checked at once"),
            ),
            scope="read",
            query=ChecksQuery,
            details="Asks the DNS, for 12 seconds at most, and links for 20. The message does not "
            "count as read.",
        ),
    )
    async def checks(call: Call, message_id: str) -> Response:
        wanted: ChecksQuery = call.query
        owner, mailbox_id = owner_of(call.caller, request, deps.trusted_proxies), call.mailbox.id
        arrived = await deps.messages.arrived(mailbox_id, message_id)
        if arrived is None:
            raise message_not_found()
        async with api.checking.examined(owner, mailbox_id, message_id, arrived.size) as examined:
            if examined is None:
                raise message_not_found()
            verdict = await deps.judge(examined.evidence, arrived)
            findings = list(examined.findings)
            if wanted.links and deps.links is not None:
                findings += await deps.links.look_at(examined.links)
        results = {name: said["result"] for name, said in verdict.as_dict().items()}
        scored = score(findings, results)
        return json_response(
            {
                **verdict.as_dict(),
                "score": scored.score,
                "reasons": list(scored.reasons),
                "findings": [finding._asdict() for finding in findings],
            }
        )
