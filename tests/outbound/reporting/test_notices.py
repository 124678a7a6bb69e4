"""Notices in PostgreSQL: who is told of what, once, whoever ends a message and whoever looks."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import structlog
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.ids import new_id
from relay.outbound.admin import QueueAdmin
from relay.outbound.bounces.returned import Returned, keep
from relay.outbound.composing.compose import date_of
from relay.outbound.composing.message import Address, AskedFor, Message
from relay.outbound.queue.enqueue import Queued, enqueue
from relay.outbound.queue.states import Cause
from relay.outbound.reporting.notices import ATTEMPTS, MOST_REPORTS, Notices
from relay.outbound.suppression.suppressions import Suppressions
from relay.returns.law import Finding, Kind
from relay.returns.report import Report, read
from relay.smtp.dsn import MailParameters, Notify, RcptParameters
from tests.eventually import eventually
from tests.outbound.node import Node, put

SHOP = "Shop@x.example"
RAW = b"Received: from app\r\nSubject: s\r\n\r\ntext\r\n"
FROM_THE_START = "UPDATE relay.outbound_watch SET looked_to = relay.uuidv7_floor('2026-01-01')"
BOUNCED = Finding(Kind.BOUNCED, "5.1.1", "no")
SETTINGS: dict[str, Any] = {"delayed_after": 3600.0, "mx_lifetime": 432_000.0, "direct": False}


async def submit(
    pool: Pool,
    *to: str,
    sender: str = SHOP,
    notify: Notify | None = None,
    mail: MailParameters | None = None,
    owner: UUID = ADMINISTRATOR_ID,
    **more: Any,
) -> list[Queued]:
    """Queue a message as the submission port does."""
    parameters = {} if notify is None else {each.lower(): RcptParameters(notify) for each in to}
    message = Message(
        Address(sender), tuple(map(Address, to)), "s", raw=RAW, owner=owner,
        submitted=AskedFor(mail or MailParameters(), parameters), **more,
    )  # fmt: skip
    return (await enqueue(pool, [message])).messages


def notices(pool: Pool, **changed: Any) -> Notices:
    return Notices(pool, "mail.x.example", **SETTINGS | changed)


async def told(pool: Pool, **changed: Any) -> list[tuple[str, Report]]:
    """Tell everything, and return the reports that are queued: to whom, and what they say."""
    teller = notices(pool, **changed)
    while (await teller.tell()).notices:
        pass
    rows = await pool.fetch(
        """
        SELECT l.recipient, c.sender, c.blob, l.notify
        FROM relay.outbound_contents c
        JOIN relay.outbound_letters l ON l.content_id = c.id
        WHERE c.route_as IS NOT NULL
        ORDER BY l.id
        """
    )
    assert all((sender, notify) == ("", None) for _, sender, _, notify in rows)
    return [(to, read(bytes(blob))) for to, _, blob, _ in rows]


async def ends(node: Node, cause: Cause, **values: Any) -> None:
    """Have everything that is due end so, but reports."""
    await node.finish([one for one in await node.drain() if not one.is_dsn], cause, **values)


def actions(found: list[tuple[str, Report]]) -> list[list[tuple[str, str]]]:
    return [[(one.action, one.final) for one in report.recipients] for _, report in found]


@pytest.mark.parametrize(
    ("cause", "notify", "notice", "action"),
    [
        (Cause.REFUSED, None, None, "failed"),
        (Cause.REJECTED, Notify.FAILURE, None, "failed"),
        (Cause.EXHAUSTED, Notify.FAILURE | Notify.SUCCESS, None, "failed"),
        (Cause.EXPIRED, None, None, "failed"),
        (Cause.SUPPRESSED, None, None, "failed"),
        (Cause.DELIVERED, Notify.SUCCESS, "relayed", "relayed"),
        (Cause.DELIVERED, Notify.SUCCESS, "delivered", "delivered"),
        # Not asked for, or for another to tell.
        (Cause.REFUSED, Notify.NEVER, None, None),
        (Cause.REFUSED, Notify.SUCCESS | Notify.DELAY, None, None),
        (Cause.DELIVERED, None, None, None),
        (Cause.DELIVERED, Notify.SUCCESS, None, None),
        (Cause.DELIVERED, Notify.FAILURE, "relayed", None),
        (Cause.DEFERRED, None, None, None),
        (Cause.UNCERTAIN, None, None, None),
        (Cause.RELEASED, None, None, None),
    ],
)
async def test_each_end_of_a_message(
    node: Node, cause: Cause, notify: Notify | None, notice: str | None, action: str | None
):
    """What is told of it, if anything; once, however often it is looked."""
    await submit(node.pool, "no@y.example", notify=notify)
    error = {Cause.EXPIRED: "expired", Cause.SUPPRESSED: "suppressed"}.get(cause)
    await ends(node, cause, error=error, notice=notice, delay=60.0)
    found = await told(node.pool)
    assert actions(found) == ([[(action, "no@y.example")]] if action else [])
    assert [to for to, _ in found] == ([SHOP] if action else [])
    assert await told(node.pool) == found
    # Nor is a report reported on, when it fails itself.
    for message in await node.drain():
        await node.finish([message], Cause.REFUSED)
    assert await told(node.pool) == found


async def test_mail_that_nobody_submitted(node: Node):
    """Has its webhooks, and no report; nor has mail from nobody."""
    await put(node.pool, "no@y.example")
    await submit(node.pool, "no@y.example", sender="")
    await ends(node, Cause.REFUSED)
    assert await told(node.pool) == []


async def test_the_recipients_of_one_message(node: Node):
    """Are told of in one report, where they end together."""
    await submit(node.pool, "a@y.example", "b@y.example")
    await submit(node.pool, "c@y.example")
    await ends(node, Cause.REFUSED)
    found = await told(node.pool)
    assert sorted(map(len, actions(found))) == [1, 2]


async def test_a_deadline_that_no_claim_meets(node: Node):
    """Nor is it missed where the queue is paused."""
    soon = datetime.now(UTC) + timedelta(seconds=0.2)
    await submit(node.pool, "a@y.example", not_after=soon)
    await QueueAdmin(node.pool).pause()
    await eventually(node.queue.expire, "the deadline is over")
    assert actions(await told(node.pool)) == [[("failed", "a@y.example")]]


async def test_a_cancelled_message(node: Node):
    """By hand: whoever does it knows."""
    (one,) = await submit(node.pool, "a@y.example")
    await QueueAdmin(node.pool).cancel(one.id)
    assert await told(node.pool) == []


async def test_a_bounce_that_comes_late(node: Node):
    """Is told once, however often it is reported; so is a delay that another server reports."""
    (one,) = await submit(node.pool, "a@y.example")
    await ends(node, Cause.DELIVERED)
    returned = Returned(node.pool, b"key")
    for finding in (Finding(Kind.DELAYED, "4.4.1", "later"), BOUNCED):
        for _ in range(2):
            await keep(node.pool, [(new_id(), one.id, b"x")])
            (came,) = await returned.claim()
            about = await returned.about(one.id)
            assert about is not None
            await returned.apply(about, finding, came.id)
            await told(node.pool)
    found = await told(node.pool)
    assert actions(found) == [[("delayed", "a@y.example")], [("failed", "a@y.example")]]
    assert [report.recipients[0].status for _, report in found] == ["4.4.1", "5.1.1"]


async def test_of_what_was_never_tried_it_is_said_why_it_waits(node: Node):
    """As this node knows it, for the owner of the mail; of what was tried, what its attempt met."""

    def held(owner: UUID, domain: str) -> tuple[str, str] | None:
        return ("4.4.1", f"nobody answers at {domain}") if owner == ADMINISTRATOR_ID else None

    await node.pool.execute(FROM_THE_START)
    (tried,) = await submit(node.pool, "tried@y.example")
    await age(node.pool, tried.id, 2.0)
    await ends(node, Cause.DEFERRED, delay=60.0, error="451 4.3.2 busy", enhanced="4.3.2", code=451)
    (waits,) = await submit(node.pool, "waits@Y.example")
    await age(node.pool, waits.id, 2.0)
    await notices(node.pool).watch()
    found = await told(node.pool, held=held)
    said = {one.final: (one.status, one.diagnostic) for _, got in found for one in got.recipients}
    assert {status for status, _ in said.values()} == {"4.4.1", "4.3.2"}
    assert any("nobody answers at y.example" in str(words) for _, words in said.values())


async def test_what_is_not_so_any_more(node: Node):
    """A failure that was taken back before anybody was told; the next one is told."""
    (one,) = await submit(node.pool, "a@y.example")
    await ends(node, Cause.REFUSED)
    await QueueAdmin(node.pool).retry(one.id)
    assert await told(node.pool) == []
    await ends(node, Cause.REFUSED)
    assert len(await told(node.pool)) == 1


async def test_a_submitter_who_is_suppressed(node: Node):
    """Gets nothing, and holds up nobody's report."""
    await Suppressions(node.pool).add(ADMINISTRATOR_ID, SHOP)
    await submit(node.pool, "a@y.example")
    await submit(node.pool, "b@y.example", sender="other@x.example")
    await ends(node, Cause.REFUSED)
    assert [to for to, _ in await told(node.pool)] == ["other@x.example"]
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_notices") == 0


