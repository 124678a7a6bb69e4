"""The application: every call of the control plane, behind one gate.

What: `create_app(deps)` returns a quart-trio application whose routes are exactly the declared
operations of the modules in `resources/`, and those of other catchers in `compat/`.

Promises
  * Each request passes, in this order: Host and Origin; the route; the rate; the credential and
    its permission; the names of parameters; free disk space, where the call stores something; the
    body's size and time; its values; the handler (docs/http.md).
  * Each refusal is a problem document (`problems`), but for those of `compat/`, which are plain
    texts, as there.  An unexpected exception is a 500 that says nothing, and one log line that says
    everything; a database outage is a 503 with `Retry-After`.
  * Responses carry nosniff, no-referrer and a content policy that allows nothing, unless the
    page at hand needs some of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio
from prometheus_client import Counter
from quart import Response, current_app, has_request_context, request, websocket
from quart.globals import request_ctx, websocket_ctx
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.routing import MapAdapter, WebsocketMismatch

from relay.errors import Invalid, OverQuota, TemporaryFailure
from relay.http.compat import answers
from relay.http.compat.mailhog import calls as mailhog
from relay.http.compat.mailpit import calls as mailpit
from relay.http.credentials.callers import address_of, owner_of
from relay.http.deps import Deps
from relay.http.gate.allowed_hosts import AllowedHosts
from relay.http.gate.auth import Admission, Admitted, Authorisation
from relay.http.gate.bodies import Connection, Request, Uploads
from relay.http.limits.rate_limits import RateLimits
from relay.http.operations import (
    Call,
    Operation,
    Overtaken,
    check_names,
    parameters,
    read_values,
)
from relay.http.paths import Part, Rule, path_of
from relay.http.problems.details import (
    Problem,
    from_status,
    no_space,
    over_quota,
    reserved_name,
    unavailable,
)
from relay.http.resources import (
    accounts,
    all_messages,
    chaos,
    checks,
    collector,
    devices,
    dkim,
    domains,
    first_mail,
    health,
    history,
    info,
    keyring,
    keys,
    lifecycle_pages,
    logs,
    mailboxes,
    messages,
    notifications,
    outbound,
    overview,
    pages,
    previews,
    queue,
    release,
    send,
    senders,
    settings,
    sign_in,
    sns,
    streams,
    supervision,
    suppressions,
    tokens,
    unsubscribe_pages,
    webhooks,
)
from relay.http.routing import Api, Route
from relay.log import get_logger
from relay.mailboxes.messages import TooDeep
from relay.mailboxes.store import AddressTaken, ReservedName
from relay.metrics import registry
from relay.storage import REFUSED

log = get_logger()

ANSWERS = Counter(
    "relay_http_answers", "Answers of the control plane.", ["method", "status"], registry=registry
)

RESOURCES = (
    health,
    pages,
    keys,
    sign_in,
    overview,
    history,
    info,
    settings,
    mailboxes,
    messages,
    previews,
    first_mail,
    streams,
    all_messages,
    send,
    release,
    checks,
    outbound,
    queue,
    senders,
    suppressions,
    dkim,
    domains,
    webhooks,
    accounts,
    collector,
    tokens,
    lifecycle_pages,
    unsubscribe_pages,
    devices,
    supervision,
    chaos,
    logs,
    keyring,
    sns,
    notifications,
)

COMPAT = (mailpit, mailhog)
"""Those that stand in for other programs; `/openapi.json` leaves them out, for their descriptions
are those programs' own."""


class _App(QuartTrio):
    """Quart with its log going to ours, paths cut as they came, and bodies that wait."""

    request_class = Request
    url_rule_class = Rule  # type: ignore[assignment]  # as Quart has its own
    asgi_http_class = Connection

    def log_exception(self, exception_info: Any) -> None:
        log.error("http.error", exc_info=exception_info)

    def create_url_adapter(self, request: Any) -> MapAdapter | None:
        """Route by the path as it came; the framework's is decoded, slashes and all."""
        adapter = super().create_url_adapter(request)
        if adapter is not None and request is not None:
            adapter.path_info = path_of(request)
        return adapter


def create_app(deps: Deps) -> QuartTrio:
    """Return the application.  Its routes are at `app.extensions["relay.routes"]`."""
    app = _App("relay.http", static_folder=None)
    app.url_map.merge_slashes = False  # a redirect would lose a POST
    app.url_map.converters["default"] = Part
    app.config.update(
        MAX_CONTENT_LENGTH=None,  # bodies.py: by operation
        BODY_TIMEOUT=deps.limits.body_timeout,
        RESPONSE_TIMEOUT=None,  # each write has its deadline in serve.py
        PROVIDE_AUTOMATIC_OPTIONS=False,
        PROPAGATE_EXCEPTIONS=False,
    )
    api = Api(deps)
    for resource in (*RESOURCES, *COMPAT):
        resource.register(api)
    app.extensions["relay.routes"] = tuple(api.routes)
    uploads, rates = Uploads(deps.limits), RateLimits()
    for route in api.routes:
        _mount(app, deps, uploads, rates, route)
    _guard(app, AllowedHosts(deps.urls), {_endpoint(one): one.operation for one in api.routes})
    app.register_error_handler(Exception, _answer_error)
    app.after_request(_finish)
    return app


