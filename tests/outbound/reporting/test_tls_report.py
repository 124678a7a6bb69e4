"""Reports of TLS as they are written: who gets them, the JSON, and the mail around it."""

from __future__ import annotations

import email
import email.policy
import gzip
import json
from datetime import UTC, date, datetime

import pytest

from relay.outbound.composing.message import Address
from relay.outbound.mx.policy import NO_POLICY, Published
from relay.outbound.mx.tls_results import MOST, TlsResult, TlsResults
from relay.outbound.reporting.tls_report import (
    MOST_RECEIVERS,
    Receivers,
    mail_of,
    receivers,
    report_of,
)

SENDER = Address("tls-reports@relay.example", "Shop")
STS = Published(
    "sts", ("version: STSv1", "mode: enforce", "max_age: 600", "mx: *.example"), ("*.example",)
)
TLSA = Published("tlsa", ("3 1 1 " + "ab" * 32,))
D = "shop.example"
RESULTS = [
    (TlsResult(D, STS, "", "mx.example", "192.0.2.1"), 7),
    (TlsResult(D, STS, "certificate-expired", "mx.example", "192.0.2.1", "10.0.0.9"), 2),
    (TlsResult(D, STS, "sts-policy-fetch-error"), 1),
    (TlsResult(D, TLSA, "", "mx.example", "2001:db8::1"), 3),
    (TlsResult(D, NO_POLICY, "starttls-not-supported", "mx2.example", "192.0.2.2", "9.9.9.9"), 4),
]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["v=TLSRPTv1; rua=mailto:a@x.example"], Receivers(("a@x.example",))),
        (["v=TLSRPTv1;rua=mailto:a@x.example;"], Receivers(("a@x.example",))),
        (
            ["v=TLSRPTv1; rua=mailto:a@x.example, https://x.example/r?a=b"],
            Receivers(("a@x.example",), ("https://x.example/r?a=b",)),
        ),
        (["v=TLSRPTv1; rua=mailto:a%40@x.example"], Receivers()),
        (["v=TLSRPTv1; rua=mailto:a%2Bb@x.example?subject=x"], Receivers(("a+b@x.example",))),
        (["v=TLSRPTv1; rua=http://x.example/"], Receivers()),
        (["v=TLSRPTv1; rua=https:///r"], Receivers()),
        (["v=TLSRPTv1; rua=https://[x/"], Receivers()),
        (["v=TLSRPTv1; rua=MAILTO:a@x.example"], Receivers(("a@x.example",))),
        (["v=TLSRPTv1; more=1; rua=mailto:a@x.example"], Receivers(("a@x.example",))),
        (["v=TLSRPTv1; rua=mailto:no address"], Receivers()),
        (["v=TLSRPTv1"], Receivers()),
        (["v=TLSRPTv2; rua=mailto:a@x.example"], Receivers()),
        (["v=TLSRPTv1; rua=mailto:a@x.example"] * 2, Receivers()),
        (["something else", "v=TLSRPTv1; rua=mailto:a@x.example"], Receivers(("a@x.example",))),
        ([], Receivers()),
    ],
)
def test_who_gets_reports(texts, found):
    """By the one record there is; what cannot be used in it is passed over."""
    assert receivers(texts) == found


def test_receivers_are_few():
    """However many a domain names."""
    named = ",".join(f"mailto:a{n}@x.example" for n in range(50))
    assert len(receivers([f"v=TLSRPTv1; rua={named}"]).addresses) == MOST_RECEIVERS


def test_a_report_has_what_the_rfc_wants():
    """RFC 8460, 4.4: each policy with what it came to, the day in UTC, and no more of the relay."""
    report = report_of(D, date(2026, 11, 25), RESULTS, sender=SENDER, id="1")
    assert report == report_of(D, date(2026, 11, 25), RESULTS[::-1], sender=SENDER, id="1")
    assert report.filename == "relay.example!shop.example!1795564800!1795651199!1.json.gz"
    written = json.loads(gzip.decompress(report.body))
    assert written | {"policies": []} == {
        "organization-name": "Shop",
        "date-range": {
            "start-datetime": "2026-11-25T00:00:00Z",
            "end-datetime": "2026-11-25T23:59:59Z",
        },
        "contact-info": "tls-reports@relay.example",
        "report-id": "1",
        "policies": [],
    }
    none, sts, tlsa = written["policies"]
    assert none == {
        "policy": {"policy-type": "no-policy-found", "policy-domain": D},
        "summary": {"total-successful-session-count": 0, "total-failure-session-count": 4},
        "failure-details": [
            {
                "result-type": "starttls-not-supported",
                "sending-mta-ip": "9.9.9.9",
                "receiving-mx-hostname": "mx2.example",
                "receiving-ip": "192.0.2.2",
                "failed-session-count": 4,
            }
        ],
    }
    assert sts["policy"] == {
        "policy-type": "sts",
        "policy-string": ["version: STSv1", "mode: enforce", "max_age: 600", "mx: *.example"],
        "policy-domain": D,
        "mx-host": ["*.example"],
    }
    assert sts["summary"] == {
        "total-successful-session-count": 7,
        "total-failure-session-count": 3,
    }
    assert [one["result-type"] for one in sts["failure-details"]] == [
        "certificate-expired",
        "sts-policy-fetch-error",
    ]
    # Where it is private, or nothing was connected to, it says nothing.
    assert not [one for one in sts["failure-details"] if "sending-mta-ip" in one]
    assert tlsa["policy"]["policy-string"] == ["3 1 1 " + "ab" * 32]
    assert (tlsa["summary"]["total-successful-session-count"], tlsa["failure-details"]) == (3, [])


def test_the_mail_carries_the_report():
    """RFC 8460, 5.3: its type, its fields, and the report as it was packed."""
    report = report_of(D, date(2026, 11, 25), RESULTS, sender=SENDER, id="1")
    at = datetime(2026, 11, 26, tzinfo=UTC)
    message = mail_of(report, ["a@x.example", "b@x.example"], sender=SENDER, at=at)
    assert [one.address for one in message.recipients] == ["a@x.example", "b@x.example"]
    assert message.raw is not None
    assert all(len(line) <= 998 for line in message.raw.split(b"\r\n"))
    mail = email.message_from_bytes(message.raw, policy=email.policy.SMTP)
    assert mail.defects == []
    assert mail.get_content_type() == "multipart/report"
    assert mail.get_param("report-type") == "tlsrpt"
    assert mail["From"] == "Shop <tls-reports@relay.example>"
    assert mail["TLS-Report-Domain"] == D
    assert mail["TLS-Report-Submitter"] == "relay.example"
    assert mail["Subject"] == (
        "Report Domain: shop.example Submitter: relay.example Report-ID: <1@relay.example>"
    )
    text, packed = mail.iter_parts()
    assert text.get_content_type() == "text/plain"
    assert packed.get_content_type() == "application/tlsrpt+gzip"
    assert packed.get_filename() == report.filename
    assert packed.get_content() == report.body


def test_what_is_counted_is_taken_once():
    """What could not be stored is put back; whoever makes up names does not fill memory."""
    results = TlsResults()
    one = TlsResult(D, NO_POLICY)
    results.count(one)
    results.count(one)
    taken = results.take()
    assert taken == {one: 2}
    assert results.take() == {}
    results.count(one)
    results.put_back(taken)
    assert results.take() == {one: 3}
    for n in range(MOST + 5):
        results.count(TlsResult(f"d{n}.example", NO_POLICY))
    assert len(results.take()) == MOST
