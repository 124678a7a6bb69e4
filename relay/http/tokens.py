"""`POST /api/v1/tokens/consume`: using the token of a mailed link, once.

Promises: whatever is wrong (used, expired, forged, unknown, without its code, with a wrong one),
the answer is byte for byte the same 400, and it leaves at a multiple of `STEP` after the question,
so that neither its words nor its time tell which it was.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import trio
from pydantic import BaseModel, Field
from quart import Response

from relay.http.operations import Access, Answer, Call, Form, Operation, json_response
from relay.http.problems import Problem

if TYPE_CHECKING:
    from relay.http.app import Api

T = TypeVar("T")

STEP = 0.05
"""Seconds; well above what the database takes, so nearly every refusal takes exactly one."""


class TokenToUse(Form):
    """A token from a link and, for a recovery, the code beside it."""

    token: Annotated[str, Field(repr=False)]
    code: Annotated[str | None, Field(repr=False, description="5 digits")] = None


class UsedToken(BaseModel):
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
            "Use a mailed token, once",
            "accounts",
            Access.OPEN,
            (
                Answer(200, "it was good, and is used now; an activation is active", UsedToken),
                Answer(
                    400,
                    "it is used, expired, forged or unknown, or its code is missing or wrong: one "
                    "and the same answer, and nothing has changed (or the body cannot be read)",
                ),
                Answer(503, "a store does not answer; try again after Retry-After"),
            ),
            body=TokenToUse,
            details="A recovery needs the code of its mail, an activation does not. After 20 "
            "wrong codes a token is refused until some time has passed.",
        ),
    )
    async def consume(call: Call) -> Response:
        wanted: TokenToUse = call.body
        used = await evenly(
            lambda: api.committed(lambda: consumption.consume(wanted.token, wanted.code))
        )
        if used is None:
            raise Problem(
                400, "token-refused", "This token, or its code, cannot be used.",
                title="Token refused",
            )  # fmt: skip
        return json_response(
            {
                "action": used.action.label,
                "account": str(used.account),
                "login": used.login,
                "status": used.status,
            }
        )


async def evenly(use: Callable[[], Awaitable[T | None]]) -> T | None:
    """Return what `use` returns; None at a multiple of `STEP` seconds after the call."""
    started = trio.current_time()
    used = await use()
    if used is None:
        passed = trio.current_time() - started
        await trio.sleep_until(started + max(1, math.ceil(passed / STEP)) * STEP)
    return used
