"""`/healthz`, `/readyz` and `/metrics`: for machines that watch.

Nobody needs a credential; but for the metrics a token of their own, where the operator set one.

The first two are asked under any Host: a probe says the address or the service's name that it
found, and neither tells anything but that the relay lives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import trio
from prometheus_client import CONTENT_TYPE_LATEST
from quart import Response, request

from relay.errors import RelayError, innermost
from relay.http.deps import Deps, Node, ReadyCheck
from relay.http.gate.auth import shows
from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.problems.details import unauthenticated, unavailable
from relay.http.routing import Api
from relay.metrics import render

_CHECKED_WITHIN = 2.0  # s, all stores at once; one that takes longer does not answer
_MOST = 200  # characters of an error


class Health(View):
    """One word: ok or ready."""

    status: str


class Readiness(Health):
    """Ready, and what is held back all the same: `notices`, absent where there is nothing."""

    notices: list[str] | None = None


def troubles(tree: Node) -> Iterator[str]:
    """Yield a clause for each actor that is neither running nor paused on purpose.

    It names its group, and its last error; a group that has given up is one clause.
    """
    for _, clause in troubled(tree):
        yield clause


def troubled(tree: Node) -> Iterator[tuple[str, str]]:
    """Yield the same, each behind the actor whose log tells more; of a group, the first that
    failed.
    """
    yield from _troubled(tree, "")


async def troubles_of(checks: Mapping[str, ReadyCheck]) -> list[str]:
    """Ask all stores at once and return what is wrong, each store's in its place."""
    troubles = {name: f"{name} does not answer within {_CHECKED_WITHIN:g} s" for name in checks}

    async def ask(name: str, check: ReadyCheck) -> None:
        troubles[name] = await check() or ""

    with trio.move_on_after(_CHECKED_WITHIN):
        async with trio.open_nursery() as nursery:
            for name, check in checks.items():
                nursery.start_soon(ask, name, check)
    return [trouble for trouble in troubles.values() if trouble]


def notices(deps: Deps) -> list[str]:
    """Return what is held back though the relay is ready: a sentence each."""
    faults = None if deps.chaos is None else deps.chaos.notice
    return [notice for notice in (deps.space.notice, faults) if notice]


def _troubled(node: Node, group: str) -> Iterator[tuple[str, str]]:
    for child in node.children:
        if not child.children:
            if _is_down(child):
                yield child.name, f"{group}{child.name} is {child.state}{_why(child)}"
        elif _is_down(child) and child.last_error is not None:
            failed = [one for one in child.children if one.last_error]
            said = " and ".join(f"{one.name}{_why(one)}" for one in failed)
            first = failed[0].name if failed else child.name
            yield first, f"{child.name} is {child.state}, after failures of {said}"
        else:
            yield from _troubled(child, f"{child.name}: ")


def _is_down(node: Node) -> bool:
    return str(node.state) not in {"running", "paused"}


def _why(node: Node) -> str:
    """Return the last error in brackets, if there was one.

    Anybody may ask.  So only the relay's own sentences are repeated; of other errors, which may
    hold anything, the kind is named.
    """
    if node.last_error is None:
        return ""
    error = innermost(node.last_error)
    text = str(error).partition("\n")[0] if isinstance(error, RelayError) else ""
    return f" ({text[:_MOST] or type(error).__name__})"


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps

    @api.add(
        "GET",
        "/healthz",
        Operation(
            "getHealth",
            "Tell that the process is alive",
            "operations",
            Access.OPEN,
            (Answer(200, "it is", Health),),
            any_host=True,
            limited=False,
        ),
    )
    async def healthz(call: Call) -> Response:
        return json_response({"status": "ok"})

    @api.add(
        "GET",
        "/readyz",
        Operation(
            "getReadiness",
            "Tell whether every actor is ready and the stores answer",
            "operations",
            Access.OPEN,
            (
                Answer(200, "they do", Readiness),
                Answer(503, "not so; detail says why", cases=("unavailable",)),
            ),
            any_host=True,
            limited=False,
            details="A disk that is nearly full is a notice, no reason to send nobody here: what "
            "frees space, reads and deliveries go on. So are faults on demand (/api/v1/chaos).",
        ),
    )
    async def readyz(call: Call) -> Response:
        found = list(troubles(deps.supervision.tree()))
        if deps.draining.is_set():
            found.append("the control plane is stopping")
        found += await troubles_of(deps.ready_checks)
        if found:
            raise unavailable(f"Not ready: {', '.join(found)}.")
        held_back = notices(deps)
        return json_response({"status": "ready"} | ({"notices": held_back} if held_back else {}))

    @api.add(
        "GET",
        "/metrics",
        Operation(
            "getMetrics",
            "Read the metrics",
            "operations",
            Access.OPEN,
            (
                Answer(200, "Prometheus text", media_type="text/plain"),
                Answer(
                    401,
                    "RELAY_HTTP__METRICS_TOKEN is set, and was not the bearer token",
                    cases=("unauthenticated",),
                ),
            ),
            limited=False,
        ),
    )
    async def metrics(call: Call) -> Response:
        wanted = deps.metrics_token_hash
        if wanted is not None and not shows(request, wanted):
            raise unauthenticated("The metrics need the bearer token RELAY_HTTP__METRICS_TOKEN.")
        return Response(render(), content_type=CONTENT_TYPE_LATEST)
