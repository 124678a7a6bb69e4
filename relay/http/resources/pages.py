"""`/`, `/docs`, `/problems/…` and `/openapi.json`: the pages, and the description that they show.

The pages are static, with their own scripts and styles, and nothing from elsewhere.

The files are read once, at start, and served without comments, idle blanks and what else a browser
reads the same without, made small when first asked for.  Who takes gzip gets it, packed once;
nothing in a page is secret, so its length gives nothing away.  Their policy forbids inline code and
other origins, so a subject line that holds markup stays text even if a script of ours were to slip.
They may frame the relay's own answers (a message's HTML, in a sandbox), so that a link in a
stranger's mail cannot lead the frame elsewhere.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

import rcssmin
import trio
from quart import Response, request

from relay.http.description.examples import BASE, DOMAIN
from relay.http.description.openapi import answers_of, describe
from relay.http.operations import Access, Answer, Call, Operation, View
from relay.http.problems.details import from_status
from relay.http.problems.types import MEDIA_TYPE, PREFIX, TYPES
from relay.http.routing import Api

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_URL = re.compile(r"https?://[\w.:[\]-]+(/[\w./~-]*)?", re.ASCII)
"""What may stand in a program, whatever its language quotes."""

_SHELL = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<link rel="icon" href="/ui/icon.svg">
<link rel="stylesheet" href="/ui/style.css">
<link rel="stylesheet" href="/ui/docs.css">
<link rel="modulepreload" href="/ui/calls.js">
<link rel="modulepreload" href="/ui/client.js">
<link rel="modulepreload" href="/ui/dialogs.js">
<link rel="modulepreload" href="/ui/dom.js">
<link rel="modulepreload" href="/ui/secrets.js">
<link rel="modulepreload" href="/ui/strings.js">
<script src="/ui/docs.js" type="module"></script>
</head>
<body data-view="docs">
<header>
<a class="brand" href="/">Relay</a>
<nav><a href="/docs" data-t="0">API reference</a> \
<a href="/docs#problems" data-t="1">Problems</a> <a href="/openapi.json">openapi.json</a></nav>
</header>
{main}
</body>
</html>
"""
"""Of the reference and of a problem; the script says what has `data-t`, a number of its
list, and what has `data-said`, `data-prose` (of which this is the text) or `data-call` in the
reader's language."""

_DOCS = """\
<main><h1 data-t="0">API reference</h1>
<div id="calls"><p data-t="2">Loading…</p></div></main>
<noscript><p>This page needs JavaScript; /openapi.json has all that it shows.</p></noscript>"""

_PROBLEM = """\
<main class="explained">
<h1 data-said lang="en">{title}</h1>
<p lang="en"><code>{type}</code> · {statuses}</p>
<h2 data-t="3">What this means</h2>
<p lang="en" data-prose="{clause}">{when}</p>
<h2 data-t="4">What to do</h2>
<p lang="en" data-prose="{sentences}">{remedy}</p>
<h2 data-t="5">An answer</h2>
<pre tabindex="0" lang="en">{answer}</pre>
<h2 data-t="6">Calls that may answer so</h2>
<ul lang="en">{calls}</ul>
</main>"""


@dataclass(frozen=True)
class Static:
    """What is served as it is, and packed to those who take that."""

    content: bytes
    content_type: str

    @functools.cached_property
    def packed(self) -> bytes:
        """The same for gzip, made when first asked for."""
        return gzip.compress(self.content, mtime=0)

    def response(self) -> Response:
        """The answer to the request in hand."""
        packed = request.accept_encodings.best_match(("gzip", "identity")) == "gzip"
        answer = Response(
            self.packed if packed else self.content,
            content_type=self.content_type,
            headers={
                "Vary": "Accept-Encoding",
                "Content-Security-Policy": POLICY,
                "Cache-Control": "no-cache",
                "Cross-Origin-Opener-Policy": "same-origin",
                "Cross-Origin-Resource-Policy": "same-origin",
            },
        )
        if packed:
            answer.headers["Content-Encoding"] = "gzip"
        return answer


class Document(View):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    servers: list[dict[str, Any]]
    tags: list[dict[str, Any]]
    paths: dict[str, Any]
    components: dict[str, Any]


def served(path: Path) -> bytes:
    """What a browser gets of a file of the page."""
    return _small(path.suffix, path.read_text("utf-8")).encode()


def _small(suffix: str, text: str) -> str:
    if suffix == ".js":
        import minify  # a library in Go, which starts threads of its own

        return str(minify.string("text/javascript", text))
    if suffix == ".css":
        return str(rcssmin.cssmin(text))
    return text


