"""The device store: runs the store of the device inboxes, and reaps what has expired in it.

Promises:
- Ready when the store answers.  Sessions and HTTP calls come and go with their own actors; the
  store stays, and ends after them.
- Blobs past their time are reaped every `reap_every` seconds, a batch a transaction.  With a store
  that nodes share, one of them does it at a time, under the lease `keeper` (the name that this
  actor had).
- `Report` logs what waits.

Fails: when the store is not to be touched (a newer relay's, not ours), and when its file could not
be opened for some seconds.  Supervision tries again, and meanwhile whoever calls the store gets
`StoreUnavailable`.  A short outage is the store's to wait out; a round that it cuts off is taken
again soon.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from uuid import UUID

import trio
from prometheus_client import Counter

from actors.periodic import wait_for_messages
from relay import metrics
from relay.chance import new_rng, uuid4
from relay.db import leases
from relay.db.pool import Pool
from relay.devices.store import InboxStore, StoreUnavailable
from relay.errors import DatabaseUnavailable
from relay.jitter import jittered
from relay.log import get_logger
from supervisor import Context, Drained

log = get_logger()

_REAPED = Counter(
    "relay_devices_reaped_blobs", "Blobs that expired undelivered.", registry=metrics.registry
)

_LEASE = "keeper"
_LEASE_TTL = 30.0  # s; renewed before each batch, and left to run out: the next is far off
_BATCH = 500
_RETRY = 10.0  # s; after an outage, or while another node reaps


async def run(
    ctx: Context,
    *,
    store: InboxStore,
    reap_every: float,
    shared: Pool | None = None,
    rng: random.Random | None = None,
) -> None:
    """Run `store` until drained; `reap_every` in seconds; `shared`: the database nodes share."""
    rng = rng or new_rng()
    node = uuid4()
    gathered = _gather(store)
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            ctx.ready()
            try:
                while True:
                    finished = await _reap(store, ctx.beat, shared, node)
                    seconds = reap_every if finished else min(_RETRY, reap_every)
                    again_at = trio.current_time() + jittered(seconds, rng)
                    while (left := again_at - trio.current_time()) > 0:
                        if await wait_for_messages(ctx, left):
                            _report(store)  # a `Report`: it hears nothing else
            except Drained:
                nursery.cancel_scope.cancel()
    finally:
        metrics.registry.unregister(gathered)


def _report(store: InboxStore) -> None:
    now = store.statistics()
    log.info(
        "actor.report",
        blobs=now.blobs,
        bytes=now.bytes,
        inboxes=now.inboxes,
        oldest_age=now.oldest_age,
        waiting=now.waiting,
    )


async def _reap(
    store: InboxStore, beat: Callable[[], None], shared: Pool | None, node: UUID
) -> bool:
    """Reap everything that has expired.  False when it could not (outage, another node does)."""
    total, more = 0, True
    try:
        while more:
            if shared is not None and not await leases.acquire(shared, _LEASE, node, _LEASE_TTL):
                return False
            reaped = await store.reap(_BATCH)
            total += reaped
            more = reaped > 0
            beat()
    except (StoreUnavailable, DatabaseUnavailable) as error:
        log.warning("devices.not_reaped", reason=str(error))
        return False
    finally:
        _REAPED.inc(total)
        if total:
            log.info("devices.reaped", blobs=total)
    return True


def _gather(store: InboxStore) -> metrics.Collector:
    """Let each scrape read the store's own figures."""

    def rows() -> metrics.Rows:
        now = store.statistics()
        yield (
            store.name,
            {
                "relay_devices_blobs": float(now.blobs),
                "relay_devices_bytes": float(now.bytes),
                "relay_devices_inboxes": float(now.inboxes),
                "relay_devices_oldest_seconds": now.oldest_age,
                "relay_devices_store_waiting": float(now.waiting),
            },
        )

    return metrics.gather(
        {
            "relay_devices_blobs": "Blobs that wait for their devices.",
            "relay_devices_bytes": "Bytes of their envelopes.",
            "relay_devices_inboxes": "Devices for which something waits.",
            "relay_devices_oldest_seconds": "Age of the oldest blob that waits.",
            "relay_devices_store_waiting": "Calls that wait for the store.",
        },
        "store",
        rows,
    )
