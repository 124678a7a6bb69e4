"""Signed mail on its way: real deliveries, whose signatures our verifier and dkimpy check."""

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import dkim
import pytest
import trio
from cryptography.fernet import Fernet

from actors import listener
from relay.checks.dkim import verify
from relay.checks.evidence import examine
from relay.crypto import Vault
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.processes import SigningProcesses, ToSign
from relay.outbound.signing.signer import Signer
from relay.smtp.client import with_crlf
from supervisor import ChildSpec, Supervisor, SupervisorSpec
from tests.actors.running import make_mailbox
from tests.checks.asking import answered, txt_of
from tests.eventually import eventually
from tests.outbound.running import running_outbound
from tests.outbound.sink import HangUp, Session, running_sink

BOTH = ["pass", "pass"]


class Signed:
    """The keys of one relay's database, and a zone that publishes them."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.vault = Vault([Fernet.generate_key().decode()])
        self.keys = DkimKeys(pool, self.vault)
        self.signer = Signer(self.keys, self.vault)
        self.zone: dict[tuple[str, str], str] = {}

    async def publish(self, domain: str = "example.org") -> None:
        """Publish every key that is to be."""
        found = await self.keys.show(domain)
        assert found is not None
        self.zone |= {(key.name, "TXT"): key.record for key in found.keys}

    def results(self, message: bytes) -> list[str]:
        return [
            answered(verify(one, time.time()), self.zone).result
            for one in examine(message).signatures
        ]

    @property
    def txt(self) -> Callable[..., bytes | None]:
        """What dkimpy asks of the zone."""
        return txt_of({name: record for (name, _), record in self.zone.items()})


@pytest.fixture
def signed(pool: Pool) -> Signed:
    return Signed(pool)


async def send(pool: Pool, *to: str, sender: str = "me@example.org", **more: Any) -> list[UUID]:
    message = Message(
        Address(sender), [Address(each) for each in to], "Subject", **({"text": "text"} | more)
    )
    return [queued.id for queued in (await enqueue(pool, [message])).messages]


def selectors(message: bytes) -> list[str]:
    return [one.selector for one in examine(message).signatures]


async def test_what_leaves_is_signed_with_both_keys(pool: Pool, signed: Signed):
    """Composed, with files, large and submitted whole, to a mailbox of ours too; dkimpy agrees."""
    await signed.keys.create("example.org", "s1")
    await signed.publish()
    large = Attachment("a.bin", "application/octet-stream", b"\0" * 2_000_000)
    raw = (
        b"Received: by us\r\nDKIM-Signature: v=1; a=rsa-sha256; d=example.org\r\n"
        b"From: Me <me@EXAMPLE.org>\r\nSubject: Gr\xc3\xbc\xc3\x9fe\r\n"
        b"\r\n.\r\n..dots \r\n8 bit \xe9"
    )
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, vault=signed.vault, signer=signed.signer) as outbound,
    ):
        await send(pool, "plain@a.example")
        await send(pool, "html@a.example", html="<p>é</p>", priority="high")
        await send(pool, "large@a.example", attachments=(large,), priority="bulk")
        await send(pool, "raw@a.example", raw=raw)
        await send(pool, "other@a.example", sender="me@news.example.org")
        await send(pool, "foreign@a.example", raw=raw.replace(b"EXAMPLE.org", b"b.example"))
        outbound.wake()
        await sink.gets(6)
    came = {message.recipient.partition("@")[0]: message.data for message in sink.received}
    for name in ("plain", "html", "large"):
        assert signed.results(came[name]) == BOTH, name
        assert selectors(came[name]) == ["s1", "s1-ed25519"]
    assert signed.results(came["raw"]) == [*BOTH, "permerror"], "theirs stays where it was"
    assert selectors(came["other"]) == [], "a subdomain has keys of its own"
    assert len(selectors(came["foreign"])) == 1

    logging.getLogger("dkimpy").setLevel(logging.CRITICAL)

    for name in ("plain", "html", "large", "raw"):
        assert dkim.DKIM(came[name]).verify(0, dnsfunc=signed.txt), name


_FROM = b"From: me@example.org\r\n"
_HEAD = _FROM + b"To: a@a.example\r\nSubject: Hi\r\n\r\n"
ODD = {
    "empty": _HEAD,
    "no-blank-line": _FROM,
    "no-last-line-end": _HEAD + b"text",
    "blank-lines": _HEAD + b"text\r\n\r\n\r\n \r\n\t\r\n",
    "blank-alone": _HEAD + b"\r\n\r\n",
    "bare-cr": _HEAD + b"one\rtwo\r\rthree\r",
    "bare-lf": _HEAD.replace(b"\r", b"") + b"one\ntwo\r\nthree\n",
    "long-lines": _HEAD + b"x" * 50_000 + b" \t \r\n" + b"y " * 20_000,
    "8-bit": _HEAD + bytes(range(128, 256)) * 9 + b"\r\n",
    "8-bit-fields": _FROM + "Subject: Grüße\r\nX-Any: \xa0é\r\n\r\ntext".encode(),
    "nul": _HEAD + b"one\0two\r\n",
    "folded": _FROM
    + b"To:\r\n\ta@a.example,\r\n  b@b.example\r\nSUBJECT:  a \t b \r\n  c\r\n\r\ntext",
    "repeated": _FROM
    + b"Subject: a\r\nTo: a@a.example\r\nSubject: b\r\nTo: b@b.example\r\n\r\ntext",
    "empty-fields": _FROM + b"Subject:\r\nTo: \r\nCc:\t\r\n\r\ntext",
    "no-subject": _FROM + b"\r\ntext",
    "long-field": _FROM + b"Subject: " + b"a " * 20_000 + b"\r\n\r\ntext",
    "many-fields": _FROM + b"X-Any: a\r\n" * 900 + b"Subject: Hi\r\n\r\ntext",
    "dots": _HEAD + b".\r\n..\r\n.a\r\n",
    "900-kB": _HEAD + b"a line of text \r\n" * 50_000,
    "10-MB": _HEAD + b"a line of text\t\r\n" * 580_000,
}
"""Mails as few programs write them; all can be signed."""


class Counting(SigningProcesses):
    """Knows which signatures its children made."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.made: set[bytes] = set()

    async def sign(self, digests: Sequence[ToSign]) -> list[bytes]:
        """As the other."""
        signatures = await super().sign(digests)
        self.made.update(signatures)
        return signatures


