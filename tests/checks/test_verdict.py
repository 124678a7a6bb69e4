"""The three checks in one, in two halves."""

from __future__ import annotations

import pytest

from relay.checks.evidence import Evidence, examine
from relay.checks.fields import MAX_HEADER_BYTES
from relay.checks.verdict import Verdict, judge
from relay.dns.questions import FAILED
from tests.checks.asking import Zone, answered
from tests.checks.signing import ed25519_key, record, rsa_key, sign

MAIL = b"From: Ann <ann@example.com>\r\nTo: bob@example.net\r\nSubject: a\r\n\r\nHello.\r\n"
ZONE: Zone = {
    ("example.com", "TXT"): "v=spf1 ip4:192.0.2.1 -all exp=why.example.com",
    ("why.example.com", "TXT"): "%{c} is not ours",
    ("mail.example.com", "TXT"): "v=spf1 a -all",
    ("mail.example.com", "A"): "192.0.2.1",
    ("_dmarc.example.com", "TXT"): "v=DMARC1; p=reject",
    ("s._domainkey.example.com", "TXT"): record(rsa_key()),
    ("t._domainkey.example.com", "TXT"): record(ed25519_key()),
}


def verdict(
    raw: bytes,
    *,
    client: str | None = "192.0.2.1",
    helo: str = "mail.example.com",
    mail_from: str = "ann@example.com",
    zone: Zone | None = None,
) -> Verdict:
    evidence = Evidence.from_json(examine(raw).as_json())
    assert evidence == examine(raw)
    asking = judge(evidence, client=client, helo=helo, mail_from=mail_from, at=1_700_000_000.0)
    return answered(asking, ZONE if zone is None else zone)


def words(found: Verdict) -> tuple[str, str, str]:
    return found.spf.result, found.dkim.result, found.dmarc.result


def test_all_is_well():
    """Signed by its domain, and from where its domain sends."""
    found = verdict(sign(MAIL, rsa_key()))
    assert words(found) == ("pass", "pass", "pass")
    assert found.as_dict()["dkim"] == {
        "result": "pass",
        "detail": "signed by example.com with the key s (RSA, 1024 bits)",
    }


def test_neither():
    """From elsewhere and altered: all three say why, and what the domain wants done."""
    found = verdict(sign(MAIL, rsa_key()).replace(b"Hello", b"Bye"), client="192.0.2.9")
    assert words(found) == ("fail", "fail", "fail")
    assert "example.com says: 192.0.2.9 is not ours" in found.spf.detail
    assert "the body is not what was signed" in found.dkim.detail
    assert "p=reject" in found.dmarc.detail


@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", None, "?"])
def test_no_client(client):
    """Mail from this machine has no SPF; DKIM alone may carry DMARC."""
    assert words(verdict(sign(MAIL, rsa_key()), client=client)) == ("none", "pass", "pass")
    assert words(verdict(MAIL, client=client)) == ("none", "none", "fail")


def test_an_empty_sender():
    """A bounce is judged by the name of its HELO."""
    assert words(verdict(MAIL, mail_from="")) == ("pass", "none", "pass")
    assert words(verdict(MAIL, mail_from="", helo="[192.0.2.1]")) == ("none", "none", "fail")


def test_several_signatures():
    """The best counts, and each is told of."""
    raw = sign(MAIL, rsa_key()).replace(b"Subject: a", b"Subject: b")
    found = verdict(sign(raw, ed25519_key(), selector="t"))
    assert found.dkim.result == "pass"
    assert found.dkim.detail.startswith("signed by example.com with the key t (Ed25519); ")
    assert "example.com: the header is not what was signed" in found.dkim.detail


def test_the_dns_is_away():
    """Then all is temporary."""
    zone: Zone = dict.fromkeys(ZONE, FAILED)
    assert words(verdict(sign(MAIL, rsa_key()), zone=zone)) == ("temperror",) * 3


def test_a_stranger():
    """Who publishes nothing gets none, and no error."""
    assert words(verdict(MAIL, zone={})) == ("none", "none", "none")


@pytest.mark.parametrize("raw", [b"", b"\r\n", b"\0", b"a" * (MAX_HEADER_BYTES + 1)])
def test_no_message(raw):
    """What is hardly a message has a verdict, too."""
    found = verdict(raw)
    assert found.dmarc.result == "permerror"
