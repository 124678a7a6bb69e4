"""A claimer and a sender under a real supervisor, as the tree wires them."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import trio
from cryptography.fernet import Fernet

from actors import claimer, sender, writer
from actors.messages import Due, Wake
from relay.crypto import Vault
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.pacing.gates import Gates
from relay.outbound.pacing.shared_rates import SharedRates
from relay.outbound.queue.enqueue import FLUSH
from relay.outbound.queue.lanes import DueLane
from relay.outbound.queue.store import Queue
from relay.outbound.routing.senders import parse_upstream
from relay.outbound.shaping.traffic import Traffic
from relay.outbound.signing.signer import Signer
from relay.outbound.suppression.suppressions import Suppressions
from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec
from tests.actors.running import at_rest
from tests.eventually import eventually

REDACT_KEY = b"k" * 32


class Outbound:
    """The running pair."""

    def __init__(self, pool: Pool, vault: Vault, queue: Queue) -> None:
        self.pool = pool
        self.queue = queue
        self.vault = vault
        self.claimer: Mailbox[Any] = Mailbox("claimer", capacity=4096)
        self.sender: Mailbox[Any] = Mailbox("sender", capacity=64)
        self.writer: Mailbox[Any] = Mailbox("writer", on_dead=writer.dead)
        self.supervisor = Supervisor()
        self.gates: Gates

    def wake(self, *due_lanes: DueLane) -> None:
        """Say that something is due."""
        self.claimer.send_nowait(Due(due_lanes))

    def flush(self) -> None:
        """Say that an operator flushed the queue, as the listener does."""
        self.claimer.send_nowait(Wake(None, FLUSH))

    async def at_rest(self) -> None:
        """Wait until the claimer has read its messages, and what was begun has ended."""
        await eventually(
            lambda: self.claimer.statistics().depth, "its messages are read", until=lambda n: n == 0
        )
        await at_rest(self.pool)

    async def row(self, message_id: UUID) -> tuple[Any, ...]:
        """Status, attempts, seconds to the next attempt and error of a message."""
        row = await self.pool.fetch_row(
            """
            SELECT status, attempts, extract(epoch FROM next_retry_at - now())::float8, error_log
            FROM relay.outbound_messages
            WHERE id = %s
            """,
            (message_id,),
        )
        assert row is not None
        return tuple(row)

    async def becomes(self, message_id: UUID, status: str, attempts: int | None = None) -> Any:
        """Wait until a message has a status (and has been tried so often); returns its row."""
        return await eventually(
            lambda: self.row(message_id),
            f"it is {status}" + ("" if attempts is None else f" after {attempts} attempts"),
            until=lambda row: row[0] == status and attempts in (None, row[1]),
        )


@asynccontextmanager
async def running_outbound(
    pool: Pool,
    upstream: str,
    *,
    lease_timeout: float = 30.0,
    max_attempts: int = 10,
    concurrency: int = 8,
    retry_unit: float = 60.0,
    sweep_every: float = 0.5,
    within: float = 60.0,
    drain: bool = True,
    rates: SharedRates | None = None,
    domain_connections: int = 0,
    vault: Vault | None = None,
    right_of_way: RightOfWay | None = None,
    signer: Signer | None = None,
    hub: Hub | None = None,
    traffic: Traffic | None = None,
    **settings: Any,
) -> AsyncIterator[Outbound]:
    """Claim and deliver until the block ends, then drain; all `within` seconds."""
    vault = vault or Vault([Fernet.generate_key().decode()])
    queue = Queue(
        pool, uuid4(), lease_timeout=lease_timeout, max_attempts=max_attempts,
        direct=upstream == "mx:", expired=Suppressions(pool).count_expired,
    )  # fmt: skip
    running = Outbound(pool, vault, queue)
    gates = running.gates = Gates(concurrency, retry_unit, random.Random(1), cap=domain_connections)
    traffic = traffic or Traffic()
    send = partial(
        sender.run,
        pool=pool,
        queue=queue,
        claimer=running.claimer,
        writer=running.writer,
        gates=gates,
        vault=vault,
        right_of_way=right_of_way,
        signer=signer,
        hub=hub,
        traffic=traffic,
        settings=sender.DeliverySettings(
            parse_upstream(upstream),
            ("relay.localhost",),
            REDACT_KEY,
            concurrency=concurrency,
            retry_unit=retry_unit,
            **settings,
        ),
    )
    claim = partial(
        claimer.run,
        queue=queue,
        sender=running.sender,
        gates=gates,
        rates=rates,
        traffic=traffic,
        upstream=parse_upstream(upstream).url,
        sweep_every=sweep_every,
    )
    children = (
        ChildSpec("writer", partial(writer.run, pool=pool), mailbox=running.writer),
        ChildSpec("sender", send, mailbox=running.sender, drain_timeout=20.0),
        ChildSpec("claimer", claim, mailbox=running.claimer),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.supervisor.run, SupervisorSpec("root", children))
        with trio.fail_after(within):
            yield running
            running.supervisor.shutdown()
            if not drain:
                running.supervisor.shutdown()
