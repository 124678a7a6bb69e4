"""`/api/v1/webhooks`: URLs that are told what became of one's mail; and a mailbox's own webhook.

Promises: an owner sees and changes their own webhooks only; the secret that verifies posts is the
owner's, the same for all of theirs; a URL that leads into this network is refused when it is named
(unless the settings allow it), and is looked at again at each post.
"""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.http.lists.entries import BY_ID, listed, removed
from relay.http.operations import (
    MAILBOX_NOT_FOUND,
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    View,
    json_response,
    no_content,
)
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.ids import parse_uuid
from relay.ssrf_guard import MAX_URL, BadUrl, check_url
from relay.times import rfc3339
from relay.webhooks.kinds import KINDS, Kind
from relay.webhooks.signing import secret_of
from relay.webhooks.store import GivenUp, Webhook


class NewWebhook(Form):
    """The URL to post to, and the events to post."""

    url: Annotated[str, Field(max_length=MAX_URL, description="https://, or http://")]
    events: Annotated[tuple[Kind, ...], Field(min_length=1, max_length=len(KINDS))] = KINDS


class WebhookEntry(View):
    """A webhook; `secret` verifies its posts, as Standard Webhooks have it."""

    id: str
    url: str
    events: list[str]
    secret: str
    created_at: Instant


class UntoldEvent(View):
    """An event that was given up: after the last attempt, or a 410.  Kept for a week."""

    id: str
    type: str
    message_id: str
    url: str
    attempts: int
    error: str
    given_up_at: Instant


class MailboxWebhook(View):
    """The URL where a mailbox's messages are announced, and the secret that verifies the posts."""

    url: str | None
    secret: str


_POSTS = (
    "A post is JSON `{id, type, timestamp, data}` with the headers `webhook-id`, "
    "`webhook-timestamp` and `webhook-signature` of Standard Webhooks. Answer 2xx within 15 s; "
    "anything else is tried again by the rules of mail, 410 is final. An event may come twice, "
    "with the same id."
)


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps

    @api.add(
        "POST",
        "/api/v1/webhooks",
        Operation(
            "setWebhook",
            "Be told what becomes of outbound mail",
            "webhooks",
            Access.SCOPE,
            (
                Answer(201, "it is told from now on", WebhookEntry),
                Answer(
                    200, "the URL was there, and is told these events from now on", WebhookEntry
                ),
            ),
            scope="send",
            body=NewWebhook,
            details=f"It is told of the caller's own messages. {_POSTS}",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewWebhook = call.body
        try:
            check_url(wanted.url, allow_private=deps.private_webhooks)
        except BadUrl as error:
            raise Problem(
                422,
                "invalid",
                f"url: it {error}.",
                errors=[f"url: it {error}."],
            ) from error
        owner: UUID = call.caller.owner_id
        webhook, made = await api.committed(
            lambda: deps.webhooks.put(owner, wanted.url, wanted.events)
        )
        return json_response(shown(webhook, owner), 201 if made else 200)

    def shown(webhook: Webhook, owner: UUID) -> dict[str, object]:
        return {
            "id": str(webhook.id),
            "url": webhook.url,
            "events": webhook.events,
            "secret": secret_of(deps.keyring.signing[0], owner),
            "created_at": rfc3339(webhook.created_at),
        }

    listed(
        api,
        "/api/v1/webhooks",
        WebhookEntry,
        deps.webhooks.list,
        shown,
        name="listWebhooks",
        summary="List the caller's webhooks, newest first",
        tag="webhooks",
        column=BY_ID,
    )
    removed(
        api,
        "/api/v1/webhooks",
        deps.webhooks.remove,
        name="deleteWebhook",
        summary="Remove a webhook",
        tag="webhooks",
        gone="it is told nothing more, not even what was due",
        missing="you have no such webhook",
        case="webhook-not-found",
        column=BY_ID,
    )
    listed(
        api,
        "/api/v1/webhooks/events",
        UntoldEvent,
        deps.webhooks.given_up,
        _untold,
        name="listWebhookEvents",
        summary="List the events that the caller's webhooks would not take, newest first",
        tag="webhooks",
        column=BY_ID,
    )

    @api.add(
        "POST",
        "/api/v1/webhooks/events/<event_id>/retry",
        Operation(
            "retryWebhookEvent",
            "Post an event again that was given up",
            "webhooks",
            Access.SCOPE,
            (
                Answer(204, "it is posted again, as if for the first time"),
                Answer(
                    404, "no such event of the caller's was given up", cases=("event-not-found",)
                ),
            ),
            scope="send",
        ),
    )
    async def retry(call: Call, event_id: str) -> Response:
        wanted, owner = parse_uuid(event_id), call.caller.owner_id
        if wanted is None or not await api.committed(lambda: deps.webhooks.retry(owner, wanted)):
            raise Problem(404, "event-not-found", "You have no such event that was given up.")
        return no_content()

    @api.add(
        "GET",
        "/api/v1/mailboxes/<address>/webhook",
        Operation(
            "getMailboxWebhook",
            "Show a mailbox's webhook and the secret that verifies its posts",
            "webhooks",
            Access.MAILBOX,
            (
                Answer(200, "the webhook; url is null where there is none", MailboxWebhook),
                MAILBOX_NOT_FOUND,
            ),
            scope="read",
            details=f"It is told `message.arrived`. {_POSTS}",
        ),
    )
    async def of_mailbox(call: Call) -> Response:
        mailbox = call.mailbox
        # As the trigger has it: whose secret signs what is told of this mailbox.
        signer = mailbox.id if mailbox.owner_id is None else mailbox.owner_id
        secret = secret_of(deps.keyring.signing[0], signer)
        return json_response({"url": mailbox.webhook_url, "secret": secret})


def _untold(event: GivenUp, owner: UUID) -> dict[str, object]:
    return {
        "id": str(event.id),
        "type": event.kind,
        "message_id": str(event.subject_id),
        "url": event.url,
        "attempts": event.attempts,
        "error": event.error,
        "given_up_at": rfc3339(event.given_up_at),
    }
