"""The running relay's API, as an agent's tools use it.

The relay is found anew at each call, so it may restart and the tools go on.  A failure is a
`Failure` of one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from relay.cli import exits
from relay.cli.client import CALL_TIMEOUT, CONNECT_TIMEOUT, credential, read_run, refusal, segment
from relay.cli.exits import Failure
from relay.cli.messages import path_of

SEARCHED = 20  # messages that are looked through for a code or a link, newest first


class Desk:
    """The running relay's API, as an agent uses it: as administrator, or with an API key."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        data_dir: Path,
        *,
        token: str | None = None,
        allow_private: bool = False,
    ) -> None:
        self._client = client
        self._data_dir = data_dir
        self._token = token
        self.allow_private = allow_private

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: dict[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        deadline: float = CALL_TIMEOUT,
    ) -> Any:
        """Return the JSON of an answer, None for a 204; anything else is a `Failure`.

        `deadline`: seconds without a byte.  Parameters that are None are left out.
        """
        run = read_run(self._data_dir)
        if "http" not in run:
            raise Failure("The relay serves no HTTP (it runs without control).", exits.UNAVAILABLE)
        try:
            answer = await self._client.request(
                method,
                run["http"] + path,
                params={name: value for name, value in (params or {}).items() if value is not None},
                json=json,
                headers={**credential(self._token or run["admin_token"]), **(headers or {})},
                timeout=httpx.Timeout(deadline, connect=CONNECT_TIMEOUT),
            )
        except httpx.TimeoutException as error:
            raise Failure("The relay did not answer in time.", exits.UNAVAILABLE) from error
        except httpx.HTTPError as error:
            raise Failure(
                "The relay broke the connection; it may have just stopped.", exits.UNAVAILABLE
            ) from error
        if answer.status_code >= 300:
            raise refusal(answer.status_code, answer.reason_phrase, answer.content)
        return answer.json() if answer.status_code != 204 else None

    async def wait(
        self, address: str, seconds: float, sender: str | None, subject: str | None, after: Any
    ) -> dict[str, Any] | None:
        """Return the oldest match as soon as it is there, or None after so many seconds."""
        found: dict[str, Any] | None = await self.call(
            "GET",
            f"{path_of(address)}/wait",
            params={
                "timeout": f"{seconds:g}",
                "from": sender,
                "subject": subject,
                "after": after,
            },
            deadline=seconds + 15.0,
        )
        return found

    async def message(self, address: str, message_id: str) -> dict[str, Any]:
        """Return one whole message, which marks it read."""
        found: dict[str, Any] = await self.call("GET", f"{path_of(address)}/{segment(message_id)}")
        return found

    async def newest(
        self, address: str, sender: str | None, subject: str | None
    ) -> list[dict[str, Any]]:
        """Return the list entries that match, newest first, of the newest `SEARCHED`."""
        entries = await self.call("GET", path_of(address), params={"limit": SEARCHED})
        return [
            entry
            for entry in entries
            if within(sender, entry["from_address"]) and within(subject, entry["subject"])
        ]


def within(part: str | None, text: str | None) -> bool:
    """Tell whether `text` contains `part`, in any case; None is in everything."""
    return part is None or part.casefold() in (text or "").casefold()
