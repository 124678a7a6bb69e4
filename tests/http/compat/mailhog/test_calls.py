"""MailHog's calls: how much an answer has, and what it holds."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from relay.db.pool import Pool
from relay.http.compat.mailhog.calls import AT_ONCE
from tests.eventually import eventually
from tests.http.compat.test_compat import MAILHOG, nested
from tests.http.conftest import SMALL, House, open_house, unread
from tests.http.resources.test_all_messages import mailbox_of


async def test_mailhogs_answer_is_bounded_by_its_own_size(house: House):
    """Whatever its parts in parts make of a message: a list ends early, one alone is cut."""
    address, _ = await house.mailbox()
    for length in (50_000, 50_000, 50_000, 900_000):
        await house.deliver(address, nested(5, length))
        listed = await house.client.get(f"{MAILHOG}/v2/messages", headers=house.admin)
        assert len(listed.content) <= AT_ONCE + 200
    found = listed.json()
    assert (found["total"], found["count"], len(found["items"])) == (4, 1, 1)
    (shown,) = found["items"]
    assert 0 < shown["Raw"]["Data"].count("\x01") < 900_000
    alone = await house.client.get(f"{MAILHOG}/v1/messages/{shown['ID']}", headers=house.admin)
    assert alone.json() == shown
    second = await house.client.get(f"{MAILHOG}/v2/messages?start=1", headers=house.admin)
    assert [one["Raw"]["Data"].count("\x01") for one in second.json()["items"]] == [50_000]


async def test_mailhogs_answer_is_held_until_it_was_sent(database_url: str, pool: Pool):
    """Who does not read it has a quarter of the memory that there is for such answers."""
    limits = replace(SMALL, download_bytes=128 << 20)
    async with open_house(database_url, pool, limits) as house:
        key = await house.key("read", "send")
        address = await mailbox_of(house, key)
        await house.deliver(address, nested(2, 150_000))
        path = f"{MAILHOG}/v2/messages"
        async with contextlib.AsyncExitStack() as peers:
            answers = [await unread(peers, house.port, path, key) for _ in range(3)]
            assert answers == [b"HTTP/1.1 200"] * 2 + [b"HTTP/1.1 503"]
            assert (await house.client.get(path, headers=house.admin)).status_code == 200
        await eventually(
            lambda: house.client.get(path, headers=key),
            "it is given again",
            until=lambda answer: answer.status_code == 200,
        )
