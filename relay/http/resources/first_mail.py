"""`POST …/{address}/test-message`: a mail from the relay itself, for who wants to see one come.

Promises: the 201 comes after the commit that stored it; it arrives as any mail does, by the same
writer, within the same quotas, and streams tell of it.  It goes nowhere else.
"""

from __future__ import annotations

import base64
from email import policy
from email.message import EmailMessage
from email.utils import formatdate
from typing import cast
from uuid import UUID

from quart import Response, request

from relay.addresses import canonical
from relay.chance import time
from relay.http.operations import MAILBOX_NOT_FOUND, Access, Answer, Call, Operation, View
from relay.http.operations import json_response as json
from relay.http.problems.details import mailbox_not_found
from relay.http.resources.send import MADE
from relay.http.routing import Api
from relay.ids import new_id

_TEXT = """\
It works: this is a mail of this relay's, to itself.

Your code is 482913.

What came to you is at {url}
"""
_HTML = """\
<!doctype html>
<div style="font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:2rem auto;padding:0 1rem">
<p><img src="cid:mark@relay" alt="" width="40" height="40" style="border-radius:8px"></p>
<h1 style="font-size:1.4rem">It works</h1>
<p>This is a mail of this relay's, to itself.</p>
<p>Your code is <b style="font-size:1.4rem;letter-spacing:.1em">482913</b>.</p>
<p><a href="{url}">What came to you</a></p>
</div>
"""
_MARK = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGOIqngGRAwQCgAt/gbhRn6nmQAAAABJRU5E"
    "rkJggg=="
)


class Put(View):
    """A message that was stored."""

    id: str


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps

    @api.add(
        "POST",
        "/api/v1/mailboxes/<address>/test-message",
        Operation(
            "createTestMessage",
            "Put a mail of the relay's own into a mailbox, to see one come",
            "mailboxes",
            Access.MAILBOX,
            (Answer(201, "it is stored, and will be readable soon", Put), MAILBOX_NOT_FOUND),
            scope="send",  # as all that makes mail
            stores=True,
        ),
    )
    async def put(call: Call) -> Response:
        address, wanted = canonical(call.mailbox.address), new_id()
        url = deps.public_url or request.host_url
        raw = _message(wanted, address, deps.store.domains[0], url)
        stored = await api.committed(lambda: deps.accept("", [(wanted, address)], raw))
        if address not in stored:
            raise mailbox_not_found()
        MADE.labels("stored").inc()
        return json({"id": str(stored[address])}, 201)


def _message(id: UUID, address: str, domain: str, url: str) -> bytes:
    message = EmailMessage(policy.SMTP)
    message["From"] = f"Relay <postmaster@{domain}>"
    message["To"] = address
    message["Subject"] = "482913 is your code: it works"
    message["Date"] = formatdate(time())
    message["Message-ID"] = f"<{id}@{domain}>"
    message["X-Tags"] = "test"
    shown = f"{url.rstrip('/')}/"
    message.set_content(_TEXT.format(url=shown))
    message.add_alternative(_HTML.format(url=shown), subtype="html")
    _, html = message.iter_parts()
    cast("EmailMessage", html).add_related(
        _MARK, maintype="image", subtype="png", cid="<mark@relay>", filename="mark.png"
    )
    return message.as_bytes()