async def test_the_way_of_a_report(node: Node):
    """By the upstream of its submitter, for the same owner; what required TLS requires it."""
    owner = uuid4()
    sender_id = await node.pool.fetch_value(
        """
        INSERT INTO relay.senders (owner, address, upstream)
        VALUES (%s, lower(%s), 'smtps://mail.x.example')
        RETURNING id
        """,
        (owner, SHOP),
    )
    mail = MailParameters("FULL", "q1", require_tls=True)
    await submit(node.pool, "a@y.example", owner=owner, mail=mail)
    (message,) = await node.drain()
    assert (message.ret, message.envid, message.require_tls) == ("FULL", "q1", True)
    assert (message.notify, message.is_dsn) == (14, False)
    await node.finish([message], Cause.REFUSED, enhanced="5.7.30", error="5.7.30 no")
    ((to, _),) = await told(node.pool)
    (report,) = await node.drain()
    assert (to, report.recipient, report.sender) == (SHOP, SHOP, "")
    assert (report.owner, report.sender_id) == (owner, sender_id)
    assert report.lane == report.own_lane
    assert (report.is_dsn, report.require_tls, report.notify) == (True, True, None)
    assert report.blob is not None
    assert b"text/rfc822-headers" in report.blob
    # Put back, it stays in its lane.
    await node.finish([report], Cause.DEFERRED)
    assert (await node.drain())[0].lane == report.lane


