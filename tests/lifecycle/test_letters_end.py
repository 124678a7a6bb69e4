"""A letter ends with its token: expired, consumed or deleted, it is not delivered any more."""

from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from relay.db.pool import Pool
from relay.lifecycle.letters import Letters
from relay.lifecycle.token_mailer import TokenMailer
from relay.outbound.admin import QueueAdmin
from relay.outbound.queue.states import Cause
from tests.lifecycle.collecting import KEY
from tests.lifecycle.people import insert, set_status, tokens
from tests.outbound.node import Node, put, status
from tests.outbound.running import running_outbound
from tests.outbound.sink import Session, running_sink


async def letter_to(node: Node, account: int) -> UUID:
    """Hand the account's token over; returns the id of its letter."""
    letters = Letters(sender="no-reply@shop.example", base="https://shop.example")
    handed = await TokenMailer(node.pool, letters, 10, 5.0).mail_batch(KEY)
    assert (handed.rows, handed.refused) == (1, ())
    (token,) = await tokens(node.pool, account)
    found: UUID = await node.pool.fetch_value(
        "SELECT id FROM relay.outbound_letters WHERE token = %s", (token["id"],)
    )
    return found


async def consume(pool: Pool, account: int) -> None:
    """Use the account's token, as SQL can."""
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1 WHERE account = %s", (account,))


async def delete(pool: Pool, account: int) -> None:
    """Delete the account, and its tokens with it."""
    await pool.execute("DELETE FROM relay.accounts WHERE id = %s", (account,))


async def expire(pool: Pool, account: int) -> None:
    """Have the account's token expire now."""
    await pool.execute(
        "UPDATE relay.tokens SET expires_at = floor(extract(epoch FROM now())) WHERE account = %s",
        (account,),
    )


async def test_a_held_letter_ends_with_its_token(node: Node):
    """Nobody could let it go any more."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    await QueueAdmin(node.pool).hold(letter)
    await consume(node.pool, account)
    assert await status(node.pool, letter) == "cancelled"


@pytest.mark.parametrize("end", [consume, delete])
async def test_what_waits_is_cancelled_with_its_token(node: Node, end):
    """In the same transaction as the consumption or the deletion, before any claim."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0, error="451 later")
    assert await status(node.pool, letter) == "queued"
    await end(node.pool, account)
    assert await status(node.pool, letter) == "cancelled"
    row = await node.pool.fetch_row(
        "SELECT error_log, attempts FROM relay.outbound_messages WHERE id = %s", (letter,)
    )
    assert row == ("expired", 1)


@pytest.mark.parametrize("end", [consume, delete, expire])
async def test_what_was_being_delivered_is_not_tried_again(node: Node, end):
    """A letter whose token ends while it is claimed is cancelled at its next turn."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    claimed = await node.claim()
    await end(node.pool, account)
    assert await status(node.pool, letter) == "processing"
    await node.finish(claimed, Cause.DEFERRED, delay=0.0, error="451 later")
    assert await node.claim() == []
    assert await status(node.pool, letter) == "cancelled"


async def test_an_expired_token_cancels_its_letter(node: Node):
    """Its deadline is the token's, also one that was moved forward while it waited."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    await expire(node.pool, account)
    batch = await node.look()
    assert (batch.messages, batch.expired) == ([], [letter])


async def test_a_token_that_lives_longer_takes_its_letter_along(node: Node):
    """Extended after the letter was queued, the letter is delivered after the first deadline."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    await node.finish(await node.claim(), Cause.DEFERRED, delay=3600.0, error="451 later")
    await node.pool.execute(
        "UPDATE relay.tokens SET expires_at = expires_at + 9000 WHERE account = %s", (account,)
    )
    await node.pool.execute("UPDATE relay.outbound_due SET run_at = now() WHERE id = %s", (letter,))
    (claimed,) = await node.claim()
    assert claimed.id == letter
    left = await node.pool.fetch_value(
        "SELECT extract(epoch FROM not_after - now())::float8 FROM relay.outbound_due"
    )
    assert left > 9000


async def test_a_suspended_accounts_letter_waits_for_the_end_of_the_suspension(node: Node):
    """Neither delivered nor cancelled while the account does not fit; delivered when it does."""
    (account,) = await insert(node.pool)
    letter = await letter_to(node, account)
    await set_status(node.pool, account, "suspended")
    assert await node.claim() == []
    assert await status(node.pool, letter) == "queued"
    await set_status(node.pool, account, "active")
    await node.pool.execute("UPDATE relay.outbound_due SET run_at = now() WHERE id = %s", (letter,))
    (claimed,) = await node.claim()
    assert (claimed.id, claimed.attempt) == (letter, 1)


async def test_other_mail_does_not_look_at_tokens(node: Node):
    """The look-up of a letter's token is skipped for what is no letter."""
    await node.pool.execute("SELECT relay.send('s@x.org', 'a@x.org', 'Hi', 'text')")
    (claimed,) = await node.claim()
    assert (claimed.letter_of, claimed.expired, claimed.parked) == (None, False, False)


async def test_a_letter_that_waited_in_the_sender_is_asked_about_again(
    pool: Pool, virtual: MockClock
):
    """Consumed while its connection was being opened, it is not delivered; other mail is."""
    opening, go = trio.Event(), trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "connect":
            opening.set()
            await go.wait()
        return None

    (account,) = await insert(pool)
    letter = await letter_to(Node(pool), account)
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        outbound.wake()
        await opening.wait()
        await consume(pool, account)
        virtual.jump(1.1)  # as long as a claimed letter is taken for wanted
        go.set()
        await outbound.becomes(letter, "cancelled")
        (other,) = await put(pool, "bob@y.example")
        outbound.wake()
        await outbound.becomes(other.id, "sent")
    assert sink.recipients == ["bob@y.example"]
