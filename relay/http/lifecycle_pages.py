"""`/activate` and `/recover`: the pages that a person opens from a mail.

Promises
  * GET shows a form and changes nothing: mail scanners and link previews open every link.  It
    looks nothing up either, so it tells nothing about the token.
  * POST uses the token, once.  Whatever is wrong, the page is the same, and as slow.
  * No script, and one style sheet of the relay's own; what the link holds comes back escaped, in
    one hidden field, and only if it looks like a token.
  * The token leaves for nowhere: the policy allows no other origin, no frame and no referrer.

Why `Referrer-Policy: same-origin` and not `no-referrer`, as everywhere else: under that a browser
says `Origin: null` with its own form, and what has a foreign Origin is refused.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from quart import Response, request

from relay.errors import TemporaryFailure
from relay.http.operations import Access, Answer, Call, Operation, read_body
from relay.http.tokens import evenly
from relay.lifecycle.tokens import Action
from relay.log import get_logger

if TYPE_CHECKING:
    from relay.http.app import Api

log = get_logger()

POLICY = (
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
_FORM = "application/x-www-form-urlencoded"
_MAX_BODY = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{86}", re.ASCII)

# Addresses are relative: they hold behind a proxy that serves the relay below a path.
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>{title}</title>
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
_ASK = {
    Action.ACTIVATION: """\
<p>One more step: confirm that this is you.</p>
<form method="post" action="activate">
<input type="hidden" name="token" value="{token}">
<button type="submit">Activate</button>
</form>""",
    Action.PASSWORD_RECOVERY: """\
<p>Enter the five digits from the mail that brought you here.</p>
<form method="post" action="recover">
<input type="hidden" name="token" value="{token}">
<label for="code">Code
<input id="code" name="code" inputmode="numeric" autocomplete="one-time-code" pattern="[0-9]{{5}}" \
maxlength="5" required autofocus></label>
<button type="submit">Continue</button>
</form>""",
}
_REFUSED = {
    Action.ACTIVATION: "This link cannot be used: it has been used before, or is too old, or was "
    "copied in part. Ask for a new one where you signed up.",
    Action.PASSWORD_RECOVERY: "That did not work: the code is not the one of the mail, or the link "
    "has been used before, or is too old.",
}
_TITLE = {
    Action.ACTIVATION: "Activate your account",
    Action.PASSWORD_RECOVERY: "Recover your account",
}
_DONE = {
    Action.ACTIVATION: ("Your account is active", "You may close this page."),
    Action.PASSWORD_RECOVERY: (
        "It is you",
        "Go back to where you asked for this, and go on there.",
    ),
}


def register(api: Api) -> None:
    """Declare the pages."""
    consumption = api.deps.consumption

    def declare(action: Action) -> None:
        rule = action.path

        @api.add(
            "GET",
            rule,
            Operation(
                f"{_TITLE[action]}: the page of the mailed link",
                "pages",
                Access.OPEN,
                (Answer(200, "a form; nothing has changed", media_type="text/html"),),
                details="Takes the token as `?token=`. Opening it uses nothing up.",
            ),
        )
        async def ask(call: Call) -> Response:
            return _page(_TITLE[action], _form(action, request.args.get("token", "")))

        form = Operation(
            f"{_TITLE[action]}: the form of the page",
            "pages",
            Access.OPEN,
            (
                Answer(200, "done", media_type="text/html"),
                Answer(400, "the token or its code cannot be used", media_type="text/html"),
                Answer(503, "a store does not answer; try again", media_type="text/html"),
            ),
            raw_body=_FORM,
            max_body=_MAX_BODY,
        )

        @api.add("POST", rule, form)
        async def use(call: Call) -> Response:
            token, code = _fields(await read_body(form))
            try:
                used = await evenly(
                    lambda: api.committed(lambda: consumption.consume(token, code, action=action))
                )
            except TemporaryFailure as error:
                log.warning("http.unavailable", error=str(error))
                return _again(
                    action, token, "Something is out of order: try again.", 503, form=True
                )
            if used is None:
                # A code may be tried once more; a link that did not work will not.
                retry = action is Action.PASSWORD_RECOVERY
                return _again(action, token, _REFUSED[action], 400, form=retry)
            title, text = _DONE[action]
            return _page(title, f"<p>{text}</p>")

    declare(Action.ACTIVATION)
    declare(Action.PASSWORD_RECOVERY)


def _fields(raw: bytes) -> tuple[str, str | None]:
    """Token and code of the form; what it lacks is taken from the address."""
    try:
        values = parse_qs(raw.decode("ascii"), max_num_fields=8)
    except ValueError:  # not ASCII, or more fields than the form has
        values = {}

    def given(name: str) -> str | None:
        return values[name][0] if name in values else request.args.get(name)

    code = given("code")
    return given("token") or "", None if code is None else code.strip()


def _form(action: Action, token: str) -> str:
    shown = token if _TOKEN.fullmatch(token) else ""
    return _ASK[action].format(token=escape(shown))


def _again(action: Action, token: str, sentence: str, status: int, *, form: bool) -> Response:
    body = f'<p class="problem" role="alert">{escape(sentence)}</p>'
    if form:
        body += f"\n{_form(action, token)}"
    return _page(_TITLE[action], body, status)


def _page(title: str, body: str, status: int = 200) -> Response:
    return Response(
        _PAGE.format(title=title, body=body),
        status=status,
        content_type="text/html; charset=utf-8",
        headers={
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
        },
    )
