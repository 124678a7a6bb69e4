"""The sender: what peers answer becomes what the law says, and one's trouble is not another's."""

import threading
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio

from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.metrics import registry
from relay.outbound.active_queue.dispatch import Dispatch
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.admin import QueueAdmin
from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.queue.store import Queue
from relay.outbound.routing.routes import IDLE
from tests.actors.running import make_mailbox, state
from tests.eventually import eventually
from tests.outbound.node import put
from tests.outbound.running import Outbound, running_outbound
from tests.outbound.sink import HangUp, Script, Session, Sink, running_sink


async def ids(pool: Pool, *addresses: str, **values: Any) -> list[UUID]:
    """Queue one message to each, and return their ids."""
    return [queued.id for queued in await put(pool, *addresses, **values)]


def answering(verb: str, answer: bytes, recipient: str = "") -> Script:
    """A script that gives one answer to one verb (where the line names `recipient`)."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        about = line if said in {"MAIL", "RCPT"} else " ".join(session.recipients)
        said = "EHLO" if said == "HELO" else said
        return answer if said == verb and recipient in about else None

    return script


async def test_delivers_and_records(pool):
    """A message reaches the sink once, and its attempt is recorded phase by phase."""
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        assert (await outbound.becomes(one, "sent"))[:2] == ("sent", 1)
    (received,) = sink.received
    assert (received.sender, received.recipient) == ("sender@example.org", "bob@example.net")
    assert received.message_id == f"{one}@example.org"
    events = await pool.fetch_value(
        "SELECT events FROM relay.outbound_attempts WHERE message_id = %s", (one,)
    )
    assert [(event["phase"], event["code"]) for event in events] == [
        ("connect", 220),
        ("ehlo", 250),
        ("mail", 250),
        ("rcpt", 250),
        ("data", 354),
        ("dot", 250),
    ]
    assert sink.sessions[0].said[-1] == "QUIT"
    told = await QueueAdmin(pool).events(one)
    assert told is not None
    assert {(event["peer"], event["tls"]) for event in told} == {(peer_of(sink), None)}
    assert [event["reply"] for event in told] == [None] * 5 + ["250 2.0.0 taken"]


async def test_whom_it_spoke_to_is_recorded_of_each_mail_of_a_connection(pool):
    """Of those that go on without leaving it too, and of what is refused there."""

    async def script(session: Session, said: str, line: str) -> bytes | None:
        if said == "RCPT" and "odd" in line:
            return b"550 5.1.1 no such user\r\n"
        return b"250 2.0.0 Ok: queued as 4bX\r\n" if said == "dot" else None

    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        to = [f"u{number}@example.net" for number in range(6)]
        sent = await ids(pool, *to, "odd@example.net")
        outbound.wake()
        for one in sent[:-1]:
            await outbound.becomes(one, "sent")
        await outbound.becomes(sent[-1], "bounced")
        assert len(sink.sessions) < len(sent)
    found = await pool.fetch("SELECT DISTINCT peer, tls, reply FROM relay.outbound_log")
    assert set(found) == {(peer_of(sink), None, "Ok: queued as 4bX"), (peer_of(sink), None, None)}


def peer_of(sink: Sink) -> str:
    """How the peer that a sink is, is named."""
    return f"127.0.0.1[127.0.0.1]:{sink.port}"


@pytest.mark.parametrize("size", [0, 1 << 20], ids=["small", "fetched by itself"])
async def test_what_its_author_wrote_whole_goes_out_byte_for_byte(pool, size):
    """8-bit bytes, long lines, dots; to each recipient, with the reverse-path that it has."""
    raw = (
        b"Subject: \xc3\xb6 \xff\r\nX-Long: " + b"y" * 2000 + b"\r\n\r\n.\r\n..dots\r\n\x00\xff\r\n"
        + b"z" * size + b"\r\n"
    )  # fmt: skip
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        for sender in ("a@example.org", ""):
            to = [Address("bob@example.net"), Address("eve@example.net")]
            message = Message(Address(sender), to, "for lists", raw=raw, tag="shop")
            queued = await enqueue(pool, [message])
            outbound.wake()
            for one in queued.messages:
                await outbound.becomes(one.id, "sent")
                mail = await QueueAdmin(pool).mail(one.id)
                assert mail is not None
                assert mail.data == raw
    assert {(got.sender, got.recipient) for got in sink.received} == {
        (sender, to) for sender in ("a@example.org", "")
        for to in ("bob@example.net", "eve@example.net")
    }  # fmt: skip
    assert [got.data for got in sink.received] == [raw] * 4
    shared = await pool.fetch("SELECT size, tag FROM relay.outbound_contents")
    assert shared == [(len(raw), "shop")] * 2


async def test_an_outcome_that_the_database_refuses_is_counted_and_holds_up_no_other(pool):
    """Somebody's own constraint refuses one outcome: the rest of its batch is recorded."""
    await pool.execute("ALTER TABLE relay.outbound_log ADD CONSTRAINT whim CHECK (code <> 554)")
    counted = "relay_outbound_unrecordable_total"
    before = registry.get_sample_value(counted) or 0.0
    script = answering("dot", b"554 5.7.1 no\r\n", "odd@example.net")
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        _, *others = await ids(pool, "odd@example.net", "a@example.net", "b@example.net")
        outbound.wake()
        for other in others:
            await outbound.becomes(other, "sent")
        await eventually(
            lambda: registry.get_sample_value(counted),
            "it is counted",
            until=lambda value: value == before + 1,
        )


