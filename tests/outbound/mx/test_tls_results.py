"""What is counted of TLS for reports, by real sessions."""

from __future__ import annotations

from relay.outbound.mx.policy import (
    LONGEST,
    MOST_STRINGS,
    NO_POLICY,
    Published,
    Security,
    TlsPolicy,
)
from relay.outbound.mx.tls_results import MOST_OF_DOMAIN, TlsResult, TlsResults
from tests.outbound.mx.test_dane import Shown, Zone, delivering, publish
from tests.outbound.mx.test_direct import Refuses, Says, World

HERE = "127.0.0.1"  # from where a session that failed came
STS = Published("sts", ("version: STSv1",), ("*.example",))


def tlsa(zone: Zone, w: World, number: str) -> Published:
    """What the exchanger of a number has published."""
    return Published(
        "tlsa", tuple(zone[f"_{w.sinks[number].port}._tcp.mx{number}.example", "TLSA"])
    )


async def test_sessions_are_counted_by_domain_and_policy(pool, tmp_path):
    """Once for each domain whose mail goes over a connection; a failure by what was wrong."""
    results = TlsResults()
    domains = {"one.example": "2", "two.example": "2", "bad.example": "3", "clear.example": "4",
               "refuses.example": "5"}  # fmt: skip
    async with delivering(pool, tmp_path, domains, results=results) as (w, shown, zone):
        assert isinstance(shown, Shown)
        publish(w, zone, "2", shown.record("2"))
        publish(w, zone, "3", shown.record("2"))
        for name in ("a@one", "b@one", "a@two", "b@two", "a@clear", "a@refuses"):
            await w.send(f"{name}.example")
        await w.send("a@bad.example", status="queued")
        good, bad = tlsa(zone, w, "2"), tlsa(zone, w, "3")
        assert results.take() == {
            TlsResult("one.example", good, "", "mx2.example", "127.0.0.2"): 1,
            TlsResult("two.example", good, "", "mx2.example", "127.0.0.2"): 1,
            TlsResult(
                "bad.example", bad, "validation-failure", "mx3.example", "127.0.0.3", HERE
            ): 1,
            TlsResult(
                "clear.example",
                NO_POLICY,
                "starttls-not-supported",
                "mx4.example",
                "127.0.0.4",
                HERE,
            ): 1,
            TlsResult(
                "refuses.example",
                NO_POLICY,
                "starttls-not-supported",
                "mx5.example",
                "127.0.0.5",
                HERE,
            ): 1,
        }


async def test_a_policy_that_is_tested_counts_what_it_would_have_stopped(pool, tmp_path):
    """The mail goes all the same, and the session is one that failed."""
    results = TlsResults()
    tested = TlsPolicy(Security.TESTED, Refuses(), "MTA-STS", published=STS)
    says = Says({"tested.example": tested})
    async with delivering(pool, tmp_path, {"tested.example": "2"}, says, results=results) as (
        w,
        _,
        _,
    ):
        await w.send("a@tested.example")
        (result,) = results.take()
        assert result == TlsResult(
            "tested.example", STS, "validation-failure", "mx2.example", "127.0.0.2", HERE
        )


async def test_records_that_fail_or_cannot_be_used_are_counted(pool, tmp_path):
    """As dnssec-invalid and tlsa-invalid."""
    results = TlsResults()
    domains = {"fails.example": "2", "unusable.example": "3"}
    async with delivering(pool, tmp_path, domains, results=results) as (w, _, zone):
        name = f"_{w.sinks['2'].port}._tcp.mx2.example"
        zone[name, "CNAME"] = [f"{name}."]
        publish(w, zone, "3", ["1 1 1 " + "ab" * 32])
        await w.send("a@fails.example", status="queued")
        await w.send("a@unusable.example")
        counted = results.take()
        published = tlsa(zone, w, "3")
        assert counted == {
            TlsResult("fails.example", Published("tlsa"), "dnssec-invalid", "mx2.example"): 1,
            TlsResult("unusable.example", published, "tlsa-invalid", "mx3.example"): 1,
            TlsResult("unusable.example", published, "", "mx3.example", "127.0.0.3"): 1,
        }


def test_a_domain_fills_neither_memory_nor_report():
    """What it has too many of is counted as ended so, without names; others have room."""
    results = TlsResults()
    for number in range(1_000):
        results.count(TlsResult("many.example", STS, "", f"mx{number}.example"))
        results.count(TlsResult("many.example", STS, "certificate-expired", f"mx{number}.example"))
    results.count(TlsResult("one.example", STS))
    taken = results.take()
    assert len(taken) == MOST_OF_DOMAIN + 3
    assert sum(taken.values()) == 2_001
    assert taken[TlsResult("many.example", Published("sts"), "validation-failure")] == 975
    assert taken[TlsResult("one.example", STS)] == 1


async def test_so_much_is_kept_of_what_is_published(pool, tmp_path):
    """Of a thousand records some, and of a long one its beginning."""
    results = TlsResults()
    async with delivering(pool, tmp_path, {"one.example": "3"}, results=results) as (w, _, zone):
        records = [f"3 1 1 {number:064x}" for number in range(100)]
        publish(w, zone, "3", [*records, "3 1 0 " + "ab" * 600])
        await w.send("a@one.example", status="queued")
        (result,) = results.take()
        assert len(result.published.strings) == MOST_STRINGS
        assert max(map(len, result.published.strings)) <= LONGEST
