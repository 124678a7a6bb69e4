"""The judge: whether every promise in the history was kept.

It looks when the faults are over and the relay has had its time: first whether everything has come
to rest (`unsettled`), then at the database, the mail that came out and what devices got
(`violations`).  Each violation is a sentence with the marker of what it happened to.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.database import Database
from simulation.history import History
from simulation.judge import devices, inbound, letters, mailboxes, outbound, webhooks
from simulation.network import Network
from simulation.world import EPOCH

GIVEN_UP_AFTER = 900.0
"""Virtual seconds after which a node has closed each connection whose peer vanished."""

SETTLES_WITHIN = 3600.0
"""Virtual seconds, without faults, after which everything has come to rest."""


def unsettled(database: Database, since: float, lease: float) -> dict[str, int]:
    """Return what has not come to rest yet, and how much of it.

    Whoever closes mailboxes has renewed its lease (of so many seconds) `since` then: what lasts may
    be that of a node that was killed.
    """
    (row,) = database.query(
        """
        SELECT (SELECT count(*) FROM relay.outbound_due WHERE isfinite(run_at)),
               (SELECT count(*) FROM relay.unsummarised),
               (SELECT count(*) FROM relay.token_queue q
                WHERE q.ready AND q.expires_at > extract(epoch FROM sim.now())),
               (SELECT count(*) FROM relay.device_inbox WHERE expires_at > sim.now()),
               (SELECT count(*) FROM relay.device_inboxes),
               (SELECT count(*) FROM relay.webhook_events WHERE given_up_at IS NULL),
               (SELECT count(*) FROM relay.returns),
               (SELECT count(*) FROM relay.outbound_notices WHERE action = 'failed'),
               (SELECT count(*) FROM relay.mailboxes
                WHERE is_active AND expires_at < sim.now() - interval '2 minutes'),
               (SELECT 1 - count(*) FROM relay.leases
                WHERE name = 'ticker' AND expires_at > to_timestamp(%s))
        """,
        [EPOCH + since + lease],
    )
    names = (
        *("outbound", "unsummarised", "tokens", "blobs", "inboxes", "webhooks", "returns"),
        "submitters to be told",
        *("mailboxes open after their end", "ticker missing"),
    )
    return {name: count for name, count in zip(names, row, strict=True) if count}


def violations(database: Database, history: History, now: float, rate: float | None) -> list[str]:
    """Return a sentence for every promise that was broken.

    `now`: virtual seconds.  `rate`: letters a second that the budget pays for; None: there is none.
    """
    return [
        *inbound.stored(database, history, now),
        *inbound.expiry(database),
        *outbound.sent(database, history),
        *outbound.wishes(history),
        *outbound.suppressed(database, history),
        *outbound.reports(database, history),
        *outbound.came_back(database, history),
        *outbound.signed(history),
        *outbound.secured(history),
        *letters.violations(database, history),
        *letters.budget(database, rate),
        *devices.violations(history, now),
        *webhooks.told(history, now),
        *webhooks.posts(history),
        *mailboxes.looks(history),
        *mailboxes.quotas(history),
        *history.late,
    ]


def half_open(network: Network, hosts: Sequence[str], now: float) -> list[str]:
    """Return a sentence for each connection that a node holds although its peer is long gone."""
    return [
        f"{host}: holds a connection with {other}, which vanished over {GIVEN_UP_AFTER:g} s ago"
        for host, other in network.held(hosts, now - GIVEN_UP_AFTER)
    ]


def names(database: Database, history: History, what: str) -> set[str]:
    """Return by what the trace names what a promise is about: its marker, its address, its id."""
    if not what:
        return set()
    # Of a message to several, what is told of all of them together.
    marker, _, recipient = what.partition("/")
    found = {*filter(None, (marker, recipient)), *history.ids.get(marker, ())}
    rows = database.query(
        """
        SELECT m.id::text
        FROM relay.messages m
        WHERE position(convert_to('Subject: ' || %(what)s || E'\\r', 'UTF8') IN m.raw_email) > 0
        UNION ALL
        SELECT o.id::text
        FROM relay.outbound_messages o
        WHERE o.subject = %(what)s OR o.recipient = %(what)s
        """,
        {"what": marker},
    )
    return found | {row[0] for row in rows}


def is_open(database: Database, address: str) -> bool:
    """Whether a mailbox is marked as one that takes mail."""
    database.tick()
    return bool(
        database.query("SELECT FROM relay.mailboxes WHERE address = %s AND is_active", [address])
    )