def _mount(app: QuartTrio, deps: Deps, uploads: Uploads, rates: RateLimits, route: Route) -> None:
    operation, known = route.operation, parameters(route.operation)

    async def view(**path: str) -> Any:
        # Themselves, not Quart's proxies: a stream is looked at again when its context is gone.
        connection = websocket_ctx.websocket if operation.websocket else request_ctx.request
        if operation.stream and not operation.websocket and request.method == "HEAD":
            raise MethodNotAllowed(valid_methods=["GET"])
        began_at = trio.current_time()
        asked = Authorisation(deps, operation, connection, path.pop("address", None))
        admitted = await _admit(deps, rates, operation, connection, asked)
        check_names(known, (name for name, _ in connection.args.items(multi=True)))
        if operation.stores and deps.space.short():
            REFUSED.labels("call").inc()
            raise no_space()
        still = Admission(asked.authorise, admitted, deps.limits.keep_alive_every, deps.hub)

        async def handle(admitted: Admitted) -> Any:
            query, body = await read_values(operation, connection.args)
            caller, mailbox, session = admitted
            believed = asked.believed
            call = Call(caller, mailbox, query, body, session, still, began_at, believed)
            return await route.handler(call, **path)

        if operation.websocket:
            return await handle(admitted)
        owner = owner_of(admitted.caller, connection, deps.trusted_proxies)
        async with uploads.admitted(operation, owner):
            try:
                return await handle(admitted)
            except Overtaken:  # its mailbox is over, and there may be another at the address
                return await handle(await asked.authorise())

    endpoint = _endpoint(route)
    if operation.websocket:
        app.add_websocket(route.rule, endpoint, view)
    else:
        app.add_url_rule(route.rule, endpoint, view, methods=[route.method])


async def _admit(
    deps: Deps, rates: RateLimits, operation: Operation, connection: Any, asked: Authorisation
) -> Admitted:
    """Return who calls and the mailbox named, charged for the call, or raise the refusal."""

    # Before any look-up: what may be junk must not cost a query once its address is over the rate.
    paying = asked.payer()
    if paying is None:
        if operation.limited:
            rates.charge(address_of(connection, deps.trusted_proxies), deps.anonymous_rate)
    elif paying.key is not None:
        rates.charge(paying.key.id, paying.key.calls_per_second)
    admitted = await asked.authorise()
    caller = admitted.caller
    if paying is None and caller is not None and caller.key is not None:
        rates.charge(caller.key.id, caller.key.calls_per_second)
    return admitted


def _endpoint(route: Route) -> str:
    return f"{route.method} {route.rule}"


def _guard(app: QuartTrio, hosts: AllowedHosts, operations: Mapping[str, Operation]) -> None:
    """Check Host and Origin before each call, but for what its operation lets pass."""

    async def check_http() -> None:
        _check(hosts, request, operations.get(request.endpoint or ""))

    async def check_websocket() -> None:
        _check(hosts, websocket, None)

    app.before_request(check_http)
    app.before_websocket(check_websocket)


def _check(hosts: AllowedHosts, connection: Any, operation: Operation | None) -> None:
    server = connection.scope.get("server")
    hosts.check(
        connection.headers.get("Host"),
        connection.headers.get("Origin"),
        server[0] if server else None,
        connection.scheme in {"https", "wss"},
        any_host=operation is not None and operation.any_host,
        any_origin=operation is not None and operation.any_origin,
    )


async def _answer_error(error: Exception) -> Response:
    problem = _problem_of(error)
    if has_request_context() and request.path.startswith(answers.PREFIX):
        return answers.refusal(problem)
    if problem.status == 401 and has_request_context() and not _is_ours():
        calls = current_app.url_map.bind("")
        problem = answers.not_let_in(calls, path_of(request), request.method, problem)
    return problem.response()


def _is_ours() -> bool:
    """Whether who calls has what no other program's client has: a bearer token, or a cookie."""
    said = request.headers.get("Authorization", "")
    return said.lower().startswith("bearer") or bool(request.cookies)


_PLAIN = "There is a WebSocket at this address, and nothing else."
_SOCKET = "There is no WebSocket at this address; it is called over plain HTTP."


def _problem_of(error: Exception) -> Problem:
    if isinstance(error, Problem):
        return error
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return from_status(405, headers={"Allow": allowed})
    if isinstance(error, WebsocketMismatch):
        return Problem(400, "bad-request", _PLAIN if has_request_context() else _SOCKET)
    if isinstance(error, HTTPException):
        if error.code == 404 and has_request_context():
            calls = current_app.url_map.bind("")
            return answers.not_here(calls, path_of(request), request.method)
        return from_status(error.code or 500)
    if isinstance(error, Invalid):
        said = f"{error}."
        return Problem(422, "invalid", said, errors=[said])
    if isinstance(error, AddressTaken):
        return Problem(409, "address-taken", "That local_part is taken.")
    if isinstance(error, ReservedName):
        return reserved_name("local_part")
    if (problem := send.answer_refusal(error)) is not None:
        return problem
    if isinstance(error, OverQuota):
        return over_quota(f"{error}.".capitalize())
    if isinstance(error, TooDeep):
        return unavailable(
            "The offset skips more matches than a search finds in five seconds; go on with the "
            "cursor of each page, or search for less: by `before:`, `after:` or `from:`."
        )
    if isinstance(error, TemporaryFailure):
        log.warning("http.unavailable", error=str(error))
        return unavailable("A store that this call needs does not answer; try again.")
    log.error("http.error", exc_info=error)
    return from_status(500)


async def _finish(response: Response) -> Response:
    ANSWERS.labels(_METHODS.get(request.method, "other"), str(response.status_code)).inc()
    headers = response.headers
    headers.setdefault("X-Content-Type-Options", "nosniff")
    headers.setdefault("Referrer-Policy", "no-referrer")
    headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    headers.setdefault("Cache-Control", "no-store")
    return response


# A method is what the client says it is: only known ones become labels.
_METHODS = {name: name for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")}
