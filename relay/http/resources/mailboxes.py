"""`/api/v1/mailboxes`: making, listing, showing and ending expiring addresses.

Promises
  * A mailbox accepts mail from the 201 on, and shows and accepts nothing from the 204 on; with
    `purge` its mail is out of every table then.
  * A mailbox that is not there, is over, or is somebody else's gives one and the same 404.
  * Without a credential a quota is counted by the caller's address (of IPv6 its /64), of which only
    a keyed hash is kept.

Fails with 409 where a name is taken, 403 where it is reserved, 429 `quota` where the caller has as
many as the plan allows.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from quart import Response, request

from relay.accepted import Why
from relay.chance import utc_now
from relay.crypto import hash_source
from relay.http.credentials.callers import address_of
from relay.http.lists.paging import NEXT, PageQuery, next_link
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    Query,
    Text,
    View,
    json_response,
    no_content,
)
from relay.http.problems.details import mailbox_not_found
from relay.http.routing import Api
from relay.mailboxes.misaddressed import is_near
from relay.times import rfc3339

_MOST_ASTRAY = 100  # recipients, refused or captured


class NewMailbox(Form):
    """What a new mailbox is to be; all of it may be left out."""

    ttl_minutes: Annotated[
        float | None,
        Field(gt=0, allow_inf_nan=False, description="minutes to live, cut to the plan's limit"),
    ] = None
    local_part: Annotated[
        Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x20]+$")]
        | None,
        Field(
            description="what stands before the @; random when left out. Without a credential of "
            "a-z, 0-9, and . _ + - only"
        ),
    ] = None
    domain: Annotated[
        Annotated[Text, StringConstraints(max_length=253)] | None,
        Field(description="one of the relay's domains; the first when left out"),
    ] = None
    webhook_url: Annotated[
        Annotated[Text, StringConstraints(max_length=2048)] | None,
        Field(description="where new messages are announced"),
    ] = None


class CreatedMailbox(View):
    """A mailbox just made; its token is shown this once."""

    address: str
    expires_at: Instant
    session_token: str | None
    plan: str


class MailboxEntry(View):
    """A live mailbox."""

    address: str
    expires_at: Instant
    is_active: bool
    owner_type: str
    message_count: int
    unread_count: Annotated[int, Field(description="of these, what nobody has read")]
    bytes: Annotated[int, Field(description="of the raw messages in it")]
    max_messages: Annotated[
        int | None,
        Field(
            description="what the plan allows; null: no limit. When it is reached, "
            "mail for it is answered 452 4.2.2"
        ),
    ]
    max_bytes: int | None
    plan: str
    created_at: Instant


class RefusedQuery(Query):
    """Whose mail is meant, beside what went nearly to the mailbox's address; all, if left out."""

    login: Annotated[
        Annotated[Text, StringConstraints(max_length=1000)] | None,
        Field(description="as whom its sender had signed in; empty: nobody"),
    ] = None


class RefusedEntry(View):
    """A recipient that SMTP has refused."""

    address: str
    why: Annotated[
        Why,
        Field(description="`expired`: its mailbox is over, or was deleted"),
    ]
    reply: Annotated[str, Field(description="the last one to RCPT, or to the message")]
    at: Annotated[Instant, Field(description="when it was refused last")]
    count: Annotated[int, Field(description="how often it was refused")]
    login: Annotated[
        str | None,
        Field(
            description="as whom its sender had signed in, where mail is captured and any name is "
            "taken; what others sent to the address is an entry of its own"
        ),
    ]


class CapturedQuery(Query):
    """Whose mail is meant, beside what went to the mailbox's name at another domain."""

    login: Annotated[
        Annotated[Text, StringConstraints(max_length=1000)] | None,
        Field(description="as whom its sender had signed in"),
    ] = None


class CapturedEntry(View):
    """A recipient for whom mail was captured."""

    address: str
    at: Annotated[Instant, Field(description="when the last of it came")]
    count: Annotated[int, Field(description="how many messages")]
    attributed: Annotated[
        bool,
        Field(
            description="whether it is known to have been meant; false: its sender had not signed "
            "in, and may be another test's"
        ),
    ]


