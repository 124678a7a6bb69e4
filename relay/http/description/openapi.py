"""The description of every call (OpenAPI 3.1), made from the declarations that enforce them.

Nothing is written twice: paths and methods are the route table, parameters and bodies the
pydantic models that validate them, credentials the access that is checked.  Examples are those of
`examples.py`; `samples.py` makes programs of them.

Promises
  * Each declared call is in it, with every answer, those included that follow from who may call,
    from a body and from limits (`_implied`), and with the problems that each may be.
  * Calls come in the order of `SECTIONS`, which is the order in which people need them.

Fails with `Bug` where two models have one name, or a field has no example, and KeyError for a part
of a path or a section that nobody has described: all when the description is made, so in the first
test that asks for it.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, TypeAdapter

from relay.errors import Bug
from relay.http.credentials.cookies import PAGE_KEY_HEADER, SESSION, TICKET
from relay.http.description.examples import BASE, CALL_PATHS, PATHS, QUERIES, RAW, TEXTS, example
from relay.http.description.samples import Request, samples, url_of
from relay.http.operations import Access, Answer, Operation
from relay.http.problems.types import MEDIA_TYPE, PREFIX, TYPES
from relay.http.responses.downloads import AS_OCTETS, OCTETS
from relay.http.routing import Route

SECTIONS: dict[str, tuple[str, str]] = {
    "keys": (
        "Sign in, and keys",
        "A key is sent as `Authorization: Bearer …`; the administrator's token opens everything.",
    ),
    "mailboxes": ("Make an inbox", "An address that receives at once, and expires by itself."),
    "waiting": ("Wait for mail", "One call that answers when a message is there, or a stream."),
    "messages": ("Read it", "What came to one inbox: lists, texts, codes, links, files, checks."),
    "all-messages": ("All mail", "The mail of all of the caller's inboxes at once."),
    "sending": ("Send", "Send, release, and say from where and to whom not."),
    "sent": ("Follow what was sent", "What became of each message, attempt by attempt."),
    "queue": ("The queue", "What waits to go out, on all nodes."),
    "accounts": ("Accounts", "Accounts, and the links that are mailed to them."),
    "devices": ("Devices", "Blobs that wait for a device until it has them."),
    "webhooks": ("Webhooks", "Be told, instead of asking."),
    "supervision": ("Supervision", "The tree of actors as it runs, and commands to it."),
    "operations": ("Operations", "Health, metrics, the log, and what this relay is."),
    "ingest": ("Other services", "What Amazon SNS and other upstreams post to."),
    "pages": ("The relay's own pages", "What they are made of; programs need none of it."),
}
"""A call's `tag` to its section's title and what it is about, in the order people need."""

_REFERENCE = "#/components/schemas/{model}"
_PARAMETERS = {
    "address": "the mailbox's address",
    "message_id": "the message's id",
    "mailbox_id": "the mailbox's id",
    "seal": "until when it works, signed",
    "index": "the attachment's index",
    "name": "the actor's name, as the tree shows it",
    "key_id": "the key's id",
    "entry": "the address",
    "account_id": "the account's id",
    "event_id": "the webhook event's id",
    "hook_id": "the webhook's id",
    "key": "the device's public key: 64 hexadecimal digits",
    "path": "the file's name",
    "case": "the last part of a problem's type",
    "domain": "a domain of mail",
}

_TOKEN = {
    "name": "token",
    "in": "query",
    "required": False,
    "description": "the session token, or the owner's key",
    "schema": {"type": "string"},
}
_TICKET = {
    "name": TICKET,
    "in": "query",
    "required": False,
    "description": "of the page, instead of its key",
    "schema": {"type": "string"},
}
_NO_SUCH = (
    "a query parameter that this call has not (`unknown-parameter`), or a parameter or member that "
    "is given more than once (`repeated-parameter`); `errors` names each"
)

PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem details; `type` names the case.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {
            "type": "string",
            "format": "uri-reference",
            "enum": [PREFIX + case for case in TYPES],
        },
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "string"}},
        "recipients": {
            "type": "array",
            "items": {"type": "string"},
            "description": "of `suppressed`: who is on the suppression list",
        },
    },
}

_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "The administrator's token, or an API key.",
    },
    "session": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Session-Token",
        "description": "The session token of one mailbox.",
    },
    "page_cookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION,
        "description": "A page session's cookie (__Host-relay_session under TLS; relay_mailbox of "
        "one mailbox; of an address with a port _PORT follows), with the page's key or a ticket.",
    },
    "page_key": {
        "type": "apiKey",
        "in": "header",
        "name": PAGE_KEY_HEADER,
        "description": "A page session's key, with its cookie.",
    },
    "ticket": {
        "type": "apiKey",
        "in": "query",
        "name": TICKET,
        "description": "Instead of the page's key, for one path and a short time.",
    },
    "query": {
        "type": "apiKey",
        "in": "query",
        "name": "token",
        "description": "Either, where a browser cannot set headers.",
    },
}

_PAGE: dict[str, list[str]] = {"page_cookie": [], "page_key": []}


def describe(routes: tuple[Route, ...], version: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of `routes`, which are called at `BASE`."""
    schemas: dict[str, Any] = {"Problem": PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    order = list(SECTIONS)
    for route in sorted(routes, key=lambda route: order.index(route.operation.tag)):
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.rule)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, path, schemas)
    cases = {
        case: {"summary": kind.title, "value": kind.example(case)} for case, kind in TYPES.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Relay",
            "version": version or "0",
            "description": "Addresses that expire, and the operation of the relay. Times are "
            "RFC 3339 in UTC, ids are opaque strings, errors are RFC 9457 problem documents. "
            "Lists are arrays; the next page is in the Link header.",
            "x-token": "export RELAY_TOKEN=$(relay key create --owner me"
            " --scope read,send,accounts,admin)",
        },
        "servers": [{"url": BASE}],
        "tags": [
            {"name": name, "description": text, "x-displayName": title}
            for name, (title, text) in SECTIONS.items()
        ],
        "paths": paths,
        "components": {"schemas": schemas, "examples": cases, "securitySchemes": _SCHEMES},
    }