async def age(pool: Pool, message_id: UUID, hours: float) -> UUID:
    """Make a message older than it is: its id says how old."""
    ((old,),) = await pool.fetch(
        "SELECT (left(relay.uuidv7_floor(now() - make_interval(secs => %s))::text, 13)"
        " || right(%s::text, 23))::uuid",
        (hours * 3600.0, message_id),
    )
    for statement in (
        "UPDATE relay.outbound_letters SET id = %s WHERE id = %s",
        "UPDATE relay.outbound_due SET id = %s WHERE id = %s",
    ):
        await pool.execute(statement, (old, message_id))
    return UUID(str(old))


async def test_the_report_of_mail_whose_tls_is_optional_goes_as_that_did(node: Node):
    """RFC 8689, 5: protected in the same manner; what must go by TLS does, whatever it says."""
    for asked, expected in ((MailParameters(), False), (MailParameters(require_tls=True), True)):
        await submit(node.pool, "a@y.example", mail=asked, tls_optional=True)
        (message,) = await node.drain()
        await node.finish([message], Cause.REFUSED, enhanced="5.1.1", error="5.1.1 no")
        await told(node.pool)
        (report,) = await node.drain()
        assert (message.require_tls, report.require_tls) == (expected, expected)
        await node.finish([report], Cause.DELIVERED)


