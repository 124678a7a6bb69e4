"""Mail from Amazon SES through SNS, signed with a key of the test's own."""

import base64
import gzip
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509.oid import NameOID

from relay.db.pool import Pool
from relay.errors import TemporaryFailure
from relay.http.resources.sns import Certificates
from relay.ids import new_id
from relay.mailboxes import sns
from relay.mailboxes.s3 import Buckets, Credentials
from relay.outbound.bounces.notified import Notified
from relay.outbound.bounces.returned import Returned
from relay.outbound.suppression.suppressions import Suppressions
from relay.returns.paths import ReturnPaths, Tokens
from tests.http import s3_server
from tests.http.conftest import House, open_house
from tests.outbound.node import Node, put, status
from tests.returns import test_ses as said

URL = "/api/v1/ingest/sns"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail"
CERTIFICATE_URL = "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0123abc.pem"
SUBSCRIBE_URL = "https://sns.eu-west-1.amazonaws.com/?Action=ConfirmSubscription&Token=t"
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RAW = b"From: a@example.org\r\nSubject: via SES\r\n\r\n\xff\x00 bytes\r\n"


def certificate(start: timedelta = timedelta(days=-1), end: timedelta = timedelta(days=1)) -> bytes:
    """A self-signed certificate of the key, in PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.amazonaws.com")])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(KEY.public_key())
        .serial_number(1)
        .not_valid_before(now + start)
        .not_valid_after(now + end)
        .sign(KEY, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )


def signed(fields: dict[str, Any], version: str = "1") -> dict[str, Any]:
    """The message with a signature, over the string as the developer guide spells it."""
    names = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn"]
    text = "".join(
        f"{name}\n{fields[name]}\n"
        for name in [*names, "Type"]
        if name in fields and not (name == "SubscribeURL" and fields["Type"] == "Notification")
    )
    digest: hashes.HashAlgorithm = hashes.SHA1() if version == "1" else hashes.SHA256()
    signature = KEY.sign(text.encode(), padding.PKCS1v15(), digest)
    return {
        **fields,
        "SignatureVersion": version,
        "Signature": base64.b64encode(signature).decode(),
        "SigningCertURL": fields.get("SigningCertURL", CERTIFICATE_URL),
    }


def notification(
    *recipients: str, raw: bytes = RAW, encoding: str = "BASE64", version: str = "1", **more: Any
) -> dict[str, Any]:
    """A signed notification of a letter received by SES."""
    content = base64.b64encode(raw).decode() if encoding == "BASE64" else raw.decode()
    message = {
        "notificationType": "Received",
        "mail": {"source": "bounce@example.org", "messageId": "ses"},
        "receipt": {"recipients": list(recipients), "action": {"encoding": encoding}},
        "content": content,
    }
    fields = {
        "Type": "Notification",
        "MessageId": "11111111-2222-3333-4444-555555555555",
        "TopicArn": TOPIC,
        "Message": json.dumps(message),
        "Timestamp": "2026-01-02T03:04:05.678Z",
        "UnsubscribeURL": "https://sns.eu-west-1.amazonaws.com/?Action=Unsubscribe",
        **more,
    }
    return signed(fields, version)


class Amazon:
    """What is fetched, and how often."""

    def __init__(self) -> None:
        self.pem = certificate()
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        return self.pem


@pytest.fixture
async def relay(database_url: str, pool: Pool) -> AsyncIterator[tuple[House, Amazon]]:
    """A control plane that takes mail of one topic."""
    async with open_house(database_url, pool, sns_topics=(TOPIC,)) as house:
        amazon = Amazon()
        house.fetch[0] = amazon.fetch
        yield house, amazon


async def post(house: House, message: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Post as SNS does: JSON that calls itself text."""
    response = await house.client.post(
        URL,
        content=json.dumps(message),
        headers={"Content-Type": "text/plain; charset=UTF-8", "x-amz-sns-message-type": "x"},
    )
    return response.status_code, response.json()


