"""What follows from what Postmark reports, in the forms of its developer documentation."""

from __future__ import annotations

from typing import Any

import pytest

from relay.returns import postmark
from relay.returns.law import finding
from relay.returns.upstream_report import MalformedReport, UpstreamReport

ADA = "ada@customer.example"
TOKEN = "a" * 48
FIELD = "X-PM-Metadata-relay"

Follows = tuple[str, str | None, bool, bool] | None


def read(record: dict[str, Any]) -> UpstreamReport | None:
    """Read a record of a relay whose field is `FIELD`."""
    return postmark.read(record, FIELD)


def bounce(
    kind: str = "HardBounce",
    details: str | None = "smtp;550 5.1.1 The email account that you tried to reach does not exist",
    *,
    to: str = ADA,
    **more: Any,
) -> dict[str, Any]:
    """A bounce of one recipient."""
    return {
        "RecordType": "Bounce", "MessageStream": "outbound", "ID": 42, "Type": kind, "TypeCode": 1,
        "Name": "Hard bounce", "Tag": None, "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
        "Metadata": {"order": "17", "relay": TOKEN}, "ServerID": 23,
        "Description": "The server was unable to deliver your message.", "Details": details,
        "Email": to, "From": "shop@shop.example", "BouncedAt": "2026-11-26T16:33:54.9070259Z",
        "DumpAvailable": True, "Inactive": True, "CanActivate": True, "Subject": "Your order",
        "Content": "<Full dump of bounce>", **more,
    }  # fmt: skip


def complaint(**more: Any) -> dict[str, Any]:
    """A spam complaint of one recipient."""
    return {**bounce("SpamComplaint", None), "RecordType": "SpamComplaint", "TypeCode": 512, **more}


def change(reason: str | None, *, suppress: Any = True, **more: Any) -> dict[str, Any]:
    """A change of Postmark's suppressions."""
    return {
        "RecordType": "SubscriptionChange", "MessageID": "883953f4-6105-42a2-a16a-77a8eac79483",
        "ServerID": 23, "MessageStream": "outbound", "ChangedAt": "2026-11-26T10:53:34.416071Z",
        "Recipient": ADA, "Origin": "Recipient", "SuppressSending": suppress,
        "SuppressionReason": reason, "Tag": None, "Metadata": {"relay": TOKEN}, **more,
    }  # fmt: skip


def delivery() -> dict[str, Any]:
    """A delivery."""
    return {
        "RecordType": "Delivery", "ServerID": 23, "MessageStream": "outbound",
        "MessageID": "00000000-0000-0000-0000-000000000000", "Recipient": ADA, "Tag": None,
        "DeliveredAt": "2026-11-26T16:33:54.9070259Z", "Details": "Test delivery webhook details",
        "Metadata": {"relay": TOKEN},
    }  # fmt: skip


