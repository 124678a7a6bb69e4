"""`/activate` and `/recover`: the pages that a person opens from a mail.

Promises
  * GET shows a form and changes nothing: mail scanners and link previews open every link.  A link
    that is of no use any more (used, expired, forged, unknown) says so at once: 400, byte for byte
    the same page, and as slow.
  * POST uses the token, once.  Whatever is wrong, the page is the same, and as slow.
  * What a dead link offers is another mail.  It goes to the account whose link it was, if it was
    one, and the page that follows is the same in any case.
  * Afterwards the pages lead to `RELAY_LIFECYCLE__RETURN_URL`, with a proof that the product can
    check (`relay/lifecycle/return_url.py`): a recovery goes there by itself, an activation by a
    link.
  * No script, and one style sheet of the relay's own; what the link holds comes back escaped, in
    one hidden field, and only if it looks like a token.
  * The token leaves for nowhere: the policy allows no other origin but the product's, no frame and
    no referrer.
"""

from __future__ import annotations

import re
from functools import partial
from html import escape
from typing import Annotated
from urllib.parse import parse_qs, urlsplit

from pydantic import Field
from quart import Response, request

from relay.chance import time
from relay.errors import TemporaryFailure
from relay.http.credentials.timing import pad_failure_time
from relay.http.mailed import texts
from relay.http.mailed.pages import FORM, POLICY, alert, mailed_page
from relay.http.mailed.texts import said
from relay.http.operations import Access, Answer, Call, Operation, Query, read_body
from relay.http.routing import Api
from relay.lifecycle.return_url import return_link
from relay.lifecycle.tokens import Action
from relay.log import get_logger

log = get_logger()

_MAX_BODY = 4096
_TOKEN = re.compile(r"[A-Za-z0-9_-]{86}", re.ASCII)

_ASK = {
    Action.ACTIVATION: """\
<p>{ask}</p>
<form method="post" action="activate">
<input type="hidden" name="token" value="{token}">
<button type="submit" class="main">{button}</button>
</form>""",
    Action.PASSWORD_RECOVERY: """\
<p>{ask}</p>
<form method="post" action="recover">
<input type="hidden" name="token" value="{token}">
<label for="code">{code}
<input id="code" name="code" inputmode="numeric" autocomplete="one-time-code" pattern="[0-9]{{5}}" \
maxlength="5" required autofocus></label>
<button type="submit" class="main">{button}</button>
{resend}</form>""",
}
_RESEND = '<button type="submit" name="resend" value="yes" formnovalidate>{}</button>\n'
# A form without an action goes to the address that the page was opened with, which has the token:
# the pages of all dead links are the same.
_DEAD_FORM = """\
<p>{hint}</p>
<form method="post"{action}>
{token}{resend}</form>"""
_ASKED = {
    Action.ACTIVATION: (texts.ACTIVATION_ASK, texts.ACTIVATE),
    Action.PASSWORD_RECOVERY: (texts.RECOVERY_ASK, texts.CONTINUE),
}
_HINT = {
    Action.ACTIVATION: texts.ACTIVATION_HINT,
    Action.PASSWORD_RECOVERY: texts.RECOVERY_HINT,
}
_REFUSED = {
    Action.ACTIVATION: texts.DEAD,
    Action.PASSWORD_RECOVERY: texts.RECOVERY_REFUSED,
}
# The same for every link that is shown to a page, whosever it was, if anybody's.
_RESENT = {
    Action.ACTIVATION: texts.ACTIVATION_RESENT,
    Action.PASSWORD_RECOVERY: texts.RECOVERY_RESENT,
}
_TITLE = {Action.ACTIVATION: texts.ACTIVATION, Action.PASSWORD_RECOVERY: texts.RECOVERY}
_DONE = {
    Action.ACTIVATION: (texts.ACTIVATED, texts.ACTIVATED_HINT),
    Action.PASSWORD_RECOVERY: (texts.RECOVERED, texts.RECOVERED_HINT),
}


class LinkQuery(Query):
    """What the mailed link holds."""

    token: Annotated[str | None, Field(description="the token of the mail")] = None


class FormQuery(LinkQuery):
    """What the address of a form may hold, where its body does not."""

    code: Annotated[str | None, Field(description="the five digits of the mail")] = None
    resend: Annotated[str | None, Field(description="anything: mail another link instead")] = None


_NAMES = {
    Action.ACTIVATION: ("getActivation", "activate"),
    Action.PASSWORD_RECOVERY: ("getRecovery", "recover"),
}
"""What the calls of each page are named: that which shows it, that of its form."""