def _operation(route: Route, path: str, schemas: dict[str, Any]) -> dict[str, Any]:
    operation = route.operation
    parts = {**PATHS, **CALL_PATHS.get(operation.name, {})}
    names = re.findall(r"<(?:\w+:)?(\w+)>", route.rule)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": {"type": "string"},
                "example": parts[name],
            }
            for name in names
        ],
        "responses": {},
        "security": _security(operation),
    }
    text = [operation.details] if operation.details else []
    if operation.scope and operation.access is not Access.OPEN:
        text.append(f"A key needs the scope `{operation.scope}`.")
    if text:
        described["description"] = " ".join(text)
    for model in (operation.query, operation.body_or_query):
        if model is not None:
            described["parameters"] += _query(model, schemas)
    given = QUERIES.get(operation.name, {})
    for one in described["parameters"]:
        if one["in"] == "query" and one["name"] in given:
            one["example"] = given[one["name"]]
    shown = {one["name"] for one in described["parameters"] if one["in"] == "query"}
    if operation.token_in_query and "token" not in shown:
        described["parameters"].append(_TOKEN)
    if operation.ticket:
        described["parameters"].append(_TICKET)
    body = operation.body or operation.body_or_query
    if body is not None:
        described["requestBody"] = {
            "required": operation.body is not None,
            "content": {"application/json": _content(body, schemas)},
        }
    elif operation.raw_form is not None:
        described["requestBody"] = {
            "required": True,
            "content": {str(operation.raw_body): _content(operation.raw_form, schemas)},
        }
    elif operation.raw_body is not None:
        is_json = operation.raw_body == "application/json"
        said = RAW.get(operation.name) or RAW[operation.raw_body]
        described["requestBody"] = {
            # No bytes at all are bytes, too.
            "required": operation.raw_body != OCTETS,
            "content": {
                operation.raw_body: {
                    "schema": {"type": "object" if is_json else "string"},
                    "example": json.loads(said) if is_json else said,
                }
            },
        }
    for status, answer in sorted(answers_of(operation).items()):
        described["responses"][str(status)] = _answer(answer, schemas)
    request = _request(route, url_of(BASE, path, parts, given), schemas)
    described["x-credential"] = operation.access.value
    described["x-codeSamples"] = samples(request, websocket=operation.websocket)
    return described


def answers_of(operation: Operation) -> dict[int, Answer]:
    """Return every answer of a call by its status, each with all the problems that it may be."""
    answers: dict[int, Answer] = {}
    for answer in (*_implied(operation), *operation.answers):
        before = answers.get(answer.status)
        cases = dict.fromkeys((*answer.cases, *(before.cases if before else ())))
        answers[answer.status] = replace(answer, cases=tuple(cases))
    return answers


def _request(route: Route, url: str, schemas: dict[str, Any]) -> Request:
    """Return the call as its example makes it."""
    operation = route.operation
    body = operation.body or operation.body_or_query or operation.raw_form
    raw = None if operation.raw_form else operation.raw_body
    good = [answer for answer in operation.answers if answer.status < 300]
    kind = next(("application/json" if one.model else one.media_type for one in good), None)
    return Request(
        route.method,
        url,
        operation.access is not Access.OPEN,
        None if body is None else example(_schema(body, schemas), schemas),
        None if raw is None else RAW.get(operation.name) or RAW[raw],
        raw,
        kind,
        any(answer.status == 204 for answer in good),
    )


