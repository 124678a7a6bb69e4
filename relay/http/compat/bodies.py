"""The JSON that other programs' clients send: members by their names in small letters.

Fails with a 400 for what cannot be read: it never counts as nothing, which would mean everything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from relay.http.compat.answers import bad
from relay.http.operations import Operation, read_body


async def members_of(operation: Operation) -> dict[str, Any]:
    """The members of the current call's JSON, by their names in small letters; none without a body.

    What cannot be read is a 400, and never a call without values: that would mean everything.
    """
    raw = await read_body(operation)
    try:
        given = json.loads(raw) if raw.strip() else {}
    except (ValueError, RecursionError):
        raise bad("The body is not valid JSON.") from None
    if given is not None and not isinstance(given, dict):
        raise bad("The body must be a JSON object.")
    return {name.lower(): value for name, value in (given or {}).items()}


def texts_of(members: Mapping[str, Any], name: str) -> list[str]:
    """A list of texts among them; nothing where it is null or left out."""
    given = members.get(name.lower())
    if given is None:
        return []
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise bad(f"{name}: a list of texts is wanted.")
    return list(given)