@pytest.mark.parametrize("version", ["1", "2"])
async def test_signed_mail_is_stored_once_byte_for_byte(relay: tuple[House, Amazon], version: str):
    """A repetition stores nothing; unknown recipients are dropped; the certificate is kept."""
    house, amazon = relay
    address, token = await house.mailbox()
    message = notification(
        address.upper(), "nobody@relay.localhost", "not an address", version=version
    )
    assert await post(house, message) == (200, {"status": "stored", "stored": 1})
    status, outcome = await post(house, message)
    assert (status, outcome["status"]) == (200, "stored")
    base = f"/api/v1/mailboxes/{address}/messages"
    listed = (await house.client.get(base, headers=token)).json()
    assert len(listed) == 1
    raw = await house.client.get(f"{base}/{listed[0]['id']}/raw", headers=token)
    assert raw.content == RAW
    assert raw.headers["Content-Type"] == "message/rfc822"
    assert amazon.asked == [CERTIFICATE_URL]


async def test_content_may_be_text_and_the_subject_is_signed_when_present(
    relay: tuple[House, Amazon],
):
    """UTF-8 content is stored as its bytes."""
    house, _ = relay
    address, _token = await house.mailbox()
    text = "Subject: Grüße\r\n\r\nText\r\n".encode()
    message = notification(address, raw=text, encoding="UTF8", Subject="Amazon SES Email")
    assert (await post(house, message))[0] == 200
    assert await house.pool.fetch_value("SELECT raw_email FROM relay.messages") == text


async def test_forged_messages_fetch_nothing_but_certificates_and_store_nothing(
    relay: tuple[House, Amazon],
):
    """Any member changed, any address that is not Amazon's, any wrong certificate: 403."""
    house, amazon = relay
    address, _ = await house.mailbox()
    good = notification(address)
    forged: list[dict[str, Any]] = [
        {**good, "Message": good["Message"] + " "},
        {**good, "Timestamp": "2026-01-02T03:04:05.679Z"},
        {**good, "Subject": "added"},
        {**good, "Signature": base64.b64encode(b"x" * 256).decode()},
        {**good, "SignatureVersion": "3"},
    ]
    for message in forged:
        status, problem = await post(house, message)
        assert status == 403
        assert problem["type"] == "/problems/forged-notification"
    asked = len(amazon.asked)
    for url in (
        "http://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com.evil.example/SimpleNotificationService-0.pem",
        "https://evil.example/SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com@evil.example/SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com:8443/SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com/other.pem",
        "https://sns.eu-west-1.amazonaws.com/x/../SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem?x=1",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem#x",
        "https://sns.eu-west-1.amazonaws.com\\@evil.example/SimpleNotificationService-0.pem",
        "https://s3.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem",
        "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0.pem",
        "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-0.pem\n",
    ):
        status, _ = await post(house, notification(address, SigningCertURL=url))
        assert status == 403, url
    assert len(amazon.asked) == asked, "a foreign address is never fetched"
    for pem in (
        certificate(end=timedelta(hours=-1)),
        certificate(start=timedelta(hours=1)),
        b"no certificate",
    ):
        amazon.pem = pem
        good = notification(address, SigningCertURL=CERTIFICATE_URL.replace("-0", f"-{len(pem)}"))
        assert (await post(house, good))[0] == 403
    assert await house.pool.fetch_value("SELECT count(*) FROM relay.messages") == 0


async def test_a_forgery_takes_no_certificate_away(relay: tuple[House, Amazon]):
    """One that verified is kept, whatever strangers post and however much they have fetched."""
    house, amazon = relay
    address, _ = await house.mailbox()
    good = notification(address)
    assert (await post(house, good))[0] == 200
    for _ in range(3):
        assert (await post(house, {**good, "Message": good["Message"] + " "}))[0] == 403
    for number in range(30):
        url = CERTIFICATE_URL.replace("-0", f"-{number}")
        assert (await post(house, {**good, "SigningCertURL": url, "Subject": "x"}))[0] in (403, 429)
    assert (await post(house, good))[0] == 200
    assert amazon.asked.count(CERTIFICATE_URL) == 1