def _content(model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the form of a JSON body, and an example."""
    schema = _schema(model, schemas)
    return {"schema": schema, "example": example(schema, schemas)}


def _takes_values(operation: Operation) -> bool:
    return any((operation.query, operation.body, operation.body_or_query))


def _implied(operation: Operation) -> list[Answer]:
    """The answers that follow from access, body and limits, so no declaration repeats them.

    Of two with one status the later has the words, and the problems are those of both.
    """
    foreign = ("foreign-host", "foreign-origin")
    names = ("unknown-parameter", "repeated-parameter")
    found = [
        Answer(403, "a foreign Host or Origin", cases=foreign),
        Answer(422, _NO_SUCH, cases=names),
        Answer(500, "a fault of the relay, which its log explains", cases=("internal",)),
    ]
    if _takes_values(operation):
        found.append(Answer(422, f"a value is wrong, or {_NO_SUCH}", cases=("invalid",)))
    if operation.access in {Access.SCOPE, Access.OPTIONAL, Access.OWN}:
        said = "no credential, or a wrong one"
        if operation.access is Access.OPTIONAL:
            said = "a credential was given and is wrong"
        found += [
            Answer(401, said, cases=("unauthenticated",)),
            Answer(
                403,
                "the key lacks the scope, or a foreign Host or Origin",
                cases=("missing-scope",),
            ),
        ]
    if operation.access is Access.MAILBOX:
        said = "the owner's key lacks the scope, or a foreign Host or Origin"
        found.append(Answer(403, said, cases=("missing-scope",)))
    if operation.limited:
        said = "more calls than this caller may make; see Retry-After"
        found.append(Answer(429, said, cases=("too-many-calls",)))
    if operation.access is not Access.OPEN:
        said = "a store does not answer; try again after Retry-After"
        found.append(Answer(503, said, cases=("unavailable",)))
    if operation.stores:
        said = "a store does not answer, or the disk is nearly full; see Retry-After"
        found.append(Answer(503, said, cases=("insufficient-storage",)))
    if operation.body or operation.body_or_query or operation.raw_body:
        unread = ("malformed-json",) if operation.raw_body is None else ("bad-request",)
        found += [
            Answer(400, "a body that cannot be read", cases=unread),
            Answer(408, "the body did not arrive in time", cases=("request-timeout",)),
            Answer(413, f"a body over {operation.max_body} bytes", cases=("too-large",)),
        ]
    if operation.body or operation.body_or_query:
        found.append(Answer(415, "a body that is not JSON", cases=("unsupported-media-type",)))
    return found


def _answer(answer: Answer, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.meaning}
    headers = dict(answer.headers)
    if any(TYPES[case].waits for case in answer.cases):
        headers.setdefault("Retry-After", "seconds after which it is worth another try")
    if headers:
        described["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}}
            for name, meaning in headers.items()
        }
    if answer.model is not None:
        described["content"] = {"application/json": _content(answer.model, schemas)}
    elif answer.media_type is not None:
        text = {"schema": {"type": "string"}, "example": TEXTS[answer.media_type]}
        described["content"] = {answer.media_type: text}
        if answer.media_type in AS_OCTETS:
            described["content"][OCTETS] = text
    elif answer.status >= 400:
        described["content"] = {
            MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"},
                "examples": {case: _problem(case, answer.status) for case in answer.cases},
            }
        }
    return described


def _problem(case: str, status: int) -> dict[str, Any]:
    if status == TYPES[case].statuses[0]:
        return {"$ref": f"#/components/examples/{case}"}
    return {"summary": TYPES[case].title, "value": TYPES[case].example(case, status)}


def _schema(model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that refers to the components, adding those it needs."""
    schema = TypeAdapter(model).json_schema(ref_template=_REFERENCE)
    _add(schemas, schema.pop("$defs", {}))
    if isinstance(model, type) and issubclass(model, BaseModel) and "$ref" not in schema:
        _add(schemas, {model.__name__: schema})
        return {"$ref": _REFERENCE.format(model=model.__name__)}
    return schema


def _add(schemas: dict[str, Any], more: dict[str, Any]) -> None:
    for name, schema in more.items():
        if schemas.setdefault(name, schema) != schema:
            raise Bug(f"two models of the API are named {name}")


def _query(model: type[BaseModel], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    schema = model.model_json_schema(by_alias=True, ref_template=_REFERENCE)
    _add(schemas, schema.pop("$defs", {}))
    required = schema.get("required", [])
    found = []
    for name, value in schema["properties"].items():
        described = {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": {key: item for key, item in value.items() if key != "description"},
        }
        if "description" in value:
            described["description"] = value["description"]
        found.append(described)
    return found


def _security(operation: Operation) -> list[dict[str, list[str]]]:
    if operation.access is Access.OPEN:
        return []
    if operation.access is Access.OPTIONAL:
        return [{}, {"bearer": []}, _PAGE]
    if operation.access is Access.SCOPE:
        return [{"bearer": []}, _PAGE]
    found: list[dict[str, list[str]]] = [{"session": []}, {"bearer": []}, _PAGE]
    if operation.ticket:
        found.append({"page_cookie": [], "ticket": []})
    return [*found, {"query": []}] if operation.token_in_query else found
