"""Programs that make a call: for curl, Python and JavaScript, ready to paste.

What: `samples(...)` returns what `/openapi.json` has as `x-codeSamples` of a call, which `/docs`
and other readers of it show.

Promises
  * They need nothing but the language: Python's standard library, Node.js 18.  For a WebSocket,
    which has none in Python's, websocket-client, and Node.js 22.
  * No credential stands in them: they read the variable RELAY_TOKEN.
  * What is in them is quoted for its language, so an example may hold any text.  Tests run those of
    six calls, and have the language itself parse those of all.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from relay.http.description.examples import BEARER

_BARE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLACE = "@"  # stays as it is in a path: addresses are read by people
_SHORT = 64  # characters of a body that is written on one line
_PYTHON_TOKEN = "os.environ['RELAY_TOKEN']"  # noqa: S105 - the name of a variable


@dataclass(frozen=True)
class Request:
    """A call as an example makes it.

    `credential`: whether it sends one.  `body`: of JSON, if not None; `raw`: any other, of the
    media type `media_type`.  `answers`: the media type of what comes back; None: nothing does.
    """

    method: str
    url: str
    credential: bool
    body: Any = None
    raw: str | None = None
    media_type: str | None = None
    answers: str | None = "application/json"
    maybe_empty: bool = False  # an answer of 2xx may have no body

    @property
    def streams(self) -> bool:
        """Whether the answer goes on for as long as both sides like."""
        return self.answers == "text/event-stream"

    @property
    def binary(self) -> bool:
        """Whether the answer is for a file, not for a screen."""
        return self.answers is not None and self.answers.startswith(("application/oct", "image/"))


def url_of(base: str, path: str, parts: Mapping[str, str], query: Mapping[str, Any]) -> str:
    """Return a URL: `{name}` in `path` is replaced by what `parts` has for it."""
    filled = re.sub(r"\{(\w+)\}", lambda match: quote(parts[match[1]], safe=_PLACE), path)
    return base + filled + (f"?{urlencode(query, quote_via=quote)}" if query else "")


def samples(request: Request, *, websocket: bool = False) -> list[dict[str, str]]:
    """Return the samples of a call, each with `lang`, `label` and `source`."""
    curl, python, javascript = (
        (_curl_socket, _python_socket, _javascript_socket)
        if websocket
        else (_curl, _python, _javascript)
    )
    return [
        {"lang": "Shell", "label": "curl", "source": curl(request)},
        {"lang": "Python", "label": "Python", "source": python(request)},
        {"lang": "JavaScript", "label": "JavaScript", "source": javascript(request)},
    ]


def _curl(request: Request) -> str:
    options = []
    data = request.body is not None or request.raw is not None
    if request.streams:
        options.append("--no-buffer")
    if request.method not in ({"POST"} if data else {"GET"}):
        options.append(f"-X {request.method}")
    first = " ".join(["curl", *options, shlex.quote(request.url)])
    lines = [first]
    if request.credential:
        lines.append('-H "Authorization: Bearer $RELAY_TOKEN"')
    if request.body is not None:
        lines.append("-H 'Content-Type: application/json'")
        lines.append(f"-d {_shell(_written(request.body))}")
    elif request.raw is not None:
        lines.append(f"-H {shlex.quote(f'Content-Type: {request.media_type}')}")
        lines.append(f"--data-binary {shlex.quote(request.raw)}")
    if request.binary:
        lines.append("-o answer.bin")
    return " \\\n  ".join(lines)


def _written(value: Any) -> str:
    """Return JSON, on one line where that is short."""
    line = json.dumps(value, ensure_ascii=False)
    return line if len(line) < _SHORT else json.dumps(value, indent=2, ensure_ascii=False)


def _shell(text: str) -> str:
    """Quote `text`, but for the credential in it, which is a variable."""
    return shlex.quote(text).replace(BEARER, "'\"$RELAY_TOKEN\"'")


def _python(request: Request) -> str:
    modules = {"urllib.request"}
    headers = []
    if request.credential:
        headers.append(f'        "Authorization": f"Bearer {{{_PYTHON_TOKEN}}}",')
    if request.body is not None or request.raw is not None:
        kind = "application/json" if request.body is not None else request.media_type
        headers.append(f'        "Content-Type": {json.dumps(kind)},')
    given = [f"    {json.dumps(request.url, ensure_ascii=False)},"]
    if request.method != "GET":
        given.append(f'    method="{request.method}",')
    if headers:
        given += ["    headers={", *headers, "    },"]
    if request.body is not None:
        modules.add("json")
        written = _literal(request.body, 1, python=True)
        given.append(f"    data=json.dumps({written}).encode(),")
    elif request.raw is not None:
        given.append(f"    data={json.dumps(request.raw)}.encode(),")
    if request.streams:
        ends = ["    for line in answer:", '        print(line.decode(), end="")']
    elif request.binary:
        modules.add("pathlib")
        ends = ['    pathlib.Path("answer.bin").write_bytes(answer.read())']
    elif request.answers is None:
        ends = ["    print(answer.status)"]
    elif request.answers == "application/json":
        modules.add("json")
        read = 'json.loads(answer.read() or "null")' if request.maybe_empty else "json.load(answer)"
        ends = [f"    print({read})"]
    else:
        ends = ["    print(answer.read().decode())"]
    call = "\n".join(["request = urllib.request.Request(", *given, ")"])
    if "os.environ" in call:
        modules.add("os")
    imports = "\n".join(f"import {module}" for module in sorted(modules))
    opened = "with urllib.request.urlopen(request) as answer:"
    return "\n".join([imports, "", call, opened, *ends])


def _javascript(request: Request) -> str:
    given = []
    if request.method != "GET":
        given.append(f'  method: "{request.method}",')
    headers = []
    if request.credential:
        headers.append("    Authorization: `Bearer ${process.env.RELAY_TOKEN}`,")
    if request.body is not None or request.raw is not None:
        kind = "application/json" if request.body is not None else request.media_type
        headers.append(f'    "Content-Type": {json.dumps(kind)},')
    if headers:
        given += ["  headers: {", *headers, "  },"]
    if request.body is not None:
        written = _literal(request.body, 1, python=False)
        given.append(f"  body: JSON.stringify({written}),")
    elif request.raw is not None:
        given.append(f"  body: {json.dumps(request.raw)},")
    url = json.dumps(request.url, ensure_ascii=False)
    lines = [f"const answer = await fetch({url});"]
    if given:
        lines = [f"const answer = await fetch({url}, {{", *given, "});"]
    if request.streams:
        lines += [
            "const text = answer.body.pipeThrough(new TextDecoderStream());",
            "for await (const part of text) process.stdout.write(part);",
        ]
    elif request.binary:
        lines.insert(0, 'import { writeFile } from "node:fs/promises";')
        lines.append('await writeFile("answer.bin", Buffer.from(await answer.arrayBuffer()));')
    elif request.answers is None:
        lines.append("console.log(answer.status);")
    elif request.answers == "application/json":
        empty = "answer.status === 204 ? null : " if request.maybe_empty else ""
        lines.append(f"console.log({empty}await answer.json());")
    else:
        lines.append("console.log(await answer.text());")
    return "\n".join(lines)


def _curl_socket(request: Request) -> str:
    """The handshake by hand, since many builds of curl have no WebSocket; what comes then is its
    frames: a few bytes of their own before each message."""
    handshake = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
    handshake.append("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    lines = [f"curl --http1.1 --no-buffer -o - {shlex.quote(request.url)}"]
    lines += [f"-H '{field}'" for field in handshake]
    return " \\\n  ".join([*lines, '-H "Authorization: Bearer $RELAY_TOKEN"'])


def _python_socket(request: Request) -> str:
    return "\n".join(
        [
            "import json",
            "import os",
            "",
            "import websocket  # pip install websocket-client",
            "",
            "socket = websocket.create_connection(",
            f"    {json.dumps(_ws(request), ensure_ascii=False)},",
            f'    header={{"Authorization": f"Bearer {{{_PYTHON_TOKEN}}}"}},',
            ")",
            "while message := socket.recv():",
            "    print(json.loads(message))",
        ]
    )


def _javascript_socket(request: Request) -> str:
    url = json.dumps(f"{_ws(request)}?token=", ensure_ascii=False)
    return "\n".join(
        [
            f"const socket = new WebSocket({url} + process.env.RELAY_TOKEN);",
            "socket.onmessage = ({ data }) => console.log(JSON.parse(data));",
        ]
    )


def _ws(request: Request) -> str:
    return re.sub("^http", "ws", request.url)


def _literal(value: Any, depth: int, *, python: bool) -> str:
    """Return plain values as a literal of Python or of JavaScript, a member a line."""
    inner, outer = "    " * (depth + 1), "    " * depth
    if not python:
        inner, outer = inner.replace("    ", "  "), outer.replace("    ", "  ")
    if isinstance(value, dict):
        rows = [
            f"{inner}{_name(key, python)}: {_literal(item, depth + 1, python=python)},"
            for key, item in value.items()
        ]
        return "\n".join(["{", *rows, f"{outer}}}"]) if rows else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_literal(item, depth, python=python) for item in value)}]"
    if value == BEARER:
        return 'os.environ["RELAY_TOKEN"]' if python else "process.env.RELAY_TOKEN"
    if python and (value is None or isinstance(value, bool)):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def _name(key: str, python: bool) -> str:
    return key if not python and _BARE.fullmatch(key) else json.dumps(key)