async def seven_hang(sink: Sink) -> None:
    """Wait until as many deliveries hang at RCPT as one owner can have of eight."""
    await eventually(
        lambda: sum("RCPT" in session.said for session in sink.sessions),
        "seven hang",
        until=lambda hanging: hanging >= 7,
    )


async def codes_go_out(pool: Pool, outbound: Outbound) -> None:
    """Have high mail of three other owners sent, one after another."""
    for number in range(3):
        (code,) = await ids(pool, f"a@bank{number}.example", owner=uuid4(), priority="high")
        outbound.wake()
        await outbound.becomes(code, "sent", 1)


@pytest.mark.parametrize("destinations", [12, 60])
async def test_what_hangs_of_one_owner_stops_no_high_mail_of_others(pool, destinations):
    """However many destinations one owner's mail of high priority hangs at.

    Twelve fill all the room there is: eight to deliver and four ahead.
    """
    released = trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "RCPT" and "mallory" in line:
            await released.wait()
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, concurrency=8, route_connections=8) as outbound,
    ):
        addresses = [f"u@h{number}.mallory.example" for number in range(destinations)]
        mallory = await ids(pool, *addresses, owner=uuid4(), priority="high")
        outbound.wake()
        await seven_hang(sink)
        await codes_go_out(pool, outbound)
        assert not any("mallory" in mail.recipient for mail in sink.received)
        released.set()
        for each in mallory:
            await outbound.becomes(each, "sent")


async def test_what_hangs_of_one_owner_over_two_routes_stops_no_high_mail_of_others(pool):
    """However many senders one owner has, each with an upstream of its own that hangs."""
    released = trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "RCPT":
            await released.wait()
        return None

    async with (
        running_sink(script) as hanging,
        running_sink() as sink,
        running_outbound(pool, sink.url, concurrency=8) as outbound,
    ):
        mallory = uuid4()
        addresses = [f"a{number}@mallory.example" for number in range(2)]
        for address in addresses:
            await pool.execute(
                "INSERT INTO relay.senders (owner, address, upstream) VALUES (%s, %s, %s)",
                (mallory, address, hanging.url),
            )
        messages = [
            Message(
                Address(address),
                [Address(f"u@h{number}.{address[:2]}.example")],
                "s",
                text="t",
                owner=mallory,
                priority="high",
            )
            for number in range(30)
            for address in addresses
        ]
        queued = (await enqueue(pool, messages)).messages
        outbound.wake()
        await seven_hang(hanging)
        await codes_go_out(pool, outbound)
        assert not hanging.received
        released.set()
        for each in queued:
            await outbound.becomes(each.id, "sent")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_dead_upstream_of_one_sender_holds_up_no_other_of_its_owner(pool, when):
    """To the same domain, over minutes of pauses; also if the senders were made once it waited."""
    owner = uuid4()

    async def make_senders(**upstreams: str) -> None:
        for name, upstream in upstreams.items():
            await pool.execute(
                "INSERT INTO relay.senders (owner, address, upstream) VALUES (%s, %s, %s)",
                (owner, f"{name}@example.org", upstream),
            )

    async def put_from(name: str, count: int) -> list[UUID]:
        addresses = (f"{name}{number}@x.example" for number in range(count))
        return await ids(pool, *addresses, sender=f"{name}@example.org", owner=owner)

    async with (
        running_sink(answering("connect", b"421 4.3.2 closed\r\n")) as dead,
        running_sink() as alive,
        running_sink() as relays_own,
    ):
        upstreams = {"dead": dead.url, "alive": alive.url}
        if when == "before":
            await make_senders(**upstreams)
        unsent = await put_from("dead", 5)
        if when == "after":
            await make_senders(**upstreams)
        async with running_outbound(
            pool, relays_own.url, concurrency=2, retry_unit=3600.0
        ) as outbound:
            outbound.wake()
            await outbound.becomes(unsent[0], "queued", 1)
            first, second = await put_from("alive", 1), await put_from("none", 1)
            outbound.wake()
            for each in (*first, *second):
                await outbound.becomes(each, "sent")
            again = [*await put_from("alive", 3), *await put_from("none", 3)]
            outbound.wake()
            for each in again:
                await outbound.becomes(each, "sent")
            assert not dead.received
            statuses = [(await outbound.row(each))[0] for each in unsent]
            assert statuses == ["queued"] * 5
            lanes = "SELECT count(DISTINCT lane) FROM relay.outbound_due"
            await eventually(
                lambda: pool.fetch_value(lanes), "they are in one lane", until=lambda n: n == 1
            )
    assert {mail.sender for mail in alive.received} == {"alive@example.org"}
    assert {mail.sender for mail in relays_own.received} == {"none@example.org"}