async def test_what_strangers_have_fetched_is_charged_to_them(relay: tuple[House, Amazon]):
    """A topic that is not allowed fetches nothing; forgeries of one that is, a few certificates."""
    house, amazon = relay
    good = notification("a@relay.localhost")
    for number in range(5):
        url = CERTIFICATE_URL.replace("-0", f"-{number}")
        other = {**good, "TopicArn": TOPIC + "x", "SigningCertURL": url}
        assert (await post(house, other))[1]["type"] == "/problems/topic-not-allowed"
    assert amazon.asked == []
    answers = []
    for number in range(10):
        url = CERTIFICATE_URL.replace("-0", f"-{number}")
        answers.append((await post(house, {**good, "SigningCertURL": url, "Subject": "x"}))[0])
    assert set(answers) == {403, 429}
    assert len(amazon.asked) == answers.count(403) <= 6
    # The same again and again is no fetch: what did not verify is not asked for anew.
    url = amazon.asked[-1]
    for _ in range(5):
        assert (await post(house, {**good, "SigningCertURL": url, "Subject": "x"}))[0] == 403
    assert len(amazon.asked) <= 6


async def test_certificates_are_kept_within_bounds():
    """Of those that verified nothing a few, of those that did no more than Amazon can have."""
    asked: list[str] = []

    async def fetch(url: str) -> bytes:
        asked.append(url)
        return b"pem"

    certificates = Certificates(fetch)
    certificates.prove("proven", b"pem")
    for number in range(100):
        await certificates.get(f"{number}")
    assert await certificates.get("proven") == b"pem"
    assert "proven" not in asked
    assert sum(certificates.has(f"{number}") for number in range(100)) == 4
    certificates.forget("proven")
    assert not certificates.has("proven")


async def test_a_certificate_is_waited_for_within_bounds(autojump_clock: object):
    """A fetch that hangs costs those behind it their patience, no more."""

    async def hang(url: str) -> bytes:
        await trio.sleep_forever()

    certificates = Certificates(hang)

    async def ask(url: str) -> None:
        with pytest.raises(TemporaryFailure):
            await certificates.get(url)

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            for number in range(9):
                nursery.start_soon(ask, f"{CERTIFICATE_URL}{number}")


async def test_only_allowed_topics_are_taken_and_confirmed(relay: tuple[House, Amazon]):
    """A subscription is confirmed after signature and allow-list, and only at Amazon's."""
    house, amazon = relay
    fields = {
        "Type": "SubscriptionConfirmation", "MessageId": "m", "Token": "t", "TopicArn": TOPIC,
        "Message": "You have chosen to subscribe", "SubscribeURL": SUBSCRIBE_URL,
        "Timestamp": "2026-01-02T03:04:05.678Z",
    }  # fmt: skip
    other = {**fields, "TopicArn": "arn:aws:sns:eu-west-1:999999999999:theirs"}
    assert (await post(house, signed(other)))[1]["type"] == "/problems/topic-not-allowed"
    evil = {**fields, "SubscribeURL": "https://evil.example/?Action=ConfirmSubscription"}
    assert (await post(house, signed(evil)))[0] == 403
    assert amazon.asked == []
    assert await post(house, signed(fields)) == (200, {"status": "subscribed", "stored": 0})
    assert amazon.asked == [CERTIFICATE_URL, SUBSCRIBE_URL]


async def test_without_allowed_topics_everything_is_refused(house: House):
    """The default takes mail from no topic, however well it is signed."""
    amazon = Amazon()
    house.fetch[0] = amazon.fetch
    address, _ = await house.mailbox()
    status, problem = await post(house, notification(address))
    assert (status, problem["type"]) == (403, "/problems/topic-not-allowed")


async def test_trouble_that_passes_is_a_503_so_that_sns_tries_again(
    relay: tuple[House, Amazon],
):
    """A certificate or a database that cannot be had now refuses nothing for good."""
    house, amazon = relay
    address, _ = await house.mailbox()

    async def fails(url: str) -> bytes:
        raise TemporaryFailure("no route")

    house.fetch[0] = fails
    assert (await post(house, notification(address)))[0] == 503
    house.fetch[0] = amazon.fetch
    await house.pool.close()
    assert (await post(house, notification(address)))[0] == 503


