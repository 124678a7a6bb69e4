"""What a domain publishes beside what it should: each record's law, by a dictionary for a DNS."""

from __future__ import annotations

import pytest

from relay.checks.published import (
    Entry,
    Key,
    dane,
    dkim,
    dmarc,
    mta_sts,
    mx,
    reverse,
    sender_policy,
    sts_policy,
    tls_reports,
)
from relay.dns.questions import FAILED, Proof
from tests.checks.asking import Zone, answered

D = "shop.example"
HOSTS: Zone = {("mx.shop.example", "A"): "192.0.2.1", ("out.example", "A"): "192.0.2.9"}


def exchange(zone: Zone) -> Entry:
    return answered(mx(D, "relay.shop.example"), zone).entry


@pytest.mark.parametrize(
    ("records", "ok"),
    [
        ("10 mx.shop.example", True),
        (["20 mx.shop.example", "10 gone.shop.example"], False),
        ("0 .", False),
        (FAILED, None),
        ([], False),
        ("10 lost.shop.example", None),
    ],
)
def test_mx_leads_to_hosts_with_addresses(records, ok):
    """A null MX and a host without an address will not do; what nobody answers is not wrong."""
    zone = {**HOSTS, (D, "MX"): records, ("lost.shop.example", "A"): FAILED}
    entry = exchange(zone)
    assert entry.ok is ok
    assert entry.wanted == (None if ok or records == "10 lost.shop.example" else
                            "10 relay.shop.example.")  # fmt: skip


def policy(zone: Zone, *upstreams: str, sources: tuple[str, ...] = ()) -> Entry:
    return answered(sender_policy(D, "relay.example", upstreams, sources), {**HOSTS, **zone})


@pytest.mark.parametrize(
    ("record", "upstreams", "sources", "ok", "wanted"),
    [
        ("v=spf1 a:out.example -all", ("out.example",), (), True, None),
        ("v=spf1 ip4:192.0.2.0/24 -all", ("out.example",), (), True, None),
        ("v=spf1 mx -all", ("out.example",), (), False, "v=spf1 mx a:out.example -all"),
        ("v=spf1 -all", (), ("2001:db8::1",), False, "v=spf1 ip6:2001:db8::1 -all"),
        ("v=spf1 include:sendgrid.net ~all", ("smtp.sendgrid.net",), (), True, None),
        ("v=spf1 include:more.example ~all", ("smtp.sendgrid.net",), (), True, None),
        (
            *("v=spf1 ~all", ("smtp.sendgrid.net",), (), False),
            "v=spf1 include:sendgrid.net ~all",
        ),
        ("v=spf1 -all", (), (), True, None),
        ("v=spf1 +all", (), (), False, "v=spf1 mx ~all"),
        ("v=spf1 ip4:nonsense -all", ("out.example",), (), False, None),
        ("v=spf1 include:lost.example -all", ("out.example",), (), None, None),
        ("v=spf1 mx -all", ("lost.example",), (), None, None),
        (["v=spf1 a -all", "v=spf1 mx -all"], (), (), False, "v=spf1 a mx ~all"),
        (["something", "v=spf1 mx -all"], (), (), True, None),
        ("v=spf10 mx -all", ("out.example",), (), False, "v=spf1 a:out.example ~all"),
        (FAILED, ("out.example",), (), None, "v=spf1 a:out.example ~all"),
    ],
)
def test_spf_lets_in_where_mail_leaves_from(record, upstreams, sources, ok, wanted):
    """By the addresses of hosts, by what providers' customers include; wanted: what would do."""
    zone = {
        (D, "TXT"): record,
        ("sendgrid.net", "TXT"): "v=spf1 ip4:198.51.100.0/24 ~all",
        ("more.example", "TXT"): "v=spf1 include:sendgrid.net ~all",
        ("lost.example", "TXT"): FAILED,
        ("lost.example", "A"): FAILED,
        ("lost.example", "AAAA"): FAILED,
        (D, "MX"): [],
    }
    entry = policy(zone, *upstreams, sources=sources)
    assert (entry.ok, entry.wanted) == (ok, wanted), entry
    if wanted is not None and ok is False:
        assert policy({**zone, (D, "TXT"): wanted}, *upstreams, sources=sources).ok is True


@pytest.mark.parametrize(
    ("record", "ok"),
    [
        ("v=DKIM1; k=rsa; p=AAAA", True),
        ("p=AA AA ; k=rsa;", True),
        ("v=DKIM1; k=rsa; t=y; p=AAAA", True),
        ("v=DKIM1; k=rsa; p=AAAB", False),
        ("v=DKIM1; k=ed25519; p=AAAA", False),
        ("v=DKIM1; k=rsa; h=sha1; p=AAAA", False),
        ("v=DKIM1; k=rsa; p=", False),
        ("no tags", False),
        (["v=DKIM1; k=rsa; p=AAAA", "v=DKIM1; k=rsa; p=AAAA"], False),
        ([], False),
        (FAILED, None),
    ],
)
def test_dkim_is_our_key_however_it_is_spelt(record, ok):
    """One record with the same key; the failure of the DNS is not called wrong."""
    key = Key("s._domainkey.shop.example", "v=DKIM1; k=rsa; p=AAAA", "active")
    entry = answered(dkim(key), {(key.name, "TXT"): record})
    assert entry.ok is ok
    assert entry.wanted == (None if ok else key.record)


