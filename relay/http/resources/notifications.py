"""`POST /api/v1/ingest/notifications`: what upstreams report over HTTP of mail that they took.

An upstream that signs its posts does so as this relay signs its own webhooks
(`relay.webhooks.signing`), with a secret of the settings; one that cannot (Postmark) sends a secret
as the password of Basic, which is for TLS alone.  Which of the forms a post has, it says by itself.

Promises
  * Nothing of a post is looked at before it is known whose it is: its bytes are taken, up to
    `MAX_BODY`.  Who has no secret is charged by their address.
  * 200 only after the commit; a store that does not answer, or a message whose delivery is not
    recorded yet, is a 503, and the upstream tries again.
  * A report counts once, however often it comes.  A signed post is refused five minutes after it
    was signed, and its id, which goes in the commit of what follows, is good once on all nodes: a
    repetition is acknowledged, and does nothing, not even where the message was queued again
    meanwhile.
  * A report counts for the message that its signed token or return path names
    (`relay.outbound.bounces.notified`); one that names none of ours changes nothing, and is
    acknowledged.

Fails with a `Problem`: 401 for a stranger, 400 for what is no report.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from prometheus_client import Counter
from pydantic import Field
from quart import Response, request

from relay.chance import time
from relay.errors import TemporaryFailure
from relay.http.credentials.callers import address_of
from relay.http.limits.rate_limits import RateLimits
from relay.http.operations import (
    MAX_BODY,
    Access,
    Answer,
    Call,
    Form,
    Operation,
    View,
    json_response,
    read_body,
)
from relay.http.problems.details import Problem, unavailable
from relay.http.routing import Api
from relay.log import get_logger
from relay.metrics import registry
from relay.returns import generic, postmark
from relay.returns.upstream_report import MalformedReport, UpstreamReport
from relay.webhooks.signing import ID, SIGNATURE, key_of, proves

log = get_logger()

POSTS = Counter(
    "relay_notification_posts",
    "What became of posts of upstreams that report over HTTP.",
    ["outcome"],
    registry=registry,
)
_STRANGERS = 0.5  # posts a second that an address without a secret may make, and five at once
_LONG = 4096  # characters of a header with a password


class NotificationOutcome(View):
    """What was done: reported (it counted), ignored."""

    status: Literal["reported", "ignored"]


class ReportForm(Form):
    """A report of an upstream without a form of its own."""

    type: Literal["bounced", "delayed", "complained"]
    message: Annotated[
        str, Field(min_length=1, description="the return path of the message, or its token")
    ]
    recipient: Annotated[
        str | None, Field(description="whom it is about; without, nobody is suppressed for it")
    ] = None
    status: Annotated[
        Annotated[str, Field(pattern=r"^[245]\.[0-9]{1,3}\.[0-9]{1,3}$")] | None,
        Field(description="the enhanced status code"),
    ] = None
    text: Annotated[str | None, Field(description="what the receiver said")] = None


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps
    secrets = tuple(deps.notification_secrets)
    keys = tuple(map(key_of, secrets))
    strangers = RateLimits()

    operation = Operation(
        "ingestNotification",
        "Take what an upstream reports of mail",
        "ingest",
        Access.OPEN,
        (
            Answer(200, "done, and durable", NotificationOutcome),
            Answer(400, "no report, in none of the forms", cases=("malformed-notification",)),
            Answer(
                401,
                "neither signed with a secret of the settings nor sent with one",
                headers={"WWW-Authenticate": "Basic, which is for what cannot sign"},
                cases=("unsigned-notification",),
            ),
            Answer(
                429, "this address has posted without a secret too often", cases=("too-many-calls",)
            ),
            Answer(
                503,
                "try again: the delivery is not recorded yet, or a store does not answer",
                cases=("unavailable",),
            ),
        ),
        limited=False,  # an upstream reports as fast as mail comes back; see `strangers`
        raw_body="application/json",
        raw_form=ReportForm,
        max_body=MAX_BODY,
        details="Signed as the relay signs its own webhooks (webhook-id, webhook-timestamp and "
        "webhook-signature, as Standard Webhooks have them) with one of the setting "
        "ingest.notification_secrets; or, over TLS, with one of them as the password of Basic. The "
        "body is a report as described, or a webhook of Postmark (Bounce, SpamComplaint, "
        "SubscriptionChange; others are acknowledged).",
    )

    @api.add("POST", "/api/v1/ingest/notifications", operation)
    async def take(call: Call) -> Response:
        # Before it is known who posts: an answer ahead of the body costs the peer its connection.
        body = await read_body(operation)
        headers: Any = request.headers
        signed = SIGNATURE in headers
        if not (proves(keys, headers, body, time()) if signed else knows(secrets, headers)):
            raise refused()
        name = request.headers[ID] if signed else None
        try:
            outcome = await follow(read(body, deps.report_field), name)
        except MalformedReport as error:
            POSTS.labels("malformed").inc()
            raise Problem(400, "malformed-notification", str(error)) from error
        except TemporaryFailure as error:
            POSTS.labels("deferred").inc()
            log.warning("notifications.deferred", error=str(error))
            raise unavailable("The report could not be taken now; try again.") from error
        POSTS.labels(outcome.status).inc()
        return json_response(outcome.model_dump())

    def refused() -> Problem:
        """The 401 of whoever has no secret, or the 429 of whoever tries too often."""
        POSTS.labels("refused").inc()
        strangers.charge(address_of(request, deps.trusted_proxies), _STRANGERS)
        log.warning("notifications.refused")
        said = "The post has no valid signature of the last minutes, and no password."
        if not secrets:
            said = "The setting ingest.notification_secrets is empty, so that nobody may post here."
        return Problem(
            401,
            "unsigned-notification",
            said,
            headers={"WWW-Authenticate": 'Basic realm="relay notifications"'},
        )

    async def follow(reported: UpstreamReport | None, name: str | None) -> NotificationOutcome:
        notified = deps.notified
        if reported is None or notified is None:
            log.info("notifications.ignored")
            return NotificationOutcome(status="ignored")
        changed = await api.committed(lambda: notified.take(reported, name))
        return NotificationOutcome(status="reported" if changed else "ignored")


def read(body: bytes, field: str) -> UpstreamReport | None:
    """Read a post in whichever form it has; None: nothing follows from it.

    `field`: the name of that by which an upstream knows messages.
    """
    try:
        said: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedReport("The body is not valid JSON.") from error
    if not isinstance(said, dict):
        raise MalformedReport("The body is not a JSON object.")
    return postmark.read(said, field) if "RecordType" in said else generic.read(said)


def knows(secrets: Sequence[str], headers: Mapping[str, str]) -> bool:
    """Whether a post has one of the secrets as the password of Basic."""
    scheme, _, value = (headers.get("Authorization") or "").strip().partition(" ")
    if scheme.lower() != "basic" or len(value) > _LONG:
        return False
    try:
        password = base64.b64decode(value, validate=True).partition(b":")[2]
    except ValueError:
        return False
    fits = [hmac.compare_digest(password, secret.encode()) for secret in secrets]
    return any(fits)
