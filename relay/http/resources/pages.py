"""`/`, `/docs` and `/openapi.json`: the pages, and the description that one of them shows.

The pages are static, with their own scripts and styles, and nothing from elsewhere.

The files are read once, at start.  Their policy forbids inline code and other origins, so a
subject line that holds markup stays text even if a script of ours were to slip.  They may frame
the relay's own answers (a message's HTML, in a sandbox), so that a link in a stranger's mail
cannot lead the frame elsewhere.
"""

from __future__ import annotations

from typing import Any

from quart import Response

from relay.http.openapi import describe
from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.problems import from_status
from relay.http.routing import Api

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}


class Document(View):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


def register(api: Api) -> None:
    """Declare the pages."""
    files = {
        path.name: (path.read_bytes(), _TYPES[path.suffix])
        for path in api.deps.ui.iterdir()
        if path.suffix in _TYPES
    }

    def file(name: str) -> Response:
        if name not in files:
            raise from_status(404)
        content, content_type = files[name]
        return Response(
            content,
            content_type=content_type,
            headers={
                "Content-Security-Policy": POLICY,
                "Cache-Control": "no-cache",
                "Cross-Origin-Opener-Policy": "same-origin",
                "Cross-Origin-Resource-Policy": "same-origin",
            },
        )

    def page(rule: str, summary: str, name: str) -> None:
        @api.add(
            "GET",
            rule,
            Operation(
                summary,
                "pages",
                Access.OPEN,
                (Answer(200, "the page", media_type="text/html"),),
                limited=False,
            ),
        )
        async def show(call: Call) -> Response:
            return file(name)

    page("/", "The operator's page", "index.html")
    page("/docs", "This description, for people", "docs.html")

    @api.add(
        "GET",
        "/ui/<path>",
        Operation(
            "A script or style of the pages",
            "pages",
            Access.OPEN,
            (Answer(200, "the file", media_type="text/javascript"), Answer(404, "no such file")),
            limited=False,
        ),
    )
    async def asset(call: Call, path: str) -> Response:
        return file(path)

    @api.add(
        "GET",
        "/openapi.json",
        Operation(
            "Describe every call (OpenAPI 3.1)",
            "operations",
            Access.OPEN,
            (Answer(200, "the document", Document),),
            limited=False,
        ),
    )
    async def document(call: Call) -> Response:
        # Made when it is asked for: by then all routes are there.
        return json_response(describe(tuple(api.routes), api.deps.version))
