"""What a domain publishes beside what it should: each record's law, by a dictionary for a DNS."""

from __future__ import annotations

import pytest

from relay.checks.published import (
    Entry,
    Here,
    Key,
    Use,
    aligned,
    beside,
    dane,
    dkim,
    dmarc,
    mta_sts,
    mx,
    reporting,
    reverse,
    sender_policy,
    stated,
    sts_policy,
    tls_reports,
)
from relay.dns.questions import FAILED, Answer, Proof
from tests.checks.asking import Zone, answered

D = "shop.example"
HOSTS: Zone = {("mx.shop.example", "A"): "192.0.2.1", ("out.example", "A"): "192.0.2.9"}


def exchange(zone: Zone, here: Here | None = None, use: Use = Use.MAILBOXES) -> Entry:
    return answered(mx(D, "relay.shop.example", here or Here(), use), zone).entry


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
    """A null MX and a host without an address will not do; what nobody answers is not wrong, and
    nothing is to be published for it."""
    zone = {**HOSTS, (D, "MX"): records, ("lost.shop.example", "A"): FAILED}
    entry = exchange(zone)
    assert entry.ok is ok
    assert entry.wanted == ("10 relay.shop.example." if ok is False else None)


@pytest.mark.parametrize(
    ("here", "use", "ok", "said"),
    [
        (Here({"mx.shop.example"}), Use.OTHERS, False, "mx.shop.example, this relay, which takes"),
        (Here((), {"192.0.2.1"}), Use.OTHERS, False, "RELAY_SMTP__DOMAINS lacks it"),
        (Here({"relay.shop.example"}, {"192.0.2.2"}), Use.OTHERS, True, "each of its hosts has an"),
        (Here({"mx.shop.example"}), Use.MAILBOXES, True, "mx.shop.example is this relay"),
        (Here(), Use.MAILBOXES, True, "each of its hosts has an address"),
        (Here((), {"192.0.2.1"}), Use.RETURN_PATHS, True, "mx.shop.example is this relay"),
        (Here({"relay.shop.example"}), Use.RETURN_PATHS, None, "to which bounces have to come"),
    ],
)
def test_mx_that_leads_to_this_relay_is_for_what_it_takes(here, use, ok, said):
    """By name or address: mail that it refuses is lost there, bounces that go elsewhere are, too;
    where nobody can say whether a host is this relay, that is said of bounces alone."""
    entry = exchange({**HOSTS, (D, "MX"): "10 mx.shop.example"}, here, use)
    assert (entry.ok, entry.wanted) == (ok, None)
    assert said in entry.detail
    missing = exchange(HOSTS, here, use)
    assert missing.wanted == (None if use is Use.OTHERS else "10 relay.shop.example.")


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
        (FAILED, ("out.example",), (), None, None),
        ([], ("lost.example",), (), False, None),
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
    assert entry.wanted == (key.record if ok is False else None)


def spf_entry(name: str, *, ok: bool | None = True) -> Entry:
    return Entry("SPF", name, "TXT", None, "v=spf1 mx ~all", ok, "so it is")


def signed(*oks: bool | None) -> list[Entry]:
    return [Entry("DKIM", "s._domainkey.shop.example", "TXT", None, None, ok) for ok in oks]


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
    domain = "mail.shop.example"
    zone = {("_dmarc.mail.shop.example", "TXT"): own, ("_dmarc.shop.example", "TXT"): above}
    path = path.replace("b.", "b.mail.") or domain
    policy = answered(dmarc(domain), zone)
    entry = aligned(policy, domain, signed(*[True] * signs), spf_entry(path), None)
    assert entry.ok is ok, entry


@pytest.mark.parametrize(
    ("signatures", "sender", "ok", "said"),
    [
        ((True, True), True, True, "aligned by signatures (d= is From's own domain) and SPF"),
        ((False, True), False, True, "aligned by signatures (d= is From's own domain); not by SPF"
         " of b.shop.example"),
        ((False, False), True, True, "p=none; aligned by SPF"),
        ((True,), None, True, "p=none; aligned by signatures (d= is From's own domain)"),
        ((None, False), False, None, "what aligns nobody can say"),
        ((), None, None, "what aligns nobody can say"),
        ((False,), False, False, "nothing aligns: no key whose record is there signs; not by"),
        ((), False, False, "nothing aligns"),
    ],
)  # fmt: skip
def test_dmarc_counts_what_is_published(signatures, sender, ok, said):
    """A key that signs but is not in the DNS aligns nothing, nor does SPF of a domain of return
    paths that publishes none."""
    policy = answered(dmarc(D), {("_dmarc.shop.example", "TXT"): "v=DMARC1; p=none"})
    path = spf_entry("b.shop.example", ok=sender)
    entry = aligned(policy, D, signed(*signatures), path, None)
    assert entry.ok is ok, entry
    assert said in entry.detail
    elsewhere = aligned(policy, D, signed(True), spf_entry("b.other.example"), None)
    assert "not by SPF of b.other.example" in elsewhere.detail


@pytest.mark.parametrize("to", ["postmaster@shop.example", None])
@pytest.mark.parametrize("record", [[], "v=DMARC1; p=maybe", FAILED])
def test_reports_are_asked_for_where_somebody_takes_them(record, to):
    """Of DMARC and of TLS; the latter are of no use without, and nothing is wanted on SERVFAIL."""
    names = {("_dmarc.shop.example", "TXT"): record, ("_smtp._tls.shop.example", "TXT"): record}
    policy = aligned(answered(dmarc(D), names), D, (), spf_entry(D), to)
    reports = reporting(answered(tls_reports(D), names), D, to)
    if isinstance(record, Answer):
        assert (policy.ok, policy.wanted, reports.ok, reports.wanted) == (None, None, None, None)
        return
    rua = f"; rua=mailto:{to}" if to else ""
    assert policy.wanted == f"v=DMARC1; p=none{rua}"
    assert reports.wanted == (f"v=TLSRPTv1{rua}" if to else None)
    assert ("postmaster@shop.example is no mailbox here" in reports.detail) is (to is None)


@pytest.mark.parametrize(("ok", "optional"), [(True, False), (False, True), (None, True)])
def test_spf_of_the_author_is_advice_where_return_paths_are_elsewhere(ok, optional):
    """Receivers look at the domain of MAIL FROM."""
    entry = beside(spf_entry(D, ok=ok), "b.shop.example")
    assert (entry.ok, entry.optional) == (ok, optional)
    assert ("of return paths, at b.shop.example" in entry.detail) is optional


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
    """RFC 8461, 3.1; it is proposed only where there is a policy for it to announce."""
    entry = answered(mta_sts(D), {("_mta-sts.shop.example", "TXT"): record})
    assert entry.ok is ok
    text = b"version: STSv1\nmode: none\nmax_age: 86400"
    there = stated(entry, sts_policy(D, text, (), ""), "7")
    missing = stated(entry, sts_policy(D, None, (), "it cannot be fetched"), "7")
    assert (there.wanted, missing.wanted) == ("v=STSv1; id=7" if ok is False else None, None)
    assert ("first its policy is to be there" in missing.detail) is (ok is False)


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
        # Where nobody knows the hosts, whatever it named would be wrong.
        assert sts_policy(D, text.encode("latin-1"), (), "").wanted is None


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
    entry = reporting(entry, D, "postmaster@shop.example")
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
