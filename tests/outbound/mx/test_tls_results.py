"""What is counted of TLS for reports, by real sessions."""

from __future__ import annotations

from relay.outbound.mx.policy import NO_POLICY, Published, Security, TlsPolicy
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from tests.outbound.mx.test_dane import Shown, Zone, delivering, publish
from tests.outbound.mx.test_direct import Refuses, Says, World

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
            TlsResult("bad.example", bad, "validation-failure", "mx3.example", "127.0.0.3"): 1,
            TlsResult(
                "clear.example", NO_POLICY, "starttls-not-supported", "mx4.example", "127.0.0.4"
            ): 1,
            TlsResult(
                "refuses.example", NO_POLICY, "starttls-not-supported", "mx5.example", "127.0.0.5"
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
            "tested.example", STS, "validation-failure", "mx2.example", "127.0.0.2"
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