async def test_what_is_no_mail_is_acknowledged_and_what_is_no_message_refused(
    relay: tuple[House, Amazon],
):
    """SES's own test text is a 200 that stores nothing; garbage is a 400."""
    house, _ = relay
    for text in ("Successfully validated SNS topic", json.dumps({"notificationType": "Delivery"})):
        status, outcome = await post(house, notification(Message=text))
        assert (status, outcome["status"]) == (200, "ignored")
    for content in (b"", b"[]", b"{", b'{"Type": "Notification"}', b'{"Type": 7}'):
        response = await house.client.post(URL, content=content)
        assert response.status_code == 400
        assert response.json()["type"] == "/problems/malformed-notification"


def test_ids_follow_from_the_message_and_go_by_age():
    """The same delivery has the same id; another address, message or topic another one."""
    one = sns.parse(json.dumps(notification("a@b")).encode())
    later = sns.parse(
        json.dumps(notification("a@b", Timestamp="2026-01-02T03:04:06.000Z")).encode()
    )
    assert sns.message_uuid(one, "a@b") == sns.message_uuid(one, "a@b")
    assert sns.message_uuid(one, "a@b") != sns.message_uuid(one, "c@b")
    assert sns.message_uuid(one, "a@b") < sns.message_uuid(later, "a@b")
    assert sns.message_uuid(one, "a@b").version == 7


def in_s3(*recipients: str, bucket: str = "mail", key: str = "in/a b", **more: Any) -> Any:
    """A signed notification of a letter that SES put into S3."""
    message = {
        "notificationType": "Received",
        "mail": {"source": "bounce@example.org", "messageId": "ses"},
        "receipt": {
            "recipients": list(recipients),
            "action": {
                "type": "S3", "topicArn": TOPIC, "bucketName": bucket,
                "objectKeyPrefix": "in", "objectKey": key,
            },
        },
    }  # fmt: skip
    return notification(Message=json.dumps(message), **more)


@pytest.fixture
async def with_s3(
    database_url: str, pool: Pool
) -> AsyncIterator[tuple[House, Amazon, s3_server.Objects]]:
    """A control plane that takes mail of one topic, and of one bucket up to 100 kB."""
    with s3_server.serving() as objects:
        credentials = Credentials(s3_server.ACCESS, s3_server.SECRET, s3_server.TOKEN)
        buckets = Buckets({"mail": ""}, credentials, objects.base)
        async with open_house(
            database_url, pool, sns_topics=(TOPIC,), buckets=buckets, max_message_bytes=100_000
        ) as house:
            amazon = Amazon()
            house.fetch[0] = amazon.fetch
            yield house, amazon, objects


async def test_mail_in_s3_is_fetched_and_stored_once(
    with_s3: tuple[House, Amazon, s3_server.Objects],
):
    """The object's bytes are the message; a repetition stores nothing more."""
    house, _, objects = with_s3
    address, token = await house.mailbox()
    objects.objects["/mail/in/a%20b"] = (RAW, {})
    for stored in (1, None):
        status, outcome = await post(house, in_s3(address, "nobody@relay.localhost"))
        assert (status, outcome["status"]) == (200, "stored")
        assert stored is None or outcome["stored"] == stored
    assert {answer for _, answer in objects.asked} == {200}
    base = f"/api/v1/mailboxes/{address}/messages"
    (listed,) = (await house.client.get(base, headers=token)).json()
    raw = await house.client.get(f"{base}/{listed['id']}/raw", headers=token)
    assert raw.content == RAW


async def test_only_verified_mail_of_an_allowed_bucket_is_fetched(
    with_s3: tuple[House, Amazon, s3_server.Objects],
):
    """A forgery, another bucket or a name that leads elsewhere asks S3 for nothing."""
    house, _, objects = with_s3
    address, _token = await house.mailbox()
    forged = {**in_s3(address), "MessageId": "other"}
    assert (await post(house, forged))[0] == 403
    status, problem = await post(house, in_s3(address, bucket="theirs"))
    assert (status, problem["type"]) == (403, "/problems/bucket-not-allowed")
    for key in ("../theirs/x", "a/./b", "", "a\nb"):
        assert (await post(house, in_s3(address, key=key)))[0] in (400, 403)
    assert objects.asked == []
    assert await house.pool.fetch_value("SELECT count(*) FROM relay.messages") == 0