async def test_odd_mails_are_signed_by_processes(pool: Pool, signed: Signed):
    """Each arrives as it was, but for its line ends, behind two signatures that are valid to us and
    to dkimpy; processes make them all, but for what is so large that it is composed elsewhere."""
    processes = signed.signer.processes = Counting(1)
    await signed.keys.create("example.org", "s1")
    await signed.publish()
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, vault=signed.vault, signer=signed.signer) as outbound,
    ):
        processes.want()
        await eventually(lambda: processes.ready, "a process signs")
        for name, raw in ODD.items():
            await send(pool, f"{name}@a.example", raw=raw)
        outbound.wake()
        await sink.gets(len(ODD))
    logging.getLogger("dkimpy").setLevel(logging.CRITICAL)

    for message in sink.received:
        name = message.recipient.partition("@")[0]
        assert selectors(message.data) == ["s1", "s1-ed25519"], name
        assert signed.results(message.data) == BOTH, name
        made = processes.made & {one.signature for one in examine(message.data).signatures}
        assert len(made) == (0 if name == "10-MB" else 2), name
        assert message.data.endswith(b"\r\n" + with_crlf(ODD[name])), name
        assert dkim.DKIM(message.data).verify(0, dnsfunc=signed.txt), name
        assert dkim.DKIM(message.data).verify(1, dnsfunc=signed.txt), name


async def test_what_stays_is_signed_too(pool: Pool, signed: Signed):
    """A mailbox of ours has what a receiver would have."""
    await signed.keys.create("example.org")
    await signed.publish()
    await make_mailbox(pool)
    address = await pool.fetch_value("SELECT address FROM relay.mailboxes")
    async with running_outbound(
        pool, "loop:", vault=signed.vault, signer=signed.signer
    ) as outbound:
        (one,) = await send(pool, address)
        outbound.wake()
        await outbound.becomes(one, "sent")
    raw = await pool.fetch_value("SELECT raw_email FROM relay.messages")
    assert signed.results(bytes(raw)) == BOTH


async def test_a_retry_repeats_it(pool: Pool, signed: Signed):
    """The bytes of the second attempt are those of the first, which was in doubt."""
    await signed.keys.create("example.org")
    await signed.publish()
    tries = 0

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        nonlocal tries
        if verb == "dot":
            tries += 1
            if tries == 1:
                raise HangUp
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(
            pool, sink.url, vault=signed.vault, signer=signed.signer, retry_unit=0.02
        ) as outbound,
    ):
        (one,) = await send(pool, "a@a.example")
        outbound.wake()
        await outbound.becomes(one, "sent", 2)
    first, second = sink.received
    assert first.data == second.data
    assert signed.results(first.data) == BOTH


async def test_a_key_that_cannot_be_read_delays_its_own_mail_only(pool: Pool, signed: Signed):
    """Its domain's goes when the key is readable again, signed; nothing goes without before."""
    await signed.keys.create("example.org")
    await signed.publish()
    right = [*signed.vault._fernet._fernets]
    signed.vault.replace([Fernet.generate_key().decode()])
    async with (
        running_sink() as sink,
        running_outbound(
            pool, sink.url, vault=signed.vault, signer=signed.signer, retry_unit=0.2
        ) as outbound,
    ):
        (one,) = await send(pool, "a@a.example")
        (other,) = await send(pool, "b@a.example", sender="me@b.example")
        outbound.wake()
        await outbound.becomes(other, "sent")
        row = await eventually(
            lambda: outbound.row(one),
            "it waits to be tried again",
            until=lambda row: row[0] == "queued" and row[1] > 0,
        )
        assert "key" in row[3]
        assert sink.recipients == ["b@a.example"]
        signed.vault._fernet._fernets = right
        await outbound.becomes(one, "sent")
    assert signed.results(sink.received[-1].data) == BOTH


