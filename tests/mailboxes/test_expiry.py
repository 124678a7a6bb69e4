"""Flipping what is due: in order, by a leader alone, past nobody's lock, in batches that fit."""

import math
from uuid import uuid4

import pytest

from relay.db import leases
from relay.db.leases import Lease
from relay.db.pool import Pool
from relay.mailboxes.expiry import START, STATEMENT, flip, next_due, resized
from tests.actors.running import make_mailbox

ACTIVE = "SELECT count(*) FROM relay.mailboxes WHERE is_active"


@pytest.fixture
async def lease(pool: Pool) -> Lease:
    """The leader's."""
    lease = await leases.acquire(pool, "ticker", uuid4(), 30)
    assert lease is not None
    return lease


async def test_batches_go_on_where_the_one_before_ended(pool, lease):
    """What is due goes in the order of its time; what is not stays."""
    last = await make_mailbox(pool, -1)
    await make_mailbox(pool, -2)
    await make_mailbox(pool, -3)
    await make_mailbox(pool, 600)
    flipped, position = await flip(pool, lease, START, 2)
    assert flipped == 2
    assert position is not None
    assert await pool.fetch_value("SELECT is_active FROM relay.mailboxes WHERE id = %s", (last,))
    flipped, position = await flip(pool, lease, position, 2)
    assert flipped == 1
    assert position is not None
    assert position.id == last
    assert await flip(pool, lease, position, 2) == (0, None)
    assert await pool.fetch_value(ACTIVE) == 1


async def test_a_delivery_does_not_hide_its_mailbox(pool, lease):
    """A delivery under way (a key-share lock) keeps no mailbox from being flipped."""
    mailbox = await make_mailbox(pool, -1)
    async with pool.transaction() as conn:
        await conn.execute(
            "INSERT INTO relay.messages (mailbox_id, raw_email) VALUES (%s, 'x')", (mailbox,)
        )
        assert (await flip(pool, lease, START, 10))[0] == 1
        assert await pool.fetch_value(ACTIVE) == 0


async def test_without_the_lease_nothing_is_flipped(pool, lease):
    """A statement that comes after another has taken the lease changes nothing."""
    await make_mailbox(pool, -1)
    await leases.release(pool, lease)
    assert await flip(pool, lease, START, 10) == (0, None)
    assert await pool.fetch_value(ACTIVE) == 1


async def test_the_next_expiry_is_the_earliest_of_a_live_mailbox(pool, lease):
    """None when none lives; both instants are of one clock."""
    assert (await next_due(pool))[1] is None
    await make_mailbox(pool, -1)
    await flip(pool, lease, START, 10)
    await make_mailbox(pool, 100)
    await make_mailbox(pool, 200)
    now, due = await next_due(pool)
    assert due is not None
    assert 40 < due - now <= 100


def test_batches_aim_at_a_duration():
    """A batch that took long is followed by a smaller one, within limits."""
    assert resized(500, 500, 2 * STATEMENT) == 250
    assert resized(500, 500, STATEMENT / 2) == 1000
    assert resized(500, 400, 0.5) == 500
    assert resized(50, 50, math.inf) == 50
    assert resized(4000, 4000, 0.0) == 4000