async def test_what_waits_for_long(node: Node):
    """Is told once, of whoever wants to know; not what is for later, until that is late."""
    pool = node.pool
    await pool.execute(FROM_THE_START)
    names = ["waits", "silent", "held", "new", "later", "other"]
    at = datetime.now(UTC) + timedelta(hours=5)
    ids = {}
    for name in names:
        notify = Notify.FAILURE if name == "silent" else None
        send_at = at if name == "later" else None
        if name == "other":
            (one,) = await put(pool, f"{name}@y.example")
        else:
            (one,) = await submit(pool, f"{name}@y.example", notify=notify, send_at=send_at)
        ids[name] = one.id if name == "new" else await age(pool, one.id, 2.0)
    await QueueAdmin(pool).hold(ids["held"])
    teller = notices(pool)
    assert await teller.watch() == 3
    assert await teller.watch() == 0
    found = await told(pool)
    assert sorted(map(str, actions(found))) == [
        "[('delayed', 'held@y.example')]", "[('delayed', 'waits@y.example')]",
    ]  # fmt: skip
    # Later comes, and it has waited for an hour since.
    await pool.execute("UPDATE relay.outbound_notices SET run_at = now()")
    assert len(await told(pool)) == 3
    # Sent meanwhile, there is nothing to tell.
    await age(pool, ids["new"], 1.5)
    assert await teller.watch() == 0  # it had been looked there already
    await pool.execute(FROM_THE_START)
    await teller.watch()
    await ends(node, Cause.REFUSED)
    waiting = await pool.fetch_value(
        "SELECT count(*) FROM relay.outbound_notices WHERE action = 'delayed'"
    )
    assert waiting == 4
    before = len(await told(pool))
    kinds = [action for report in actions(await told(pool)) for action, _ in report]
    assert kinds.count("delayed") == 3 + 1  # what is held waits still
    assert before == len(await told(pool))


async def test_until_when_what_waits_is_tried(node: Node):
    """Its deadline, or where it goes directly to its exchangers the end of its lifetime, if that
    is earlier."""
    pool, hour = node.pool, timedelta(hours=1)
    await pool.execute(FROM_THE_START)
    due, now = datetime.now(UTC) - 2 * hour, datetime.now(UTC)
    since = "UPDATE relay.outbound_due SET first_due_at = %s, run_at = %s WHERE id = %s"
    for name, not_after in {"soon": now + hour, "late": now + 9 * hour, "none": None}.items():
        (one,) = await submit(pool, f"{name}@y.example", not_after=not_after)
        await pool.execute(since, (due, due, await age(pool, one.id, 2.0)))
    await ends(node, Cause.DEFERRED, delay=60.0)
    await pool.execute(
        "INSERT INTO relay.senders (address, upstream) VALUES (%s, 'smtps://up.example:465')",
        ("other@x.example",),
    )
    (one,) = await submit(pool, "up@y.example", sender="other@x.example")
    await pool.execute(since, (due, due, await age(pool, one.id, 2.0)))
    await ends(node, Cause.DEFERRED, delay=60.0)
    teller = notices(pool, mx_lifetime=5 * 3600.0, direct=True)
    await teller.watch()
    while (await teller.tell()).notices:
        pass
    until = {
        one.final.partition("@")[0]: re.search(rb"Will-Retry-Until: (.*)\r\n", blob)
        for blob, report in await reports(pool)
        for one in report.recipients
    }
    assert {name: found and found[1].decode() for name, found in until.items()} == {
        "soon": date_of(now + hour),
        "late": date_of(due + 5 * hour),
        "none": date_of(due + 5 * hour),
        "up": None,
    }


async def test_many_look_at_once(any_pool: Pool):
    """Each is told once, by one of them."""
    node = Node(any_pool)
    for number in range(60):
        await submit(any_pool, f"a{number}@y.example")
    await ends(node, Cause.REFUSED)

    async def look() -> None:
        while (await notices(any_pool).tell()).notices:
            pass

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(look)
    found = actions(await told(any_pool))
    told_of = [final for report in found for _, final in report]
    assert sorted(told_of) == sorted(f"a{number}@y.example" for number in range(60))


async def test_one_that_the_database_refuses(pool: Pool):
    """Holds up no other; it is tried again later, and dropped at last."""
    node = Node(pool)
    await submit(pool, "bad@y.example", sender="bad@x.example")
    await ends(node, Cause.REFUSED)
    await submit(pool, "a@y.example")
    await ends(node, Cause.REFUSED)
    await pool.execute(
        """
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.recipient = 'bad@x.example' THEN RAISE EXCEPTION 'refused'; END IF;
            RETURN NEW;
        END $$
        """
    )
    await pool.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON relay.outbound_letters"
        " FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    assert [to for to, _ in await told(pool)] == [SHOP]
    for _ in range(ATTEMPTS - 1):
        assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_notices") == 1
        await pool.execute("UPDATE relay.outbound_notices SET run_at = now()")
        await told(pool)
    assert await pool.fetch_value("SELECT count(*) FROM relay.outbound_notices") == 0


