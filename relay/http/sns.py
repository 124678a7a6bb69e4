"""`POST /api/v1/ingest/sns`: mail that Amazon SES received, handed over by Amazon SNS.

Promises
  * The order is fixed: the addresses in the message are checked, then the signature, then the
    topic against the allow-list, and only then is anything acted on.  A forged message causes
    at most the fetch of a certificate from Amazon itself.
  * 200 only after the commit; a store that does not answer is a 503, and SNS tries again.  The
    ids of the messages follow from the SNS MessageId, so a repetition is stored once.
  * Unknown and expired recipients are dropped: SNS would repeat a refusal for hours, and the
    sender was answered by SES long ago.

Certificates are kept by address while they are valid, a few of them, so neither each message
nor a flood of invented paths costs a fetch.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio
from prometheus_client import Counter
from pydantic import BaseModel
from quart import Response

from relay.errors import TemporaryFailure
from relay.http.operations import (
    MAX_BODY,
    Access,
    Answer,
    Call,
    Operation,
    json_response,
    read_body,
)
from relay.http.problems import Problem, unavailable
from relay.log import get_logger
from relay.mailboxes.address import canonical
from relay.mailboxes.sns import (
    NOTIFICATION,
    SUBSCRIPTION,
    ForgedNotification,
    MalformedNotification,
    Notification,
    check_certificate_url,
    check_subscribe_url,
    message_uuid,
    parse,
    received_mail,
    verify,
)
from relay.metrics import registry

if TYPE_CHECKING:
    from relay.http.app import Api
    from relay.http.deps import Fetch

log = get_logger()

POSTS = Counter(
    "relay_sns_posts", "What became of posts to the SNS call.", ["outcome"], registry=registry
)
_CERTIFICATES = 16
_GOOD_FOR = 60.0  # s
_PATIENCE = 15.0  # s; SNS itself waits as long


class Outcome(BaseModel):
    """What was done: stored (and how many), subscribed, ignored."""

    status: str
    stored: int = 0


class Certificates:
    """Signing certificates by address, fetched once.

    Anybody may post a forgery that names one of Amazon's: it takes none away that is in use, and
    whoever waits behind fetches that strangers cause waits `_PATIENCE` seconds at most.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._proven: dict[str, float] = {}  # what has verified something, and since when
        self._one = trio.Lock()  # a burst of first messages costs one fetch

    async def get(self, url: str) -> bytes:
        """Return the PEM at `url`, whose host and path were checked.  `TemporaryFailure`."""
        if url not in self._kept:  # known ones never wait behind a fetch
            with trio.move_on_after(_PATIENCE) as scope:
                async with self._one:
                    if url not in self._kept:
                        self._kept[url] = await self._fetch(url)
                        while len(self._kept) > _CERTIFICATES:
                            self._forget(next(iter(self._kept)))
            if scope.cancelled_caught:
                raise TemporaryFailure("the certificate could not be fetched in time")
        self._kept.move_to_end(url)
        return self._kept[url]

    def prove(self, url: str) -> None:
        """It has verified a message, so it is good for a while, whatever else it does not."""
        if url in self._kept:
            self._proven.setdefault(url, trio.current_time())

    def doubt(self, url: str) -> None:
        """It did not verify: fetch it anew next time, unless it is known to be good."""
        if trio.current_time() - self._proven.get(url, -math.inf) >= _GOOD_FOR:
            self._forget(url)

    def _forget(self, url: str) -> None:
        self._kept.pop(url, None)
        self._proven.pop(url, None)


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps
    topics = frozenset(deps.sns_topics)
    certificates = None if deps.fetch is None else Certificates(deps.fetch)

    operation = Operation(
        "Take mail from Amazon SES through SNS",
        "ingest",
        Access.OPEN,
        (
            Answer(200, "done; what is stored is durable", Outcome),
            Answer(400, "no SNS message"),
            Answer(403, "not signed by Amazon, or of a topic that is not allowed"),
            Answer(503, "try again; SNS does"),
        ),
        limited=False,  # who is no Amazon is told before anything is looked up
        raw_body="text/plain",
        max_body=MAX_BODY,
        details="Allowed topics are the setting ingest.sns_topics. The SES rule must use the "
        "SNS action, which carries the content.",
    )

    @api.add("POST", "/api/v1/ingest/sns", operation)
    async def take(call: Call) -> Response:
        body = await read_body(operation)
        try:
            outcome = await handle(body)
        except MalformedNotification as error:
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

    async def handle(body: bytes) -> Outcome:
        notification = parse(body)
        await authenticate(notification)
        if notification.topic not in topics:
            POSTS.labels("refused").inc()
            log.warning("sns.topic_refused", topic=notification.topic)
            raise Problem(
                403, "topic-not-allowed", "This topic is not in the setting ingest.sns_topics."
            )
        if notification.kind == SUBSCRIPTION:
            return await subscribe(notification)
        if notification.kind == NOTIFICATION:
            return await store(notification)
        log.warning("sns.unsubscribed", topic=notification.topic)
        return Outcome(status="ignored")

    async def authenticate(notification: Notification) -> None:
        url = notification.certificate_url
        check_certificate_url(url)
        if notification.subscribe_url is not None:
            check_subscribe_url(notification.subscribe_url)
        if certificates is None:
            raise ForgedNotification("This relay fetches no certificates.")
        certificate = await certificates.get(url)
        try:
            verify(notification, certificate, datetime.now(UTC))
        except ForgedNotification:
            certificates.doubt(url)
            raise
        certificates.prove(url)

    async def subscribe(notification: Notification) -> Outcome:
        if deps.fetch is None or notification.subscribe_url is None:
            return Outcome(status="ignored")
        url = notification.subscribe_url
        await deps.fetch(url)
        log.info("sns.subscribed", topic=notification.topic)
        return Outcome(status="subscribed")

    async def store(notification: Notification) -> Outcome:
        mail = received_mail(notification)
        if mail is None:
            log.info("sns.ignored", topic=notification.topic)
            return Outcome(status="ignored")
        recipients = []
        for recipient in mail.recipients:
            try:
                address = canonical(recipient)
            except ValueError:
                continue  # no address of a mailbox, so unknown
            recipients.append((message_uuid(notification, address), address))
        recipients = list(dict.fromkeys(recipients))
        if not recipients:
            return Outcome(status="stored")
        stored = await api.committed(
            lambda: deps.accept(_reverse_path(mail.reverse_path), recipients, mail.raw)
        )
        log.info("sns.stored", recipients=len(recipients), stored=len(stored), size=len(mail.raw))
        return Outcome(status="stored", stored=len(stored))


def _reverse_path(source: str) -> str:
    # What is stored as text must be text: JSON can spell NUL and lone surrogates.
    return json.dumps(source)[1:-1] if not source.isprintable() else source
