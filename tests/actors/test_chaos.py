"""Faults on demand from a client's side: replies, delays and broken connections."""

from __future__ import annotations

import pytest
import trio

from relay.mailboxes.capture import Capture
from relay.smtp.chaos import Chaos, Rate
from tests.smtp.service import Client, serving

CAPTURE = Capture.beside(["relay.localhost"], 3600.0, 100)


async def test_recipients_go_wrong_as_they_say(pool):
    """Each by itself; the others of the transaction get the message."""
    async with serving(pool, capture=CAPTURE, chaos=Chaos()) as service, service.client() as client:
        bob = await service.mailbox()
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        for name, reply in (
            ("550-5.1.1", "550 5.1.1"),
            ("451", "451 4.0.0"),
            ("x", "550 5.1.1"),
            ("drop-at-mail", "550 5.1.1"),
        ):
            said = await client.ask(f"RCPT TO:<{name}@chaos.relay.localhost>")
            assert said.startswith(reply), name
        began = trio.current_time()
        assert (await client.ask("RCPT TO:<slow-1s@chaos.relay.localhost>"))[:3] == "250"
        assert trio.current_time() - began >= 1.0
        assert (await client.ask(f"RCPT TO:<{bob}>"))[:3] == "250"
        assert (await client.ask("DATA"))[:3] == "354"
        assert (await client.ask("x\r\n.")).startswith("250 2.0.0 captured as ")
        assert sorted(address for address, _, _ in await service.stored()) == [
            bob,
            "slow-1s@chaos.relay.localhost",
        ]


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "dot"])
async def test_the_connection_breaks_where_it_is_asked_to(pool, phase):
    """Before the reply to that command, and nothing is stored."""
    address = f"drop-at-{phase}@chaos.relay.localhost"
    commands = {
        "mail": f"MAIL FROM:<{address}>" if phase == "mail" else "MAIL FROM:<a@b.example>",
        "rcpt": f"RCPT TO:<{address}>",
        "data": "DATA",
        "dot": "x\r\n.",
    }
    async with serving(pool, capture=CAPTURE, chaos=Chaos()) as service, service.client() as client:
        for name, command in commands.items():
            if name == phase:
                await client.send(command.encode() + b"\r\n")
                assert await client.replies() in ([], ["reset"])
                break
            assert (await client.ask(command))[0] in "23"
        assert await service.stored() == []


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "dot"])
async def test_a_share_of_commands_is_refused(pool, phase):
    """All of them here; without a rate the same session goes on, and nothing was stored before."""
    chaos = Chaos({phase: Rate(452, 1.0)})
    async with serving(pool, capture=CAPTURE, chaos=chaos) as service, service.client() as client:
        replies = [
            (await client.ask(command))[:3]
            for command in ("MAIL FROM:<a@b.example>", "RCPT TO:<ada@shop.example>", "DATA")
        ]
        if phase == "dot":
            replies.append((await client.ask("x\r\n."))[:3])
        assert replies[("mail", "rcpt", "data", "dot").index(phase)] == "452"
        assert await service.stored() == []
        chaos.rates = {}
        assert (await client.ask("RSET"))[:3] == "250"
        assert (await client.deliver(b"x\r\n", "ada@shop.example"))[:3] == "250"


async def test_a_reply_of_421_ends_the_session(pool):
    """As it says."""
    async with serving(pool, chaos=Chaos()) as service, service.client() as client:
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        await client.send(b"RCPT TO:<421@chaos.relay.localhost>\r\n")
        assert [reply[:3] for reply in await client.replies()] == ["421"]


async def test_where_it_is_off_nothing_goes_wrong(pool):
    """Its addresses are like any."""
    async with serving(pool, capture=CAPTURE) as service, service.client() as client:
        said = await client.deliver(b"x\r\n", "550@chaos.relay.localhost")
        assert said.startswith("250 2.0.0 captured as ")


async def test_who_is_named_by_a_proxy_meets_no_fault(pool):
    """Beyond this machine nothing goes wrong on demand, whatever stands before the relay."""
    chaos = Chaos({"mail": Rate(452, 1.0)})
    made = serving(pool, capture=CAPTURE, chaos=chaos, proxies=["127.0.0.2"])
    async with made as service:
        for named, reply in (("192.0.2.1", "250"), ("127.0.0.1", "452")):
            stream = await trio.open_tcp_stream(
                "127.0.0.1", service.port, local_address="127.0.0.2"
            )
            async with stream:
                client = Client(stream)
                await client.send(f"PROXY TCP4 {named} 127.0.0.1 1234 25\r\n".encode())
                assert (await client.reply())[:3] == "220"
                assert (await client.ask("EHLO c"))[:3] == "250"
                assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == reply
