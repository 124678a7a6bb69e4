"""The operator's calls: tree, commands, events, logs, health, metrics, description, pages."""

import json
import re
from typing import Any

import httpx
import pytest
import trio

from relay.crypto import hash_token
from relay.db.pool import Pool
from relay.http.app import create_app
from relay.http.description.openapi import describe
from tests.http.compat.test_compat import declared as compat_routes
from tests.http.conftest import SMALL, House, open_house
from tests.http.gate.test_gate import inert, routes
from tests.http.resources.test_streams import in_thread

TREE = "/api/v1/supervision"


async def test_the_tree_is_shown_as_the_specification_has_it(house: House):
    """Every node has the fifteen fields; times are RFC 3339."""
    tree = (await house.client.get(TREE, headers=house.admin)).json()
    assert [child["name"] for child in tree["children"]] == ["listener", "writer", "control"]
    for node in (tree, *tree["children"]):
        assert set(node) == {
            "name", "state", "restarts", "started_at", "mailbox_depth", "last_event",
            "last_event_at", "last_log", "commands", "processes", "children", "restart",
            "strategy", "max_restarts", "within",
        }  # fmt: skip
        assert node["restart"] == "permanent"
        assert node["state"] == "running"
        assert node["started_at"].endswith("Z")
        assert node["last_event_at"].endswith("Z")
        assert node["commands"][0] == "restart"
    assert (tree["strategy"], tree["max_restarts"], tree["within"]) == ("one_for_one", 5, 30.0)
    assert tree["children"][0]["strategy"] is None
    for event in ("control.began", "loop.blocked"):  # the latter is over when it is told
        line = {"actor": "control", "event": event, "level": "info", "timestamp": "2026-11-23"}
        house.ring.append(line)
    tree = (await house.client.get(TREE, headers=house.admin)).json()
    assert tree["children"][2]["last_log"]["event"] == "control.began"


async def test_an_actor_is_paused_resumed_and_restarted_by_name(house: House):
    """Commands act at once, a restart by hand counts, a wrong name is a 404."""
    for verb, state in (("pause", "paused"), ("resume", "running")):
        answer = await house.client.post(f"{TREE}/writer/{verb}", headers=house.admin)
        assert answer.status_code == 202
        assert answer.json()["state"] == state
    with house.supervisor.subscribe() as events:
        answer = await house.client.post(f"{TREE}/writer/restart", headers=house.admin)
        assert answer.status_code == 202
        with trio.fail_after(10):
            async for event in events:
                if type(event).__name__ == "Ready" and event.name == "writer":
                    break
    tree = (await house.client.get(TREE, headers=house.admin)).json()
    assert tree["children"][1]["restarts"] == 1
    missing = await house.client.post(f"{TREE}/nobody/pause", headers=house.admin)
    assert missing.json()["type"] == "/problems/actor-not-found"


async def test_a_command_goes_to_those_who_understand_it(house: House):
    """An actor that does nothing every so often is a 409 for a sweep; one that reports, reports."""
    refused = await house.client.post(f"{TREE}/writer/sweep", headers=house.admin)
    assert (refused.status_code, refused.json()["type"]) == (
        409, "/problems/not-understood",
    )  # fmt: skip
    assert "writer does not understand 'sweep'" in refused.json()["detail"]
    told = await house.client.post(f"{TREE}/control/report", headers=house.admin)
    assert (told.status_code, told.json()["name"]) == (202, "control")
    missing = await house.client.post(f"{TREE}/nobody/sweep", headers=house.admin)
    assert missing.status_code == 404


async def test_the_control_plane_can_restart_itself_and_keeps_its_port(house: House):
    """The call is answered, and the next one is served by the next incarnation."""
    with house.supervisor.subscribe() as events:
        answer = await house.client.post(f"{TREE}/control/restart", headers=house.admin)
        assert answer.status_code == 202
        with trio.fail_after(20):
            async for event in events:
                if type(event).__name__ == "Ready" and event.name == "control":
                    break
    tree = (await house.client.get(TREE, headers=house.admin)).json()
    assert tree["children"][2]["restarts"] == 1


