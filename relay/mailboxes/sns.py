"""Amazon SNS messages that carry SES inbound mail: what they say, and whether Amazon said it.

Pure: no clock, no network.  The caller fetches the certificate (`check_certificate_url`
first) and gives it, and the time, to `verify`.

Promises
  * Nothing of a message is to be acted on before `verify` returned: its URLs are checked by
    host and path first, so a forged message cannot make the relay fetch from elsewhere; nor from
    another region than the topic's.
  * The string that is signed is exact: the named members in their fixed order, each name and
    value ended by one newline, `Subject` only when present (the SNS developer guide,
    "Verifying the signatures of Amazon SNS messages").  Version 1 is SHA-1 with RSA, version
    2 SHA-256 with RSA, both PKCS #1 v1.5.
  * A delivery repeated by SNS gives the same message ids, so it is stored once.

Fails: `MalformedNotification` for what is no SNS message, `ForgedNotification` for what
Amazon did not sign; both are `PermanentFailure`s with a sentence that leaks nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit
from uuid import UUID

from relay.errors import PermanentFailure

_HOST = re.compile(r"sns\.[a-z0-9-]+\.amazonaws\.com(\.cn)?", re.ASCII)
_CERTIFICATE_PATH = re.compile(r"/SimpleNotificationService-[A-Za-z0-9]+\.pem", re.ASCII)
_VISIBLE = re.compile(r"[!-~]{1,2048}", re.ASCII)

NOTIFICATION = "Notification"
SUBSCRIPTION = "SubscriptionConfirmation"
UNSUBSCRIPTION = "UnsubscribeConfirmation"

_SIGNED: Mapping[str, tuple[str, ...]] = {
    NOTIFICATION: ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    SUBSCRIPTION: (
        "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type",
    ),
    UNSUBSCRIPTION: (
        "Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type",
    ),
}  # fmt: skip
_OPTIONAL = {"Subject"}


class MalformedNotification(PermanentFailure):
    """The body is not an SNS message, or not one of a form that the relay knows."""


class ForgedNotification(PermanentFailure):
    """The signature, the certificate or an address in the message is not Amazon's."""


@dataclass(frozen=True)
class Notification:
    """One SNS message as it was posted; `fields` are its string members."""

    kind: str
    topic: str
    message_id: str
    message: str
    certificate_url: str
    subscribe_url: str | None
    signature_version: str
    signature: bytes
    fields: Mapping[str, str]


@dataclass(frozen=True)
class StoredObject:
    """The object in S3 that SES put a message into."""

    bucket: str
    key: str


@dataclass(frozen=True)
class ReceivedMail:
    """An SES `Received` notification: one message, as SES accepted it, or where it is."""

    reverse_path: str
    recipients: tuple[str, ...]
    raw: bytes | StoredObject


def parse(body: bytes) -> Notification:
    """Read a posted body; `MalformedNotification` when it is no SNS message."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedNotification("The body is not JSON.") from error
    if not isinstance(document, dict):
        raise MalformedNotification("The body is not a JSON object.")
    fields = {name: value for name, value in document.items() if isinstance(value, str)}
    kind = fields.get("Type", "")
    if kind not in _SIGNED:
        raise MalformedNotification("Type is not one that SNS sends.")
    for name in (*_SIGNED[kind], "SignatureVersion", "Signature", "SigningCertURL"):
        if name not in fields and name not in _OPTIONAL:
            raise MalformedNotification(f"{name} is missing or is not a string.")
    if "Subject" in document and document["Subject"] is None:
        fields.pop("Subject", None)
    try:
        signature = base64.b64decode(fields["Signature"], validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedNotification("Signature is not base64.") from error
    return Notification(
        kind=kind,
        topic=fields["TopicArn"],
        message_id=fields["MessageId"],
        message=fields["Message"],
        certificate_url=fields["SigningCertURL"],
        subscribe_url=fields.get("SubscribeURL"),
        signature_version=fields["SignatureVersion"],
        signature=signature,
        fields=fields,
    )


def canonical_string(notification: Notification) -> bytes:
    """Return the bytes that SNS signs."""
    parts: list[str] = []
    for name in _SIGNED[notification.kind]:
        if name in notification.fields:
            parts += [name, notification.fields[name]]
    return ("\n".join(parts) + "\n").encode("utf-8", "surrogatepass")


def check_certificate_url(url: str, topic: str) -> None:
    """Raise `ForgedNotification` unless `url` is where Amazon keeps the certificates of SNS in the
    region of `topic`, an ARN."""
    path, query = _amazon(url)
    if query or not _CERTIFICATE_PATH.fullmatch(path):
        raise ForgedNotification("SigningCertURL is not an address of an SNS certificate.")
    if (urlsplit(url).hostname or "").split(".")[1] != region_of(topic):
        raise ForgedNotification("SigningCertURL is of another region than the topic.")


def region_of(topic: str) -> str:
    """Return the region in a topic's ARN (`arn:aws:sns:REGION:ACCOUNT:NAME`), "" if it has none."""
    parts = topic.split(":")
    return parts[3] if len(parts) == 6 else ""


