"""The TLS reporter: stores what was counted, reports what is over, and outlasts the database."""

from __future__ import annotations

from typing import Any

import structlog
from cryptography.fernet import Fernet

from actors import tls_reporter
from actors.messages import SweepNow
from relay.crypto import Vault
from relay.db.pool import Pool
from relay.dns.questions import Answer, Question, found
from relay.errors import DatabaseUnavailable
from relay.outbound.composing.message import Address
from relay.outbound.mx.policy import NO_POLICY
from relay.outbound.mx.tls_results import TlsResult, TlsResults
from relay.outbound.queue.lanes import DueLane
from relay.outbound.reporting.tls_reports import TlsReports
from relay.outbound.signing.dkim_keys import DkimKeys
from tests.actors.running import becomes, logged, running

SENDER = Address("tls-reports@relay.example")
RESULT = TlsResult("shop.example", NO_POLICY, "", "mx.example", "192.0.2.1")
ROWS = "SELECT sum(count)::integer FROM relay.tls_results"
LOOKED = """
    SELECT count(*) FROM relay.leases WHERE name = 'tls_reporter' AND expires_at < now()
"""


async def ask(question: Question) -> Answer:
    """Every domain wants reports."""
    return found("v=TLSRPTv1; rua=mailto:a@shop.example")


async def post(*_: Any) -> int:
    raise AssertionError


def reports(pool: Pool, results: TlsResults) -> TlsReports:
    return TlsReports(pool, results, ask, post, sender=SENDER)


async def test_what_was_counted_is_stored_at_once_and_in_the_drain(pool: Pool):
    """What was counted meanwhile is not lost by a restart."""
    results = TlsResults()
    results.count(RESULT)
    async with running(tls_reporter.run, pool=pool, reports=reports(pool, results)):
        await becomes(pool, ROWS, 1)
        results.count(RESULT)
    assert await pool.fetch_value(ROWS) == 2


async def test_a_day_that_is_over_is_reported_and_the_claimer_told(pool: Pool):
    """By one node, when it is told to look."""
    results = TlsResults()
    results.count(RESULT)
    first = reports(pool, results)
    await DkimKeys(pool, Vault([Fernet.generate_key().decode()])).create("relay.example")
    told: list[DueLane] = []
    parts = {"pool": pool, "reports": first, "wake_outbound": told.extend}
    async with running(tls_reporter.run, **parts) as (_, box):
        await becomes(pool, ROWS, 1)
        await becomes(pool, LOOKED, 1)  # at the start, and there was no day that was over
        await pool.execute("UPDATE relay.tls_results SET day = day - 2")
        box.send_nowait(SweepNow())
        await becomes(pool, "SELECT count(*) FROM relay.outbound_letters", 1)
        await becomes(pool, "SELECT count(*) FROM relay.tls_reports", 0)
    assert [lane.domain for lane in told] == ["shop.example"]
    leases = await pool.fetch_value(
        "SELECT count(*) FROM relay.leases WHERE name = 'tls_reporter' AND expires_at > now()"
    )
    assert leases == 0


async def test_an_outage_costs_nothing(pool: Pool):
    """What was counted is kept until it can be stored."""
    results = TlsResults()
    results.count(RESULT)
    real = reports(pool, results)

    class Away(TlsReports):
        failing = True

        async def store(self) -> None:
            if self.failing:
                raise DatabaseUnavailable("away")
            await real.store()

    away = Away(pool, results, ask, post, sender=SENDER)
    with structlog.testing.capture_logs() as lines:
        async with running(tls_reporter.run, pool=pool, reports=away, every=0.1):
            await logged(lines, "tls_reporter.waits_for_database")
            away.failing = False
            await becomes(pool, ROWS, 1)
            await logged(lines, "tls_reporter.recovered")
