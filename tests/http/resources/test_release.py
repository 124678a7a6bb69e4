"""Releasing a received message over HTTP, and what a client is told of the relay."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.http.deps import MailPorts
from relay.outbound.suppression.suppressions import Suppressions
from tests.http.conftest import LETTER, House, open_house


async def captured(
    house: House,
    owner: dict[str, str] | None = None,
    raw: bytes = LETTER,
    sender: str = "bounce@example.org",
) -> str:
    """Make a mailbox with a message in it; the path of that message."""
    headers = owner or house.admin
    made = await house.client.post("/api/v1/mailboxes", headers=headers)
    address = made.json()["address"]
    return f"/api/v1/mailboxes/{address}/messages/{await house.deliver(address, raw, sender)}"


async def release(house: House, path: str, *to: str, **headers: str) -> httpx.Response:
    return await house.client.post(
        f"{path}/release", json={"to": list(to)}, headers=headers or house.admin
    )


def case(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


SERVED: dict[str, Any] = {"upstream": "smtp://mx.example:25", "release_to": ["*@example.org"]}


async def test_a_released_message_is_in_the_queue_byte_for_byte(database_url: str, pool: Pool):
    """202 as send; behind Resent- fields, with the reverse-path that it came with."""
    async with open_house(database_url, pool, **SERVED) as house:
        path = await captured(house)
        answer = await release(house, path, "me@example.org", "you@example.org")
        assert answer.status_code == 202, answer.text
        messages = answer.json()["messages"]
        assert [m["recipient"] for m in messages] == ["me@example.org", "you@example.org"]
        for message in messages:
            row = await pool.fetch_row(
                "SELECT sender, owner FROM relay.outbound_messages WHERE id = %s", (message["id"],)
            )
            assert row == ("bounce@example.org", ADMINISTRATOR_ID)
            raw = (await house.client.get(
                f"/api/v1/outbound/{message['id']}/raw", headers=house.admin
            )).content  # fmt: skip
            front, _, rest = raw.partition(LETTER[:20])
            assert LETTER[:20] + rest == LETTER
            assert front.startswith(b"Resent-From: bounce@example.org\r\nResent-To: me@example.org")


async def test_the_same_call_under_its_key_is_queued_once(database_url: str, pool: Pool):
    """The same answer again, also when several ask at once; 409 for other recipients or another
    message; without a key each call is one."""
    async with open_house(database_url, pool, **SERVED) as house:
        path, other = await captured(house), await captured(house)
        keyed = {**house.admin, "Idempotency-Key": "release 1"}
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(await release(house, path, "me@example.org", **keyed))

        async with trio.open_nursery() as nursery:
            for _ in range(4):
                nursery.start_soon(ask)
        assert [answer.status_code for answer in answers] == [202] * 4
        assert len({answer.text for answer in answers}) == 1
        for where, to in ((path, "you@example.org"), (other, "me@example.org")):
            refused = await release(house, where, to, **keyed)
            assert case(refused) == (409, "idempotency-key-reused")
        count = "SELECT count(*) FROM relay.outbound_messages"
        assert await pool.fetch_value(count) == 1
        for _ in range(2):
            assert (await release(house, path, "me@example.org")).status_code == 202
        assert await pool.fetch_value(count) == 3
        wrong = await release(house, path, "me@example.org", **{**keyed, "Idempotency-Key": ""})
        assert wrong.status_code == 422


async def test_what_may_not_be_released_is_not(database_url: str, pool: Pool):
    """403, 404, 409, 422: each with its case, and nothing queued."""
    async with open_house(database_url, pool, **SERVED) as house:
        path = await captured(house)
        for to in (["me@evil.example"], ["me@example.org", "x@evil.example"]):
            assert case(await release(house, path, *to)) == (403, "release-not-allowed")
        assert case(await release(house, path, "nobody")) == (422, "invalid")
        assert case(await release(house, path)) == (422, "invalid")
        missing = path.rpartition("/")[0] + "/00000000-0000-7000-8000-000000000000"
        assert case(await release(house, missing, "me@example.org")) == (404, "message-not-found")
        await Suppressions(pool).add(ADMINISTRATOR_ID, "no@example.org")
        assert case(await release(house, path, "no@example.org")) == (422, "suppressed")
        # Whoever may read mail may not send it on.
        address, token = await house.mailbox()
        own = f"/api/v1/mailboxes/{address}/messages/{await house.deliver(address)}"
        assert case(await release(house, own, "me@example.org", **token)) == (403, "missing-scope")
        reader = await house.key("read")
        theirs = await captured(house, reader)
        assert case(await release(house, theirs, "me@example.org", **reader))[0] in {403, 404}
        assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_letters") == 0


async def test_a_key_releases_only_what_it_might_send(database_url: str, pool: Pool):
    """Its own mailboxes' mail, from addresses that are its."""
    async with open_house(database_url, pool, **SERVED) as house:
        _, token = await house.keys.create("shop", ["read", "send"], senders=["@shop.example"])
        limited = {"Authorization": f"Bearer {token}"}
        path = await captured(house, limited)
        assert case(await release(house, path, "me@example.org", **limited)) == (
            403, "foreign-sender",
        )  # fmt: skip
        for sender, said, status in (
            ("ann@shop.example", "ann@shop.example", 202),
            ("ann@shop.example", "ceo@bank.example", 403),
            ("", "ann@shop.example", 202),
            ("", "ceo@bank.example", 403),
        ):
            raw = f"From: {said}\r\n\r\nx\r\n".encode()
            sent = await release(
                house, await captured(house, limited, raw, sender), "me@example.org", **limited
            )
            assert (sent.status_code, sender, said) == (status, sender, said)
        free = await house.key("read", "send")
        assert (
            await release(house, await captured(house, free), "me@example.org", **free)
        ).status_code == 202
        assert case(await release(house, path, "me@example.org", **free))[0] == 404


