"""The running relay's API, as an agent's tools use it.

The relay is found anew at each call, so it may restart and the tools go on.  A failure is a
`Failure` of one sentence.

Promises
  * Unless a credential is given, the tools act with a key of their own (`OwnKey`): it reads the
    mailboxes that it made and no others, and sends nothing, or from their addresses only.  Mail
    that talks an agent into something can reach no more than that.
  * The key is made at the first call, renewed while the program lives, and deleted at its end; of
    a program that was killed it ends by itself within `KEY_LIFE` seconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from relay.cli import exits
from relay.cli.client import (
    CALL_TIMEOUT,
    CONNECT_TIMEOUT,
    credential,
    following,
    path_of,
    read_run,
    refusal,
)
from relay.cli.exits import Failure

SEARCHED = 20  # messages that are looked through for a code or a link, newest first
SEARCHES_FOR = 20.0
"""Seconds in which a search of all mail goes on from page to page."""

KEY_LIFE = 600.0
"""Seconds for which the tools' own key is made, and renewed."""
_RENEW_EVERY = KEY_LIFE / 5
_PLAN = "enterprise"  # inboxes may live as long as the administrator's


@dataclass(frozen=True)
class OwnKey:
    """The key that the tools made for themselves."""

    id: str
    token: str


class AgentClient:
    """The running relay's API, as an agent uses it: with a key of its own unless told otherwise.

    `token`: a credential to use instead; `admin`: the administrator's; `allow_send`: whether the
    key of its own may send, from the addresses of its mailboxes.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        data_dir: Path,
        *,
        token: str | None = None,
        admin: bool = False,
        allow_send: bool = False,
        allow_private: bool = False,
    ) -> None:
        self._client = client
        self._data_dir = data_dir
        self._token = token
        self._key: OwnKey | None = None
        self._making = trio.Lock()
        self.own_key = token is None and not admin
        self.allow_send = allow_send
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
        answer = await self._answer(
            method, path, json=json, headers=headers, params=params, deadline=deadline
        )
        return answer.json() if answer.status_code != 204 else None

    async def found(
        self, path: str, *, limit: int, params: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], bool]:
        """Return so many entries of a list, and whether there may be more.

        A long search is looked for in pages, some of them empty, for `SEARCHES_FOR` seconds.
        """
        entries: list[dict[str, Any]] = []
        target: str | None = path
        until = trio.current_time() + SEARCHES_FOR
        asked: Mapping[str, Any] | None = {**params, "limit": limit}
        while target is not None and len(entries) < limit and trio.current_time() < until:
            answer = await self._answer("GET", target, params=asked)
            entries += answer.json()
            target, asked = following(answer.headers.get("Link", "")), None
        return entries[:limit], target is not None or len(entries) > limit

    async def _answer(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        headers: dict[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        deadline: float = CALL_TIMEOUT,
    ) -> httpx.Response:
        run = await trio.to_thread.run_sync(read_run, self._data_dir, abandon_on_cancel=True)
        if "http" not in run:
            raise Failure("The relay serves no HTTP (it runs without control).", exits.UNAVAILABLE)

        async def ask(token: str) -> httpx.Response:
            return await self._request(
                method,
                run["http"] + path,
                token,
                # None, not {}: that would take away what the path has.
                params=params and {k: v for k, v in params.items() if v is not None},
                json=json,
                headers=headers,
                deadline=deadline,
            )

        token = await self._credential(run)
        answer = await ask(token)
        if answer.status_code == 401 and self.own_key:
            # Ended while the machine slept, or of a database that is no more.
            answer = await ask(await self._credential(run, instead_of=token))
        return _check(answer)

    async def keep_key(self) -> None:
        """Renew the key of its own for as long as this runs."""
        while True:
            await trio.sleep(_RENEW_EVERY)
            if self._key is not None:
                with contextlib.suppress(Failure):  # the relay may be away; a call finds out
                    await self._renew(await self._run(), self._key)

    async def delete_own_key(self) -> None:
        """Delete the key of its own, if one was made; where the relay is away it ends by itself."""
        key, self._key = self._key, None
        if key is not None:
            with contextlib.suppress(Failure):
                await self._manage(await self._run(), "DELETE", f"/api/v1/keys/{key.id}")

    async def _run(self) -> dict[str, Any]:
        """The relay as it is now, without waiting for one that starts."""
        run = await trio.to_thread.run_sync(
            partial(read_run, self._data_dir, patience=0.0), abandon_on_cancel=True
        )
        if "http" not in run:
            raise Failure("The relay serves no HTTP (it runs without control).", exits.UNAVAILABLE)
        return run

    async def _credential(self, run: Mapping[str, Any], instead_of: str | None = None) -> str:
        """The token to call with.  `instead_of`: the one that was refused."""
        if not self.own_key:
            return self._token or str(run["admin_token"])
        async with self._making:
            key = self._key
            if key is not None and key.token == instead_of and not await self._renew(run, key):
                key = None
            if key is None:
                key = await self._make(run)
            self._key = key
            return key.token

    async def _make(self, run: Mapping[str, Any]) -> OwnKey:
        wanted = {
            "owner": "mcp",
            "scopes": ["read", "send"] if self.allow_send else ["read"],
            "plan": _PLAN,
            "kind": "mcp",
            "from": ["own"],  # the addresses of its mailboxes
            "expires_in": KEY_LIFE,
        }
        made = _check(await self._manage(run, "POST", "/api/v1/keys", wanted)).json()
        return OwnKey(made["id"], made["token"])

    async def _renew(self, run: Mapping[str, Any], key: OwnKey) -> bool:
        path = f"/api/v1/keys/{key.id}/renew"
        answer = await self._manage(run, "POST", path, {"expires_in": KEY_LIFE})
        if answer.status_code == 404:
            return False
        _check(answer)
        return True

    async def _manage(
        self, run: Mapping[str, Any], method: str, path: str, json: Any = None
    ) -> httpx.Response:
        return await self._request(method, run["http"] + path, run["admin_token"], json=json)

    async def _request(
        self,
        method: str,
        url: str,
        token: str,
        *,
        json: Any,
        params: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        deadline: float = CALL_TIMEOUT,
    ) -> httpx.Response:
        try:
            return await self._client.request(
                method,
                url,
                params=params,
                json=json,
                headers={**credential(token), **(headers or {})},
                timeout=httpx.Timeout(deadline, connect=CONNECT_TIMEOUT),
            )
        except httpx.TimeoutException as error:
            raise Failure("The relay did not answer in time.", exits.UNAVAILABLE) from error
        except httpx.HTTPError as error:
            raise Failure(
                "The relay broke the connection; it may have just stopped.", exits.UNAVAILABLE
            ) from error

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
        found: dict[str, Any] = await self.call("GET", path_of(address, message_id))
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


def _check(answer: httpx.Response) -> httpx.Response:
    if answer.status_code >= 300:
        raise refusal(answer.status_code, answer.reason_phrase, answer.content)
    return answer


def within(part: str | None, text: str | None) -> bool:
    """Tell whether `text` contains `part`, in any case; None is in everything."""
    return part is None or part.casefold() in (text or "").casefold()
