"""The description of every call (OpenAPI 3.1), made from the declarations that enforce them.

Nothing is written twice: paths and methods are the route table, parameters and bodies the
pydantic models that validate them, credentials the access that is checked.

Promises: each declared call is in it, with every answer, those included that follow from who may
call, from a body and from limits (`_implied`).

Fails with `Bug` where two models have one name, and KeyError for a part of a path that nobody has
described: both when the description is made, so in the first test that asks for it.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, TypeAdapter

from relay.errors import Bug
from relay.http.cookies import PAGE_KEY_HEADER, SESSION, TICKET
from relay.http.operations import Access, Answer, Operation
from relay.http.problems import MEDIA_TYPE
from relay.http.routing import Route

_REFERENCE = "#/components/schemas/{model}"
_PARAMETERS = {
    "address": "the mailbox's address",
    "message_id": "the message's id",
    "index": "the attachment's index",
    "name": "the actor's name, as the tree shows it",
    "key_id": "the key's id",
    "entry": "the address",
    "account_id": "the account's id",
    "event_id": "the webhook event's id",
    "hook_id": "the webhook's id",
    "key": "the device's public key: 64 hexadecimal digits",
    "path": "the file's name",
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
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "array", "items": {"type": "string"}},
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
        "one mailbox), with the page's key or a ticket.",
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
    """Return the OpenAPI 3.1 document of `routes`."""
    schemas: dict[str, Any] = {"Problem": PROBLEM}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", route.rule)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Relay",
            "version": version or "0",
            "description": "Addresses that expire, and the operation of the relay. Times are "
            "RFC 3339 in UTC, ids are opaque strings, errors are RFC 9457 problem documents. "
            "Lists are arrays; the next page is in the Link header.",
        },
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _SCHEMES},
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    operation = route.operation
    names = re.findall(r"<(?:\w+:)?(\w+)>", route.rule)
    described: dict[str, Any] = {
        "operationId": _identifier(route),
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": [
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": _PARAMETERS[name],
                "schema": {"type": "string"},
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
    shown = {one["name"] for one in described["parameters"] if one["in"] == "query"}
    if operation.token_in_query and "token" not in shown:
        described["parameters"].append(_TOKEN)
    if operation.ticket:
        described["parameters"].append(_TICKET)
    body = operation.body or operation.body_or_query
    if body is not None:
        described["requestBody"] = {
            "required": operation.body is not None,
            "content": {"application/json": {"schema": _schema(body, schemas)}},
        }
    elif operation.raw_body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {operation.raw_body: {"schema": {"type": "string"}}},
        }
    answers = {answer.status: answer for answer in (*_implied(operation), *operation.answers)}
    if _takes_values(operation):
        answers.setdefault(422, Answer(422, f"a value is wrong, or {_NO_SUCH}"))
    for status in sorted(answers):
        described["responses"][str(status)] = _answer(answers[status], schemas)
    return described


def _takes_values(operation: Operation) -> bool:
    return any((operation.query, operation.body, operation.body_or_query))


def _implied(operation: Operation) -> list[Answer]:
    """The answers that follow from access and body, so no declaration repeats them."""
    found = [
        Answer(403, "a foreign Host or Origin"),
        *([] if _takes_values(operation) else [Answer(422, _NO_SUCH)]),
        Answer(500, "a fault of the relay, which its log explains"),
    ]
    if operation.access in {Access.SCOPE, Access.OPTIONAL, Access.OWN}:
        found += [
            Answer(401, "no credential, or a wrong one"),
            Answer(403, "the key lacks the scope, or a foreign Host or Origin"),
        ]
        if operation.access is Access.OPTIONAL:
            found[-2] = Answer(401, "a credential was given and is wrong")
    if operation.access is Access.MAILBOX:
        found.append(Answer(403, "the owner's key lacks the scope, or a foreign Host or Origin"))
    if operation.limited:
        found.append(Answer(429, "more calls than this caller may make; see Retry-After"))
    if operation.access is not Access.OPEN:
        found.append(Answer(503, "a store does not answer; try again after Retry-After"))
    if operation.stores:
        found.append(
            Answer(503, "a store does not answer, or the disk is nearly full; see Retry-After")
        )
    if operation.body or operation.body_or_query or operation.raw_body:
        found += [
            Answer(400, "a body that cannot be read"),
            Answer(408, "the body did not arrive in time"),
            Answer(413, f"a body over {operation.max_body} bytes"),
        ]
    if operation.body or operation.body_or_query:
        found.append(Answer(415, "a body that is not JSON"))
    return found


def _answer(answer: Answer, schemas: dict[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {"description": answer.meaning}
    if answer.headers:
        described["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}}
            for name, meaning in answer.headers.items()
        }
    if answer.model is not None:
        described["content"] = {"application/json": {"schema": _schema(answer.model, schemas)}}
    elif answer.media_type is not None:
        described["content"] = {answer.media_type: {"schema": {"type": "string"}}}
    elif answer.status >= 400:
        reference = {"$ref": "#/components/schemas/Problem"}
        described["content"] = {MEDIA_TYPE: {"schema": reference}}
    return described


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


def _identifier(route: Route) -> str:
    words = re.findall(r"\w+", re.sub(r"^/api/v1", "", route.rule).replace(".", "_"))
    return "_".join([route.method.lower(), *words]) if words else f"{route.method.lower()}_root"