def is_over(certificate: bytes, now: datetime) -> bool:
    """Tell whether a PEM certificate cannot be used any more at `now`, or never could."""
    from cryptography import x509  # loaded by who is sent notifications: most are not

    try:
        return now > x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError:
        return True


def check_subscribe_url(url: str) -> None:
    """Raise `ForgedNotification` unless `url` leads to SNS itself."""
    _amazon(url)


def _amazon(url: str) -> tuple[str, str]:
    # Only visible ASCII: urlsplit drops tabs and newlines, and readers differ on the rest.
    if not _VISIBLE.fullmatch(url) or "\\" in url or "#" in url:
        raise ForgedNotification("An address in the message is malformed.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ForgedNotification("An address in the message is malformed.") from error
    if (
        parts.scheme != "https"
        or "@" in parts.netloc
        or port not in {None, 443}
        or not _HOST.fullmatch(parts.hostname or "")
    ):
        raise ForgedNotification("An address in the message is not Amazon's.")
    return parts.path, parts.query


def verify(notification: Notification, certificate: bytes, now: datetime) -> None:
    """Raise `ForgedNotification` unless the PEM `certificate`, valid at `now`, signed it.

    That the certificate is Amazon's rests on where it was fetched from, over verified TLS.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    algorithm: hashes.HashAlgorithm
    if notification.signature_version == "1":
        algorithm = hashes.SHA1()  # noqa: S303  # version 1 of the protocol is SHA-1
    elif notification.signature_version == "2":
        algorithm = hashes.SHA256()
    else:
        raise ForgedNotification("SignatureVersion is neither 1 nor 2.")
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
    except ValueError as error:
        raise ForgedNotification("The signing certificate cannot be read.") from error
    if not parsed.not_valid_before_utc <= now <= parsed.not_valid_after_utc:
        raise ForgedNotification("The signing certificate is not valid today.")
    key = parsed.public_key()
    if not isinstance(key, rsa.RSAPublicKey):
        raise ForgedNotification("The signing certificate does not hold an RSA key.")
    try:
        key.verify(
            notification.signature, canonical_string(notification), padding.PKCS1v15(), algorithm
        )
    except InvalidSignature as error:
        raise ForgedNotification("The signature does not fit the message.") from error


def received_mail(notification: Notification) -> ReceivedMail | None:
    """Return the mail in a verified notification; None when it announces something else.

    SES sends a test text when a rule is made, and what it reports of mail that was sent
    (`relay.returns.ses`) may come on the same topic: those are nothing to store.
    `MalformedNotification` for mail that is incomplete.
    """
    try:
        document = json.loads(notification.message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get("notificationType") != "Received":
        return None
    mail, receipt = document.get("mail"), document.get("receipt")
    content = document.get("content")
    if not isinstance(mail, dict) or not isinstance(receipt, dict):
        raise MalformedNotification("The notification lacks mail or receipt.")
    recipients = receipt.get("recipients")
    source = mail.get("source")
    if not isinstance(recipients, list) or not all(isinstance(r, str) for r in recipients):
        raise MalformedNotification("receipt.recipients is not a list of addresses.")
    action = receipt.get("action")
    encoding = action.get("encoding") if isinstance(action, dict) else None
    raw: bytes | StoredObject
    if not isinstance(content, str):
        raw = _stored(action)
    elif isinstance(encoding, str) and encoding.upper() == "BASE64":
        try:
            raw = base64.b64decode(content, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedNotification("content is not base64, as it claims.") from error
    else:
        raw = content.encode("utf-8", "surrogatepass")
    return ReceivedMail(
        reverse_path=source if isinstance(source, str) else "",
        recipients=tuple(dict.fromkeys(recipients)),
        raw=raw,
    )


def _stored(action: object) -> StoredObject:
    """The object that the S3 action of a rule wrote."""
    if isinstance(action, dict) and action.get("type") == "S3":
        bucket, key = action.get("bucketName"), action.get("objectKey")
        if (
            isinstance(bucket, str)
            and isinstance(key, str)
            and key.isprintable()
            # Segments of dots would be folded away on the way, and lead to another bucket.
            and {".", ".."}.isdisjoint(key.split("/"))
        ):
            return StoredObject(bucket, key)
    raise MalformedNotification(
        "The notification carries no content: the rule must use the SNS action, or the S3 action."
    )


def message_uuid(notification: Notification, address: str) -> UUID:
    """Return the id of this delivery to `address`: equal for every repetition by SNS.

    Version 7 (RFC 9562) like every message id, so that ids go by age: the milliseconds of the
    signed Timestamp, then bits of SHA-256 over topic, MessageId and address where others have
    random ones.
    """
    try:
        at = datetime.fromisoformat(notification.fields["Timestamp"])
        milliseconds = int(at.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise MalformedNotification("Timestamp is not a time.") from error
    if at.tzinfo is None or not 0 <= milliseconds < 1 << 48:
        raise MalformedNotification("Timestamp is not a time.")
    seed = "\0".join((notification.topic, notification.message_id, address))
    digest = hashlib.sha256(seed.encode("utf-8", "surrogatepass")).digest()
    value = milliseconds << 80 | int.from_bytes(digest[:10])
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)
