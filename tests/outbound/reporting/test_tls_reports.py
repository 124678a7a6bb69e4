"""Reports of TLS, from what was counted to who gets them: a database, a DNS and a web server."""

from __future__ import annotations

import gzip
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any
from uuid import uuid4

import pytest
import trio
from cryptography.fernet import Fernet

from relay.access.owners import REPORTS_ID
from relay.crypto import Vault
from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.outbound.composing.message import Address
from relay.outbound.mx.policy import NO_POLICY, Published
from relay.outbound.mx.tls_results import MOST_OF_DOMAIN, TlsResult, TlsResults
from relay.outbound.reporting.tls_reports import (
    KEPT,
    MOST_ATTEMPTS,
    MOST_OF_ORGANISATION,
    MOST_TO_ONE,
    TlsReports,
)
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.webhooks.post import Poster
from tests.certificates import Authority
from tests.dns.server import DnsServer
from tests.outbound.mx.test_sts import count
from tests.webhooks.receiver import Receiver

SENDER = Address("tls-reports@relay.example", "Shop")
TLSA = Published("tlsa", ("3 1 1 " + "ab" * 32,))
D = "shop.example"
GOOD = TlsResult(D, TLSA, "", "mx.example", "192.0.2.1")
BAD = TlsResult(D, NO_POLICY, "starttls-not-supported", "mx2.example", "192.0.2.2")


@dataclass
class Reporting:
    """One node that reports, and whom it asks and tells."""

    pool: Pool
    results: TlsResults
    reports: TlsReports
    zone: dict[tuple[str, str], list[str]]
    web: Receiver

    @property
    def url(self) -> str:
        """Where reports can be posted to."""
        return f"https://reports.example:{self.web.port}/r"

    def publish(self, *uris: str, domain: str = D) -> None:
        """Have a domain want reports there."""
        self.zone[f"_smtp._tls.{domain}", "TXT"] = [f'"v=TLSRPTv1; rua={",".join(uris)}"']

    async def yesterday(self, *results: TlsResult) -> None:
        """Have sessions been counted on a day that is over, even at midnight."""
        for result in results:
            self.results.count(result)
        await self.reports.store()
        await self.pool.execute("UPDATE relay.tls_results SET day = day - 2")

    async def round(self, lease: Lease | None = None) -> int:
        """Make what is due, as if the time for it had come; returns how many were."""
        if lease is None:
            lease = await leases.acquire(self.pool, "tls_reporter", uuid4(), 30.0)
            assert lease is not None
        await self.reports.due(lease)
        await self.pool.execute("UPDATE relay.tls_reports SET due_at = now()")
        due = await self.reports.due(lease)
        for one in due:
            await self.reports.make(one, lease)
        await leases.release(self.pool, lease)
        return len(due)

    async def mailed(self) -> list[tuple[str, bytes]]:
        """What was queued: to whom, and the message."""
        rows = await self.pool.fetch(
            """
            SELECT l.recipient, c.blob
            FROM relay.outbound_letters l JOIN relay.outbound_contents c ON c.id = l.content_id
            ORDER BY 1
            """
        )
        return [(recipient, bytes(blob)) for recipient, blob in rows]

    async def left(self) -> tuple[int, int]:
        """How many results and reports there are."""
        row = await self.pool.fetch_row(
            """
            SELECT (SELECT count(*) FROM relay.tls_results),
                   (SELECT count(*) FROM relay.tls_reports)
            """
        )
        assert row is not None
        return row[0], row[1]


@pytest.fixture
async def here(pool, tmp_path) -> AsyncIterator[Reporting]:
    """A node whose DNS and web server are here."""
    async with reporting(pool, tmp_path) as found:
        yield found


@asynccontextmanager
async def reporting(pool: Pool, folder: Any, *, private: bool = True) -> AsyncIterator[Reporting]:
    authority = Authority()
    web = Receiver(0)
    tls = authority.server(folder, ["reports.example"])

    async def serve(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, tls, server_side=True, https_compatible=True)
        await web.serve(stream)  # type: ignore[arg-type]
        await trio.aclose_forcefully(stream)

    zone: dict[tuple[str, str], list[str]] = {("reports.example", "A"): ["127.0.0.1"]}
    async with trio.open_nursery() as nursery:
        dns = await nursery.start(DnsServer(zone, ttl=0, negative=0).run)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        web.port = listeners[0].socket.getsockname()[1]
        resolver = Resolver([dns.address], failed_ttl=0)
        poster = Poster(
            allow_private=private,
            context=lambda: authority.trusting(ssl.create_default_context()),
            resolve=resolver.getaddrinfo,
        )
        results = TlsResults()
        reports = TlsReports(pool, results, resolver.ask, poster.post, sender=SENDER)
        await DkimKeys(pool, Vault([Fernet.generate_key().decode()])).create("relay.example")
        yield Reporting(pool, results, reports, zone, web)
        nursery.cancel_scope.cancel()