async def test_one_that_cannot_be_composed(node: Node):
    """Is dropped at once, as it would fail again, and is said to be untold: never told."""
    for number in range(2):
        await submit(node.pool, f"a{number}@y.example")
    await ends(node, Cause.REFUSED)
    nameless = Notices(node.pool, "mail\ud800.example", **SETTINGS)
    with structlog.testing.capture_logs() as lines:
        assert (await nameless.tell()).notices == 2
    said = [(line["event"], line.get("error")) for line in lines]
    assert said == [("outbound.untold", "UnicodeEncodeError")] * 2
    assert await told(node.pool) == []


async def test_a_kill_before_the_commit(pool: Pool):
    """The notice is there, and is told by the next look."""
    node = Node(pool)
    await submit(pool, "a@y.example")
    await ends(node, Cause.REFUSED)

    class Killed(Notices):
        async def _report(self, *args: Any) -> Any:
            await super()._report(*args)
            raise DatabaseUnavailable("gone")

    with pytest.raises(DatabaseUnavailable):
        await Killed(pool, "mail.x.example", **SETTINGS).tell()
    assert len(await told(pool)) == 1


async def test_a_message_to_many_has_few_reports_however_they_are_spaced(node: Node):
    """The first is whole, the others gather and have its header; then one at the end of the day."""
    times = [datetime(2026, 1, 1, tzinfo=UTC)]
    teller = notices(node.pool, gather=30.0, now=lambda: times[-1])
    recipients = [f"a{number}@y.example" for number in range(45)]
    await submit(node.pool, *recipients, mail=MailParameters(ret="FULL"))
    jobs = await node.drain()
    for job in jobs:
        await node.finish([job], Cause.REFUSED)
        await teller.tell()
        times.append(times[-1] + timedelta(seconds=10))
    assert len(jobs) == len(recipients)

    # Their notices wait by the database's clock, so that it is asked anew at each of these times.
    for hours in (1, 2, 3, 8, 12, 23):
        times.append(times[0] + timedelta(hours=hours))
        for _ in range(2):
            await node.pool.execute("UPDATE relay.outbound_notices SET run_at = clock_timestamp()")
            await teller.tell()
    assert await node.pool.fetch_value("SELECT count(*) FROM relay.outbound_notices") == 0
    found = await reports(node.pool)
    assert 2 <= len(found) <= MOST_REPORTS
    told = sorted(one.final for _, report in found for one in report.recipients)
    assert told == sorted(recipients)
    assert [b"\r\n\r\ntext\r\n" in blob for blob, _ in found] == [
        True, *[False] * (len(found) - 1),
    ]  # fmt: skip


async def test_what_fails_behind_so_many_reports_is_one_summary(node: Node):
    """A day after the first of them."""
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    teller = notices(node.pool, gather=0.0, now=lambda: now[0])
    await submit(node.pool, *(f"a{number}@y.example" for number in range(MOST_REPORTS + 2)))
    for job in await node.drain():
        await node.finish([job], Cause.REFUSED)
        await teller.tell()
    assert len(await reports(node.pool)) == MOST_REPORTS
    waiting = "SELECT count(*) FROM relay.outbound_notices WHERE run_at > now() + interval '23 h'"
    assert await node.pool.fetch_value(waiting) == 2
    await node.pool.execute("UPDATE relay.outbound_notices SET run_at = clock_timestamp()")
    now[0] += timedelta(days=1)
    await teller.tell()
    found = await reports(node.pool)
    assert [len(report.recipients) for _, report in found] == [*[1] * MOST_REPORTS, 2]


async def reports(pool: Pool) -> list[tuple[bytes, Report]]:
    """The reports that are queued, and what they say."""
    rows = await pool.fetch(
        "SELECT blob FROM relay.outbound_contents WHERE route_as IS NOT NULL ORDER BY id"
    )
    return [(bytes(blob), read(bytes(blob))) for (blob,) in rows]
