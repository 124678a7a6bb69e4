"""The pages that links in mail lead to: their frame, and what it lets them do.

Promises: no script, one style sheet and an icon of the relay's own, no cookie; nothing of another
origin, no frame, and forms that lead to the relay alone; in the language that the browser asks for.

Why `Referrer-Policy: same-origin` and not `no-referrer`, as everywhere else: under that a browser
says `Origin: null` with its own form, and what has a foreign Origin is refused.
"""

from __future__ import annotations

from quart import Response

from relay.http.mailed.texts import Text, language, said

POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
FORM = "application/x-www-form-urlencoded"
"""How a browser posts a form."""

# Addresses are relative: they hold behind a proxy that serves the relay below a path.
_PAGE = """\
<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
<link rel="icon" href="ui/icon.svg">
<link rel="stylesheet" href="ui/style.css">
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""


def mailed_page(title: Text, body: str, status: int = 200, *, policy: str = POLICY) -> Response:
    """Return a page; `body` is HTML."""
    return Response(
        _PAGE.format(language=language(), title=said(title), body=body),
        status=status,
        content_type="text/html; charset=utf-8",
        headers={
            "Vary": "Accept-Language",
            "Content-Security-Policy": policy,
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        },
    )


def alert(sentence: Text) -> str:
    """Return the HTML of what is wrong."""
    return f'<p class="problem" role="alert">{said(sentence)}</p>'
