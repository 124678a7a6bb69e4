"""`POST /api/v1/tokens/consume`: using the token of a mailed link, once.

Promises: whatever is wrong (used, expired, forged, unknown, without its code, with a wrong one),
the answer is byte for byte the same 400, and leaves after the same time (`timing.py`), so that
neither its words nor its time tell which it was.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from quart import Response

from relay.http.credentials.timing import pad_failure_time
from relay.http.operations import Access, Answer, Call, Form, Operation, View, json_response
from relay.http.problems.details import Problem
from relay.http.routing import Api


class TokenToUse(Form):
    """A token from a link and, for a recovery, the code beside it."""

    token: Annotated[str, Field(repr=False)]
    code: Annotated[str | None, Field(repr=False, description="5 digits")] = None


class UsedToken(View):
    """What the token was for."""

    action: str
    account: str
    login: str
    status: str


def register(api: Api) -> None:
    """Declare the call."""
    consumption = api.deps.consumption

    @api.add(
        "POST",
        "/api/v1/tokens/consume",
        Operation(
            "consumeToken",
            "Use a mailed token, once",
            "accounts",
            Access.OPEN,
            (
                Answer(200, "it was good, and is used now; an activation is active", UsedToken),
                Answer(
                    400,
                    "it is used, expired, forged or unknown, or its code is missing or wrong: one "
                    "and the same answer, and nothing has changed (or the body cannot be read)",
                    cases=("token-refused",),
                ),
                Answer(
                    503,
                    "a store does not answer; try again after Retry-After",
                    cases=("unavailable",),
                ),
            ),
            body=TokenToUse,
            details="A recovery needs the code of its mail, an activation does not. After 20 "
            "wrong codes a token is refused until some time has passed.",
        ),
    )
    async def consume(call: Call) -> Response:
        wanted: TokenToUse = call.body
        used = await pad_failure_time(
            lambda: api.committed(lambda: consumption.consume(wanted.token, wanted.code))
        )
        if used is None:
            raise Problem(
                400, "token-refused", "This token, or its code, cannot be used.",
            )  # fmt: skip
        return json_response(
            {
                "action": used.action.label,
                "account": str(used.account),
                "login": used.login,
                "status": used.status,
            }
        )