async def test_keeps_connections(pool):
    """Many messages go over few connections, each exactly once."""
    async with running_sink() as sink, running_outbound(pool, sink.url, concurrency=4) as outbound:
        wanted = [f"u{number}@d{number % 7}.example" for number in range(300)]
        await ids(pool, *wanted)
        outbound.wake()
        await sink.gets(300)
        sent = "SELECT count(*) FROM relay.outbound_log WHERE status = 'sent'"
        await eventually(lambda: pool.fetch_value(sent), "all are sent", until=lambda n: n == 300)
    assert sorted(sink.recipients) == sorted(wanted)
    assert len(sink.sessions) <= 4


@pytest.mark.parametrize(
    ("verb", "status"),
    [("MAIL", "failed"), ("RCPT", "bounced"), ("DATA", "failed"), ("dot", "failed")],
)
async def test_a_permanent_answer_is_final_at_once(pool, verb, status):
    """5xx bounces at RCPT and fails at MAIL, DATA and the dot, after one attempt."""
    script = answering(verb, b"550 5.7.1 not for <bob@example.net>\r\n")
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        _, attempts, _, error = await outbound.becomes(one, status)
    assert attempts == 1
    assert error.startswith("550 5.7.1 not for ")
    assert "<redacted:" in error
    assert "bob" not in error


@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA", "dot"])
async def test_a_temporary_answer_is_tried_again_later(pool, verb):
    """4xx queues again, n squared units later, a fifth more or less."""
    script = answering(verb, b"451 4.7.1 later\r\n")
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        _, _, wait, error = await outbound.becomes(one, "queued", 1)
    assert 47 <= wait <= 72
    assert error == "451 4.7.1 later"


@pytest.mark.parametrize("verb", ["connect", "EHLO"])
@pytest.mark.parametrize("answer", [b"554 5.3.2 go away\r\n", b"421 4.3.2 busy\r\n"])
async def test_trouble_of_the_route_defers_and_pauses_it(pool, verb, answer):
    """Any refusal before MAIL, a 5xx too, concerns the route: deferred, never bounced."""
    async with (
        running_sink(answering(verb, answer)) as sink,
        running_outbound(pool, sink.url) as outbound,
    ):
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        await outbound.becomes(one, "queued", 1)
        (same_lane,) = await ids(pool, "carol@example.net")
        (two,) = await ids(pool, "dave@other.example")
        outbound.wake()
        await eventually(
            lambda: outbound.row(two), "it is given back for later", until=lambda row: row[2]
        )
        status, attempts, wait, _ = await outbound.row(two)
        unclaimed = await outbound.row(same_lane)
    # Given back unbegun: the route is left alone for a sixteenth of a unit.  Of a lane that has
    # met the trouble nothing more is claimed.
    assert (status, attempts) == ("queued", 0)
    assert unclaimed[:3] == ("queued", 0, None)
    assert 0 < wait < 10
    assert len(sink.sessions) <= 2


