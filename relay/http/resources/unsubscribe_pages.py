"""`/unsubscribe`: where the links of bulk mail lead, for people and for their mail programs.

Promises
  * GET shows a form and changes nothing: scanners and previews open every link.  It is the same
    form whether or not somebody has unsubscribed by it.
  * The pages say whose mail to which address is meant, to whoever has a link that this relay made,
    and to nobody else.  Where the message is forgotten, or the database does not answer soon, they
    do without the sender.
  * POST with `List-Unsubscribe=One-Click` does it without asking (RFC 8058), as a form or as
    multipart, from whatever origin, without a cookie or a redirection; it answers 200 once that is
    durable, the first time and every other.
  * A link that this relay did not make is 400, and never looked up.

Links are answered whether or not mail gets any now (`RELAY_OUTBOUND__UNSUBSCRIBE`): people keep
mail.
"""

from __future__ import annotations

import io
from contextlib import suppress
from html import escape
from typing import IO, Annotated

import trio
from pydantic import Field
from quart import Response, request
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import FormDataParser
from werkzeug.http import parse_options_header

from relay.errors import TemporaryFailure
from relay.http.mailed import texts
from relay.http.mailed.pages import FORM, alert, mailed_page
from relay.http.mailed.texts import said
from relay.http.operations import Access, Answer, Call, Operation, Query, read_body
from relay.http.routing import Api
from relay.log import get_logger
from relay.outbound.suppression.unsubscribing import FIELD, ONE_CLICK, PATH, Link

log = get_logger()

_MAX_BODY = 4096
_MOST_FIELDS = 16
_MULTIPART = "multipart/form-data"

_PATIENCE = 2.0  # s to find out who sent a mail; the pages do without

_ASK = f"""\
<p>{{ask}}</p>
{{facts}}
<form method="post" action="unsubscribe">
<input type="hidden" name="token" value="{{token}}">
<input type="hidden" name="{FIELD}" value="{ONE_CLICK}">
<button type="submit" class="main">{{button}}</button>
</form>"""


class LinkQuery(Query):
    """The token of a mail's link."""

    token: Annotated[str | None, Field(description="the token of the mail's link")] = None


def register(api: Api) -> None:
    """Declare the page and its form."""
    unsubscribing, suppressions = api.deps.unsubscribing, api.deps.suppressions

    @api.add(
        "GET",
        PATH,
        Operation(
            "getUnsubscribe",
            "Unsubscribe: the page of a bulk mail's link",
            "pages",
            Access.OPEN,
            (
                Answer(200, "a form; nothing has changed", media_type="text/html"),
                Answer(
                    400, "the link is not one of ours, or its key is gone", media_type="text/html"
                ),
            ),
            query=LinkQuery,
            details="Opening it changes nothing.",
        ),
    )
    async def ask(call: Call) -> Response:
        token = request.args.get("token", "")
        link = unsubscribing.link_of(token)
        return _dead() if link is None else _form(token, await facts(link))

    async def facts(link: Link) -> str:
        """Whose mail to whom a link is about, as HTML."""
        sender = None
        with suppress(TemporaryFailure), trio.move_on_after(_PATIENCE):
            sender = await suppressions.sender_of(link)
        named = ((texts.UNSUBSCRIBE_FROM, sender), (texts.UNSUBSCRIBE_TO, link.address))
        return "".join(
            ["<dl>"]
            + [f"<dt>{said(name)}</dt><dd>{escape(who)}</dd>" for name, who in named if who]
            + ["</dl>"]
        )

    operation = Operation(
        "unsubscribe",
        "Unsubscribe at once, as mail programs do",
        "pages",
        Access.OPEN,
        (
            Answer(
                200,
                "they get no more bulk mail, and may have got none before",
                media_type="text/html",
            ),
            Answer(
                400,
                "the link is not one of ours, or its key is gone; or the body does not ask for it, "
                "and nothing has changed",
                media_type="text/html",
            ),
            Answer(503, "a store does not answer; try again", media_type="text/html"),
        ),
        query=LinkQuery,
        raw_body=FORM,
        max_body=_MAX_BODY,
        any_origin=True,
        details="The body is `List-Unsubscribe=One-Click` (RFC 8058), as a form or as "
        "multipart/form-data. It holds for the bulk mail of the message's owner alone.",
    )

    @api.add("POST", PATH, operation)
    async def unsubscribe(call: Call) -> Response:
        fields = _fields(await read_body(operation))
        token = fields.get("token") or request.args.get("token", "")
        link = unsubscribing.link_of(token)
        if link is None:
            return _dead()
        if fields.get(FIELD.lower(), "").strip().lower() != ONE_CLICK.lower():
            return _form(token, await facts(link), 400)
        try:
            await api.committed(lambda: _unsubscribe(link))
        except TemporaryFailure as error:
            log.warning("http.unavailable", error=str(error))
            page = _form(token, await facts(link), 503, f"{alert(texts.TRY_AGAIN)}\n")
            page.headers["Retry-After"] = "2"
            return page
        hint = f"<p>{said(texts.UNSUBSCRIBED_HINT)}</p>"
        return mailed_page(texts.UNSUBSCRIBED, f"{hint}\n{await facts(link)}")

    async def _unsubscribe(link: Link) -> None:
        if await suppressions.unsubscribe(link):
            log.info("outbound.unsubscribed", id=str(link.message))


def _fields(raw: bytes) -> dict[str, str]:
    """The fields of the form, their names in lower case; the first of each."""
    kind, options = parse_options_header(request.headers.get("Content-Type"))
    if kind.lower() != _MULTIPART:
        kind = FORM  # whatever it is called: some programs call it nothing
    parser = FormDataParser(
        _no_file,
        max_form_memory_size=_MAX_BODY,
        max_form_parts=_MOST_FIELDS,
    )
    try:
        _, form, _ = parser.parse(io.BytesIO(raw), kind.lower(), len(raw), options)
    except (ValueError, RequestEntityTooLarge):  # no form, or more fields than anybody has
        return {}
    found: dict[str, str] = {}
    for name, value in form.items(multi=True):
        found.setdefault(name.lower(), value)
    return found


def _no_file(
    total_content_length: int | None,
    content_type: str | None,
    filename: str | None,
    content_length: int | None = None,
) -> IO[bytes]:
    """Where a part that says it is a file goes: it is no field, and no file is made of it."""
    return io.BytesIO()


def _form(token: str, facts: str, status: int = 200, before: str = "") -> Response:
    """The form of a token that was read: it holds letters, digits, - and _ alone."""
    asked = _ASK.format(
        ask=said(texts.UNSUBSCRIBE_ASK),
        facts=facts,
        token=token,
        button=said(texts.UNSUBSCRIBE),
    )
    return mailed_page(texts.UNSUBSCRIBE, before + asked, status)


def _dead() -> Response:
    hint = said(texts.UNSUBSCRIBE_DEAD_HINT)
    return mailed_page(texts.UNSUBSCRIBE, f"{alert(texts.UNSUBSCRIBE_DEAD)}\n<p>{hint}</p>", 400)
