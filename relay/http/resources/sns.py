"""`POST /api/v1/ingest/sns`: what Amazon SES received, and what it reports of mail that it took.

Both are handed over by Amazon SNS.

Promises
  * The order is fixed: the topic against the allow-list, then the addresses in the message, then
    the signature, and only then is anything acted on.  A forged message causes at most the fetch
    of a certificate from Amazon itself, and only one that names an allowed topic.
  * A certificate that has verified a message is kept as long as it is valid: no forgery takes it
    away, so mail goes on whatever strangers post.  What they cause to be fetched beside it is
    charged to their address.
  * 200 only after the commit; a store that does not answer is a 503, and SNS tries again.  The
    ids of the messages follow from the SNS MessageId, so a repetition is stored once.
  * Unknown and expired recipients are dropped: SNS would repeat a refusal for hours, and the
    sender was answered by SES long ago.
  * A report counts for the message whose return path it names (`relay.outbound.bounces.notified`);
    one that names none of ours changes nothing, and is acknowledged.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict

import trio
from prometheus_client import Counter
from quart import Response, request

from relay.addresses import canonical
from relay.chance import utc_now
from relay.errors import TemporaryFailure
from relay.http.credentials.callers import address_of
from relay.http.deps import Fetch
from relay.http.limits.rate_limits import RateLimits
from relay.http.operations import (
    MAX_BODY,
    Access,
    Answer,
    Call,
    Operation,
    View,
    json_response,
    read_body,
)
from relay.http.probes.fetch import Unreadable
from relay.http.problems.details import Problem, unavailable
from relay.http.routing import Api
from relay.log import get_logger
from relay.mailboxes.sns import (
    NOTIFICATION,
    SUBSCRIPTION,
    ForgedNotification,
    MalformedNotification,
    Notification,
    StoredObject,
    check_certificate_url,
    check_subscribe_url,
    is_over,
    message_uuid,
    parse,
    received_mail,
    region_of,
    verify,
)
from relay.metrics import registry
from relay.returns import ses
from relay.returns.upstream_report import MalformedReport

log = get_logger()

POSTS = Counter(
    "relay_sns_posts", "What became of posts to the SNS call.", ["outcome"], registry=registry
)
_PROVEN = 16  # certificates; Amazon has one or two a region
_UNPROVEN = 4
_GOOD_FOR = 60.0  # s; so long one that did not verify is not fetched again
_FETCHES = 0.5  # a second that an address may cause, and five at once
_LETTERS = 4  # that are fetched from S3 at once: each is in memory
_PATIENCE = 15.0  # s; SNS itself waits as long


class IngestOutcome(View):
    """What was done: stored (and how many), reported (it counted), subscribed, ignored."""

    status: str
    stored: int = 0


class Certificates:
    """Signing certificates by address, fetched once.

    Anybody may post a forgery that names one of Amazon's.  Those that have verified a message are
    kept apart from the others: nothing that strangers post takes one away or waits before it, and
    whoever needs another waits `_PATIENCE` seconds at most behind fetches that strangers cause.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._proven: OrderedDict[str, bytes] = OrderedDict()
        self._others: OrderedDict[str, tuple[bytes, float]] = OrderedDict()  # and when fetched
        self._one = trio.Lock()  # a burst of first messages costs one fetch

    def has(self, url: str) -> bool:
        """Tell whether `get` answers without a fetch."""
        return url in self._proven or self._fresh(url) is not None

    async def get(self, url: str) -> bytes:
        """Return the PEM at `url`, whose host and path were checked.  `TemporaryFailure`."""
        if url in self._proven:  # known ones never wait behind a fetch
            self._proven.move_to_end(url)
            return self._proven[url]
        with trio.move_on_after(_PATIENCE) as scope:
            async with self._one:
                known = self._fresh(url)
                if known is None:
                    known = await self._fetch(url)
                    self._others.pop(url, None)
                    self._others[url] = (known, trio.current_time())
                    while len(self._others) > _UNPROVEN:
                        self._others.popitem(last=False)
        if scope.cancelled_caught:
            raise TemporaryFailure("the certificate could not be fetched in time")
        assert known is not None
        return known

    def prove(self, url: str, certificate: bytes) -> None:
        """Keep a certificate that has verified a message, whatever else it does not verify."""
        self._others.pop(url, None)
        self._proven[url] = certificate
        while len(self._proven) > _PROVEN:
            self._proven.popitem(last=False)

    def forget(self, url: str) -> None:
        """Drop a certificate that cannot be used any more."""
        self._proven.pop(url, None)
        self._others.pop(url, None)

    def _fresh(self, url: str) -> bytes | None:
        certificate, at = self._others.get(url, (b"", -math.inf))
        return certificate if trio.current_time() - at < _GOOD_FOR else None


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps
    topics = frozenset(deps.sns_topics)
    certificates = None if deps.fetch is None else Certificates(deps.fetch)
    strangers = RateLimits()
    fetching = trio.CapacityLimiter(_LETTERS)

    operation = Operation(
        "ingestSns",
        "Take mail from Amazon SES through SNS",
        "ingest",
        Access.OPEN,
        (
            Answer(200, "done; what is stored is durable", IngestOutcome),
            Answer(400, "no SNS message", cases=("malformed-notification",)),
            Answer(
                403,
                "not signed by Amazon, or of a topic or bucket that is not allowed",
                cases=("forged-notification", "topic-not-allowed", "bucket-not-allowed"),
            ),
            Answer(
                429,
                "this address has had certificates fetched that verified nothing",
                cases=("too-many-calls",),
            ),
            Answer(503, "try again; SNS does"),
        ),
        limited=False,  # what verifies may come as fast as it does; see `strangers`
        raw_body="application/json",  # under any Content-Type: SNS says text/plain
        max_body=MAX_BODY,
        stores=True,
        details="Allowed topics are the setting ingest.sns_topics. The SES rule uses the SNS "
        "action, which carries the content, or the S3 action with a topic: then the mail is "
        "fetched from its bucket, which must be among ingest.s3_buckets. What SES reports of mail "
        "that was sent (Bounce, Complaint, DeliveryDelay) counts for its message.",
    )

    @api.add("POST", "/api/v1/ingest/sns", operation)
    async def take(call: Call) -> Response:
        body = await read_body(operation)
        try:
            outcome = await handle(body)
        except (MalformedNotification, MalformedReport) as error:
            POSTS.labels("malformed").inc()
            raise Problem(400, "malformed-notification", str(error)) from error
        except ForgedNotification as error:
            POSTS.labels("forged").inc()
            log.warning("sns.forged", reason=str(error))
            raise Problem(403, "forged-notification", str(error)) from error
        except TemporaryFailure as error:
            POSTS.labels("deferred").inc()
            log.warning("sns.deferred", error=str(error))
            raise unavailable("The message could not be taken now; try again.") from error
        POSTS.labels(outcome.status).inc()
        return json_response(outcome.model_dump())

    async def handle(body: bytes) -> IngestOutcome:
        notification = parse(body)
        if notification.topic not in topics:
            POSTS.labels("refused").inc()
            log.warning("sns.topic_refused", topic=notification.topic)
            raise Problem(
                403, "topic-not-allowed", "This topic is not in the setting ingest.sns_topics."
            )
        await authenticate(notification)
        if notification.kind == SUBSCRIPTION:
            return await subscribe(notification)
        if notification.kind == NOTIFICATION:
            return await store(notification)
        log.warning("sns.unsubscribed", topic=notification.topic)
        return IngestOutcome(status="ignored")

    async def authenticate(notification: Notification) -> None:
        url = notification.certificate_url
        check_certificate_url(url, notification.topic)
        if notification.subscribe_url is not None:
            check_subscribe_url(notification.subscribe_url)
        if certificates is None:
            raise ForgedNotification("This relay fetches no certificates.")
        if not certificates.has(url):
            strangers.charge(address_of(request, deps.trusted_proxies), _FETCHES)
        certificate = await certificates.get(url)
        now = utc_now()
        try:
            verify(notification, certificate, now)
        except ForgedNotification:
            if is_over(certificate, now):
                certificates.forget(url)
            raise
        certificates.prove(url, certificate)

    async def subscribe(notification: Notification) -> IngestOutcome:
        if deps.fetch is None or notification.subscribe_url is None:
            return IngestOutcome(status="ignored")
        url = notification.subscribe_url
        await deps.fetch(url)
        log.info("sns.subscribed", topic=notification.topic)
        return IngestOutcome(status="subscribed")

    async def store(notification: Notification) -> IngestOutcome:
        mail = received_mail(notification)
        if mail is None:
            return await report(notification)
        recipients = []
        for recipient in mail.recipients:
            try:
                address = canonical(recipient)
            except ValueError:
                continue  # no address of a mailbox, so unknown
            recipients.append((message_uuid(notification, address), address))
        recipients = list(dict.fromkeys(recipients))
        if not recipients:
            return IngestOutcome(status="stored")
        try:
            raw = await whole(notification, mail.raw)
        except Unreadable as error:
            # A refusal would be repeated for hours, and be no other then.
            log.warning("sns.unreadable", reason=str(error))
            return IngestOutcome(status="ignored")
        stored = await api.committed(
            lambda: deps.accept(_reverse_path(mail.reverse_path), recipients, raw)
        )
        log.info("sns.stored", recipients=len(recipients), stored=len(stored), size=len(raw))
        return IngestOutcome(status="stored", stored=len(stored))

    async def report(notification: Notification) -> IngestOutcome:
        reported = ses.read(notification.message)
        notified = deps.notified
        if reported is None or notified is None:
            log.info("sns.ignored", topic=notification.topic)
            return IngestOutcome(status="ignored")
        changed = await api.committed(lambda: notified.take(reported))
        return IngestOutcome(status="reported" if changed else "ignored")

    async def whole(notification: Notification, raw: bytes | StoredObject) -> bytes:
        if isinstance(raw, bytes):
            return raw
        if deps.buckets is None or deps.fetch_object is None:
            raise MalformedNotification(
                "The mail is in S3, and the setting ingest.s3_buckets names no bucket."
            )
        region = region_of(notification.topic)
        url = deps.buckets.address(raw.bucket, raw.key, region, utc_now())
        if url is None:
            log.warning("sns.bucket_refused", bucket=raw.bucket)
            raise Problem(
                403, "bucket-not-allowed", "This bucket is not in the setting ingest.s3_buckets."
            )
        async with fetching:
            return await deps.fetch_object(url, deps.max_message_bytes)


def _reverse_path(source: str) -> str:
    # What is stored as text must be text: JSON can spell NUL and lone surrogates.
    return json.dumps(source)[1:-1] if not source.isprintable() else source