async def test_a_route_that_is_not_there_defers(pool):
    """Nobody listens: the connection's refusal is the error, and nothing is lost."""
    async with running_outbound(pool, "smtp://127.0.0.1:1") as outbound:
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        _, _, wait, error = await outbound.becomes(one, "queued", 1)
    assert 47 <= wait <= 72
    assert "refused" in error


async def test_after_the_last_attempt_it_has_failed(pool):
    """The tenth failure is the end, with the last error; each wait is n squared units."""
    refuse = answering("RCPT", b"450 4.2.1 not now\r\n")
    async with (
        running_sink(refuse) as sink,
        running_outbound(pool, sink.url, retry_unit=0.004) as outbound,
    ):
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        row = await outbound.becomes(one, "failed")
    assert row[1] == 10
    assert row[3] == "450 4.2.1 not now"
    tries = await pool.fetch(
        "SELECT at FROM relay.outbound_attempts WHERE message_id = %s ORDER BY attempt", (one,)
    )
    assert len(tries) == 10
    waits = [(later - earlier).total_seconds() for (earlier,), (later,) in pairwise(tries)]
    for number, wait in enumerate(waits, 1):
        assert wait >= number**2 * 0.004 * 0.8


async def test_one_destination_is_throttled_by_itself(pool):
    """421 from one domain slows that domain; another's mail goes at once and all arrives."""
    refusals = 3

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        nonlocal refusals
        if verb == "RCPT" and "@slow.example" in line and refusals:
            refusals -= 1
            raise HangUp(b"421 4.7.0 too fast\r\n")
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, retry_unit=0.2) as outbound,
    ):
        slow = await ids(pool, *(f"u{number}@slow.example" for number in range(20)))
        fast = await ids(pool, *(f"u{number}@fast.example" for number in range(20)))
        outbound.wake()
        for one in fast:
            assert (await outbound.becomes(one, "sent"))[1] == 1
        for one in slow:
            await outbound.becomes(one, "sent")
    assert len(sink.received) == 40
    assert len(set(sink.recipients)) == 40


async def test_one_owners_full_mailboxes_slow_no_others_mail_to_the_destination(pool):
    """They are deferred one by one; the destination is neither paused nor narrowed."""
    counted = "relay_outbound_pauses_total"
    before = registry.get_sample_value(counted, {"what": "destination"}) or 0.0
    script = answering("RCPT", b"452 4.2.2 mailbox full\r\n", "full")
    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        addresses = [f"full{number}@shared.example" for number in range(40)]
        full = await ids(pool, *addresses, owner=uuid4(), priority="high")
        outbound.wake()
        for number in range(5):
            (code,) = await ids(pool, f"u{number}@shared.example", owner=uuid4(), priority="high")
            outbound.wake()
            await outbound.becomes(code, "sent", 1)
        for each in full:
            row = await outbound.becomes(each, "queued", 1)
            assert row[3] == "452 4.2.2 mailbox full"
        for number in range(5, 10):
            (code,) = await ids(pool, f"u{number}@shared.example", owner=uuid4(), priority="high")
            outbound.wake()
            await outbound.becomes(code, "sent", 1)
    assert len(sink.received) == 10
    assert registry.get_sample_value(counted, {"what": "destination"}) in (None, before)


async def test_a_connection_that_ends_after_the_dot_is_an_unknown_outcome(pool):
    """It is tried again by default, and held where the message says so; both are recorded."""

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            raise HangUp
        return None

    async with running_sink(script) as sink, running_outbound(pool, sink.url) as outbound:
        (again,) = await ids(pool, "again@a.example")
        (hold,) = await ids(pool, "hold@b.example", hold_unknown=True)
        outbound.wake()
        await outbound.becomes(again, "queued", 1)
        await outbound.becomes(hold, "held", 1)
    assert sorted(sink.recipients) == ["again@a.example", "hold@b.example"]