async def test_a_paused_control_plane_still_answers(house: House):
    """Otherwise nobody could resume it."""
    await house.client.post(f"{TREE}/control/pause", headers=house.admin)
    answer = await house.client.post(f"{TREE}/control/resume", headers=house.admin)
    assert answer.json()["state"] == "running"


def read_lines(
    house: House, path: str, until: str, found: list[str], began: trio.Event | None = None
) -> None:
    """Read a stream line by line until one contains `until`; blocking."""
    url = f"http://127.0.0.1:{house.port}{path}"
    with httpx.stream("GET", url, headers=house.admin, timeout=10) as response:
        for line in response.iter_lines():
            found.append(line)
            if began is not None:
                trio.from_thread.run_sync(began.set)
            if until in line:
                return


async def test_supervision_events_begin_with_the_tree_and_go_on_live(house: House):
    """A pause is seen as it happens, by kind, name, time and words."""
    found: list[str] = []
    began = trio.Event()
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                in_thread, read_lines, house, f"{TREE}/events", '"type":"paused"', found, began
            )
            await began.wait()
            house.supervisor.pause("writer")
    assert found[0] == "event: tree"
    assert json.loads(found[1].removeprefix("data: "))["name"] == "relay"
    event = json.loads(found[-1].removeprefix("data: "))
    assert event["name"] == "writer"
    assert set(event) == {"type", "name", "at", "detail"}


async def test_the_log_is_read_back_filtered_and_followed(house: House):
    """Lines by level and actor, oldest first; with follow also those to come, none twice."""

    def line(event: str, **more: Any) -> dict[str, Any]:
        return {"timestamp": "t", "level": "info", "event": event, "actor": "writer", **more}

    house.ring.append(line("one"))
    house.ring.append(line("two", level="error"))
    house.ring.append(line("three", actor="control"))

    async def events(query: str) -> list[str]:
        response = await house.client.get(f"/api/v1/logs{query}", headers=house.admin)
        assert response.headers["Content-Type"] == "application/x-ndjson"
        return [json.loads(text)["event"] for text in response.text.splitlines()]

    assert await events("") == ["one", "two", "three"]
    assert await events("?level=warning") == ["two"]
    assert await events("?actor=control") == ["three"]
    assert await events("?grep=event%3Dtwo") == ["two"]
    assert await events("?grep=event%3Dtwo&actor=control") == []
    assert await events("?actor=nobody") == []
    wrong = await house.client.get("/api/v1/logs?level=loud", headers=house.admin)
    assert wrong.status_code == 422
    wrong = await house.client.get("/api/v1/logs?grep=nothing", headers=house.admin)
    assert wrong.status_code == 422
    found: list[str] = []
    began = trio.Event()
    async with trio.open_nursery() as nursery:
        path = "/api/v1/logs?follow=1&actor=writer"
        nursery.start_soon(in_thread, read_lines, house, path, "four", found, began)
        await began.wait()
        house.ring.append(line("other", actor="control"))
        house.ring.append(line("four"))
    assert [json.loads(text)["event"] for text in found] == ["one", "two", "four"]


@pytest.mark.parametrize("path", [f"{TREE}/events", "/api/v1/logs?follow=1"])
@pytest.mark.parametrize("busy", [False, True])
async def test_what_a_key_follows_ends_soon_after_it_was_revoked(
    house: House, path: str, busy: bool
):
    """The body ends cleanly, and the next call is refused; also where news leave no silence."""
    house.ring.append({"timestamp": "t", "level": "info", "event": "begin", "actor": "ticker"})
    key, token = await house.keys.create("operator", ["admin"])
    headers = {"Authorization": f"Bearer {token}"}

    async def news() -> None:
        while True:
            house.ring.append({"timestamp": "t", "level": "info", "event": "x", "actor": "ticker"})
            house.supervisor.pause("writer")
            await trio.sleep(SMALL.keep_alive_every / 10)
            house.supervisor.resume("writer")

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            async with house.client.stream("GET", path, headers=headers) as response:
                assert response.status_code == 200
                if busy:
                    nursery.start_soon(news)
                await house.keys.revoke(key.id)
                async for _ in response.aiter_raw():
                    pass
            nursery.cancel_scope.cancel()
    assert (await house.client.get(path, headers=headers)).status_code == 401


