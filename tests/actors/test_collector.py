"""The collector under a real supervisor, on a real database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import aclosing

import pytest
import trio

from actors.messages import SweepNow, Wake
from relay import log
from relay.access.owners import ADMINISTRATOR_ID
from relay.db.listen import Notification, notifications
from relay.db.pool import Pool
from relay.lifecycle.batching import Fixed
from relay.lifecycle.budget import Budget
from relay.outbound.queue.lanes import DueLane
from relay.outbound.suppression.suppressions import Suppressions
from tests.actors.running import a_turn, at_rest, becomes
from tests.lifecycle.checker import accepts
from tests.lifecycle.collecting import KEY, collecting, mailed
from tests.lifecycle.people import insert, set_status

QUEUED = "SELECT count(*) FROM relay.outbound_messages"
WAITING = "SELECT count(*) FROM relay.token_queue"


def batches() -> list[tuple[int, str]]:
    """Rows and reason of each batch logged since the log was set up."""
    return [
        (line["rows"], line["reason"])
        for line in log.ring.lines()
        if line["event"] == "collector.batch"
    ]


@pytest.fixture(autouse=True)
def fresh_log(monkeypatch):
    """A ring of the test's own."""
    monkeypatch.setattr(log, "ring", log.LogRing())
    log.configure("info")


async def test_an_account_becomes_a_letter(pool):
    """At once when idle: signed, linked, told to the claimer with its lane."""
    told: list[Collection[DueLane]] = []
    async with collecting(pool, wake_outbound=told.append) as (_, mailbox):
        await becomes(pool, QUEUED, 0)
        await insert(pool, prefix="ada")
        await mailbox.send(Wake())
        await becomes(pool, QUEUED, 1)
    row = await pool.fetch_row(
        """
        SELECT l.recipient, c.sender, c.subject, c.text_body
        FROM relay.outbound_letters l
        JOIN relay.outbound_contents c ON c.id = l.content_id
        """
    )
    assert row is not None
    recipient, sender, subject, text = row
    assert (recipient, sender) == ("ada1@example.org", "no-reply@shop.example")
    assert subject == "Activate your account"
    link = next(line for line in text.splitlines() if line.startswith("https://"))
    assert link.startswith("https://shop.example/activate?token=")
    assert accepts(KEY, link.partition("=")[2]) == "activate"
    (due_lanes,) = told
    assert [(due_lane.domain, due_lane.priority) for due_lane in due_lanes] == [("example.org", 1)]
    assert await pool.fetch_value(WAITING) == 0
    assert batches() == [(1, "drain")]


async def test_fifty_accounts_in_one_transaction_are_fifty_letters(pool):
    """One notification, five full batches: rows are counted in the table."""
    async with collecting(pool) as (_, mailbox):
        await insert(pool, 50)
        await mailbox.send(Wake())
        await becomes(pool, QUEUED, 50)
    assert len(set(await mailed(pool))) == 50
    # Either the start or the wake-up found them; none was larger than the limit.
    assert Counter(rows for rows, _ in batches()) == {10: 5}


async def test_the_documents_timing(pool):
    """Limit 3, five accounts: three at once, two when the batch timeout has passed."""
    await insert(pool, prefix="first")
    async with collecting(pool, law=Fixed, limit=3, timeout=0.4) as (_, mailbox):
        await becomes(pool, QUEUED, 1)  # the drain of the start is over
        await insert(pool, 5)
        began = trio.current_time()
        await mailbox.send(Wake())
        await becomes(pool, QUEUED, 6)
        assert trio.current_time() - began >= 0.35
    assert batches() == [(1, "drain"), (3, "limit"), (2, "timeout")]


async def test_what_was_queued_before_the_start_goes_at_once(pool):
    """Without any wake-up, under the fixed timing too."""
    await insert(pool, 7)
    async with collecting(pool, law=Fixed, limit=3, timeout=60.0):
        await becomes(pool, QUEUED, 7)
    assert batches() == [(3, "drain"), (3, "drain"), (1, "drain")]