def written(body: bytes) -> Any:
    """What a report says."""
    return json.loads(gzip.decompress(body))


async def test_nodes_add_to_the_same_rows(here):
    """A row for each result of a day, whoever counted it; what is not counted writes nothing."""
    for _ in range(3):
        here.results.count(GOOD)
        here.results.count(BAD)
        await here.reports.store()
    await here.reports.store()
    rows = await here.pool.fetch("SELECT fault, count::integer FROM relay.tls_results ORDER BY 1")
    assert [tuple(row) for row in rows] == [("", 3), ("starttls-not-supported", 3)]


async def test_what_cannot_be_stored_is_stored_later(here):
    """An outage of the database costs nothing that was counted."""
    here.results.count(GOOD)
    await here.pool.execute("ALTER TABLE relay.tls_results RENAME TO away")
    with pytest.raises(Exception, match="tls_results"):
        await here.reports.store()
    await here.pool.execute("ALTER TABLE relay.away RENAME TO tls_results")
    await here.reports.store()
    assert await here.left() == (1, 0)


async def test_a_day_that_is_over_is_reported_by_mail(here):
    """Once, to all who want it; what it says is gone, and today's is not touched."""
    here.publish("mailto:a@shop.example", "mailto:b@other.example")
    await here.yesterday(GOOD, GOOD, BAD)
    here.results.count(GOOD)
    await here.reports.store()
    before = count("relay_tls_reports", outcome="mailed")
    assert await here.round() == 1
    (one, raw), (other, same) = await here.mailed()
    assert (one, other) == ("a@shop.example", "b@other.example")
    assert raw == same
    assert b"TLS-Report-Domain: shop.example\r\n" in raw
    assert await here.left() == (1, 0)
    assert await here.round() == 0
    assert len(await here.mailed()) == 2
    assert count("relay_tls_reports", outcome="mailed") == before + 1


async def test_a_report_is_posted(here):
    """Over verified HTTPS, with its type; one that fails is tried again, and there alone."""
    here.publish("mailto:a@shop.example", here.url)
    here.web.answers = [b"503 Not Now", b"201 Created"]
    await here.yesterday(GOOD, BAD)
    day: date = await here.pool.fetch_value("SELECT min(day) FROM relay.tls_results")
    assert await here.round() == 1
    assert await here.left() == (2, 1)
    assert await here.round() == 1
    assert await here.left() == (0, 0)
    assert len(await here.mailed()) == 1
    (head, body), (_, again) = here.web.got
    assert head["content-type"] == "application/tlsrpt+gzip"
    assert body == again
    report = written(body)
    assert [one["policy"]["policy-type"] for one in report["policies"]] == [
        "no-policy-found",
        "tlsa",
    ]
    assert report["date-range"]["start-datetime"] == f"{day}T00:00:00Z"


async def test_nothing_is_posted_into_this_network(pool, tmp_path):
    """A domain that names a private address gets nothing there, and is given up in the end."""
    async with reporting(pool, tmp_path, private=False) as here:
        here.publish(here.url)
        await here.yesterday(GOOD)
        for _ in range(MOST_ATTEMPTS):
            assert await here.round() == 1
        assert await here.left() == (0, 0)
        assert here.web.got == []


async def test_a_domain_that_wants_none_is_forgotten(here):
    """And one whose DNS fails is asked again."""
    fails = GOOD._replace(domain="servfail.example")
    await here.yesterday(GOOD, fails)
    here.zone["_smtp._tls.servfail.example", "CNAME"] = ["servfail.example."]
    here.zone["servfail.example", "CNAME"] = ["_smtp._tls.servfail.example."]
    assert await here.round() == 2
    assert await here.left() == (1, 1)
    del here.zone["_smtp._tls.servfail.example", "CNAME"]
    here.publish("mailto:a@shop.example", domain="servfail.example")
    assert await here.round() == 1
    assert await here.left() == (0, 0)
    assert len(await here.mailed()) == 1


async def test_who_leads_no_more_reports_nothing(here):
    """Its statements carry the term: whatever it does late changes nothing."""
    here.publish("mailto:a@shop.example")
    await here.yesterday(GOOD)
    old = await leases.acquire(here.pool, "tls_reporter", uuid4(), 30.0)
    assert old is not None
    await here.reports.due(old)
    await here.pool.execute("UPDATE relay.tls_reports SET due_at = now()")
    (due,) = await here.reports.due(old)
    await leases.release(here.pool, old)
    assert await here.reports.make(due, old) is None
    assert await here.mailed() == []
    assert await here.left() == (1, 1)
    assert await here.round() == 1
    assert len(await here.mailed()) == 1


