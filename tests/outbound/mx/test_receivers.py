"""Direct delivery to what others wrote: Postfix's smtpd, held to TLSA records, and smtp-sink.

The DNS is a real one, too: a signed root (`tests.dns.signed`).
"""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.dns.resolver import Resolver
from relay.outbound.composing.message import Address, Message
from relay.outbound.mx.dane import DaneFirst, DanePolicies
from relay.outbound.queue.enqueue import enqueue
from tests.bench.postfix import Postfix, available
from tests.clients.test_upstreams import listening, smtp_sink
from tests.dns.signed import SignedDns, programs
from tests.eventually import eventually
from tests.outbound.mx.pki import issue, written
from tests.outbound.running import running_outbound

TEXT = "a\n.b\n..c\n" + "x" * 997 + "\n.\n"
LINES = [b"a", b".b", b"..c", b"x" * 997, b"."]


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that anybody may write to: neither program stays root."""
    folder = Path(tempfile.mkdtemp(prefix="relay-test-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def message(*addresses: str) -> Message:
    """A message with lines that end it where they are not stuffed."""
    return Message(
        Address("a@sender.example"), [Address(one) for one in addresses], "Hi", text=TEXT
    )


async def test_postfix_takes_what_its_tlsa_records_let_through(pool, readable):
    """Its queue has each message to the domain whose records match its certificate, by TLS and
    line by line; the other domain at the same server has none."""
    programs()
    if not available():
        pytest.skip("only root can have a Postfix here")
    own, another = issue("mx.example", names=["mx.example"]), issue("another")
    chain = written(readable, (own,))
    chain.chmod(0o644)
    postfix = Postfix(0, domains="good.example, bad.example", chain=chain)
    with contextlib.closing(postfix):
        records = {
            ("good.example", "MX"): ["10 good.mx.example."],
            ("bad.example", "MX"): ["10 bad.mx.example."],
            ("good.mx.example", "A"): ["127.0.0.1"],
            ("bad.mx.example", "A"): ["127.0.0.1"],
            (f"_{postfix.port}._tcp.good.mx.example", "TLSA"): [own.record(3, 1, 1)],
            (f"_{postfix.port}._tcp.bad.mx.example", "TLSA"): [another.record(3, 1, 1)],
        }
        with SignedDns(records, unsigned={}) as names:
            asked = Resolver([names.address])
            async with running_outbound(
                pool,
                "mx:",
                private_mx=True,
                mx_port=postfix.port,
                resolver=lambda: asked,
                policy=DaneFirst(DanePolicies(lambda: asked, port=postfix.port)),
            ) as outbound:
                good = message(*(f"r{n}@good.example" for n in range(20)))
                sent = (await enqueue(pool, [good, message("r@bad.example")])).messages
                outbound.wake()
                for one in sent[:-1]:
                    await outbound.becomes(one.id, "sent", 1)
                refused = await outbound.becomes(sent[-1].id, "queued", 1)
                assert refused[3].startswith(
                    "4.7.5 the peer's certificate is not accepted: it matches no TLSA record"
                )
        rows = await pool.fetch(
            "SELECT DISTINCT tls, reply ~ ' queued as ' FROM relay.outbound_attempts "
            "WHERE outcome = 'sent'"
        )
        assert [tuple(row) for row in rows] == [("TLSv1.3", True)]
        held = postfix.held()
        found = {match[1] for file in held if (match := re.search(rb"(r\d*@\w+\.example)", file))}
        assert found == {b"r%d@good.example" % n for n in range(20)}
        assert len(held) == 20
        for file in held:
            assert b"using TLSv1.3 with cipher" in file
            assert [line for line in LINES if _record(line) not in file] == []


def _record(line: bytes) -> bytes:
    """A line as the queue of Postfix has it: its type, its length in sevens of bits, itself."""
    size, digits = len(line), []
    while True:
        digits.append(size & 127 | (128 if size > 127 else 0))
        size >>= 7
        if not size:
            return b"N" + bytes(digits) + line


async def test_smtp_sink_takes_all_that_its_domains_get(pool, readable):
    """Every message once, as it was sent."""
    programs()
    with contextlib.ExitStack() as stack:
        port = smtp_sink(stack, (), readable / "dump")
        await listening(port)
        records = {
            **{(f"d{n}.example", "MX"): ["10 mx.example."] for n in range(3)},
            ("mx.example", "A"): ["127.0.0.1"],
        }
        names = stack.enter_context(SignedDns(records, unsigned={}))
        asked = Resolver([names.address])
        async with running_outbound(
            pool, "mx:", private_mx=True, mx_port=port, resolver=lambda: asked
        ) as outbound:
            addresses = [f"r{n}@d{n % 3}.example" for n in range(12)]
            sent = (await enqueue(pool, [message(*addresses)])).messages
            outbound.wake()
            for one in sent:
                await outbound.becomes(one.id, "sent", 1)
        dump = readable / "dump"
        text = await eventually(
            dump.read_bytes, "all of it is written", until=lambda text: text.count(b"X-Rcpt") == 12
        )
        taken = re.findall(rb"X-Rcpt-Args: <([^>]*)>", text)
        assert sorted(taken) == sorted(one.encode() for one in addresses)
        assert text.count(b"\na\n.b\n..c\n" + b"x" * 997 + b"\n.\n") == 12