@pytest.mark.parametrize("timing", [{}, {"law": Fixed, "timeout": 0.2}])
async def test_a_lost_wake_up_is_made_up_for(pool, timing):
    """Nobody announces anything: the sweep finds it."""
    async with collecting(pool, sweep_every=0.1, **timing):
        for count in (2, 4):  # the second time its start is over
            await insert(pool, 2, prefix=f"before{count}n")
            await becomes(pool, QUEUED, count)


async def test_an_account_that_fits_again_in_time_gets_its_letter(pool):
    """Suspended, nothing goes out; unsuspended, the letter does, once."""
    (number,) = await insert(pool)
    await set_status(pool, number, "suspended")
    async with collecting(pool) as (_, mailbox):
        await insert(pool, prefix="other")
        await mailbox.send(Wake())
        await becomes(pool, QUEUED, 1)
        assert await mailed(pool) == ["other1@example.org"]
        await set_status(pool, number, "active")
        await mailbox.send(SweepNow())
        await becomes(pool, QUEUED, 2)
        await mailbox.send(Wake())
    assert len(await mailed(pool)) == 2


async def test_recovery_goes_before_activation(pool):
    """Whoever waits in front of a form is served first, with a higher priority on the way out."""
    (number,) = await insert(pool, status="active", prefix="late")
    await insert(pool, 5, prefix="early")
    await pool.fetch_value("SELECT relay.recover_account(%s)", (number,))
    async with collecting(pool, limit=2):
        await becomes(pool, QUEUED, 6)
    assert (await mailed(pool))[0] == "late1@example.org"
    priorities = dict(await pool.fetch("SELECT recipient, priority FROM relay.outbound_letters"))
    assert priorities["late1@example.org"] == 0
    assert priorities["early1@example.org"] == 1


async def test_a_suppressed_recipient_holds_up_nobody(pool):
    """Its token is taken and reported by number; the rest of the batch goes out."""

    await Suppressions(pool).add(ADMINISTRATOR_ID, "many2@example.org", "complained")
    async with collecting(pool) as (_, mailbox):
        await insert(pool, 5, prefix="many")
        await mailbox.send(Wake())
        await becomes(pool, QUEUED, 4)
        await becomes(pool, WAITING, 0)
    assert "many2@example.org" not in await mailed(pool)
    (refused,) = [each for each in log.ring.lines() if each["event"] == "collector.refused"]
    assert refused["reason"] == "the recipient is suppressed"
    assert "many2" not in str(refused)


async def test_a_template_that_fails_on_one_account_holds_up_nobody(pool, tmp_path):
    """The same."""
    (tmp_path / "activation.txt").write_text("{{ link }} {{ 1 / (login | length - 4) }}")
    async with collecting(pool, templates=tmp_path) as (_, mailbox):
        await insert(pool, 10, prefix="ab")
        await insert(pool, 1, prefix="abc")  # abc1: four characters
        await mailbox.send(Wake())
        await becomes(pool, WAITING, 0)
    assert "abc1@example.org" not in await mailed(pool)
    assert len(await mailed(pool)) == 9  # ab10 has four, too


async def test_two_collectors_share_the_work(pool, database_url):
    """Each account gets one letter."""
    other = Pool(database_url)
    await insert(pool, 500)
    async with collecting(pool, limit=7), collecting(other, limit=11):
        await becomes(pool, QUEUED, 500)
    await other.close()
    assert len(set(await mailed(pool))) == 500


async def test_a_paused_collector_hands_nothing_over(pool, virtual):
    """Until it is resumed."""
    async with collecting(pool, sweep_every=1.0) as (supervisor, mailbox):
        await a_turn(mailbox, Wake())
        supervisor.pause("actor")
        await at_rest(pool)
        await insert(pool)
        await mailbox.send(Wake())
        virtual.jump(5.0)
        await at_rest(pool)
        assert await mailed(pool) == []
        supervisor.resume("actor")
        await becomes(pool, QUEUED, 1)