def register(api: Api) -> None:
    """Declare the pages."""
    files = {
        path.name: (path.suffix, path.read_text("utf-8"))
        for path in api.deps.ui.iterdir()
        if path.suffix in _TYPES
    }

    @functools.cache
    def static(name: str) -> Static:
        suffix, text = files[name]
        return Static(_small(suffix, text).encode(), _TYPES[suffix])

    def file(name: str) -> Response:
        if name not in files:
            raise from_status(404)
        return static(name).response()

    def page(name: str, rule: str, summary: str, shown: Callable[[], Response]) -> None:
        @api.add(
            "GET",
            rule,
            Operation(
                name,
                summary,
                "pages",
                Access.OPEN,
                (Answer(200, "the page", media_type="text/html"),),
                limited=False,
            ),
        )
        async def show(call: Call) -> Response:
            return shown()

    docs = Static(_SHELL.format(title="Relay: API", main=_DOCS).encode(), _TYPES[".html"])
    page("getPage", "/", "The operator's page", lambda: file("index.html"))
    page("getDocs", "/docs", "This description, for people", docs.response)

    @api.add(
        "GET",
        "/ui/<path>",
        Operation(
            "getPageFile",
            "A script or style of the pages",
            "pages",
            Access.OPEN,
            (
                Answer(200, "the file", media_type="text/javascript"),
                Answer(404, "no such file", cases=("not-found",)),
            ),
            limited=False,
        ),
    )
    async def asset(call: Call, path: str) -> Response:
        return file(path)

    @api.add(
        "GET",
        "/openapi.json",
        Operation(
            "getDescription",
            "Describe every call (OpenAPI 3.1)",
            "operations",
            Access.OPEN,
            (Answer(200, "the document", Document),),
            limited=False,
        ),
    )
    async def document(call: Call) -> Response:
        base = api.deps.public_url or request.host_url.rstrip("/")
        if not _URL.fullmatch(base):
            base = BASE
        data = (await described()).replace(BASE.encode(), base.encode())
        socket = re.sub("^http", "ws", BASE)
        data = data.replace(socket.encode(), re.sub("^http", "ws", base).encode())
        data = data.replace(f"@{DOMAIN}".encode(), f"@{api.deps.store.domains[0]}".encode())
        return Response(data, content_type="application/json")

    made: list[bytes] = []
    making = trio.Lock()

    async def described() -> bytes:
        """The description, made once, when all routes are there, and in a thread: that takes long,
        and nothing else would be done meanwhile."""
        async with making:
            if not made:
                made.append(await trio.to_thread.run_sync(make_description))
        return made[0]

    def make_description() -> bytes:
        whole = describe(api.described, api.deps.version)
        return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()

    @api.add(
        "GET",
        f"{PREFIX}<case>",
        Operation(
            "getProblemType",
            "Say what a problem means, and what to do about it",
            "pages",
            Access.OPEN,
            (
                Answer(200, "its page", media_type="text/html"),
                Answer(404, "there is no such problem", cases=("not-found",)),
            ),
            limited=False,
            details="The `type` of a problem is the address of its page.",
        ),
    )
    async def problem(call: Call, case: str) -> Response:
        if case not in TYPES:
            raise from_status(404)
        return explained(case).response()

    @functools.cache
    def explained(case: str) -> Static:
        kind = TYPES[case]
        named = [
            f'<li><a href="/docs#{operation.name}" data-call>{escape(operation.summary)}</a></li>'
            for operation in (route.operation for route in api.described)
            if any(case in answer.cases for answer in answers_of(operation).values())
        ]
        statuses = [f"{status} {HTTPStatus(status).phrase}" for status in kind.statuses]
        head = [f"HTTP/1.1 {statuses[0]}", f"Content-Type: {MEDIA_TYPE}"]
        if kind.waits:
            head.append("Retry-After: 5")
        body = json.dumps(kind.example(case), indent=2, ensure_ascii=False)
        answer = "\n".join([*head, "", body])
        main = _PROBLEM.format(
            title=escape(kind.title),
            type=PREFIX + case,
            statuses=", ".join(statuses),
            when=_prose(f"{kind.when[0].upper()}{kind.when[1:]}."),
            clause=escape(kind.when),
            remedy=_prose(kind.remedy),
            sentences=escape(kind.remedy),
            answer=escape(answer),
            calls="\n".join(named),
        )
        shown = _SHELL.format(title=escape(kind.title), main=main)
        return Static(shown.encode(), _TYPES[".html"])


def _prose(text: str) -> str:
    """Return text as HTML, with code where it stands between backticks."""
    return re.sub("`([^`]*)`", r"<code>\1</code>", escape(text))