async def test_an_unreadable_password_defers(pool):
    """The mail of a sender whose password no key opens waits; it is never bounced."""
    await pool.execute(
        """
        INSERT INTO relay.senders (address, upstream, username, password)
        VALUES ('sender@example.org', 'smtp://127.0.0.1:1', 'user', 'rubbish')
        """
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        _, _, wait, error = await outbound.becomes(one, "queued", 1)
    assert 47 <= wait <= 72
    assert "stored secret" in error
    assert not sink.sessions


async def test_mail_of_a_sender_goes_through_its_own_upstream(pool):
    """An identity's upstream is used for its mail, the relay's own for all other."""
    async with running_sink() as own, running_sink() as common:
        await pool.execute(
            "INSERT INTO relay.senders (address, upstream) VALUES ('sender@example.org', %s)",
            (own.url,),
        )
        async with running_outbound(pool, common.url) as outbound:
            await ids(pool, "bob@example.net")
            message = Message(
                Address("other@example.org"), [Address("carol@example.net")], "s", text="t"
            )
            await enqueue(pool, [message])
            outbound.wake()
            await own.gets(1)
            await common.gets(1)
    assert own.recipients == ["bob@example.net"]
    assert common.recipients == ["carol@example.net"]


@pytest.mark.parametrize("allowed", [False, True])
async def test_an_upstream_that_moved_inside_is_not_connected_to(pool, allowed):
    """What a key without the scope admin named is looked at again at each connection."""
    async with running_sink() as inside, running_sink() as common:
        await pool.execute(
            """
            INSERT INTO relay.senders (address, upstream, private)
            VALUES ('sender@example.org', %s, false)
            """,
            (inside.url.replace("127.0.0.1", "localhost"),),
        )
        (one,) = await ids(pool, "bob@example.net")
        async with running_outbound(pool, common.url, private_upstreams=allowed) as outbound:
            if allowed:
                await inside.gets(1)
            else:
                _, _, _, error = await outbound.becomes(one, "queued", 1)
                assert error == "the host is not on the public internet"
                assert not inside.sessions
    assert not common.received


async def test_the_loop_delivers_into_a_mailbox(pool):
    """`loop:` stores what would have been sent, once, however often it is delivered."""
    await make_mailbox(pool)
    address = await pool.fetch_value("SELECT address FROM relay.mailboxes")
    async with running_outbound(pool, "loop:") as outbound:
        (one,) = await ids(pool, address.upper())
        outbound.wake()
        await outbound.becomes(one, "sent", 1)
        # As after a crash between the commit of the mail and that of the outcome:
        await pool.execute("DELETE FROM relay.outbound_log WHERE id = %s", (one,))
        await pool.execute(
            "INSERT INTO relay.outbound_due (id, lane, run_at, priority) VALUES (%s, 1, now(), 1)",
            (one,),
        )
        outbound.wake()
        await outbound.becomes(one, "sent", 1)
    rows = await pool.fetch("SELECT id, reverse_path, raw_email FROM relay.messages")
    assert [(row[0], row[1]) for row in rows] == [(one, "sender@example.org")]
    assert b"\r\nSubject: Subject\r\n" in rows[0][2]


async def test_the_loop_bounces_what_has_no_mailbox_here(pool):
    """Unknown and expired mailboxes are 550 5.1.1; other domains are not relayed to."""
    await make_mailbox(pool, -1.0)
    expired = await pool.fetch_value("SELECT address FROM relay.mailboxes")
    async with running_outbound(pool, "loop:") as outbound:
        gone = await ids(pool, expired, "nobody@relay.localhost")
        (foreign,) = await ids(pool, "bob@example.net")
        outbound.wake()
        for one in gone:
            assert (await outbound.becomes(one, "bounced"))[3].startswith("550 5.1.1 ")
        assert (await outbound.becomes(foreign, "bounced"))[3].startswith("550 5.1.2 ")


async def test_what_can_never_be_sent_fails(pool):
    """A message that was queued by SQL with a header nobody may give fails, with the reason."""
    message = Message(
        Address("a@example.org"),
        [Address("b@example.net")],
        "s",
        text="t",
        headers={"Bcc": "victim@example.net"},
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        queued = await enqueue(pool, [message])
        outbound.wake()
        _, _, _, error = await outbound.becomes(queued.messages[0].id, "failed")
    assert "cannot be given" in error
    assert "victim" not in error
    assert not sink.received


async def test_a_large_message_is_fetched_by_itself(pool):
    """What the claim does not bring along arrives whole."""
    content = bytes(range(256)) * 8192
    message = Message(
        Address("a@example.org"),
        [Address("b@example.net"), Address("c@example.net")],
        "s",
        text="t",
        attachments=[Attachment("a.bin", "application/octet-stream", content)],
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        await enqueue(pool, [message])
        outbound.wake()
        await sink.gets(2)
    assert all(len(received.data) > len(content) * 4 // 3 for received in sink.received)


async def test_large_mail_that_waits_keeps_no_room_from_others(pool, monkeypatch):
    """Four of them are fetched, four more wait; others are given back after a second, for what is
    claimed takes of the room for all.  They are sent once these are there."""
    released = trio.Event()
    fetch = Queue.with_body

    async def slow(self, message):
        await released.wait()
        return await fetch(self, message)

    monkeypatch.setattr(Queue, "with_body", slow)
    content = Attachment("a.bin", "application/octet-stream", b"x" * (1 << 20))
    message = Message(
        Address("a@example.org"),
        [Address(f"u{number}@large.example") for number in range(20)],
        "s",
        text="t",
        attachments=[content],
    )
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, concurrency=32) as outbound,
    ):
        await enqueue(pool, [message])
        outbound.wake()

        async def claimed() -> int:
            rows = await pool.fetch(
                "SELECT count(*) FROM relay.outbound_due WHERE node IS NOT NULL"
            )
            return int(rows[0][0])

        await eventually(claimed, "all are claimed", until=lambda count: count == 20)
        await eventually(claimed, "the room is given back", until=lambda count: count <= 8)
        released.set()
        await sink.gets(20)


async def test_the_line_of_a_large_message_is_kept_while_it_is_fetched(pool, virtual, monkeypatch):
    """Its connections are closed at the end, as those of every line that is known."""
    prepared = trio.Event()
    fetch = Queue.with_body

    async def slow(self, message):
        await prepared.wait()
        return await fetch(self, message)

    asked = 0
    forget = Dispatch.forget

    def count(self, key):
        nonlocal asked
        asked += 1
        return forget(self, key)

    monkeypatch.setattr(Queue, "with_body", slow)
    monkeypatch.setattr(Dispatch, "forget", count)
    message = Message(
        Address("a@example.org"),
        [Address("b@example.net")],
        "s",
        text="t",
        attachments=[Attachment("a.bin", "application/octet-stream", b"x" * (1 << 21))],
    )
    async with running_sink() as sink:
        async with running_outbound(pool, sink.url) as outbound:
            await enqueue(pool, [message])
            outbound.wake()

            def looks() -> int:
                virtual.jump(1.0)
                return asked

            await eventually(looks, "lines may be forgotten", until=lambda times: times >= 3)
            prepared.set()
            await sink.gets(1)
        assert [session.said[-1] for session in sink.sessions] == ["QUIT"]


async def test_composing_a_large_message_holds_up_nobody(pool, monkeypatch):
    """It happens in a thread, few at once; the loop and other mail go on meanwhile."""
    from relay.outbound.delivery import render

    release = threading.Event()
    most = busy = 0

    mail_of = render.mail_of

    def slow(message):
        nonlocal most, busy
        if message.attachments:
            assert threading.current_thread() is not threading.main_thread()
            busy += 1
            most = max(most, busy)
            assert release.wait(20)
            busy -= 1
        return mail_of(message)

    monkeypatch.setattr(render, "mail_of", slow)
    large = Message(
        Address("a@example.org"),
        [Address(f"large{number}@example.net") for number in range(6)],
        "s",
        text="t",
        attachments=[Attachment("a.bin", "application/octet-stream", b"x" * (1 << 20))],
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        await enqueue(pool, [large])
        outbound.wake()
        await eventually(lambda: busy, "four are composed", until=lambda n: n >= 4)
        await ids(pool, *(f"u{number}@example.net" for number in range(20)))
        outbound.wake()
        await sink.gets(20)
        release.set()
        await sink.gets(26)
    assert most == 4


async def test_an_announced_message_survives_the_connection(pool):
    """The peer hangs up after every message: what was announced goes over the next connection, as
    it is: what it has in front of its fields is there once."""

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            await session.stream.send_all(b"250 2.0.0 taken\r\n")
            raise HangUp
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(
            pool,
            sink.url,
            concurrency=2,
            retry_unit=0.05,
            report_field=lambda message_id: b"X-Id: %b\r\n" % str(message_id).encode(),
        ) as outbound,
    ):
        many = await ids(pool, *(f"u{number}@example.net" for number in range(20)))
        outbound.wake()
        for one in many:
            await outbound.becomes(one, "sent")
    assert len(set(sink.recipients)) == len(sink.received) == 20
    assert [received.data.count(b"X-Id: ") for received in sink.received] == [1] * 20


@pytest.mark.parametrize("place", ["composing", "delivering"])
async def test_what_nobody_foresaw_of_one_message_is_no_fault_of_another(pool, monkeypatch, place):
    """The one before a poisoned message is delivered, and so is the one after it."""
    from relay.outbound.delivery import render
    from relay.smtp.client import SmtpClient

    mail_of = render.mail_of

    def compose(message):
        if place == "composing" and message.recipient == "poison@example.net":
            raise RuntimeError
        return mail_of(message)

    begin = SmtpClient.begin

    def break_down(self, mail, *rest, **options):
        if place == "delivering" and mail.recipients == ("poison@example.net",):
            raise RuntimeError
        begin(self, mail, *rest, **options)

    monkeypatch.setattr(render, "mail_of", compose)
    monkeypatch.setattr(SmtpClient, "begin", break_down)
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, concurrency=8, route_connections=1) as outbound,
    ):
        names = ["a", "poison", "b", "c"]
        one, poison, *others = await ids(pool, *(f"{name}@example.net" for name in names))
        outbound.wake()
        for each in (one, *others):
            await outbound.becomes(each, "sent", 1)
        _, _, _, error = await outbound.becomes(poison, "queued", 1)
    assert error == "an internal error of the relay"
    assert len(sink.received) == 3


