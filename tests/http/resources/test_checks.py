"""Would the world take this mail: over HTTP, with a real parser process and a real DNS server."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import trio

from relay.db.pool import Pool
from relay.dns.resolver import Resolver
from relay.http.probes.links import Links
from relay.mailboxes.parser import Parser
from relay.mailboxes.verdicts import Judge
from relay.webhooks.post import Poster
from tests.checks.signing import ed25519_key, record, rsa_key, sign
from tests.dns.server import DnsServer
from tests.eventually import eventually
from tests.http.conftest import House, open_house

PLAIN = (
    b"From: Ann <ann@example.com>\r\nTo: bob@example.net\r\nSubject: a\r\n"
    b"Date: Sun, 1 Nov 2026 08:00:00 +0000\r\nMessage-ID: <1@example.com>\r\n"
    b"List-Unsubscribe: <https://example.com/u>\r\n"
    b"List-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n\r\nHello.\r\n"
)
HTML = (
    b"From: ann@policy.example\r\nSubject: a\r\nContent-Type: text/html\r\n\r\n"
    b"<p style='display: flex'>Hello <img src='https://cdn.example/a.png'></p>\r\n"
)
ZONE = {
    ("s._domainkey.example.com", "TXT"): [f'"{record(rsa_key())}"'],
    ("t._domainkey.example.com", "TXT"): [f'"{record(ed25519_key())}"'],
    ("_dmarc.example.com", "TXT"): ['"v=DMARC1; p=reject"'],
    ("_dmarc.policy.example", "TXT"): ['"v=DMARC1; p=quarantine"'],
}


@pytest.fixture
async def names(nursery: trio.Nursery) -> DnsServer:
    server: DnsServer = await nursery.start(DnsServer(dict(ZONE)).run)
    return server


@pytest.fixture
async def asking(database_url: str, pool: Pool, names: DnsServer) -> AsyncIterator[House]:
    """A running control plane that asks the tests' DNS."""
    async with open_house(database_url, pool, dns=names.address[:2]) as running:
        yield running


async def checked(house: House, raw: bytes) -> httpx.Response:
    address, token = await house.mailbox()
    return await check(house, address, await house.deliver(address, raw), token)


async def check(
    house: House, address: str, message_id: object, headers: dict[str, str], **query: str
) -> httpx.Response:
    path = f"/api/v1/mailboxes/{address}/messages/{message_id}/checks"
    return await house.client.get(path, headers=headers, params=query)


def results(answer: httpx.Response) -> tuple[str, ...]:
    assert answer.status_code == 200, answer.text
    said = answer.json()
    return tuple(said[name]["result"] for name in ("spf", "dkim", "dmarc"))


async def test_a_signed_message_passes(asking: House):
    """By RSA and by Ed25519; SPF is none for mail of which nobody knows the client."""
    for raw in (sign(PLAIN, rsa_key()), sign(PLAIN, ed25519_key(), selector="t")):
        answer = await checked(asking, raw)
        assert results(answer) == ("none", "pass", "pass")
        said = answer.json()
        assert set(said) == {"spf", "dkim", "dmarc", "score", "reasons", "findings"}
        assert (said["score"], said["reasons"]) == (10.0, [])
        assert said["findings"] == []
        assert "signed by example.com" in said["dkim"]["detail"]
        assert "aligned with example.com" in said["dmarc"]["detail"]


async def test_what_is_wrong_is_said(asking: House):
    """A broken signature, an unsigned message, and HTML that readers will not see as it is."""
    answer = await checked(asking, sign(PLAIN, rsa_key()).replace(b"Hello", b"Bye"))
    assert results(answer) == ("none", "fail", "fail")
    assert answer.json()["dkim"]["detail"] == "example.com: the body is not what was signed"
    answer = await checked(asking, HTML)
    assert results(answer) == ("none", "none", "fail")
    said = answer.json()
    assert "p=quarantine" in said["dmarc"]["detail"]
    assert {one["id"]: one["severity"] for one in said["findings"]}.items() >= {
        "no-list-unsubscribe": "note",
        "no-text-part": "warning",
        "images-without-alt": "warning",
        "remote-images": "note",
        "support-css-display-flex": "note",
    }.items()
    assert 0 < said["score"] < 6
    assert {"-3 DMARC is fail", "-1 no-text-part"} <= set(said["reasons"])
    assert abs(sum(float(one.split()[0]) for one in said["reasons"]) + 10 - said["score"]) < 0.06


async def test_a_message_does_not_count_as_read_by_it(asking: House):
    """Looking at what the world would say is not reading."""
    address, token = await asking.mailbox()
    message_id = await asking.deliver(address, PLAIN)
    assert (await check(asking, address, message_id, token)).status_code == 200
    (entry,) = (
        await asking.client.get(f"/api/v1/mailboxes/{address}/messages", headers=token)
    ).json()
    assert entry["is_read"] is False


async def test_a_failure_of_the_dns_is_said(asking: House):
    """SERVFAIL is temperror, with the reason."""
    answer = await checked(asking, sign(PLAIN, rsa_key(), selector="servfail"))
    assert results(answer) == ("none", "temperror", "temperror")
    assert "SERVFAIL" in answer.json()["dkim"]["detail"]


