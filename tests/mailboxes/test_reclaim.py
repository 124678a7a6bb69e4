"""Deleting what was closed long ago: by rows and bytes, by a leader alone, and nothing younger."""

from uuid import UUID, uuid4

import pytest

from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool
from relay.mailboxes.reclaim import closed, delete_mailboxes, delete_messages
from tests.actors.running import make_mailbox

CLOSE = "UPDATE relay.mailboxes SET is_active = false, closed_at = now() - interval '8 days'"
WEEK = 7 * 86400.0


@pytest.fixture
async def lease(pool: Pool) -> Lease:
    """The leader's."""
    lease = await leases.acquire(pool, "reaper", uuid4(), 30)
    assert lease is not None
    return lease


async def filled(pool: Pool, sizes: list[int]) -> UUID:
    """A mailbox that was closed eight days ago, with messages of so many bytes."""
    mailbox: UUID = await make_mailbox(pool)
    for size in sizes:
        await pool.execute(
            "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, %s)",
            (mailbox, b"x" * size),
        )
    await pool.execute(CLOSE)
    return mailbox


async def test_large_messages_make_small_batches(pool, lease):
    """A batch ends with the message that brings it to 16 MB."""
    mailbox = await filled(pool, [9_000_000] * 5)
    assert await delete_messages(pool, lease, [mailbox]) == 2


async def test_a_batch_counts_rows_and_bytes(pool, lease):
    """Whichever limit is reached first; in the end nothing is left."""
    mailbox = await filled(pool, [100] * 5)
    assert await delete_messages(pool, lease, [mailbox], size=150) == 2
    assert await delete_messages(pool, lease, [mailbox], rows=1) == 1
    assert await delete_messages(pool, lease, [mailbox]) == 2
    assert await delete_messages(pool, lease, [mailbox]) == 0


async def test_what_was_made_active_meanwhile_stays(pool, lease):
    """It was found, and is not deleted; the other one is."""
    one, other = await filled(pool, []), await filled(pool, [])
    found = await closed(pool, retention=WEEK)
    assert set(found) == {one, other}
    await pool.execute("UPDATE relay.mailboxes SET is_active = true WHERE id = %s", (one,))
    assert await delete_mailboxes(pool, lease, found, retention=WEEK) == 1
    assert await pool.fetch("SELECT id FROM relay.mailboxes") == [(one,)]


async def test_without_the_lease_nothing_is_deleted(pool, lease):
    """A statement that comes after another has taken the lease changes nothing."""
    mailbox = await filled(pool, [100])
    await leases.release(pool, lease)
    assert await delete_messages(pool, lease, [mailbox]) == 0
    assert await delete_mailboxes(pool, lease, [mailbox], retention=WEEK) == 0