async def test_keys_rotate_while_mail_flows(pool: Pool, signed: Signed):
    """Every mail is signed by published keys: by the old before, by the new after."""
    await signed.keys.create("example.org", "old")
    await signed.publish()
    await signed.keys.create("example.org", "new")
    await signed.publish()  # before anything is signed by it
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, vault=signed.vault, signer=signed.signer) as outbound,
    ):
        for number in range(60):
            await send(pool, f"a{number}@a.example")
            outbound.wake()
            if number == 30:
                await sink.gets(1)
                await signed.keys.rotate("example.org")
                await signed.signer.refresh()
        await sink.gets(60)
    assert all(signed.results(message.data) == BOTH for message in sink.received)
    (last,) = [message for message in sink.received if message.recipient == "a59@a.example"]
    assert selectors(sink.received[0].data) == ["old", "old-ed25519"]
    assert selectors(last.data) == ["new", "new-ed25519"]
    shown = await signed.keys.show("example.org")
    assert shown is not None
    assert [key.state for key in shown.keys] == ["active", "active", "retired", "retired"]


async def test_another_node_hears_of_keys(database_url: str, pool: Pool, signed: Signed):
    """A sender that did not make them signs with them a moment later, and stops when they go."""
    hub = Hub()
    listening = Supervisor()
    elsewhere = DkimKeys(pool, signed.vault)
    spec = SupervisorSpec(
        "root",
        (
            ChildSpec(
                "listener",
                lambda ctx: listener.run(ctx, dsn=database_url, hub=hub, routes={}),
            ),
        ),
    )
    async with (
        trio.open_nursery() as nursery,
        running_sink() as sink,
        running_outbound(
            pool, sink.url, vault=signed.vault, signer=signed.signer, hub=hub
        ) as outbound,
    ):
        nursery.start_soon(listening.run, spec)
        await eventually(lambda: signed.signer.is_ready, "the keys are read")
        await send(pool, "before@a.example")
        outbound.wake()
        await sink.gets(1)
        await elsewhere.create("example.org")
        await signed.publish()
        await eventually(lambda: signed.signer._domains, "it has heard")
        await send(pool, "while@a.example")
        outbound.wake()
        await sink.gets(2)
        assert await elsewhere.remove("example.org")
        await eventually(lambda: not signed.signer._domains, "it has heard")
        await send(pool, "after@a.example")
        outbound.wake()
        await sink.gets(3)
        listening.shutdown()
    assert [len(selectors(message.data)) for message in sink.received] == [0, 2, 0]
    assert signed.results(sink.received[1].data) == BOTH


async def test_what_waits_to_be_signed_is_given_back(pool: Pool, signed: Signed):
    """A drain while hundreds wait: each is delivered once, signed, or still queued untried."""
    await signed.keys.create("example.org")
    await signed.publish()
    async with running_sink() as sink:
        async with running_outbound(
            pool, sink.url, vault=signed.vault, signer=signed.signer
        ) as outbound:
            await send(pool, *(f"a{number}@a.example" for number in range(300)))
            outbound.wake()
            await sink.gets(1)
        rows = dict(
            await pool.fetch("SELECT status, count(*) FROM relay.outbound_messages GROUP BY 1")
        )
    assert set(rows) <= {"sent", "queued"}
    assert rows["sent"] == len(sink.received) == len(set(sink.recipients))
    attempts = await pool.fetch_value(
        "SELECT max(attempts) FROM relay.outbound_messages WHERE status = 'queued'"
    )
    assert not attempts
    assert all(signed.results(message.data) == BOTH for message in sink.received)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_process_that_signs_may_die(pool: Pool, signed: Signed, how: signal.Signals):
    """Or stop, in the middle of many mails: each is delivered once, signed, at its first try."""
    processes = signed.signer.processes = SigningProcesses(1, deadline=0.5)
    await signed.keys.create("example.org")
    await signed.publish()
    seen: set[int] = set()
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, vault=signed.vault, signer=signed.signer) as outbound,
    ):
        await send(pool, *(f"a{number}@a.example" for number in range(1500)))
        processes.want()
        await eventually(lambda: processes.ready, "a process signs")
        outbound.wake()
        for number in (100, 400, 700):
            await sink.gets(number)
            for pid in processes.pids:
                os.kill(pid, how)
                seen.add(pid)
        await sink.gets(1500)
        await eventually(
            lambda: pool.fetch_value("SELECT count(*) FROM relay.outbound_log"),
            "all are recorded",
            until=lambda count: count == 1500,
        )
    assert seen
    assert len(set(sink.recipients)) == len(sink.received) == 1500
    assert all(signed.results(message.data) == BOTH for message in sink.received)
    assert await pool.fetch_value("SELECT max(attempts) FROM relay.outbound_messages") == 1