async def test_what_the_reaper_freed_before_it_was_recorded_is_not_sent_again(pool, monkeypatch):
    """After an outage the new claim does not look lost, and goes to the outcome all the same."""
    back = False
    finalise = Queue.finalise

    async def away(self, outcomes, **how):
        if not back:
            raise DatabaseUnavailable("away")
        return await finalise(self, outcomes, **how)

    monkeypatch.setattr(Queue, "finalise", away)
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, route_connections=1) as outbound,
    ):
        (one,) = await ids(pool, "bob@example.net")
        outbound.wake()
        await sink.gets(1)
        freed = await pool.fetch_value(
            "UPDATE relay.outbound_due SET token = token + 1, node = NULL, run_at = now()"
            " WHERE id = %s RETURNING token",
            (one,),
        )

        async def token() -> Any:
            outbound.wake()
            return await pool.fetch_value(
                "SELECT token FROM relay.outbound_due WHERE id = %s", (one,)
            )

        await eventually(token, "it is claimed again", until=lambda now: now != freed)
        await ids(pool, "carol@example.net")  # one at a time: behind a second copy
        outbound.wake()
        await sink.gets(2)
        back = True
        await outbound.becomes(one, "sent")
    assert sink.recipients == ["bob@example.net", "carol@example.net"]


