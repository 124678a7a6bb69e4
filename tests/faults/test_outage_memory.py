"""What a relay's memory does while the servers of its mail are away for many rounds of retries."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from relay.outbound.queue.enqueue import announce
from tests.clients.test_upstreams import free_port
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.faults.outbound import finished, relay_process, started
from tests.outbound.node import put
from tests.outbound.sink import running_sink
from tests.stalling import resident

TO_ONE = 10_000
DOMAINS, EACH = 200, 10
AT = "127.0.0.61"
ROUNDS, A_ROUND = 8, 2_000
GROWTH = 4 << 20
"""Bytes that it may have grown by from the second round to the last: what is kept of so many more
failures (pauses, outcomes on their way to the log), and nothing for each."""


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_an_outage_costs_no_memory_but_what_its_mail_takes(
    pool, database_url: str, tmp_path: Path, capsys
):
    """10,000 mails to one domain that is away and 2,000 to 200 others, tried 16,000 times:
    the relay does not grow; when the servers are back each is delivered, once."""
    port = free_port()
    zone: dict[tuple[str, str], list[str]] = {}
    for domain in ("dead.example", *(f"d{number}.example" for number in range(DOMAINS))):
        zone[domain, "MX"] = [f"10 mx.{domain}."]
        zone[f"mx.{domain}", "A"] = [AT]
    addresses = [f"a{number}@dead.example" for number in range(TO_ONE)]
    addresses += [f"a{n}@d{number}.example" for number in range(DOMAINS) for n in range(EACH)]
    for start in range(0, len(addresses), 500):
        await put(pool, *addresses[start : start + 500])
    async with trio.open_nursery() as nursery:
        names: DnsServer = await nursery.start(DnsServer(zone).run)
        relay = relay_process(
            tmp_path / "relay",
            database_url,
            "mx:",
            RELAY_OUTBOUND__RETRY_UNIT="0.05",
            RELAY_OUTBOUND__MAX_ATTEMPTS="100",
            RELAY_OUTBOUND__PRIVATE_MX="true",
            RELAY_OUTBOUND__MX_PORT=str(port),
            RELAY_DNS__SERVERS="{}:{}".format(*names.address),
            RELAY_LOG__LEVEL="error",
        )
        async with started(relay):
            sizes = []
            for number in range(1, ROUNDS + 1):
                await eventually(
                    lambda: pool.fetch_value("SELECT count(*) FROM relay.outbound_tries"),
                    f"{number * A_ROUND} deliveries have failed",
                    until=lambda tries, wanted=number * A_ROUND: tries >= wanted,  # type: ignore[misc]
                    within=120.0,
                    every=0.2,
                )
                sizes.append(resident(relay.pid))
            with capsys.disabled():
                print("\nMB by round:", *(f"{size / (1 << 20):.1f}" for size in sizes))
            assert sizes[-1] - sizes[1] < GROWTH, sizes
            async with running_sink(host=AT, port=port) as sink:
                await pool.execute(
                    "UPDATE relay.outbound_due SET run_at = now() WHERE node IS NULL"
                )
                await announce(pool)
                await finished(pool, len(addresses), within=120.0)
                assert sorted(sink.recipients) == sorted(addresses)
        nursery.cancel_scope.cancel()