@pytest.mark.parametrize(
    ("own", "above", "signs", "path", "ok"),
    [
        ("v=DMARC1; p=reject", [], True, "", True),
        ([], "v=DMARC1; p=none; sp=quarantine", True, "", True),
        ([], [], True, "", False),
        (["v=DMARC1; p=none", "v=DMARC1; p=none"], [], True, "", False),
        ("v=DMARC1; p=maybe", [], True, "", False),
        ("v=DMARC1; p=none; aspf=s", [], False, "b.shop.example", False),
        ("v=DMARC1; p=none", [], False, "b.shop.example", True),
        ("v=DMARC1; p=none", [], False, "other.example", False),
        ("v=DMARC1; p=none", [], True, "other.example", True),
        (FAILED, [], True, "", None),
        ([], FAILED, True, "", None),
    ],
)
def test_dmarc_is_one_policy_by_which_something_aligns(own, above, signs, path, ok):
    """Its own or that of its organisation."""
    zone = {("_dmarc.mail.shop.example", "TXT"): own, ("_dmarc.shop.example", "TXT"): above}
    if path:
        path = path.replace("b.", "b.mail.")
    entry = answered(dmarc("mail.shop.example", signs=signs, return_path=path), zone)
    assert entry.ok is ok, entry


@pytest.mark.parametrize(
    ("record", "ok"),
    [
        ("v=STSv1; id=20261123;", True),
        ("v=STSv1; id=2026-11-23", False),
        ("v=STSv1;", False),
        (["v=STSv1; id=1", "v=STSv1; id=2"], False),
        ([], False),
        (FAILED, None),
    ],
)
def test_mta_sts_is_one_record_with_an_id(record, ok):
    """RFC 8461, 3.1."""
    assert answered(mta_sts(D, "1"), {("_mta-sts.shop.example", "TXT"): record}).ok is ok


@pytest.mark.parametrize(
    ("text", "ok"),
    [
        ("version: STSv1\r\nmode: enforce\r\nmx: *.shop.example\r\nmax_age: 86400\r\n", True),
        ("version: STSv1\nmode: none\nmax_age: 86400", True),
        ("version: STSv1\nmode: enforce\nmx: other.example\nmax_age: 86400", False),
        ("version: STSv1\nmode: enforce\nmx: *.example\nmax_age: 86400", False),
        ("version: STSv1\nmode: testing\nmax_age: 86400", False),
        ("version: STSv1\nmode: maybe\nmx: mx.shop.example\nmax_age: 86400", False),
        ("version: STSv1\nmode: enforce\nmx: mx.shop.example\nmax_age: x", False),
        ("mode: enforce\nmx: mx.shop.example\nmax_age: 86400", False),
        ("\xff", False),
    ],
)
def test_a_policy_names_every_mx(text, ok):
    """RFC 8461, 3.2 and 4.1; what is proposed instead will do."""
    entry = sts_policy(D, text.encode("latin-1"), ("mx.shop.example",), "")
    assert entry.ok is ok
    if not ok:
        assert entry.wanted is not None
        assert sts_policy(D, entry.wanted.encode(), ("mx.shop.example",), "").ok


@pytest.mark.parametrize(
    ("record", "ok"),
    [
        ("v=TLSRPTv1; rua=mailto:tls@shop.example", True),
        ("v=TLSRPTv1;rua=https://reports.example/v1", True),
        ("v=TLSRPTv1; rua=tls@shop.example", False),
        ([], False),
        (FAILED, None),
    ],
)
def test_tls_reports_have_an_address(record, ok):
    """RFC 8460, 3."""
    entry = answered(tls_reports(D), {("_smtp._tls.shop.example", "TXT"): record})
    assert entry.ok is ok
    if ok is False:
        again = {("_smtp._tls.shop.example", "TXT"): entry.wanted or ""}
        assert answered(tls_reports(D), again).ok


@pytest.mark.parametrize(
    ("name", "back", "ok"),
    [
        ("mx.shop.example", "192.0.2.1", True),
        ("mx.shop.example", "192.0.2.2", False),
        ("mx.shop.example", FAILED, None),
        ([], [], False),
        (FAILED, [], None),
    ],
)
def test_the_name_of_an_address_leads_back_to_it(name, back, ok):
    """Forward-confirmed, as receivers ask."""
    zone = {("1.2.0.192.in-addr.arpa", "PTR"): name, ("mx.shop.example", "A"): back}
    assert answered(reverse("192.0.2.1", "mx.shop.example"), zone).ok is ok


@pytest.mark.parametrize(
    ("proof", "ok", "detail"),
    [
        (Proof(True), True, "receivers' TLSA records are obeyed"),
        (Proof(False, "remote", "192.0.2.53"), False, "192.0.2.53, which is asked, is not on this"),
        (Proof(False, "unvalidated", "127.0.0.1"), False, "127.0.0.1 does not validate"),
        (Proof(None, "silent", "127.0.0.1"), None, "it says nothing of the root"),
        (Proof(None, "silent"), None, "whether the DNS validates is not known"),
    ],
)
def test_it_is_said_whether_mail_leaves_with_dane(proof, ok, detail):
    """Advice where it does not: many resolvers do not validate."""
    entry = dane("shop.example", proof)
    assert (entry.ok, entry.optional, entry.wanted) == (ok, ok is not True, None)
    assert detail in entry.detail