def register(api: Api) -> None:
    """Declare the pages."""
    consumption, return_url = api.deps.consumption, api.deps.return_url

    def declare(action: Action) -> None:
        rule = action.path

        @api.add(
            "GET",
            rule,
            Operation(
                _NAMES[action][0],
                f"{_TITLE[action].en}: the page of the mailed link",
                "pages",
                Access.OPEN,
                (
                    Answer(200, "a form; nothing has changed", media_type="text/html"),
                    Answer(400, "the link cannot be used any more", media_type="text/html"),
                    Answer(503, "a store does not answer; try again", media_type="text/html"),
                ),
                query=LinkQuery,
                details="Opening it uses nothing up.",
            ),
        )
        async def ask(call: Call) -> Response:
            token = request.args.get("token", "")

            async def usable() -> bool | None:
                return await consumption.usable(token, action) or None

            try:
                if await pad_failure_time(usable):
                    return page(_TITLE[action], _form(action, token))
            except TemporaryFailure as error:
                log.warning("http.unavailable", error=str(error))
                return page(_TITLE[action], alert(texts.TRY_AGAIN), 503)
            return page(_TITLE[action], f"{alert(texts.DEAD)}\n{_dead(action)}", 400)

        operation = Operation(
            _NAMES[action][1],
            f"{_TITLE[action].en}: the form of the page",
            "pages",
            Access.OPEN,
            (
                Answer(
                    200, "done (or: another mail, where there is to be one)", media_type="text/html"
                ),
                Answer(
                    303, "a recovery is done, and goes on at the product", media_type="text/html"
                ),
                Answer(400, "the token or its code cannot be used", media_type="text/html"),
                Answer(503, "a store does not answer; try again", media_type="text/html"),
            ),
            query=FormQuery,
            raw_body=FORM,
            max_body=_MAX_BODY,
        )

        @api.add("POST", rule, operation)
        async def use(call: Call) -> Response:
            token, code, resend = _fields(await read_body(operation))
            try:
                if resend:
                    await pad_failure_time(
                        lambda: api.committed(lambda: consumption.resend(token, action))
                    )
                    return page(texts.RESENT, f"<p>{said(_RESENT[action])}</p>")
                used = await pad_failure_time(
                    lambda: api.committed(lambda: consumption.consume(token, code, action=action))
                )
            except TemporaryFailure as error:
                log.warning("http.unavailable", error=str(error))
                return page(
                    _TITLE[action], f"{alert(texts.TRY_AGAIN)}\n{_form(action, token)}", 503
                )
            if used is None:
                # A code may be tried once more; a link that did not work will not.
                retry = action is Action.PASSWORD_RECOVERY
                form = _form(action, token, resend=True) if retry else _dead(action, token)
                return page(_TITLE[action], f"{alert(_REFUSED[action])}\n{form}", 400)
            title, text = _DONE[action]
            if not return_url:
                return page(title, f"<p>{said(text)}</p>")
            link = return_link(return_url, api.deps.keyring.signing[0], used, int(time()))
            onward = said(texts.CONTINUE)
            body = f'<p><a href="{escape(link)}" rel="noreferrer">{onward}</a></p>'
            if action is Action.ACTIVATION:
                return page(title, body)
            answer = page(title, body, 303)
            answer.headers["Location"] = link
            return answer

    parts = urlsplit(return_url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if return_url else ""
    # Where the form may end by a redirection.
    policy = POLICY.replace("form-action 'self'", f"form-action 'self' {origin}".rstrip())
    page = partial(mailed_page, policy=policy)

    declare(Action.ACTIVATION)
    declare(Action.PASSWORD_RECOVERY)


def _fields(raw: bytes) -> tuple[str, str | None, bool]:
    """Token and code of the form, and whether it asks for another mail.

    What it lacks is taken from the address.
    """
    try:
        values = parse_qs(raw.decode("ascii"), max_num_fields=8)
    except ValueError:  # not ASCII, or more fields than the form has
        values = {}

    def given(name: str) -> str | None:
        return values[name][0] if name in values else request.args.get(name)

    code = given("code")
    return given("token") or "", None if code is None else code.strip(), bool(given("resend"))


def _form(action: Action, token: str, *, resend: bool = False) -> str:
    ask, button = map(said, _ASKED[action])
    return _ASK[action].format(
        ask=ask,
        token=_plain(token),
        code=said(texts.CODE),
        button=button,
        resend=_RESEND.format(said(texts.RESEND)) if resend else "",
    )


def _dead(action: Action, token: str | None = None) -> str:
    """The offer of another mail; without `token`, for that of the page's own address."""
    field = where = ""
    if token is not None:
        field = f'<input type="hidden" name="token" value="{_plain(token)}">\n'
        where = f' action="{action.path.lstrip("/")}"'
    resend = _RESEND.format(said(texts.RESEND))
    return _DEAD_FORM.format(hint=said(_HINT[action]), action=where, token=field, resend=resend)


def _plain(token: str) -> str:
    """A token as it may stand in a page; nothing, for what is none."""
    return escape(token) if _TOKEN.fullmatch(token) else ""