async def test_what_cannot_be_fetched_now_is_tried_again(
    with_s3: tuple[House, Amazon, s3_server.Objects],
):
    """Every failure that may pass is a 503; what can never be stored is acknowledged."""
    house, _, objects = with_s3
    address, _token = await house.mailbox()
    assert (await post(house, in_s3(address)))[0] == 503, "not there"
    for objects.refuse in (403, 500, 503):
        assert (await post(house, in_s3(address)))[0] == 503
    objects.refuse = 0
    objects.objects["/mail/in/a%20b"] = (gzip.compress(RAW), {"Content-Encoding": "gzip"})
    assert (await post(house, in_s3(address)))[0] == 503, "compressed"
    objects.objects["/mail/in/large"] = (RAW + b"x" * 100_000, {})
    objects.objects["/mail/in/locked"] = (RAW, {"x-amz-meta-x-amz-key-v2": "abc"})
    for key in ("in/large", "in/locked"):
        status, outcome = await post(house, in_s3(address, key=key))
        assert (status, outcome["status"]) == (200, "ignored")
    objects.objects["/mail/in/a%20b"] = (RAW, {})
    assert await post(house, in_s3(address)) == (200, {"status": "stored", "stored": 1})


async def test_without_buckets_mail_in_s3_is_refused(relay: tuple[House, Amazon]):
    """The answer says which setting is missing."""
    house, _ = relay
    status, problem = await post(house, in_s3("a@relay.localhost"))
    assert (status, "ingest.s3_buckets" in problem["detail"]) == (400, True)


PATHS = ReturnPaths("returns.example", lambda: (b"k" * 32,))
TOKENS = Tokens(lambda: (b"k" * 32,))


