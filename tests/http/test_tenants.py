"""What one key made, no other key sees or touches: every route of the application's own table."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

import httpx
import trio

from relay.http.operations import Access
from tests.http.conftest import House
from tests.http.gate.test_gate import MISSING, routes

SEND = {"from": "a@relay.localhost", "subject": "mine", "text": "t", "to": ["x@elsewhere.example"]}


async def belongings(house: House, headers: dict[str, str]) -> dict[str, str]:
    """Make one of everything as a tenant: the values of the routes' parameters, by name."""
    # A number that is in nothing else.
    await house.pool.execute("ALTER TABLE relay.accounts ALTER COLUMN id RESTART WITH 734003391")

    async def made(path: str, body: dict[str, Any]) -> Any:
        answer = await house.client.post(path, json=body, headers=headers)
        assert answer.status_code in (200, 201, 202), (path, answer.text)
        return answer.json()

    address = (await made("/api/v1/mailboxes", {}))["address"]
    outbound = (await made("/api/v1/messages/send", SEND))["messages"][0]["id"]
    await made("/api/v1/senders", {"address": "a@relay.localhost", "upstream": "loop:"})
    await made("/api/v1/suppressions", {"address": "gone@elsewhere.example"})
    hook = await made(
        "/api/v1/webhooks", {"url": "https://example.com/hook", "events": ["message.bounced"]}
    )
    account = await made("/api/v1/accounts", {"email": "ada@relay.localhost", "login": "ada"})
    return {
        "address": address,
        "received": str(await house.deliver(address)),
        "outbound": outbound,
        "senders": "a@relay.localhost",
        "suppressions": "gone@elsewhere.example",
        "webhooks": hook["id"],
        "account_id": account["id"],
    }


def fill(rule: str, own: dict[str, str]) -> str:
    """Return a route's path with a tenant's own values."""
    resource = rule.split("/")[3] if rule.startswith("/api/") else ""

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name == "message_id":
            name = "received" if "<address>" in rule else "outbound"
        elif name in {"entry", "hook_id"}:
            name = resource
        elif name == "index":
            return "0"
        return quote(own.get(name, MISSING), safe="")

    return re.sub(r"<(\w+)>", value, rule)


async def test_no_route_shows_or_touches_what_is_anothers(house: House):
    """As another key with the same scopes: 404 for each thing, and lists without it."""
    mine, theirs = [await house.key("read", "send", "accounts") for _ in range(2)]
    own = await belongings(house, mine)
    await seen(house, mine, own)  # reading marks read
    before = await seen(house, mine, own)
    asked = 0
    for route in routes(house):
        operation = route.operation
        if (
            operation.access not in {Access.SCOPE, Access.MAILBOX, Access.OWN}
            or operation.websocket
        ):
            continue
        path = fill(route.rule, own)
        if operation.stream:
            path += "?timeout=0"
        with trio.fail_after(20):
            answer = await house.client.request(route.method, path, headers=theirs)
        where = f"{route.method} {route.rule}"
        asked += 1
        if operation.scope == "admin":
            assert answer.status_code == 403, where
        elif "<" in route.rule:
            # Its own values may be looked at first, never another's thing.
            assert answer.status_code in {404, 400, 422}, f"{where}: {answer.text}"
        for value in own.values():
            assert value not in answer.text, where
    assert asked > 40
    assert await seen(house, mine, own) == before


async def seen(house: House, headers: dict[str, str], own: dict[str, str]) -> dict[str, Any]:
    """Everything that tenants read of their own."""
    found: dict[str, Any] = {}
    for route in routes(house):
        operation = route.operation
        if route.method != "GET" or operation.scope == "admin" or operation.stream:
            continue
        if (
            operation.access not in {Access.SCOPE, Access.MAILBOX, Access.OWN}
            or operation.websocket
        ):
            continue
        answer: httpx.Response = await house.client.get(fill(route.rule, own), headers=headers)
        if "attachments" not in route.rule and "event" not in route.rule:
            assert answer.status_code == 200, f"{route.rule}: {answer.text}"
        found[route.rule] = answer.text
    return found