async def test_a_suppressed_receiver_stops_nothing(here):
    """It is none that can be mailed to; the report is done."""
    here.publish("mailto:a@shop.example")
    await here.pool.execute(
        "INSERT INTO relay.suppressions (address, reason) VALUES ('a@shop.example', 'manual')"
    )
    await here.yesterday(GOOD)
    assert await here.round() == 1
    assert await here.mailed() == []
    assert await here.left() == (0, 0)


async def test_what_is_old_is_removed(here):
    """Whatever became of it."""
    await here.yesterday(GOOD)
    await here.pool.execute("UPDATE relay.tls_results SET day = day - %s", (KEPT,))
    assert await here.round() == 0
    assert await here.left() == (0, 0)


async def test_a_report_has_an_owner_of_its_own(here):
    """Not the administrator, whose suppressions hold for everybody."""
    here.publish("mailto:a@shop.example")
    await here.yesterday(GOOD)
    await here.round()
    assert await here.pool.fetch_value("SELECT owner FROM relay.outbound_letters") == REPORTS_ID


async def test_a_domain_has_so_many_results_a_day(here):
    """However many it makes there are, over minutes; none is lost, others have room."""
    for minute in range(4):
        for number in range(40):
            here.results.count(BAD._replace(host=f"mx{minute}-{number}.example"))
        here.results.count(GOOD)
        await here.reports.store()
    here.results.count(GOOD._replace(domain="other.example"))
    await here.reports.store()
    rows = await here.pool.fetch(
        """
        SELECT domain, fault, host, sum(count)::integer, count(*) OVER (PARTITION BY domain)
        FROM relay.tls_results GROUP BY 1, 2, 3
        """
    )
    of = [tuple(row) for row in rows if row[0] == D]
    assert len(of) <= MOST_OF_DOMAIN + 2
    assert sum(one[3] for one in of) == 4 * 41
    assert (D, "", "mx.example", 4) in [one[:4] for one in of]
    assert [one[3] for one in of if one[1:3] == ("validation-failure", "")] == [160 - 49]
    assert [row[3] for row in rows if row[0] == "other.example"] == [1]


async def test_an_organisation_gets_so_many_reports_a_day(here):
    """Its other domains' are forgotten; those of another come in the first round all the same."""
    many = [f"d{number}.many.example" for number in range(60)]
    for domain in [*many, D]:
        here.publish(f"mailto:a@{domain}", domain=domain)
    await here.yesterday(*(GOOD._replace(domain=domain) for domain in many))
    await here.yesterday(GOOD)
    while await here.round():
        pass
    mailed = [to for to, _ in await here.mailed()]
    assert len(mailed) == MOST_OF_ORGANISATION + 1
    assert f"a@{D}" in mailed
    assert await here.left() == (0, 0)


async def test_who_has_many_domains_is_behind_who_has_one(here):
    """A round has the first of each, however early the many are due."""
    await here.yesterday(*(GOOD._replace(domain=f"d{n}.many.example") for n in range(60)))
    await here.yesterday(GOOD)
    lease = await leases.acquire(here.pool, "tls_reporter", uuid4(), 30.0)
    assert lease is not None
    await here.reports.due(lease)
    await here.pool.execute(
        "UPDATE relay.tls_reports SET due_at = now() - interval '1 h' * (domain <> %s)::integer",
        (D,),
    )
    assert D in [one.domain for one in (await here.reports.due(lease))[:2]]


async def test_an_address_gets_so_many_reports_a_day(here):
    """Whoever names it."""
    domains = [f"d{number}.example" for number in range(MOST_TO_ONE + 5)]
    for domain in domains:
        here.publish("mailto:Victim@shop.example", domain=domain)
    await here.yesterday(*(GOOD._replace(domain=domain) for domain in domains))
    while await here.round():
        pass
    assert len(await here.mailed()) == MOST_TO_ONE
    assert await here.left() == (0, 0)


async def test_no_report_is_mailed_that_would_not_be_signed(here):
    """It is posted all the same, and mailed again once there is a key."""
    await here.pool.execute("UPDATE relay.dkim_keys SET state = 'standby', activated_at = NULL")
    here.publish("mailto:a@shop.example", here.url)
    await here.yesterday(GOOD)
    assert await here.round() == 1
    assert await here.mailed() == []
    assert len(here.web.got) == 1
    assert await here.left() == (0, 0)
    await here.pool.execute("UPDATE relay.dkim_keys SET state = 'active', activated_at = now()")
    await here.yesterday(GOOD)
    assert await here.round() == 1
    assert [to for to, _ in await here.mailed()] == ["a@shop.example"]