@pytest.mark.parametrize("upstream", ["loop:", "smtp://mx.example:25"])
async def test_nothing_is_released_into_the_loop(database_url: str, pool: Pool, upstream: str):
    """Neither by the relay's own upstream nor by a sender's: 409."""
    async with open_house(database_url, pool, **SERVED | {"upstream": upstream}) as house:
        path = await captured(house)
        if upstream != "loop:":
            sender = {"address": "bounce@example.org", "upstream": "loop:"}
            made = await house.client.post("/api/v1/senders", json=sender, headers=house.admin)
            assert made.status_code == 201
        assert case(await release(house, path, "me@example.org")) == (409, "no-upstream")


async def test_without_patterns_nobody_is_released_to(database_url: str, pool: Pool):
    """403, whoever asks."""
    async with open_house(database_url, pool, **SERVED | {"release_to": ()}) as house:
        path = await captured(house)
        refused = await release(house, path, "me@example.org")
        assert case(refused) == (403, "release-not-allowed")
        assert refused.json()["detail"].endswith("RELEASE_TO names nobody yet to release mail to.")


@pytest.mark.parametrize("upstream", ["smtp://mx.example:25", "loop:"])
async def test_a_client_learns_whether_mail_may_be_released(
    database_url: str, pool: Pool, upstream: str
):
    """Where an upstream leads out, the relay's or that of a sender of one's own."""
    async with open_house(database_url, pool, **SERVED | {"upstream": upstream}) as house:

        async def may(headers: dict[str, str]) -> bool:
            return bool((await house.client.get("/api/v1/info", headers=headers)).json()["release"])

        key = await house.key("send")
        assert await may(key) is (upstream != "loop:")
        for own, leads in (("loop:", upstream != "loop:"), ("smtp://127.0.0.1:25", True)):
            sender = {"address": "me@example.org", "upstream": own}
            made = await house.client.post("/api/v1/senders", json=sender, headers=house.admin)
            assert made.status_code in (200, 201)
            assert await may(house.admin) is leads


async def test_a_client_learns_where_the_relay_is(database_url: str, pool: Pool):
    """By any credential, and none without."""
    ports: dict[str, Any] = {
        "mail_ports": MailPorts(
            smtp="127.0.0.1:2525", pop3_tls="127.0.0.1:995", lmtp="/run/lmtp", starttls=True
        ),
        "captures": True,
        "version": "1.2.3",
    }
    async with open_house(database_url, pool, **ports) as house:
        assert (await house.client.get("/api/v1/info")).status_code == 401
        for headers in (house.admin, await house.key("read"), await house.key("send")):
            answer = await house.client.get("/api/v1/info", headers=headers)
            assert answer.json() == {
                "version": "1.2.3",
                "smtp": "127.0.0.1:2525",
                "lmtp": "/run/lmtp",
                "submission": None,
                "submission_tls": None,
                "pop3": None,
                "pop3_tls": "127.0.0.1:995",
                "starttls": True,
                "domains": ["relay.localhost"],
                "capture": True,
                "release": False,
                "public_url": f"http://127.0.0.1:{house.port}",
            }