class AllowanceEntry(View):
    """What the caller may have; null: no limit."""

    plan: str
    mailboxes: Annotated[int, Field(description="live ones, counted up to 100,000")]
    max_mailboxes: int | None
    unread: Annotated[
        int | None,
        Field(
            description="messages that nobody has read, in the newest 2,000 of the mailboxes that "
            "the caller may list, counted up to 1,000; null: the caller may list none"
        ),
    ]
    max_messages: Annotated[int | None, Field(description="in one mailbox")]
    max_bytes: Annotated[int | None, Field(description="of the raw messages in one mailbox")]
    default_ttl_minutes: Annotated[
        int | None, Field(description="how long a mailbox lives where nobody says it")
    ]
    max_ttl_minutes: Annotated[int | None, Field(description="at most, the administrator's too")]
    smtp: Annotated[
        str | None, Field(description="where mail for them is taken; null: not over SMTP here")
    ]


class MailboxQuery(PageQuery):
    """The mailboxes that are asked for."""

    q: Annotated[Text, Field(max_length=320, description="a part of the address")] = ""


class PurgeQuery(Query):
    """How thoroughly to delete."""

    purge: Annotated[
        bool, Field(description="true: raw mail, summaries and attachments are gone at once")
    ] = False


def register(api: Api) -> None:
    """Declare the calls."""
    store = api.deps.store

    @api.add(
        "POST",
        "/api/v1/mailboxes",
        Operation(
            "createMailbox",
            "Make a mailbox",
            "mailboxes",
            Access.OPTIONAL,
            (
                Answer(201, "it accepts mail from now on", CreatedMailbox),
                Answer(
                    403,
                    "the local part is a role name (postmaster, admin, noreply …; in any spelling) "
                    "and the caller is not the administrator; or the key lacks the scope; or a "
                    "foreign Host or Origin",
                    cases=("reserved-name",),
                ),
                Answer(409, "the local part is taken", cases=("address-taken",)),
                Answer(
                    429,
                    "`quota`: the owner, or without a credential the address that calls (of IPv6 "
                    "its /64), has as many live mailboxes as the plan allows; or more calls than "
                    "this caller may make; see Retry-After",
                    cases=("quota",),
                ),
            ),
            scope="read",
            body_or_query=NewMailbox,
            details="Without a credential the mailbox is anonymous, of plan free, and opened by "
            "its session token. With a key it belongs to the key and lives by the key's plan.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewMailbox = call.body
        kind = {} if call.caller is None else {"owner_type": call.caller.kind}
        created = await api.committed(
            lambda: store.create(
                ttl_minutes=wanted.ttl_minutes,
                local_part=wanted.local_part,
                domain=wanted.domain,
                webhook_url=wanted.webhook_url,
                **_owner(call),
                **kind,
            )
        )
        return json_response(created.as_json(), 201)

    def _owner(call: Call) -> dict[str, Any]:
        if call.caller is not None:
            return {"owner_id": call.caller.owner_id, "plan": call.caller.plan}
        address = address_of(request, api.deps.trusted_proxies)
        return {"source": hash_source(api.deps.keyring.signing[0], address)}

    @api.add(
        "GET",
        "/api/v1/quota",
        Operation(
            "getQuota",
            "Show how many mailboxes the caller has, and what the plan allows",
            "mailboxes",
            Access.OPTIONAL,
            (Answer(200, "the quotas", AllowanceEntry),),
            details="Without a credential: those of the address that calls (of IPv6, of its /64). "
            "The administrator has no limits but that of a mailbox's life.",
        ),
    )
    async def quota(call: Call) -> Response:
        allowance = await store.allowance(**_owner(call))
        reads = call.caller is not None and call.caller.allows("read")
        unread = await store.count_unread(call.caller.credential) if reads else None
        said = {**allowance.as_json(), "unread": unread, "smtp": api.deps.mail_ports.smtp}
        return json_response(said)

    @api.add(
        "GET",
        "/api/v1/mailboxes",
        Operation(
            "listMailboxes",
            "List the caller's live mailboxes, newest first",
            "mailboxes",
            Access.SCOPE,
            (Answer(200, "a page of them", list[MailboxEntry], headers=NEXT),),
            scope="read",
            query=MailboxQuery,
            details="The administrator sees everybody's.",
        ),
    )
    async def list_(call: Call) -> Response:
        page = await store.mailboxes(
            call.caller.credential,
            limit=call.query.rows,
            cursor=call.query.cursor,
            q=call.query.q,
        )
        return json_response(
            [item.as_json() for item in page.items], headers=next_link(page.cursor)
        )

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>",
        Operation(
            "getMailbox",
            "Show a mailbox",
            "mailboxes",
            Access.MAILBOX,
            (Answer(200, "the mailbox", MailboxEntry), MAILBOX_NOT_FOUND),
            scope="read",
        ),
    )
    async def show(call: Call) -> Response:
        usage = await store.usage(call.mailbox.id)
        if usage is None:
            raise mailbox_not_found()
        return json_response(replace(call.mailbox, usage=usage).as_json())

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>/refused",
        Operation(
            "listRefused",
            "List recipients that SMTP has refused since a mailbox was made",
            "mailboxes",
            Access.MAILBOX,
            (
                Answer(200, "the newest hundred, newest first", list[RefusedEntry]),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
            query=RefusedQuery,
            details="For a test in which no mail came: a mistyped address is refused, and only its "
            "sender hears of it. The administrator is shown all. Who else holds the mailbox is "
            "shown its own address, those of other mailboxes of the same owner, also if they are "
            "over, and an address that nobody has and that is this one but for up to three "
            "characters in one place (of a local part of twelve at least). `login` narrows these "
            "to what its sender wrote to, and to what is nearly the mailbox's address: not what "
            "other tests mistyped. This node remembers 1,000 for an hour, until it is started "
            "again.",
        ),
    )
    async def refused(call: Call) -> Response:
        mailbox, now = call.mailbox, utc_now()
        # The mailbox's age in seconds by the database's clock, which all three were read from.
        lived = (mailbox.expires_at - mailbox.created_at).total_seconds() - mailbox.expires_in
        # It was that old when the database looked, some time after the call began: so long before
        # the beginning is not later than when it was made, however late the answer came.
        found = api.deps.refused.since(call.began_at - lived)
        told = await api.deps.misaddressed.told_of(
            mailbox,
            [one.address for one in found],
            administrator=call.caller is not None and call.caller.credential.administrator,
        )
        login = call.query.login
        shown = [
            one
            for one in found
            if one.address in told
            and (login is None or one.login == login or is_near(one.address, mailbox.address))
        ][:_MOST_ASTRAY]
        return json_response(
            [
                {
                    "address": one.address,
                    "why": one.why,
                    "reply": one.reply,
                    "at": rfc3339(now - timedelta(seconds=one.ago)),
                    "count": one.times,
                    "login": one.login,
                }
                for one in shown
            ]
        )

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>/captured",
        Operation(
            "listCaptured",
            "List recipients for whom mail was captured since a mailbox was made",
            "mailboxes",
            Access.MAILBOX,
            (
                Answer(200, "a hundred at most, the last one first", list[CapturedEntry]),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
            query=CapturedQuery,
            details="For a test in which no mail came: its application may have written to another "
            "domain. Mail to the mailbox's name at any other domain is meant, and what came from "
            "who had signed in as `login`; where there is none, what came from who had not signed "
            "in. Captured mail is the administrator's: to anybody else this list is empty.",
        ),
    )
    async def captured(call: Call) -> Response:
        if call.caller is None or not call.caller.credential.administrator:
            return json_response([])
        async with api.heavy_calls.turn(call):
            found = await api.deps.misaddressed.captured(
                call.mailbox, call.query.login, _MOST_ASTRAY
            )
        return json_response(
            [
                {
                    "address": one.address,
                    "at": rfc3339(one.at),
                    "count": one.count,
                    "attributed": one.attributed,
                }
                for one in found
            ]
        )

    @api.add(
        "DELETE",
        "/api/v1/mailboxes/<address>",
        Operation(
            "deleteMailbox",
            "End a mailbox",
            "mailboxes",
            Access.MAILBOX,
            (Answer(204, "it accepts and shows nothing from now on"), MAILBOX_NOT_FOUND),
            scope="send",
            query=PurgeQuery,
            purges=True,
            details="Its rows are reclaimed after the retention. With purge they are deleted "
            "before the answer, also of a mailbox that was deleted before, and the address may be "
            "made again. One with very much mail is closed, and what is left deleted by the "
            "reaper's next round (503).",
        ),
    )
    async def delete(call: Call) -> Response:
        end = store.purge if call.query.purge else store.delete
        await api.committed(lambda: end(call.mailbox.id))
        return no_content()