async def test_a_dns_that_is_silent_holds_nobody_up(database_url: str, pool: Pool):
    """Within its time the answer says that nobody answered; others are served meanwhile."""
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as udp:
        await udp.bind(("127.0.0.1", 0))
        resolver = Resolver([udp.getsockname()], server_timeout=0.5)
        judge = Judge(lambda: resolver, receiver="relay.example", timeout=2.0).judge
        async with open_house(database_url, pool, judge=judge) as house:
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await checked(house, sign(PLAIN, rsa_key())))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await udp.recvfrom(512)  # it was asked
                began = time.monotonic()
                assert (await house.client.get("/healthz")).status_code == 200
                assert time.monotonic() - began < 2
                assert not answers
            assert results(answers[0]) == ("none", "temperror", "temperror")
            assert "no answer within" in answers[0].json()["dkim"]["detail"]


async def test_whose_it_is_not_is_not_told(asking: House):
    """Unknown, another mailbox's, another owner's: 404; no scope that reads: 403."""
    mine, theirs = [await asking.key("read") for _ in range(2)]
    made = await asking.client.post("/api/v1/mailboxes", headers=mine)
    address = made.json()["address"]
    message_id = await asking.deliver(address, PLAIN)
    assert (await check(asking, address, message_id, mine)).status_code == 200
    assert (await check(asking, address, message_id, asking.admin)).status_code == 200
    assert (await check(asking, address, message_id, theirs)).status_code == 404
    assert (await check(asking, address, message_id, {})).status_code == 404
    for missing in ("00000000-0000-7000-8000-000000000000", "nonsense"):
        assert (await check(asking, address, missing, mine)).status_code == 404
    other, token = await asking.mailbox()
    assert (await check(asking, other, message_id, token)).status_code == 404
    assert (await check(asking, address, message_id, mine, x="1")).status_code == 422
    await asking.expire(address)
    assert (await check(asking, address, message_id, mine)).status_code == 404


async def test_a_message_of_many_megabytes_is_checked(asking: House):
    """The largest that is taken by default, in HTML."""
    row = b"<tr><td><img src='https://cdn.example/a.png'><a href='https://a.example/'>x</a></td></tr>\r\n"
    raw = sign(HTML + row * (25 * 2**20 // len(row)), rsa_key(), names=("from",))
    answer = await checked(asking, raw)
    assert results(answer)[1] == "pass"
    assert "clipped-by-gmail" in {one["id"] for one in answer.json()["findings"]}


async def test_a_message_that_hangs_the_parser_is_said_to(database_url: str, pool: Pool):
    """503 with the reason, and the next message is checked by a new process."""
    async with Parser() as parser, open_house(database_url, pool, examine=parser.examine) as house:
        assert (await checked(house, PLAIN)).status_code == 200
        pid = parser.pid
        assert pid is not None
        parser.deadline = 0.3
        os.kill(pid, signal.SIGSTOP)  # as by a message that takes for ever
        answer = await checked(house, PLAIN)
        assert answer.status_code == 503
        assert answer.json()["type"].endswith("/unavailable")
        assert "could not be examined: not parsed within 0.3 s" in answer.json()["detail"]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        parser.deadline = 5.0
        assert (await checked(house, PLAIN)).status_code == 200


async def test_links_are_asked_on_demand_alone(database_url: str, pool: Pool):
    """With `links=true`; those that lead into this network are not asked even then."""
    raw = PLAIN + b"https://127.0.0.1:1/x http://localhost:1/\r\n"
    async with open_house(database_url, pool, links=Links(Poster(timeout=5.0))) as house:
        address, token = await house.mailbox()
        wanted = await house.deliver(address, raw)
        answer = await check(house, address, wanted, token)
        assert answer.json()["findings"] == []
        asked = await check(house, address, wanted, token, links="true")
        assert [one["id"] for one in asked.json()["findings"]] == ["link-not-asked"] * 2
        assert asked.json()["score"] == answer.json()["score"] - 2
        assert (await check(house, address, wanted, token, links="maybe")).status_code == 422


async def test_one_owner_has_not_all_the_turns(asking: House, names: DnsServer):
    """Who asks for many at once waits for its own; another's answer does not wait for them."""
    names.gate = trio.Event()
    address, token = await asking.mailbox()
    raw = sign(PLAIN, rsa_key())
    wanted = await asking.deliver(address, raw)
    other = await asking.key("read")
    made = await asking.client.post("/api/v1/mailboxes", headers=other)
    theirs = made.json()["address"]
    unasked = await asking.deliver(theirs, PLAIN.replace(b"From: Ann <ann@example.com>\r\n", b""))
    done: list[int] = []

    async def ask() -> None:
        done.append((await check(asking, address, wanted, token)).status_code)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(ask)
        await eventually(lambda: names.held, "the DNS is asked", until=bool)
        answer = await check(asking, theirs, unasked, other)
        assert results(answer) == ("none", "none", "permerror")
        assert not done
        names.gate.set()
    assert done == [200] * 10