async def test_health_readiness_and_metrics_need_no_credential(house: House):
    """Alive is enough for one; the other names what is not ready."""
    assert (await house.client.get("/healthz")).json() == {"status": "ok"}
    assert (await house.client.get("/readyz")).json() == {"status": "ready"}
    metrics = await house.client.get("/metrics")
    assert metrics.headers["Content-Type"].startswith("text/plain")
    assert 'relay_http_answers_total{method="GET",status="200"}' in metrics.text


async def test_metrics_may_ask_for_a_token_of_their_own(database_url: str, pool: Pool):
    """Where one is set it is needed, as the bearer token; no other opens them, and they no call."""
    token = "m" * 40
    async with open_house(database_url, pool, metrics_token_hash=hash_token(token)) as house:
        client = house.client
        for wrong in ({}, house.admin, {"Authorization": f"Bearer {token}x"}):
            refused = await client.get("/metrics", headers=wrong)
            assert refused.status_code == 401
            assert refused.json()["type"] == "/problems/unauthenticated"
        right = {"Authorization": f"Bearer {token}"}
        assert "relay_http_answers_total" in (await client.get("/metrics", headers=right)).text
        assert (await client.get("/api/v1/overview", headers=right)).status_code == 401
        assert (await client.get("/readyz")).status_code == 200


async def test_the_description_covers_every_call(house: House):
    """Each declared route is in /openapi.json with its parameters, answers and credentials."""
    document = (await house.client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    declared = {(route.method, re.sub(r"<(\w+)>", r"{\1}", route.rule)) for route in routes(house)}
    assert described == declared
    identifiers = set()
    for methods in document["paths"].values():
        for operation in methods.values():
            identifiers.add(operation["operationId"])
            assert operation["summary"]
            assert any(status < "400" for status in operation["responses"])
            for parameter in operation["parameters"]:
                assert parameter["schema"]
    assert len(identifiers) == len(declared)
    text = json.dumps(document)
    for reference in re.findall(r'"#/components/schemas/(\w+)"', text):
        assert reference in document["components"]["schemas"], reference
    assert describe(tuple(routes(house)), "x")["info"]["version"] == "x"


async def test_the_application_serves_no_route_that_is_not_declared(house: House):
    """The URL map is the table of declarations, method by method; those that stand in for other
    programs' calls have a table of their own."""
    app = create_app(inert(house))
    served = {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or {"GET"})
        if method not in {"HEAD"}
    }
    declared = (*routes(house), *compat_routes(house))
    assert served == {(route.method, route.rule) for route in declared}


async def test_the_pages_load_nothing_from_elsewhere_and_hold_no_inline_code(house: House):
    """The policy allows the relay's own files only, and the pages need no more."""
    for path in ("/", "/docs"):
        page = await house.client.get(path)
        assert page.headers["Content-Type"].startswith("text/html")
        policy = page.headers["Content-Security-Policy"]
        assert "unsafe" not in policy
        assert "script-src 'self'" in policy
        found = re.findall(r'(?:src|href)=(?:"([^"]+)"|([^"\s>]+))', page.text)
        assert len(found) > 5
        for source in (quoted or bare for quoted, bare in found):
            assert source.startswith(("/", "#", "data:image/", "data:,"))
            if source.startswith("/ui/"):
                assert (await house.client.get(source)).status_code == 200
        assert not re.search(r"<script>|<style>|\son\w+=|\sstyle=", page.text)
    assert (await house.client.get("/ui/..%2fapp.py")).status_code == 404
    assert (await house.client.get("/ui/app.py")).status_code == 404
