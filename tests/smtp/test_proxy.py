"""The PROXY protocol in front of SMTP: who is asked for it, and who counts then."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from relay.ports.trusted_proxies import UNNAMED
from relay.smtp.limits import SmtpLimits
from tests.ports.test_proxy import ONE, OTHER, version2
from tests.smtp import service as services
from tests.smtp.service import Client, Service

PROXY = "127.0.0.2"


@pytest.fixture(params=[services.serving, services.serving_by_loaded_processes])
def serving(request):
    """Ingest that trusts one proxy, with its sessions in this process, and in others."""
    return lambda pool, **options: request.param(pool, proxies=[PROXY], **options)


@asynccontextmanager
async def by_proxy(service: Service, first: bytes) -> AsyncIterator[Client]:
    """A connection of the proxy, and what it says first."""
    made = await trio.open_tcp_stream("127.0.0.1", service.port, local_address=PROXY)
    with trio.fail_after(30):
        async with made as stream:
            await stream.send_all(first)
            yield Client(stream)


@pytest.mark.parametrize("header", [ONE, version2("192.0.2.1"), version2("2001:db8::1")])
async def test_mail_comes_by_a_proxy(pool, serving, header):
    """With the header whole, or one byte after another, or all that follows in one segment."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with by_proxy(service, header) as client:
            assert (await client.reply())[:3] == "220"
            assert (await client.ask("EHLO client.example"))[:3] == "250"
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        async with by_proxy(service, b"") as client:
            for byte in header:
                await client.send(bytes([byte]))
                await trio.sleep(0.001)
            assert (await client.reply())[:3] == "220"
        mail = b"EHLO c\r\nMAIL FROM:<a@b.example>\r\nRCPT TO:<%b>\r\nDATA\r\n" % bob.encode()
        async with by_proxy(service, header + mail + b"y\r\n.\r\nQUIT\r\n") as client:
            replies = [reply[:3] for reply in await client.replies()]
        assert replies == ["220", "250", "250", "250", "354", "250", "221"]
        assert len(await service.stored()) == 2


async def test_a_proxy_must_say_it_and_others_must_not(pool, serving):
    """A connection of the proxy's without it ends without a word; from another it is no command."""
    async with serving(pool, limits=SmtpLimits(proxy_timeout=0.5)) as service:
        for first in (b"EHLO client.example\r\n", b"PROXY TCP4 1.2.3.4\r\n", b"", b"PROXY TC"):
            async with by_proxy(service, first) as client:
                assert await client.replies() in ([], ["reset"])
        for header in (ONE, version2("192.0.2.1")):
            async with service.raw_client() as client:
                assert (await client.reply())[:3] == "220"
                await client.send(header + b"\r\n")
                assert (await client.reply())[:3] == "500"


async def test_silent_connections_of_a_proxy_keep_nobody_out(pool, serving):
    """However many wait: the one that has waited longest is closed for the next."""
    async with serving(pool, limits=SmtpLimits(proxy_timeout=60.0)) as service:
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", service.port), source_address=(PROXY, 0))
                )
                for _ in range(UNNAMED)
            ]
            async with by_proxy(service, ONE) as client:
                assert (await client.reply())[:3] == "220"
                with trio.fail_after(10):
                    assert await trio.to_thread.run_sync(silent[0].recv, 1) == b""
            for each in silent[1:]:
                each.setblocking(False)
                with pytest.raises(BlockingIOError):
                    each.recv(1)
            silent[1].sendall(OTHER)
            silent[1].setblocking(True)
            silent[1].settimeout(10)
            assert (await trio.to_thread.run_sync(silent[1].recv, 4)) == b"220 "


async def test_who_is_named_counts_and_the_proxy_does_not(pool, serving):
    """Each address that a proxy names has the places of a peer; the proxy itself has no limit."""
    limits = SmtpLimits(max_connections_per_peer=2, idle_patience=600)
    async with serving(pool, limits=limits) as service, contextlib.AsyncExitStack() as stack:
        for header in (ONE, OTHER, ONE, OTHER):
            client = await stack.enter_async_context(by_proxy(service, header))
            assert (await client.reply())[:3] == "220"
        for header in (ONE, OTHER):
            async with by_proxy(service, header) as client:
                assert (await client.reply()) == "421 4.7.0 Too many connections from your address"
        async with by_proxy(service, b"PROXY TCP4 192.0.2.3 10.0.0.1 1 2\r\n") as client:
            assert (await client.reply())[:3] == "220"


async def test_a_proxy_that_speaks_for_itself_is_a_peer(pool, serving):
    """Its looks whether we live are served."""
    for header in (b"PROXY UNKNOWN\r\n", version2("192.0.2.1", command=0)):
        async with serving(pool) as service, by_proxy(service, header) as client:
            assert (await client.reply())[:3] == "220"
            assert (await client.ask("QUIT"))[:3] == "221"


@pytest.mark.parametrize(
    ("greeting", "header", "origin"),
    [
        ("EHLO mx.example", ONE, ("192.0.2.1", "mx.example")),
        ("HELO mx.example", version2("2001:db8::1"), ("2001:db8::1", "mx.example")),
        ("EHLO " + "c" * 300, ONE, ("192.0.2.1", "c" * 255)),
        ("EHLO x\r\nEHLO y", b"PROXY TCP6 ::ffff:192.0.2.7 ::1 1 2\r\n", ("192.0.2.7", "y")),
        ("EHLO mx.example", b"PROXY TCP4 127.0.0.9 10.0.0.1 1 2\r\n", (None, None)),
        ("EHLO mx.example", b"PROXY UNKNOWN\r\n", (None, None)),
    ],
)
async def test_mail_has_the_origin_that_the_proxy_names(pool, serving, greeting, header, origin):
    """Its address and its HELO; none where that is this machine."""
    async with serving(pool) as service:
        bob = await service.mailbox()
        async with by_proxy(service, header) as client:
            assert (await client.reply())[:3] == "220"
            for line in greeting.split("\r\n"):
                assert (await client.ask(line))[:3] == "250"
            await client.begin(bob)
            assert (await client.ask("Subject: x\r\n\r\nx\r\n."))[:3] == "250"
        rows = await pool.fetch("SELECT host(client), helo FROM relay.messages")
        assert rows == [origin]