CASES: list[tuple[str, dict[str, Any], Follows]] = [
    ("gone", bounce(), ("bounced", "5.1.1", True, False)),
    ("gone, in capitals", bounce(to=ADA.upper()), ("bounced", "5.1.1", True, False)),
    ("kind in small letters", bounce("hardbounce"), ("bounced", "5.1.1", True, False)),
    ("without a status", bounce(details="Test bounce details"), ("bounced", None, False, False)),
    ("without details", bounce(details=None), ("bounced", None, False, False)),
    ("of policy", bounce(details="smtp;550 5.7.1 no"), ("bounced", "5.7.1", False, False)),
    ("words of policy", bounce(details="smtp;550 5.1.1 blocked by spamhaus"),
     ("bounced", "5.1.1", False, False)),
    ("somebody else's", bounce(to="eve@other.example"), ("bounced", "5.1.1", False, False)),
    ("given up, full", bounce("SoftBounce", "smtp;452 4.2.2 The account is over quota"),
     ("bounced", "4.2.2", False, True)),
    ("given up", bounce("SoftBounce", "smtp;451 4.4.1 later"), ("bounced", "4.4.1", False, False)),
    ("delayed", bounce("Transient", "smtp;421 4.4.2 later"), ("delayed", "4.4.2", False, False)),
    ("delayed, gone", bounce("Transient"), ("delayed", "5.1.1", False, False)),
    ("DNS", bounce("DnsError", None), ("delayed", None, False, False)),
    ("blocked", bounce("Blocked"), ("bounced", "5.1.1", False, False)),
    ("DMARC", bounce("DMARCPolicy"), ("bounced", "5.1.1", False, False)),
    ("taken for spam", bounce("SpamNotification"), ("bounced", "5.1.1", False, False)),
    ("no address", bounce("BadEmailAddress", None), ("bounced", None, False, False)),
    ("deactivated", bounce("ManuallyDeactivated"), ("bounced", "5.1.1", False, False)),
    ("not taken", bounce("SMTPApiError"), ("bounced", "5.1.1", False, False)),
    ("complaint", complaint(), ("complained", None, True, False)),
    ("complaint among bounces", bounce("SpamComplaint"), ("complained", None, True, False)),
    ("complaint among changes", change("SpamComplaint"), ("complained", None, True, False)),
    ("bounce among changes", change("HardBounce"), None),
    ("unsubscribed", change("ManualSuppression"), None),
    ("complaint taken back", change("SpamComplaint", suppress=False), None),
    ("reactivated", change(None, suppress=False, Metadata={}), None),
    *((kind, bounce(kind), None) for kind in (
        "AutoResponder", "AddressChange", "Subscribe", "Unsubscribe", "Unknown", "OpenRelayTest",
        "VirusNotification", "ChallengeVerification", "InboundError", "Unconfirmed", "Sideways",
    )),
    ("delivery", delivery(), None),
    ("open", {"RecordType": "Open", "Recipient": ADA, "FirstOpen": True}, None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "follows"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_record_has_what_follows_from_it(said: dict[str, Any], follows: Follows):
    """The law of mail that comes back, whatever way it came."""
    notice = read(said)
    found = None if notice is None else finding(notice.report, ADA)
    assert (found and (str(found.kind), found.enhanced, found.suppress, found.is_full)) == follows
    assert notice is None or TOKEN in notice.names
    unsubscribed = said.get("SuppressionReason") == "ManualSuppression"
    assert (notice is not None and notice.unsubscribes) == unsubscribed


def test_what_is_kept_is_text_that_can_be_stored():
    """NUL, lone surrogates and lines become spaces, and a long text is cut."""
    notice = read(bounce(details="a\0b\ud800c\r\nd" + "x" * 9000))
    assert notice is not None
    (one,) = notice.report.recipients
    assert one.diagnostic.startswith("a b c  dxx")
    assert len(one.diagnostic) == 2000


@pytest.mark.parametrize("metadata", [None, {}, {"n": 7, "o": None, "l": [TOKEN]}])
def test_a_record_without_a_token_names_nothing(metadata: Any):
    """Postmark's own test posts have such, and so has mail that others sent."""
    notice = read(bounce(Metadata=metadata))
    assert notice is not None
    assert notice.names == ()


@pytest.mark.parametrize(
    ("field", "metadata", "names"),
    [
        (FIELD, {"other": "b" * 48, "relay": TOKEN}, (TOKEN,)),
        (FIELD, {"Relay": TOKEN, "relay": "b" * 48}, (TOKEN,)),
        (FIELD, {"other": TOKEN}, ()),
        ("X-PM-Metadata-Other", {"other": TOKEN, "relay": "b" * 48}, (TOKEN,)),
        ("X-Other-relay", {"relay": TOKEN}, ()),
        ("", {"": TOKEN, "relay": TOKEN}, ()),
    ],
)
def test_a_message_is_known_by_our_field_alone(
    field: str, metadata: dict[str, str], names: tuple[str, ...]
):
    """Whoever writes a message may write other fields of metadata, with another's token."""
    notice = postmark.read(bounce(Metadata=metadata), field)
    assert notice is not None
    assert notice.names == names


@pytest.mark.parametrize(
    "said",
    [
        {**bounce(), "RecordType": 7},
        {**bounce(), "RecordType": None},
        {**bounce(), "Type": None},
        {**bounce(), "Type": ["HardBounce"]},
        {**bounce(), "Email": None},
        {**bounce(), "Metadata": [TOKEN]},
        {**complaint(), "Metadata": "x"},
        {"RecordType": "Bounce"},
        {"RecordType": "SubscriptionChange"},
        change("SpamComplaint", suppress="true"),
    ],
)
def test_a_record_without_what_it_needs_is_malformed(said: dict[str, Any]):
    """The sentence says what is missing."""
    with pytest.raises(MalformedReport, match=r"(RecordType|Type|Email|Metadata|SuppressSending)"):
        read(said)
