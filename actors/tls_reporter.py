"""The TLS reporter: writes down how TLS ended with others' servers, and tells their domains of it.

This module decides when that is done and which node leads;
`relay/outbound/reporting/tls_reports.py` counts, stores and tells.

Promises
- Counts of this node are added once a minute; in a drain those since then, after the last delivery
  has ended.
- One node at a time makes reports, under the lease `tls_reporter`; its statements carry the term.

Fails: never on an outage of the database; counts of that time are in the next minute's rows.

Why an actor: a report takes its own time, which should hold up nobody: it waits for strangers' DNS
and web servers.
"""

from __future__ import annotations

from uuid import UUID

import psycopg
import trio

from actors.messages import SweepNow
from actors.periodic import wait_for_messages
from relay.chance import uuid4
from relay.db import leases
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.outage import Outage
from relay.outbound.reporting.tls_reports import TlsReports
from relay.outbound.submission.sending import WakeOutbound
from supervisor import Context, Drained

log = get_logger()

_LEASE = "tls_reporter"
_LEASE_TTL = 120.0  # s; a report may wait for a DNS and four web servers
_LAST = 2.0  # s for the last rows


async def run(
    ctx: Context,
    *,
    pool: Pool,
    reports: TlsReports,
    wake_outbound: WakeOutbound | None = None,
    every: float = 60.0,
    report_every: float = 300.0,
) -> None:
    """Count and report until drained.

    `wake_outbound` tells this process's claimer of what was queued, None where none runs; `every`:
    seconds between two times that what was counted is stored; `report_every`: between two looks for
    what is to be reported.
    """
    outage = Outage(longest=every)
    node = uuid4()
    report_at = trio.current_time()
    ctx.ready()
    try:
        while True:
            seconds = every
            try:
                await reports.store()
                if trio.current_time() >= report_at:
                    report_at = trio.current_time() + report_every
                    await _report(ctx, pool, reports, node, wake_outbound)
            except DatabaseUnavailable as error:
                if not outage.is_on:
                    log.warning("tls_reporter.waits_for_database", reason=str(error))
                seconds = outage.lost()
            except psycopg.Error as error:
                log.warning("tls_reporter.refused", error=type(error).__name__)
            else:
                if outage.over():
                    log.info("tls_reporter.recovered")
            messages = await wait_for_messages(ctx, seconds)
            if any(isinstance(message, SweepNow) for message in messages):
                report_at = trio.current_time()
    except Drained:
        with trio.move_on_after(_LAST):
            try:
                await reports.store()
            except (DatabaseUnavailable, psycopg.Error) as error:
                log.info("tls_reporter.left", reason=type(error).__name__)


async def _report(
    ctx: Context,
    pool: Pool,
    reports: TlsReports,
    node: UUID,
    wake_outbound: WakeOutbound | None,
) -> None:
    """Make the reports that are due, if this node leads."""
    lease = await leases.acquire(pool, _LEASE, node, _LEASE_TTL)
    if lease is None:
        return
    try:
        for due in await reports.due(lease):
            if ctx.draining.is_set() or not await leases.renew(pool, lease, _LEASE_TTL):
                return
            ctx.beat()
            queued = await reports.make(due, lease)
            if queued is not None and wake_outbound is not None:
                wake_outbound(queued.due_lanes)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + _LAST):
            await leases.release(pool, lease)
