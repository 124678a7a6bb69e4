"""MTA-STS as it is published: records and policies, read as RFC 8461 has them."""

from __future__ import annotations

import pytest

from relay.checks.sts import (
    MAX_AGE,
    MAX_POLICY,
    MOST_HOSTS,
    Mode,
    StsPolicy,
    id_of,
    parse,
    records,
    refusal,
)
from relay.checks.tags import Unusable

ENFORCED = StsPolicy(Mode.ENFORCE, ("mx.example",), 60)


@pytest.mark.parametrize(
    ("record", "policy_id"),
    [
        ("v=STSv1; id=20160831085700Z;", "20160831085700Z"),
        ("v=STSv1;id=a", "a"),
        ("v=STSv1; more=x; id=1; id=2", "1"),
        ("v=STSv1; id=" + "a" * 32, "a" * 32),
        ("v=STSv1; id=" + "a" * 33, None),
        ("v=STSv1; id=2016-08-31", None),
        ("v=STSv1; ID=1", None),
        ("v=STSv1; grid=1", None),
        ("v=STSv1", None),
    ],
)
def test_a_record_has_an_id(record, policy_id):
    """3.1: letters and digits, up to 32; the first of several; other fields are ignored."""
    assert records([record]) == [record]
    assert id_of(record) == policy_id


def test_records_of_other_things_are_none():
    """3.1: what does not begin with the version is discarded, whatever follows."""
    assert records(["v=STSv2; id=1", "v=spf1 -all", " v=STSv1; id=1", "v=STSv10; id=1", ""]) == []


@pytest.mark.parametrize(
    "text",
    [
        "version: STSv1\nmode: enforce\nmx: mx.example\nmax_age: 60",
        "version: STSv1\r\nmode: enforce\r\nmx: mx.example\r\nmax_age: 60\r\n",
        "max_age:60\nmx:MX.example.\nmode:enforce\nversion:STSv1\n\n",
        "version: STSv1\nmode: enforce\nmode: none\nmx: mx.example\nmax_age: 60\nmax_age: 1",
        "version: STSv1\nversion: 2\nmode: enforce\nmx: mx.example\nmx: mx.example\nmax_age: 60",
        "version: STSv1\nmode: enforce\nmx: mx.example\nmax_age: 60\nfuture: \xfc\nnothing at all",
    ],
    ids=["LF", "CRLF", "any order", "the first counts", "mx twice", "extensions"],
)
def test_a_policy_is_read(text):
    """3.2: however it is laid out."""
    assert parse(text.encode("latin-1")) == ENFORCED


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", "STSv2", "version"),
        ("version", "stsv1", "version"),
        ("mode", "Enforce", "mode"),
        ("mode", "", "mode"),
        ("max_age", "-1", "max_age"),
        ("max_age", "1.5", "max_age"),
        ("max_age", "", "max_age"),
        ("max_age", "\u0661", "max_age"),
        ("max_age", str(MAX_AGE + 1), "max_age"),
        ("max_age", "9" * 5000, "max_age"),
        ("mx", "", "no name of a host"),
        ("mx", "*", "no name of a host"),
        ("mx", ".example", "no name of a host"),
        ("mx", "mx.*.example", "no name of a host"),
        ("mx", "mx*.example", "no name of a host"),
        ("mx", "*.*.example", "no name of a host"),
        ("mx", "m\xfcnchen.example", "no name of a host"),
        ("mx", "mx..example", "no name of a host"),
        ("mx", "a b", "no name of a host"),
        ("mx", ("a" * 64) + ".example", "no name of a host"),
        ("mx", "\nmx: ".join(f"mx{n}.example" for n in range(MOST_HOSTS + 1)), "over 100 mx"),
    ],
)
def test_what_is_no_policy_says_why(field, value, why):
    """3.2: a policy that is not well formed is none."""
    fields = {"version": "STSv1", "mode": "enforce", "mx": "mx.example", "max_age": "60"}
    text = "\n".join(f"{name}: {one}" for name, one in {**fields, field: value}.items())
    with pytest.raises(Unusable, match=why):
        parse(text.encode())


def test_no_policy_is_too_large_to_be_refused():
    """Neither a long one nor one that is no text."""
    for body in (b"a" * (MAX_POLICY + 1), b"\xff" * MAX_POLICY, b":\n" * (MAX_POLICY // 2), b""):
        with pytest.raises(Unusable):
            parse(body)


def test_a_domain_that_has_a_policy_no_more_needs_no_hosts():
    """8.3: that is how one is withdrawn; the others need some."""
    assert parse(b"version: STSv1\nmode: none\nmax_age: 0") == StsPolicy(Mode.NONE, (), 0)
    with pytest.raises(Unusable, match="no mx"):
        parse(b"version: STSv1\nmode: testing\nmax_age: 0")


@pytest.mark.parametrize(
    ("pattern", "allowed", "others"),
    [
        ("mx.example", ["mx.example"], ["a.mx.example", "example", "xmx.example"]),
        (
            "*.mx.example",
            ["a.mx.example", "b.mx.example"],
            ["mx.example", "a.b.mx.example", "amx.example", ".mx.example.net"],
        ),
    ],
)
def test_a_star_is_one_label(pattern, allowed, others):
    """4.1: the leftmost, and one exactly."""
    policy = ENFORCED._replace(hosts=("other.example", pattern))
    assert [host for host in [*allowed, *others] if policy.allows(host)] == allowed


@pytest.mark.parametrize(
    ("status", "media_type", "why"),
    [
        (200, "text/plain", None),
        (200, "Text/Plain; charset=utf-8", None),
        (200, "text/html", "text/html"),
        (200, "", "not text/plain"),
        (301, "text/plain", "301"),
        (206, "text/plain", "206"),
        (404, "text/plain", "404"),
    ],
)
def test_a_policy_is_a_whole_plain_text(status, media_type, why):
    """3.3: nothing but 200, of that type."""
    said = refusal(status, media_type)
    assert (said is None) if why is None else (said is not None and why in said)