class Sent:
    """A control plane that is told by SES of the mail which it sent."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.node = Node(house.pool)

    async def message(self, to: str = said.ADA) -> UUID:
        """Send a message."""
        (queued,) = await put(self.house.pool, to)
        await self.node.finish(await self.node.claim())
        return queued.id

    async def tell(self, path: str, report: dict[str, Any]) -> tuple[int, str]:
        """Have SNS post a report of what left with this return path; its status and outcome."""
        mail = {**report["mail"], "source": path}
        answer = await post(self.house, notification(Message=json.dumps({**report, "mail": mail})))
        return answer[0], str(answer[1].get("status" if answer[0] == 200 else "type"))

    async def suppressed(self) -> dict[str, str]:
        """Who is suppressed, and why."""
        listed = await self.house.client.get("/api/v1/suppressions", headers=self.house.admin)
        return {one["address"]: one["cause"] for one in listed.json()}

    async def told(self) -> list[str]:
        """The events that webhooks are to be told of, the oldest first."""
        rows = await self.house.pool.fetch("SELECT kind FROM relay.webhook_events ORDER BY id")
        return [str(kind) for (kind,) in rows]


@pytest.fixture
async def sent(database_url: str, pool: Pool) -> AsyncIterator[Sent]:
    """One with return paths, and a webhook for whatever comes back."""
    notified = Notified(Returned(pool, b"key"), Suppressions(pool), TOKENS, PATHS)
    async with open_house(database_url, pool, sns_topics=(TOPIC,), notified=notified) as house:
        house.fetch[0] = Amazon().fetch
        await house.pool.execute(
            "INSERT INTO relay.webhooks (url, events) VALUES ('https://hooks.example/', "
            "'{message.bounced,message.delayed,message.complained}')"
        )
        yield Sent(house)


async def test_what_ses_reports_becomes_the_truth_once(sent: Sent):
    """Delayed, then bounced, then told again: state, error, suppression and webhooks say so."""
    message_id = await sent.message()
    path = PATHS.path_of(message_id)
    assert await sent.tell(path, said.delay()) == (200, "reported")
    assert await status(sent.house.pool, message_id) == "sent"
    gone = said.bounce(diagnostic=f"smtp; 550 5.1.1 <{said.ADA}>: no\0such user")
    assert await sent.tell(path.upper(), gone) == (200, "reported")
    for _ in range(2):
        assert await sent.tell(path, gone) == (200, "ignored")
    entry = await sent.house.client.get(f"/api/v1/outbound/{message_id}", headers=sent.house.admin)
    assert entry.json()["status"] == "bounced"
    assert entry.json()["error"].startswith("smtp; 550 5.1.1")
    assert said.ADA not in entry.json()["error"]
    assert await sent.suppressed() == {said.ADA: "bounced"}
    assert await sent.told() == ["message.delayed", "message.bounced"]


async def test_a_complaint_suppresses_and_a_policy_does_not(sent: Sent):
    """The status stays with the one, and becomes bounced with the other."""
    complained = await sent.message("ada@x.example")
    assert await sent.tell(PATHS.path_of(complained), said.complaint()) == (200, "reported")
    refused = await sent.message("eve@x.example")
    policy = said.bounce(status="5.7.1", to="eve@x.example")
    assert await sent.tell(PATHS.path_of(refused), policy) == (200, "reported")
    assert await status(sent.house.pool, complained) == "sent"
    assert await status(sent.house.pool, refused) == "bounced"
    assert await sent.suppressed() == {"ada@x.example": "complained"}
    assert await sent.told() == ["message.complained", "message.bounced"]


async def test_what_is_not_of_ours_changes_nothing(sent: Sent):
    """Paths of other keys, domains and messages; deliveries; and what Amazon did not sign."""
    message_id = await sent.message()
    path = PATHS.path_of(message_id)
    strange = ReturnPaths("returns.example", lambda: (b"x" * 32,)).path_of(message_id)
    elsewhere = ReturnPaths("other.example", lambda: (b"k" * 32,)).path_of(message_id)
    for other in (
        strange,
        elsewhere,
        PATHS.path_of(new_id()),
        "sender@example.org",
        "",
        f"b-{path}",
    ):
        for report in (said.bounce(), said.complaint(), said.delay()):
            assert await sent.tell(other, report) == (200, "ignored")
    for report in (said.report("Delivery", "delivery", {}), said.bounce("Undetermined")):
        assert await sent.tell(path, report) == (200, "ignored")
    mail = {"source": path}
    good = notification(Message=json.dumps({**said.bounce(), "mail": mail}))
    forged = {**good, "Signature": base64.b64encode(b"x" * 256).decode()}
    assert (await post(sent.house, forged))[0] == 403
    assert (await post(sent.house, signed({**good, "TopicArn": TOPIC + "x"})))[0] == 403
    assert await status(sent.house.pool, message_id) == "sent"
    assert await sent.suppressed() == {}
    assert await sent.told() == []
    assert await sent.house.pool.fetch_value("SELECT count(*) FROM relay.outbound_reports") == 0


async def test_a_report_that_is_ahead_of_the_delivery_comes_again(sent: Sent):
    """503 while its 250 is not recorded; then it counts."""
    (queued,) = await put(sent.house.pool, said.ADA)
    messages = await sent.node.claim()
    path = PATHS.path_of(queued.id)
    assert (await sent.tell(path, said.bounce()))[0] == 503
    assert await status(sent.house.pool, queued.id) == "processing"
    assert await sent.suppressed() == {}
    await sent.node.finish(messages)
    assert await sent.tell(path, said.bounce()) == (200, "reported")
    assert await status(sent.house.pool, queued.id) == "bounced"


async def test_a_malformed_report_is_refused_with_a_reason(sent: Sent):
    """400, which SNS does not repeat."""
    message_id = await sent.message()
    report = {**said.bounce(), "bounce": {"bounceType": "Permanent"}}
    assert await sent.tell(PATHS.path_of(message_id), report) == (
        400,
        "/problems/malformed-notification",
    )
    assert await status(sent.house.pool, message_id) == "sent"


async def test_without_return_paths_reports_are_acknowledged(relay: tuple[House, Amazon]):
    """They are of nothing that this relay sent."""
    house, _ = relay
    answer = await post(house, notification(Message=json.dumps(said.bounce())))
    assert answer == (200, {"status": "ignored", "stored": 0})