# A hundred letters a month: one at once, the next after hours.
SMALL = Budget(monthly=1.0, per_thousand=10.0)


async def test_a_budget_is_kept_over_restarts(pool):
    """One letter is paid for at the start, and none more after a restart; then what is saved."""
    await insert(pool, 5)
    for _ in range(3):
        async with collecting(pool, budget=SMALL) as (_, mailbox):
            await becomes(pool, QUEUED, 1)
            await a_turn(mailbox, SweepNow())
        assert len(await mailed(pool)) == 1
    assert await pool.fetch_value("SELECT spent FROM relay.token_budget") == 1
    # As if three letters' time had passed.
    await pool.execute("UPDATE relay.token_budget SET letters = letters + 3")
    async with collecting(pool, budget=SMALL):
        await becomes(pool, QUEUED, 4)
    assert await pool.fetch_value("SELECT spent FROM relay.token_budget") == 4
    assert await pool.fetch_value(WAITING) == 1


async def test_a_budget_is_shared(pool, database_url):
    """Two nodes spend one budget."""
    other = Pool(database_url)
    await pool.execute("UPDATE relay.token_budget SET at = now(), letters = 30")
    await insert(pool, 100)
    async with (
        collecting(pool, budget=SMALL, limit=4) as (_, mailbox),
        collecting(other, budget=SMALL, limit=3) as (_, others),
    ):
        await becomes(pool, QUEUED, 30)
        for each in (mailbox, others):
            await a_turn(each, SweepNow())
    await other.close()
    assert len(await mailed(pool)) == 30


async def test_what_is_not_sent_is_not_paid_for(pool):
    """A suppressed recipient costs nothing."""

    await Suppressions(pool).add(ADMINISTRATOR_ID, "few1@example.org", "complained")
    await pool.execute("UPDATE relay.token_budget SET at = now(), letters = 3")
    await insert(pool, 3, prefix="few")
    async with collecting(pool, budget=SMALL):
        await becomes(pool, QUEUED, 2)
    assert await pool.fetch_value("SELECT spent FROM relay.token_budget") == 2


async def test_without_a_claimer_here_the_other_nodes_are_told(pool, database_url):
    """By the queue's own channel, after the commit: of a recovery as of high mail, and of an
    activation after it as of any other."""
    (number,) = await insert(pool, status="active")
    async with (
        aclosing(notifications(database_url, ["relay_outbound"])) as heard,
        collecting(pool) as (_, mailbox),
    ):
        await anext(heard)  # LISTEN is in effect
        with trio.fail_after(20):
            await pool.fetch_value("SELECT relay.recover_account(%s)", (number,))
            await mailbox.send(Wake())
            assert await anext(heard) == Notification("relay_outbound", "high")
            await insert(pool, prefix="new")
            await mailbox.send(Wake())
            assert await anext(heard) == Notification("relay_outbound", "")


async def test_the_running_relay_is_woken_by_a_commit(relay):
    """Fifty accounts in one transaction: fifty letters, without anybody's sweep or second."""
    pool = Pool(relay.run["database_url"])
    count = "SELECT count(*) FROM relay.outbound_messages WHERE recipient LIKE 'woken%%'"
    await insert(pool, 50, prefix="woken")
    await becomes(pool, count, 50)
    await insert(pool, prefix="woken-last")  # behind whatever else there may be of the fifty
    await becomes(pool, count, 51)
    await pool.close()


async def test_a_batch_may_be_large(pool):
    """Written in parts, so that others run meanwhile, and still one transaction."""
    await insert(pool, 1_000)
    async with collecting(pool, limit=1_000):
        await becomes(pool, WAITING, 0)
        assert await pool.fetch_value(QUEUED) == 1_000
    assert batches() == [(1_000, "drain")]
