"""A one-time code goes before a backlog, whatever of it is claimed and under way already."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import trio
from psycopg.conninfo import make_conninfo

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from tests.eventually import eventually
from tests.faults.outbound import relay_process, started
from tests.outbound.sink import Session, Sink, running_sink

BACKLOG = 4600
MOST = 50
"""Deliveries that may go before it."""

FILL = """
    WITH ids AS (
        SELECT relay.uuidv7() AS id, clock_timestamp() AS at,
               'u' || n || '@' || %(domain)s AS address
        FROM generate_series(1, %(count)s) n
    ), contents AS (
        INSERT INTO relay.outbound_contents (id, sender, subject, text_body, size, created_at)
        SELECT id, 'news@example.org', 'News', 'text', 4, at
        FROM ids
    ), letters AS (
        INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, address, domain,
                                            priority, created_at)
        SELECT id, id, %(owner)s, address, address, %(domain)s, 2, at
        FROM ids
    )
    INSERT INTO relay.outbound_due (id, lane, run_at, priority)
    SELECT id, relay.outbound_lane(%(owner)s, %(domain)s), at, 2
    FROM ids
"""

IS_CLAIMED = """
    SELECT due.node IS NOT NULL
    FROM relay.outbound_letters JOIN relay.outbound_due due USING (id)
    WHERE address = %s
"""


class Gate:
    """A script that lets nothing more arrive while it is shut.

    Open, it takes what a server near by takes for a message: with 32 connections 1,600 a second.
    """

    def __init__(self) -> None:
        self.open = trio.Event()
        self.open.set()

    async def __call__(self, session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            await trio.sleep(0.02)
            await self.open.wait()
        return None


async def _before(sink: Sink, address: str, since: int) -> int:
    """How many the sink took after the first `since` and before this one."""
    await eventually(
        lambda: address in sink.recipients[since:], "the code arrives", within=40.0, every=0.05
    )
    return sink.recipients[since:].index(address)


@pytest.mark.parametrize("way", ["http", "sql"])
async def test_a_code_goes_before_4600_bulk(
    tmp_path: Path, pool: Pool, database_url: str, way: str
):
    """At most fifty deliveries come in between, counted where they arrive.

    It is claimed while all that is under way hangs, and not after any of it.
    """
    await pool.execute(
        FILL, {"count": BACKLOG, "domain": "bulk.example", "owner": ADMINISTRATOR_ID}
    )
    dsn = make_conninfo(database_url)
    code = "ada@code.example"

    def send() -> None:
        if way == "sql":
            with psycopg.connect(dsn, autocommit=True) as user:
                user.execute(
                    "SELECT relay.send('a@example.org', %s, 'Code', '123456', priority => 'high')",
                    (code,),
                )
            return
        with process.http() as http:
            answer = http.post(
                "/api/v1/messages/send",
                json={
                    "from": "a@example.org",
                    "to": [code],
                    "subject": "Code",
                    "text": "123456",
                    "priority": "high",
                },
            )
            answer.raise_for_status()

    gate = Gate()
    async with running_sink(gate) as sink:
        process = relay_process(
            tmp_path / "data", database_url, sink.url, RELAY_OUTBOUND__LEASE_TIMEOUT="300"
        )
        process.arguments = ("--only", "listener,claimer,sender,control")
        async with started(process):
            await sink.gets(BACKLOG // 6)
            # What would overtake it while it is being queued is under way, and counted after it.
            gate.open = trio.Event()
            since = len(sink.received)
            await trio.to_thread.run_sync(send)
            assert since < BACKLOG - 2 * MOST  # else there is nothing left to go before it
            # How soon a busy machine carries the notice is no matter of order.
            await eventually(lambda: pool.fetch_value(IS_CLAIMED, [code]), "it is claimed")
            gate.open.set()
            assert await _before(sink, code, since) <= MOST
