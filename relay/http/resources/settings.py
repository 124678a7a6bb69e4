"""`GET /api/v1/settings`: what is in force, and where each value comes from.

Promises: secrets are masked, as `relay config show` masks them; nothing can be changed here.  The
values are those of the start: what changed in the file or the environment since is not shown.
"""

from __future__ import annotations

from typing import Any

from quart import Response

from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.routing import Api
from relay.settings import Source


class SettingEntry(View):
    """One setting: its name, its environment variable, its value and default, and what it is for.

    `source` is where the value comes from.  A value that is a secret is `***`.
    """

    name: str
    variable: str
    value: Any
    default: Any
    source: Source
    meaning: str


def register(api: Api) -> None:
    """Declare the call."""

    @api.add(
        "GET",
        "/api/v1/settings",
        Operation(
            "listSettings",
            "List the settings that are in force, and where each comes from",
            "operations",
            Access.SCOPE,
            (Answer(200, "every setting, by section", list[SettingEntry]),),
            scope="admin",
            details="They are those of this relay's start, and one process's: others of the same "
            "database may have other ones.",
        ),
    )
    async def settings(call: Call) -> Response:
        return json_response([each._asdict() for each in api.deps.settings()])