async def test_high_mail_that_never_comes_holds_up_others_for_a_moment_only(pool):
    """Nobody says that it does not come (the database is slow), and nothing else happens here."""
    right_of_way = RightOfWay()
    async with (
        running_sink() as sink,
        running_outbound(pool, sink.url, right_of_way=right_of_way) as outbound,
    ):
        await outbound.at_rest()
        await ids(pool, "ada@example.net")
        right_of_way.expect(trio.current_time())
        outbound.wake()
        with trio.fail_after(5 * RightOfWay.MOST):
            await sink.gets(1)


async def test_leases_that_deadlock_are_renewed_at_the_next_tick(pool):
    """Of several leases at once: who locks them the other way round does not end the sender."""
    released = trio.Event()
    at_dot = 0

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        nonlocal at_dot
        if verb == "dot":
            at_dot += 1
            await released.wait()
        return None

    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    lock = "SELECT FROM relay.outbound_due WHERE id = %s FOR UPDATE"
    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, lease_timeout=12.0) as outbound,
    ):
        first, second = await ids(pool, "a@a.example", "b@a.example")
        outbound.wake()
        await eventually(lambda: at_dot, "both are at their dots", until=lambda n: n == 2)
        async with pool.transaction(patience=30.0) as other_way:
            await other_way.execute("SET LOCAL deadlock_timeout = '20s'")  # it is not undone
            await other_way.execute(lock, (second,))
            await eventually(
                lambda: pool.fetch_value(waits), "leases are renewed", until=lambda n: n >= 1
            )
            await other_way.execute(lock, (first,))
        released.set()
        await outbound.becomes(first, "sent")
        await outbound.becomes(second, "sent")
        assert [child.restarts for child in outbound.supervisor.tree().children] == [0, 0, 0]
    assert sorted(sink.recipients) == ["a@a.example", "b@a.example"]


