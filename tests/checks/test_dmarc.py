"""DMARC: whose From it is, which policy counts, and what is aligned with it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.checks.author import Author, author
from relay.checks.dkim import Signature
from relay.checks.dmarc import Dmarc, check, organisational_domain
from relay.checks.fields import split
from relay.checks.spf import Spf
from relay.dns.questions import FAILED
from tests.checks.asking import Zone, answered

NO_SPF = Spf("none", "", "")


def author_of(*values: str) -> Author:
    raw = "".join(f"From:{value}\r\n" for value in values).encode("utf-8", "surrogateescape")
    return author(split(raw)[0])


@pytest.mark.parametrize(
    ("value", "domain"),
    [
        (" ann@example.com", "example.com"),
        (" Ann Lee <ann@Example.COM>", "example.com"),
        (' "Lee, Ann" <ann@example.com>', "example.com"),
        (' "ann@evil.example" <ann@example.com>', "example.com"),
        (" ann@evil.example <ann@example.com>", "example.com"),
        (" (x, y@z (nested)) ann@example.com (a\\) comment)", "example.com"),
        (' "an\\"n, @x"@example.com', "example.com"),
        (" ann @ example . com", "example.com"),
        ("\r\n =?utf-8?q?Ann?=\r\n\t<ann@example.com>", "example.com"),
        (" <@route.example,@b.example:ann@example.com>", "example.com"),
        (" friends: ann@example.com;", "example.com"),
        (" ann@example.com,", "example.com"),
        (" ann@b\u00fccher.example", "xn--bcher-kva.example"),
        (" ann@stra\u00dfe.example", "xn--strae-oqa.example"),
        (" ann@example.com.", "example.com"),
        (" [odd] <ann@example.com>", "example.com"),
        (' ("a) ann@example.com', "example.com"),
    ],
)
def test_author(value, domain):
    """However From is written, its one address is found."""
    assert author_of(value) == Author(domain)


@pytest.mark.parametrize(
    "values",
    [
        (),
        (" ann@example.com", " ann@example.com"),
        (" ann@example.com, bob@example.net",),
        (" ann@example.com, bob@example.com",),
        (" <ann@example.com> <bob@example.net>",),
        (" Ann <ann@example.com>; Bob <bob@example.net>",),
        (" Ann",),
        ("",),
        (" <>",),
        (" undisclosed:;",),
        (" @example.com",),
        (" ann@",),
        (" ann@[192.0.2.1]",),
        (" ann@exa mple..com",),
        (" ann@\udcff.example",),
        (' "ann@example.com',),
        (' ann@"example.com"',),
    ],
)
def test_no_author(values):
    """No address, more than one, or one without a domain name: nobody is the author."""
    found = author_of(*values)
    assert found.error
    assert not found.domain
    assert answered(check(found, NO_SPF, ()), {}).result == "permerror"


@pytest.mark.parametrize("value", ['"\\' * 200_000, "[" * 400_000, "<" * 400_000, "(" * 400_000])
def test_a_hostile_from(value):
    """Read in linear time."""
    began = time.process_time()
    assert author_of(value).error
    assert author_of(value + " ann@example.com")
    assert time.process_time() - began < 5


def dmarc(
    zone: Zone,
    *,
    domain: str = "example.com",
    spf: Spf = NO_SPF,
    dkim: tuple[Signature, ...] = (),
) -> Dmarc:
    return answered(check(Author(domain), spf, dkim), zone)


def policy(text: str, domain: str = "example.com") -> Zone:
    return {(f"_dmarc.{domain}", "TXT"): text}


def by_spf(domain: str, result: str = "pass") -> Spf:
    return Spf(result, domain, "said")


def by_dkim(domain: str, result: str = "pass") -> Signature:
    return Signature(result, domain, "s", "said")


@pytest.mark.parametrize(
    ("record", "vouched", "by_dkim_result", "by_spf_result"),
    [
        ("v=DMARC1; p=none", "example.com", "pass", "pass"),
        ("v=DMARC1; p=none", "mail.Example.com", "pass", "pass"),
        ("v=DMARC1; p=none", "example.net", "fail", "fail"),
        ("v=DMARC1; p=none", "notexample.com", "fail", "fail"),
        ("v=DMARC1; p=none", "com", "fail", "fail"),
        ("v=DMARC1; p=none; adkim=s", "mail.example.com", "fail", "pass"),
        ("v=DMARC1; p=none; aspf=S", "mail.example.com", "pass", "fail"),
        ("v=DMARC1; p=none; aspf=s; adkim=s", "EXAMPLE.com", "pass", "pass"),
        ("v=DMARC1; p=none; adkim=strict; pct=0", "mail.example.com", "pass", "pass"),
    ],
)
def test_alignment(record, vouched, by_dkim_result, by_spf_result):
    """Relaxed compares registrable domains, strict whole names; SPF and DKIM each for itself."""
    assert dmarc(policy(record), dkim=(by_dkim(vouched),)).result == by_dkim_result
    assert dmarc(policy(record), spf=by_spf(vouched)).result == by_spf_result
    for result in ("fail", "neutral", "permerror"):
        assert dmarc(policy(record), dkim=(by_dkim(vouched, result),)).result == "fail"
    for result in ("fail", "softfail", "neutral", "none"):
        assert dmarc(policy(record), spf=by_spf(vouched, result)).result == "fail"


def test_one_of_several_suffices():
    """One aligned signature passes, whatever the others are; SPF does where none is."""
    several = (by_dkim("example.net"), by_dkim("example.com", "fail"), by_dkim("a.example.com"))
    assert dmarc(policy("v=DMARC1; p=reject"), dkim=several).result == "pass"
    assert dmarc(policy("v=DMARC1; p=reject"), dkim=several[:2]).result == "fail"
    spf = by_spf("example.com")
    assert dmarc(policy("v=DMARC1; p=reject"), spf=spf, dkim=several[:2]).result == "pass"


@pytest.mark.parametrize(
    ("zone", "result", "wanted"),
    [
        ({}, "none", ""),
        (policy("v=DMARC1; p=reject", "a.example.com"), "fail", "reject"),
        (policy("v=DMARC1; p=reject; sp=none", "a.example.com"), "fail", "reject"),
        (policy("v=DMARC1; p=reject"), "fail", "reject"),
        (policy("v=DMARC1; p=reject; sp=Quarantine"), "fail", "quarantine"),
        (policy("v=DMARC1; p=QUARANTINE"), "fail", "quarantine"),
        (policy(" v=DMARC1; p=reject"), "none", ""),
        (policy("v=DMARC2; p=reject"), "none", ""),
        (policy("p=reject; v=DMARC1"), "none", ""),
        (policy("v=DMARC1"), "permerror", ""),
        (policy("v=DMARC1; p=often"), "permerror", ""),
        (policy("v=DMARC1; p=often; rua=mailto:a@example.com"), "fail", "none"),
        (policy("v=DMARC1; p=reject; sp=often"), "permerror", ""),
        (policy("v=DMARC1; rua=mailto:a@example.com!10m,x"), "fail", "none"),
        (policy("v=DMARC1; rua=nobody"), "permerror", ""),
        (policy("v = DMARC1 ; p = reject ; ; junk; fo=1"), "fail", "reject"),
        ({("_dmarc.example.com", "TXT"): ["v=DMARC1; p=none", "v=DMARC1; p=none"]}, "none", ""),
        ({("_dmarc.example.com", "TXT"): ["other", "v=DMARC1; p=none"]}, "fail", "none"),
        ({("_dmarc.example.com", "TXT"): FAILED}, "temperror", ""),
        ({("_dmarc.a.example.com", "TXT"): FAILED}, "temperror", ""),
        ({("_dmarc.a.example.com", "TXT"): "x", **policy("v=DMARC1; p=none")}, "fail", "none"),
    ],
)
def test_policies(zone, result, wanted):
    """The domain's own policy, else the registrable one's, with what that says of subdomains."""
    found = dmarc(zone, domain="a.example.com")
    assert (found.result, found.policy) == (result, wanted)
    assert found.detail


def test_what_might_have_decided():
    """A temporary error decides nothing only where it is aligned and nothing else passes."""
    zone = policy("v=DMARC1; p=reject")
    assert dmarc(zone, spf=by_spf("example.com", "temperror")).result == "temperror"
    assert dmarc(zone, dkim=(by_dkim("example.com", "temperror"),)).result == "temperror"
    assert dmarc(zone, spf=by_spf("example.net", "temperror")).result == "fail"
    mixed = (by_dkim("example.com", "temperror"), by_dkim("example.com"))
    assert dmarc(zone, dkim=mixed).result == "pass"


def test_organisational_domains():
    """As the public suffix list has them."""
    for name, wanted in {
        "example.com": "example.com",
        "a.b.example.com": "example.com",
        "a.b.example.co.uk": "example.co.uk",
        "co.uk": "co.uk",
        "ann.github.io": "ann.github.io",
        "x.relay.localhost": "relay.localhost",
        "localhost": "localhost",
        "a.www.ck": "www.ck",
        "a.b.c.ck": "b.c.ck",
        "shop.xn--85x722f.com.cn": "xn--85x722f.com.cn",
    }.items():
        assert organisational_domain(name) == wanted


@given(st.text(), st.text(st.characters(max_codepoint=255)))
def test_never_raises(value, record):
    """Whatever From and the policy hold, there is a result."""
    found = author_of(value.replace("\r", "").replace("\n", ""))
    zone = {(f"_dmarc.{found.domain}", "TXT"): f"v=DMARC1;{record}"}
    outcome = answered(check(found, by_spf("example.com"), (by_dkim("example.com"),)), zone)
    assert outcome.result in {"pass", "fail", "none", "permerror"}
    assert outcome.detail.isprintable()
