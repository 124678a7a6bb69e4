"""The loop: what the writer says of a message, in the words of SMTP."""

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.accepted import Accepted
from relay.db.pool import Pool
from relay.history import counters
from relay.outbound.delivery.loopback import Loopback
from relay.smtp.client import Mail, Verdict

MAIL = Mail("a@x.example", ("b@relay.localhost",), b"Subject: s\r\n\r\n")


def loopback(pool: Any, answer: Accepted | None, *, short: bool = False) -> Loopback:
    """A loop whose writer gives this answer; None: never one."""

    async def store(reverse_path: str, message_id: UUID, address: str, raw: bytes) -> Accepted:
        assert (reverse_path, address, raw) == ("a@x.example", "b@relay.localhost", MAIL.data)
        if answer is None:
            await trio.sleep_forever()
            raise AssertionError
        return answer

    space: Any = SimpleNamespace(short=lambda: short)
    rng = random.Random(1)
    return Loopback(pool, ["relay.localhost"], store, retry_unit=60.0, rng=rng, space=space)


@pytest.mark.parametrize(
    ("answer", "verdict", "code"),
    [
        (Accepted({"b@relay.localhost": UUID(int=1)}), Verdict.DELIVERED, 250),
        (Accepted({}), Verdict.BOUNCED, 550),
        (Accepted({}, full=frozenset({"b@relay.localhost"})), Verdict.DEFERRED, 452),
        (Accepted({}, error="the writer is full"), Verdict.DEFERRED, 451),
    ],
)
async def test_what_the_writer_says_becomes_a_reply(
    pool: Pool, answer: Accepted, verdict: Verdict, code: int
):
    """Stored, which is counted, no such mailbox, a full one, and what is not known."""
    before = counters()["looped"]
    found = await loopback(pool, answer).deliver(
        MAIL, uuid4(), "B@Relay.localhost", trio.current_time() + 10
    )
    assert (found.verdict, found.code) == (verdict, code)
    assert counters()["looped"] - before == (verdict is Verdict.DELIVERED)


async def test_a_foreign_domain_is_bounced_without_asking():
    """The loop leads to this relay's own domains alone."""
    found = await loopback(None, None).deliver(MAIL, uuid4(), "b@elsewhere.example", 0.0)
    assert (found.verdict, found.code, found.enhanced) == (Verdict.BOUNCED, 550, "5.1.2")


async def test_a_writer_that_does_not_answer_defers(autojump_clock: object):
    """By the deadline that the lease leaves."""
    found = await loopback(None, None).deliver(
        MAIL, uuid4(), "b@relay.localhost", trio.current_time() + 30
    )
    assert (found.verdict, found.text) == (Verdict.DEFERRED, "the mailbox was not reached")


def test_nothing_is_begun_while_the_disk_is_nearly_full():
    """It waits for about a quarter of a retry unit, and asks again."""
    assert loopback(None, None).wait() == 0.0
    assert 0.75 * 15 <= loopback(None, None, short=True).wait() <= 1.25 * 15