async def test_a_goodbye_that_nobody_answers_stops_no_tick(pool, virtual):
    """While a peer does not answer QUIT, the sender counts what it holds, as at every tick."""
    at_dot: dict[str, trio.Event] = {name: trio.Event() for name in ("quick", "slow", "new")}
    released, never, goodbye = trio.Event(), trio.Event(), trio.Event()

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            name = session.recipients[-1].partition("@")[0]
            at_dot[name].set()
            await (released if name == "quick" else never).wait()
        if verb == "QUIT":
            goodbye.set()
            await never.wait()
        return None

    async with (
        running_sink(script) as sink,
        running_outbound(pool, sink.url, lease_timeout=100.0, drain=False) as outbound,
    ):
        await ids(pool, "quick@a.example", "slow@b.example")
        outbound.wake()
        await at_dot["quick"].wait()
        await at_dot["slow"].wait()
        released.set()
        await eventually(
            lambda: registry.get_sample_value("relay_outbound_held"),
            "the slow one is held",
            until=lambda held: held == 1,
        )
        await outbound.at_rest()  # its connection has gone back, and is idle from now on
        virtual.jump(IDLE)
        await goodbye.wait()
        virtual.rate = 0.0  # the goodbye, which has two seconds, lasts until the test ends
        await ids(pool, "new@c.example")
        outbound.wake()

        async def a_moment() -> bool:
            virtual.jump(0.05)  # the claimer may be resting
            await outbound.at_rest()
            return at_dot["new"].is_set()

        await eventually(a_moment, "the new one is sent, but for the answer to its dot")
        for _ in range(10):
            virtual.jump(0.1)
            await outbound.at_rest()
        assert registry.get_sample_value("relay_outbound_held") == 2
        virtual.rate = 1.0


async def test_a_paused_sender_leaves_the_mail_to_other_nodes(pool):
    """Its room is taken back, so nothing is claimed for it that it would not read."""
    async with (
        running_sink() as sink,
        running_sink() as other_sink,
        running_outbound(pool, sink.url, lease_timeout=300.0) as outbound,
    ):
        await outbound.at_rest()
        outbound.supervisor.pause("sender")
        await outbound.at_rest()
        codes = await ids(pool, *(f"a@b{number}.example" for number in range(5)), priority="high")
        outbound.wake()
        await outbound.at_rest()
        async with running_outbound(pool, other_sink.url) as other:
            other.wake()
            for code in codes:
                await other.becomes(code, "sent", 1)
        outbound.supervisor.resume("sender")
        (own,) = await ids(pool, "own@example.net")
        outbound.wake()
        await outbound.becomes(own, "sent", 1)
    assert sink.recipients == ["own@example.net"]


async def test_draining_finishes_what_has_begun_and_gives_back_the_rest(pool):
    """At a stop the message on the wire is finished, those that wait are queued unchanged."""
    begun = trio.Event()
    pair: list[Outbound] = []

    async def script(session: Session, verb: str, line: str) -> bytes | None:
        if verb == "dot":
            begun.set()
            # answered once the sender is told to end
            await eventually(
                lambda: state(pair[0].supervisor, "sender"),
                "the sender drains",
                until=lambda found: found == "draining",
            )
        return None

    async with running_sink(script) as sink:
        async with running_outbound(pool, sink.url, concurrency=1) as outbound:
            pair.append(outbound)
            (first,) = await ids(pool, "a@example.net")
            outbound.wake()
            await begun.wait()
            # Only now, or one could be announced behind the first and be finished with it; high, as
            # there is room to claim that.
            rest = await ids(pool, "b@example.net", "c@example.net", priority="high")
            outbound.wake()
            await eventually(
                lambda: pool.fetch_value(
                    "SELECT count(*) FROM relay.outbound_messages"
                    " WHERE status = 'processing' AND id <> %s",
                    (first,),
                ),
                "one waits behind the first",
                until=lambda waiting: waiting >= 1,
            )
        assert (await outbound.row(first))[:2] == ("sent", 1)
        assert [(await outbound.row(one))[:2] for one in rest] == [("queued", 0)] * 2
    assert len(sink.received) == 1
