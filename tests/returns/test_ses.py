"""What follows from what Amazon SES reports, in the forms of its developer guide."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relay.returns.law import finding
from relay.returns.ses import read
from relay.returns.upstream_report import MalformedReport

ADA = "ada@customer.example"
PATH = "b-token@returns.example"

Follows = tuple[str, str | None, bool, bool] | None


def report(kind: str, name: str, said: Any, *, key: str = "notificationType") -> dict[str, Any]:
    """A report as SES writes it."""
    mail = {"source": PATH, "messageId": "0000-ses", "destination": [ADA]}
    return {key: kind, "mail": mail, name: said}


def bounce(
    kind: str = "Permanent",
    status: str | None = "5.1.1",
    diagnostic: str | None = "smtp; 550 no",
    *,
    sub: str = "General",
    to: str = ADA,
    key: str = "notificationType",
    action: str | None = "failed",
) -> dict[str, Any]:
    """A bounce of one recipient."""
    one = {"emailAddress": to, "action": action, "status": status, "diagnosticCode": diagnostic}
    said = {"bounceType": kind, "bounceSubType": sub, "bouncedRecipients": [one]}
    return report("Bounce", "bounce", said, key=key)


def complaint(kind: str | None = "abuse", **more: Any) -> dict[str, Any]:
    """A complaint of one recipient."""
    said = {"complainedRecipients": [{"emailAddress": ADA}], **more}
    return report("Complaint", "complaint", {**said, "complaintFeedbackType": kind})


def delay(status: str = "4.4.1") -> dict[str, Any]:
    """A delay, which event publishing alone has."""
    one = {"emailAddress": ADA, "status": status, "diagnosticCode": f"smtp; 421 {status} later"}
    said = {"delayType": "TransientCommunicationFailure", "delayedRecipients": [one]}
    return report("DeliveryDelay", "deliveryDelay", said, key="eventType")


GONE: Follows = ("bounced", "5.1.1", True, False)
CASES: list[tuple[str, dict[str, Any], Follows]] = [
    ("gone", bounce(), GONE),
    ("gone, by event publishing", bounce(key="eventType"), GONE),
    ("gone, in capitals", bounce(to=ADA.upper()), GONE),
    ("general status", bounce(status="5.0.0", diagnostic="smtp; 550 5.1.1 no"), GONE),
    ("policy", bounce(status="5.7.1"), ("bounced", "5.7.1", False, False)),
    ("words of policy", bounce(diagnostic="smtp; 550 5.1.1 blocked by spamhaus"),
     ("bounced", "5.1.1", False, False)),
    ("full for good", bounce(status="5.2.2"), ("bounced", "5.2.2", False, True)),
    ("no status", bounce(status=None, diagnostic=None), ("bounced", None, False, False)),
    ("a status that is none", bounce(status="5.1.1x"), ("bounced", None, False, False)),
    ("somebody else's", bounce(to="eve@other.example"), ("bounced", "5.1.1", False, False)),
    ("suppressed by SES", bounce(sub="Suppressed"), ("bounced", "5.1.1", False, False)),
    ("on the account's list", bounce(sub="OnAccountSuppressionList"),
     ("bounced", "5.1.1", False, False)),
    ("nobody named", report("Bounce", "bounce", {"bounceType": "Permanent",
     "bouncedRecipients": []}), ("bounced", None, False, False)),
    ("on a tenant's list", bounce(sub="OnTenantSuppressionList"),
     ("bounced", "5.1.1", False, False)),
    # SES has given up with each of these: a late bounce, which suppresses nobody at once.
    ("stayed full", bounce("Transient", "4.2.2"), ("bounced", "4.2.2", False, True)),
    ("full", bounce("Transient", "5.2.2", sub="MailboxFull"), ("bounced", "5.2.2", False, True)),
    ("full, without a report", bounce("Transient", None, None, sub="MailboxFull", action=None),
     ("bounced", "5.2.2", False, True)),
    ("full, of a general status", bounce("Transient", "4.0.0", sub="MailboxFull"),
     ("bounced", "5.2.2", False, True)),
    ("somebody else's is full", bounce("Transient", sub="MailboxFull", to="eve@other.example"),
     ("bounced", "5.2.2", False, False)),
    ("too large", bounce("Transient", "5.3.4", sub="MessageTooLarge"),
     ("bounced", "5.3.4", False, False)),
    ("content", bounce("Transient", sub="ContentRejected"), ("bounced", "5.1.1", False, False)),
    ("attachment", bounce("Transient", None, None, sub="AttachmentRejected", action=None),
     ("bounced", None, False, False)),
    ("too late", bounce("Transient", "4.4.7", sub="CustomTimeoutExceeded"),
     ("bounced", "4.4.7", False, False)),
    ("no such domain", bounce("Transient", "5.4.4", "smtp; 550 5.4.4 Invalid domain"),
     ("bounced", "5.4.4", False, False)),
    ("transient, gone", bounce("Transient"), ("bounced", "5.1.1", False, False)),
    ("a delay of the receiver's own", bounce("Transient", "4.4.1", action="delayed"),
     ("delayed", "4.4.1", False, False)),
    ("nobody named is full", report("Bounce", "bounce", {"bounceType": "Transient",
     "bounceSubType": "MailboxFull", "bouncedRecipients": []}), ("bounced", "5.2.2", False, False)),
    # Of an answer there is no report, and so no action.
    ("out of office", bounce("Transient", None, None, action=None), None),
    ("of a kind to come, without a report", bounce("Transient", None, None, sub="Odd", action=None),
     None),
    ("undetermined", bounce("Undetermined"), None),
    ("of a kind to come", bounce("Sideways"), None),
    ("delay", delay(), ("delayed", "4.4.1", False, False)),
    ("abuse", complaint(), ("complained", None, True, False)),
    ("of no kind", complaint(None), ("complained", None, True, False)),
    ("not spam", complaint("not-spam"), None),
    ("virus", complaint("virus"), None),
    ("never sent", complaint(None, complaintSubType="OnAccountSuppressionList"),
     ("bounced", None, False, False)),
    ("delivery", report("Delivery", "delivery", {"recipients": [ADA]}), None),
    ("open", report("Open", "open", {}, key="eventType"), None),
    ("test", {"notificationType": "AmazonSnsSubscriptionSucceeded"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "follows"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_report_has_what_follows_from_it(said: dict[str, Any], follows: Follows):
    """The law of mail that comes back, whatever way it came."""
    notice = read(json.dumps(said))
    found = None if notice is None else finding(notice.report, ADA)
    assert (found and (str(found.kind), found.enhanced, found.suppress, found.is_full)) == follows
    assert notice is None or notice.names == (PATH,)


def test_of_several_recipients_ours_counts():
    """That others are gone suppresses nobody; the path is that of one message."""
    said = bounce(status="5.7.1")
    said["bounce"]["bouncedRecipients"].append({"emailAddress": "eve@x.example", "status": "5.1.1"})
    notice = read(json.dumps(said))
    assert notice is not None
    found = finding(notice.report, ADA)
    assert found is not None
    assert (found.enhanced, found.suppress) == ("5.7.1", False)


def test_what_is_kept_is_text_that_can_be_stored():
    """NUL, lone surrogates and lines become spaces, and a long text is cut."""
    notice = read(json.dumps(bounce(diagnostic="a\0b\ud800c\r\nd" + "x" * 9000)))
    assert notice is not None
    (one,) = notice.report.recipients
    assert one.diagnostic.startswith("a b c  dxx")
    assert len(one.diagnostic) == 2000
    assert notice.report.as_json().decode().isprintable()


@pytest.mark.parametrize(
    "said",
    [
        {"notificationType": "Bounce"},
        {**bounce(), "bounce": []},
        {**bounce(), "bounce": {"bouncedRecipients": []}},
        {**bounce(), "bounce": {"bounceType": "Permanent"}},
        {**bounce(), "bounce": {"bounceType": "Permanent", "bouncedRecipients": [ADA]}},
        {**bounce(), "bounce": {"bounceType": 5, "bouncedRecipients": []}},
        {**bounce(), "mail": None},
        {**bounce(), "mail": {"source": 7}},
        {**complaint(), "complaint": "abuse"},
        {**complaint(), "complaint": {"complainedRecipients": [{}]}},
        {**delay(), "deliveryDelay": None},
    ],
)
def test_a_report_without_what_it_needs_is_malformed(said: dict[str, Any]):
    """The sentence says what is missing."""
    with pytest.raises(
        MalformedReport, match=r"(mail|[bB]ounce|compl|deliveryDelay|[rR]ecipients)"
    ):
        read(json.dumps(said))


@pytest.mark.parametrize("text", ["", "Successfully validated SNS topic", "[]", "7", "[" * 100_000])
def test_what_is_no_report_is_left_alone(text: str):
    """SES writes texts to topics, too; `notificationType` may be anything."""
    assert read(text) is None
    assert read(json.dumps({"notificationType": [text]})) is None
