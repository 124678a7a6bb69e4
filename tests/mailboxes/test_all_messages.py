"""The messages of all mailboxes at once: whose, which, in what order, and what changes them."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest
import trio

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import hash_token
from relay.db.pool import Pool
from relay.errors import Invalid
from relay.ids import new_id
from relay.mailboxes import common_search, summaries
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.changes import Change, NotParsed
from relay.mailboxes.messages import Messages
from relay.mailboxes.parser import Parsed
from relay.mailboxes.query import parse
from relay.mailboxes.store import Store
from relay.mailboxes.summary import summarise
from relay.mailboxes.visibility import LIVE, Reach
from relay.mailboxes.worker import filter_of
from tests.eventually import eventually
from tests.mailboxes.mail import deliver
from tests.mailboxes.naive import Mail, matches

EVERYTHING = Reach()
WORDS = (
    "order",
    "Invoice",
    "reset",
    "PASSWORD",
    "4711",
    "straße",
    "École",
    'say "x"',
    "100%",
    "a_b",
)
TAGS = ("billing", "Shop", "news letter")
_WAITING = """
    SELECT count(*)
    FROM pg_stat_activity
    WHERE datname = current_database()
      AND wait_event_type = 'Lock'"""
NAMES = ("", "Ada", 'Bob "the" Builder', "Émile")


async def make(text: bytes, details: bytes) -> bytes:
    """A filter, without a child of its own."""
    return filter_of(text, details)


@pytest.fixture
def everything(pool: Pool) -> AllMessages:
    """What is tested."""
    return AllMessages(pool)


@dataclass
class World:
    """Mailboxes of two keys, of nobody and of capture, with mail that is known."""

    pool: Pool
    mail: dict[UUID, Mail] = field(default_factory=dict)
    mailboxes: dict[UUID, tuple[UUID | None, str]] = field(default_factory=dict)
    owner_of: dict[UUID, UUID | None] = field(default_factory=dict)
    mailbox_of: dict[UUID, UUID] = field(default_factory=dict)

    def newest_first(self, query: str, owner: UUID | None = None) -> list[UUID]:
        """What should be found."""
        terms = parse(query)
        return sorted(
            (
                one
                for one, mail in self.mail.items()
                if matches(mail, terms) and owner in (None, self.owner_of[one])
            ),
            reverse=True,
        )

    async def add(self, mailbox: UUID, mail: Mail) -> UUID:
        """Store a message as if accepted and parsed."""
        header = f"{mail.name} <{mail.sender}>" if mail.name else mail.sender
        details = json.dumps({"headers": [["To", "x"], ["From", header]]}, ensure_ascii=False)
        message: UUID = await self.pool.fetch_value(
            """
            WITH message AS (
                INSERT INTO relay.messages
                    (id, mailbox_id, received_at, reverse_path, recipient, raw_email, is_read)
                VALUES (%(id)s, %(mailbox)s, %(at)s, 'bounce@b.example', %(to)s,
                        convert_to(repeat('x', %(size)s), 'UTF8'), %(read)s)
                RETURNING id
            )
            INSERT INTO relay.summaries
                (message_id, mailbox_id, from_address, subject, body_text, has_attachments,
                 details, tags)
            SELECT id, %(mailbox)s, %(from)s, %(subject)s, %(text)s, %(attached)s, %(details)s,
                   relay.tags_of(%(tags)s)
            FROM message
            RETURNING message_id
            """,
            {
                "id": new_id(), "mailbox": mailbox, "at": mail.received_at, "to": mail.recipient,
                "size": mail.size, "read": mail.is_read, "from": mail.sender,
                "subject": mail.subject, "text": mail.text, "attached": mail.has_attachments,
                "details": details, "tags": mail.tags,
            },
        )  # fmt: skip
        self.mail[message] = mail
        self.owner_of[message] = self.mailboxes[mailbox][0]
        self.mailbox_of[message] = mailbox
        return message


@pytest.fixture
async def world(pool: Pool) -> World:
    """Mail in a dozen mailboxes, beside some of mailboxes that are over."""
    rng, world = random.Random(5), World(pool)
    start = datetime(2026, 11, 1, tzinfo=UTC) - timedelta(minutes=60)
    owners = [new_id(), new_id(), ADMINISTRATOR_ID, None]
    for number in range(14):
        owner, address = owners[number % 4], f"box{number}+p@relay.localhost"
        mailbox = await pool.fetch_value(
            """
            INSERT INTO relay.mailboxes (address, owner_id, token_hash, expires_at)
            VALUES (%s, %s, %s, now() + interval '1 hour')
            RETURNING id
            """,
            (address, owner, hash_token(address) if owner is None else None),
        )
        world.mailboxes[mailbox] = owner, address
    over = list(world.mailboxes)[-2:]
    for number in range(140):
        mailbox = rng.choice(list(world.mailboxes))
        words = rng.choices(WORDS, k=6)
        await world.add(
            mailbox,
            Mail(
                rng.choice(("ada@example.org", "Bob@shop.example")),
                rng.choice(NAMES),
                world.mailboxes[mailbox][1],
                " ".join(words[:3]),
                " ".join(words[3:]) + rng.choice(("", f" unique-{number}")),
                start + timedelta(minutes=number),
                rng.choice((10, 2000, 5000)),
                rng.random() < 0.5,
                rng.random() < 0.3,
                rng.sample(TAGS, rng.choice((0, 0, 1, 2))),
            ),
        )
    await pool.execute("DELETE FROM relay.unsummarised")
    await pool.execute(
        "UPDATE relay.mailboxes SET expires_at = now() - interval '1 second' WHERE id = %s",
        (over[0],),
    )
    await pool.execute("UPDATE relay.mailboxes SET is_active = false WHERE id = %s", (over[1],))
    for one in [one for one, mailbox in world.mailbox_of.items() if mailbox in over]:
        del world.mail[one]
    return world


async def test_tags_are_those_of_mail_within_reach(pool: Pool, world: World) -> None:
    """By the alphabet, each once whatever its case, as the newest message has it; none of a mailbox
    that is over, or of another's."""
    everything = AllMessages(pool)
    assert await everything.tags(EVERYTHING) == ["billing", "news letter", "Shop"]
    owner, other = [one for one, _ in world.mailboxes.values()][:2]
    theirs, *_, over = world.mailboxes
    mail = replace(next(iter(world.mail.values())), tags=["SHOP", "mine"])
    await world.add(theirs, mail)
    await world.add(over, replace(mail, tags=["gone"]))
    assert await everything.tags(EVERYTHING) == ["billing", "mine", "news letter", "SHOP"]
    assert {"mine", "SHOP"} <= set(await everything.tags(Reach(owner_id=owner)))
    assert "mine" not in await everything.tags(Reach(owner_id=other))
    assert await everything.tags(Reach(mailbox_id=over)) == []


def queries(rng: random.Random, count: int) -> list[str]:
    """Queries of every operator, alone and together."""
    values = {
        "": [*WORDS, "unique-77", "nowhere", "box3", "shop", "bob", "builder", '"x"', "%", "_"],
        "from:": ["ada", "SHOP", "Builder", "émile", '"the"', "nobody", "bounce@"],
        "to:": ["box1", "relay.localhost", "+p@", "nobody"],
        "subject:": [*WORDS, "order invoice"],
        "tag:": ["billing", "SHOP", "news letter", "news", "bill"],
        "has:": ["attachment"],
        "is:": ["read", "unread"],
        "before:": ["2026-11-01", "2026-10-31T23:30:00Z", "2020-01-01"],
        "after:": ["2026-11-01", "2026-11-01T00:30:00Z", "2030-01-01"],
        "larger:": ["1k", "10", "4m"],
        "smaller:": ["1k", "11", "0"],
    }
    # A quotation mark cannot be within quotes, so those with one stand bare.
    usable = {
        name: [v for v in kept if '"' not in v or " " not in v] for name, kept in values.items()
    }
    made = ["", "*", *(f"{name}{_quoted(v)}" for name, kept in usable.items() for v in kept)]
    for _ in range(count):
        terms = []
        for name in rng.choices(list(usable), k=rng.choice((1, 2, 2, 3))):
            terms.append(f"{'-' * (rng.random() < 0.4)}{name}{_quoted(rng.choice(usable[name]))}")
        made.append(" ".join(terms))
    return made


def _quoted(value: str) -> str:
    return f'"{value}"' if " " in value else value


async def listed(everything: AllMessages, reach: Reach, query: str, limit: int = 50) -> list[UUID]:
    """All that a query finds, page by page."""
    found: list[UUID] = []
    cursor = None
    while True:
        page = await everything.page(reach, parse(query), limit=limit, cursor=cursor)
        # Within a page by time, page by page by id.
        times = [entry.received_at for entry, _ in page.items]
        assert times == sorted(times, reverse=True)
        found += [entry.id for entry, _ in page.items]
        if (cursor := page.cursor) is None:
            return found


async def test_finds_what_reading_everything_finds(world: World, everything: AllMessages):
    """Each query, page by page, finds what a plain loop over all messages does."""
    for query in queries(random.Random(11), 150):
        wanted = world.newest_first(query)
        assert await listed(everything, EVERYTHING, query) == wanted, query
        if len(wanted) > 3:
            assert await listed(everything, EVERYTHING, query, limit=len(wanted) // 2) == wanted


async def test_chunks_change_no_answer(world: World, everything: AllMessages):
    """Each query and each wait answers as before, whole or page by page, beside a tail as well."""
    asked = queries(random.Random(7), 80)
    waits = [await everything.next_match(EVERYTHING, parse(query)) for query in asked]
    settled = await common_search.settled(world.pool)
    assert not await common_search.grow(world.pool, make, settled=settled, size=8, least=10_000)
    chunks = 0
    while await common_search.grow(world.pool, make, settled=settled, size=8, least=1):
        chunks += 1
    assert chunks == 140 // 8
    mailbox = next(iter(world.mailboxes))
    await world.pool.execute(
        "INSERT INTO relay.messages (mailbox_id, raw_email) SELECT id, 'x' FROM relay.mailboxes"
        " WHERE NOT is_active"
    )
    for query, before in zip(asked, waits, strict=True):
        wanted = world.newest_first(query)
        assert await listed(everything, EVERYTHING, query) == wanted, query
        if len(wanted) > 3:
            assert await listed(everything, EVERYTHING, query, limit=3) == wanted
        assert await everything.next_match(EVERYTHING, parse(query)) == before or before is None
    mine = Reach(mailbox_id=mailbox)
    wanted = [one for one in world.newest_first("order") if world.mailbox_of[one] == mailbox]
    assert await listed(everything, mine, "order") == wanted
    # Chunks of which nothing is left go; the last stays, for it says how far they go.
    assert await everything.delete(EVERYTHING, parse("order")) == len(world.newest_first("order"))
    await world.pool.execute("DELETE FROM relay.messages")
    await common_search.tidy(world.pool)
    assert await world.pool.fetch_value("SELECT count(*) FROM relay.common_chunks") == 1


async def test_each_sees_their_own(world: World, everything: AllMessages):
    """A key sees its mailboxes', a session token its one mailbox's, the administrator all."""
    owners = {
        owner for owner, _ in world.mailboxes.values() if owner not in (None, ADMINISTRATOR_ID)
    }
    assert len(owners) == 2
    for owner in owners:
        for query in ("*", "order", "is:unread"):
            wanted = world.newest_first(query, owner)
            assert wanted
            assert await listed(everything, Reach(owner_id=owner), query) == wanted
    for mailbox in world.mailboxes:
        wanted = [one for one in world.newest_first("*") if world.mailbox_of[one] == mailbox]
        assert await listed(everything, Reach(mailbox_id=mailbox), "*") == wanted


async def test_an_entry_says_where_it_is(world: World, everything: AllMessages):
    """Address, tags, and the beginning of the text in one line."""
    mailbox = next(iter(world.mailboxes))
    mail = Mail(
        "a@x.example", "", "", "s", "Hello\n\n  there " + "long " * 60,
        datetime.now(UTC), 10, tags=["one", "two", "one"],
    )  # fmt: skip
    await world.add(mailbox, mail)
    entry, placed = (await everything.page(EVERYTHING, limit=1)).items[0]
    shown = placed.as_json()
    assert (entry.subject, placed.mailbox) == ("s", world.mailboxes[mailbox][1])
    assert shown["tags"] == ["one", "two"]
    assert shown["snippet"].startswith("Hello there long long")
    assert len(shown["snippet"]) <= 160
    await world.pool.execute(
        "UPDATE relay.summaries SET body_text = NULL, body_html = '<p>Only <b>HTML</b></p>'"
    )
    _, placed = (await everything.page(EVERYTHING, limit=1)).items[0]
    assert placed.as_json()["snippet"] == "Only HTML"


async def test_lists_what_is_not_parsed_yet(world: World, everything: AllMessages):
    """It is found by its reverse-path, recipient, size and state, and by nothing else."""
    mailbox = next(iter(world.mailboxes))
    message = await world.pool.fetch_value(
        "INSERT INTO relay.messages (mailbox_id, reverse_path, raw_email)"
        " VALUES (%s, 'early@x.example', 'Subject: order') RETURNING id",
        (mailbox,),
    )
    for query in (
        "early@x",
        "from:EARLY",
        "to:box0",
        "larger:13 early",
        "-order early",
        "is:unread",
    ):
        assert (await listed(everything, EVERYTHING, query))[0] == message, query
    for query in ("order", "subject:order", "tag:x", "has:attachment", "is:read"):
        assert message not in await listed(everything, EVERYTHING, query), query
    entry, placed = (await everything.page(EVERYTHING, limit=1)).items[0]
    assert (entry.id, entry.summarised, placed.as_json()["snippet"]) == (message, False, None)


async def test_bulk_calls_change_what_matches(world: World, everything: AllMessages):
    """Counted, within the caller's reach, and nothing else is touched."""
    mine = world.mailboxes[next(iter(world.mailboxes))][0]
    assert mine is not None
    reach = Reach(owner_id=mine)
    unread = world.newest_first("is:unread order", mine)
    read = Change(is_read=True)
    assert await everything.change(reach, parse("order"), read) == len(unread)
    for one in unread:
        world.mail[one].is_read = True
    assert await everything.change(reach, parse("order"), read) == 0
    assert await listed(everything, EVERYTHING, "is:unread") == world.newest_first("is:unread")
    gone = world.newest_first("subject:reset -tag:billing", mine)
    assert gone
    assert await everything.delete(reach, parse("subject:reset -tag:billing")) == len(gone)
    for one in gone:
        del world.mail[one]
    assert await listed(everything, EVERYTHING, "*") == world.newest_first("*")
    left = len(world.newest_first("*"))
    hidden = await world.pool.fetch_value("SELECT count(*) FROM relay.messages") - left
    assert hidden > 0
    assert await everything.delete(EVERYTHING, ()) == left
    assert await world.pool.fetch_value("SELECT count(*) FROM relay.messages") == hidden


async def test_counts_what_is_listed(world: World, everything: AllMessages):
    """Of a search or of all, within reach; beyond the time of one, that there may be more."""
    mine = world.mailboxes[next(iter(world.mailboxes))][0]
    for q in ("order", "is:unread", "tag:billing", "*", "subject:reset -tag:billing"):
        assert await everything.count(EVERYTHING, parse(q)) == (len(world.newest_first(q)), False)
        count = len(world.newest_first(q, mine))
        assert await everything.count(Reach(owner_id=mine), parse(q)) == (count, False)
    hasty = AllMessages(world.pool, seconds=0.0)
    count, more = await hasty.count(EVERYTHING)
    assert count == len(world.newest_first("*")) or more


async def test_many_are_tagged_at_once(world: World, everything: AllMessages):
    """Some tags go and some come, the others of each message stay; others' mail has what it had."""
    mine = next(owner for owner, _ in world.mailboxes.values() if owner is not None)
    reach = Reach(owner_id=mine)
    for query, change in (
        ("order", Change(add=["new", "Billing"])),
        ("order", Change(add=["NEW"])),
        ("-order", Change(add=["new"])),
        ("order", Change(remove=["bILLING"])),
        ("tag:new", Change(remove=["no such"])),
        ("order", Change(remove=["new"], add=["new"])),
        ("tag:shop", Change(remove=["SHOP"], add=["seen"], is_read=True)),
        ("is:read", Change(is_read=False, remove=["no such"])),
        ("tag:billing", Change(tags=["a", "b"], remove=["b"], add=["c"])),
        ("*", Change(remove=["a", "new", "seen", *TAGS, "c"])),
    ):
        changed = 0
        for one in world.newest_first(query, mine):
            mail = world.mail[one]
            before = list(mail.tags), mail.is_read
            gone = [tag.lower() for tag in change.remove]
            had = mail.tags if change.tags is None else list(change.tags)
            kept = [tag for tag in had if tag.lower() not in gone]
            known = [tag.lower() for tag in kept]
            mail.tags = kept + [tag for tag in change.add if tag.lower() not in known]
            mail.is_read = mail.is_read if change.is_read is None else change.is_read
            changed += before != (mail.tags, mail.is_read)
        assert await everything.change(reach, parse(query), change) == changed, change
        page = await everything.page(EVERYTHING, limit=200)
        for entry, placed in page.items:
            mail = world.mail[entry.id]
            assert (list(placed.tags), entry.is_read) == (list(mail.tags), mail.is_read)
    assert all(not tags for (tags,) in await world.pool.fetch(
        "SELECT tags FROM relay.summaries s JOIN relay.mailboxes b ON b.id = s.mailbox_id"
        " WHERE b.owner_id = %s AND b.is_active AND b.expires_at > now()", (mine,)
    ))  # fmt: skip


async def test_no_message_has_more_tags_than_it_may(world: World, everything: AllMessages):
    """What finds no room is not added, and not counted."""
    full = [f"t{number}" for number in range(19)]
    count = len(world.newest_first("*"))
    assert await everything.change(EVERYTHING, (), Change(tags=full)) == count
    assert await everything.change(EVERYTHING, (), Change(add=["one", "two"])) == count
    assert await everything.change(EVERYTHING, (), Change(add=["three"])) == 0
    _, placed = (await everything.page(EVERYTHING, limit=1)).items[0]
    assert list(placed.tags) == [*full, "one"]


async def test_who_tags_meanwhile_loses_nothing(world: World, everything: AllMessages):
    """Calls at the same moment, for one message and for all: each tag is there in the end."""
    messages = Messages(world.pool)
    one = world.newest_first("*")[0]

    async def alone(tag: str) -> None:
        assert await messages.change(world.mailbox_of[one], one, Change(is_read=True, add=[tag]))

    async with trio.open_nursery() as nursery:
        for number in range(4):
            change = Change(is_read=bool(number % 2), add=[f"b{number}"])
            nursery.start_soon(everything.change, EVERYTHING, (), change)
            nursery.start_soon(alone, f"a{number}")
    page = await everything.page(EVERYTHING, limit=200)
    for entry, placed in page.items:
        assert {f"b{number}" for number in range(4)} <= set(placed.tags)
        if entry.id == one:
            assert {f"a{number}" for number in range(4)} <= set(placed.tags)


@pytest.mark.parametrize("by", ["query", "ids", "pop3"])
async def test_what_is_deleted_is_locked_in_the_order_in_which_it_is_changed(
    world: World, everything: AllMessages, by: str
):
    """Wherever it lies in the table: who waits for a message holds none behind it, so two who
    delete and change the same mail wait for each other, and not both for ever."""
    # Plans that were made while the table was small go through it as it lies.
    database = await world.pool.fetch_value("SELECT current_database()")
    await world.pool.execute(f"ALTER DATABASE {database} SET enable_indexscan = off")
    await world.pool.hang_up()
    await world.pool.execute("UPDATE relay.messages SET is_read = NOT is_read WHERE NOT is_read")
    # Of one mailbox, the first by its id behind the last.
    ((first, last),) = await world.pool.fetch(
        f"""
        SELECT m.id, other.id
        FROM relay.messages m
        JOIN relay.messages other USING (mailbox_id)
        JOIN relay.mailboxes b ON b.id = m.mailbox_id
        WHERE {LIVE}
          AND m.id < other.id
          AND m.ctid > other.ctid
        LIMIT 1
        """
    )
    async with trio.open_nursery() as nursery, world.pool.transaction() as conn:
        await conn.execute("SELECT FROM relay.messages WHERE id = %s FOR UPDATE", (first,))
        if by == "query":
            nursery.start_soon(everything.delete, EVERYTHING, ())
        elif by == "ids":
            nursery.start_soon(everything.delete_these, EVERYTHING, [last, first])
        else:
            messages, mailbox = Messages(world.pool), world.mailbox_of[first]
            nursery.start_soon(messages.delete_all, mailbox, [last, first])
        await eventually(partial(world.pool.fetch_value, _WAITING), "it waits")
        await conn.execute("SELECT FROM relay.messages WHERE id = %s FOR UPDATE NOWAIT", (last,))
    left = await world.pool.fetch_value(
        "SELECT count(*) FROM relay.messages WHERE id = ANY (%s)", ([first, last],)
    )
    assert left == 0


@pytest.mark.parametrize("had", [[], ["q"]])
@pytest.mark.parametrize(
    ("change", "then"),
    [
        (Change(add=["n"]), ["x", "n"]),
        (Change(remove=["X"], add=["n"]), ["n"]),
        (Change(tags=["z"]), ["z"]),
    ],
)
async def test_a_message_that_is_tagged_meanwhile_is_looked_at_again(
    world: World, everything: AllMessages, had: list[str], change: Change, then: list[str]
):
    """The tags that it had when it was found do not count.  (PostgreSQL ended on a null pointer
    where the statement had a SELECT that did not depend on the message.)"""
    retag = "UPDATE relay.summaries SET tags = relay.tags_of(%s)"
    await world.pool.execute(retag, (had,))
    one = world.newest_first("*")[0]
    async with trio.open_nursery() as nursery, world.pool.transaction() as conn:
        await conn.execute(retag, (["x"],))
        nursery.start_soon(everything.change, EVERYTHING, (), change)
        nursery.start_soon(Messages(world.pool).change, world.mailbox_of[one], one, change)
        await eventually(
            partial(world.pool.fetch_value, _WAITING), "both wait", until=lambda n: n == 2
        )
    for _, placed in (await everything.page(EVERYTHING, limit=200)).items:
        assert list(placed.tags) == then


async def test_what_is_not_parsed_is_told_when_the_rest_is_tagged(
    world: World, everything: AllMessages
):
    """It has nothing yet that would hold a tag, but may be read."""
    box = next(iter(world.mailboxes))
    late = await world.pool.fetch_value(
        "INSERT INTO relay.messages (mailbox_id, reverse_path, raw_email)"
        " VALUES (%s, 'late@x.example', 'Subject: late') RETURNING id",
        (box,),
    )
    count = len(world.newest_first("*"))
    with pytest.raises(NotParsed, match=r"some of the messages \(1\)"):
        await everything.change(EVERYTHING, (), Change(is_read=True, add=["x"]))
    found = (await everything.page(EVERYTHING, parse("tag:x is:read"), limit=200)).items
    assert len(found) == count
    entry, _ = (await everything.page(EVERYTHING, limit=1)).items[0]
    assert (entry.id, entry.is_read) == (late, True)


async def test_a_cursor_of_elsewhere_is_refused(everything: AllMessages):
    """What is not ours is `Invalid`."""
    for cursor in ("x", "WyJ4Il0", ""):
        with pytest.raises(Invalid):
            await everything.page(EVERYTHING, cursor=cursor)


async def test_waits_over_all(world: World, everything: AllMessages):
    """The oldest match comes first, each once, and behind the last of them nothing."""
    order = sorted(world.mail)  # ids and summaries were made in the same order
    wanted = [one for one in order if one in world.newest_first("subject:order from:shop")]
    found: list[UUID] = []
    after, terms = None, parse("subject:order from:shop")
    while True:
        match = await everything.next_match(EVERYTHING, terms, after=after)
        assert match is not None
        if match.message is None:
            break
        message, placed = match.message
        assert placed.mailbox == world.mailboxes[world.mailbox_of[message.id]][1]
        after = message.id
        found.append(after)
    assert found == wanted
    middle = world.mail[wanted[len(wanted) // 2]].received_at
    match = await everything.next_match(EVERYTHING, terms, after=middle)
    assert match is not None
    assert match.message is not None
    assert match.message[0].received_at > middle
    # What was looked at once is not looked at again.
    first = await everything.next_match(EVERYTHING, parse("nowhere"))
    assert first is not None
    assert first.message is None
    await deliver(world.pool, next(iter(world.mailboxes)), "nowhere")
    again = await everything.next_match(EVERYTHING, parse("nowhere"), above=first.above)
    assert again is not None
    assert again.message is not None


async def test_news_of_a_mailbox_ends_with_it(pool: Pool, store: Store, everything: AllMessages):
    """With a session token the answer is None from the instant of its end."""
    mailbox = (await store.create()).mailbox
    reach = Reach(mailbox_id=mailbox.id)
    news = await everything.news(reach)
    assert news is not None
    assert news.expires_in == pytest.approx(3600, abs=60)
    await pool.execute("UPDATE relay.mailboxes SET expires_at = now() - interval '1 microsecond'")
    assert await everything.news(reach) is None
    assert await everything.next_match(reach) is None
    assert await everything.news(EVERYTHING) is not None


def parsed(subject: str, more: bytes = b"") -> Parsed:
    """What the parser makes of a small message."""
    return Parsed(summarise(f"Subject: {subject}\r\n".encode() + more + b"\r\nx").as_row(), 0.0)


async def claimed(pool: Pool, mailbox: UUID, **columns: str) -> summaries.Claimed:
    """A message that was accepted and claimed."""
    row = await pool.fetch_row(
        """
        INSERT INTO relay.messages (mailbox_id, raw_email, recipient, login)
        VALUES (%s, 'x', %s, %s)
        RETURNING id, mailbox_id
        """,
        (mailbox, columns.get("recipient"), columns.get("login")),
    )
    assert row is not None
    return summaries.Claimed(row[0].bytes, row[1].bytes, b"x", b"")


async def test_nothing_is_passed_over_while_something_is_stored(
    pool: Pool, store: Store, everything: AllMessages
):
    """A summary with a lower number that is visible later is waited for, and nobody else is."""
    mailboxes = [(await store.create()).mailbox.id for _ in range(3)]
    start = await everything.news(EVERYTHING)
    assert start is not None
    slow, quick, last = [await claimed(pool, mailbox) for mailbox in mailboxes]
    async with pool.transaction() as open_one:
        # As `store` does: the shared lock first, then the number; here the commit takes its time.
        await open_one.execute(
            """
            SELECT pg_advisory_xact_lock_shared(
                1380274274, (last_value - (NOT is_called)::integer & 2147483647)::integer)
            FROM relay.summaries_seq_seq
            """
        )
        await open_one.execute(
            "INSERT INTO relay.summaries (message_id, mailbox_id, subject) VALUES (%s, %s, 'slow')",
            (UUID(bytes=slow.message_id), mailboxes[0]),
        )
        assert await summaries.store(pool, [quick], [parsed("quick")])
        news = await everything.news(EVERYTHING, start.cursor)
        assert news is not None
        assert (news.found, news.more) == ([], True)
        match = await everything.next_match(EVERYTHING, parse("quick"))
        assert match is not None
        assert (match.message, match.more) == (None, True)
    news = await everything.news(EVERYTHING, news.cursor)
    assert news is not None
    assert [entry.subject for entry, _ in news.found] == ["slow", "quick"]
    assert not news.more
    # One that comes to nothing holds nothing up either.
    with pytest.raises(RuntimeError, match="nothing"):
        async with pool.transaction() as open_one:
            await open_one.execute("SELECT pg_advisory_xact_lock_shared(1380274274, 5)")
            assert await summaries.store(pool, [last], [parsed("last")])
            raise RuntimeError("nothing")
    news = await everything.news(EVERYTHING, news.cursor)
    assert news is not None
    assert [entry.subject for entry, _ in news.found] == ["last"]


async def test_every_message_is_news_once_whoever_stores(
    pool: Pool, store: Store, everything: AllMessages
):
    """Many who store at once, and one who follows: each message once, none left out."""
    mailboxes = [(await store.create()).mailbox.id for _ in range(8)]
    start = await everything.news(EVERYTHING)
    assert start is not None
    groups = [[await claimed(pool, mailbox) for _ in range(12)] for mailbox in mailboxes]
    seen: list[UUID] = []

    async def one(group: list[summaries.Claimed]) -> None:
        for message in group:
            await summaries.store(pool, [message], [parsed("x")])

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for group in groups:
                nursery.start_soon(one, group)
            cursor = start.cursor
            while len(seen) < 96:
                news = await everything.news(EVERYTHING, cursor, limit=10)
                assert news is not None
                cursor = news.cursor
                seen += [entry.id for entry, _ in news.found]
    assert len(seen) == len(set(seen)) == 96


async def test_a_lock_of_the_far_past_or_future_means_nothing(pool: Pool, store: Store):
    """Numbers are compared around the end of what a lock's key holds."""
    mailbox = (await store.create()).mailbox.id
    await pool.execute("SELECT setval('relay.summaries_seq_seq', 2147483646)")
    for _ in range(4):
        message = await claimed(pool, mailbox)
        assert await summaries.store(pool, [message], [parsed("x")])
        newest = await pool.fetch_value("SELECT max(seq) FROM relay.summaries")
        assert await pool.fetch_value("SELECT relay.settled_seq()") == newest
    async with pool.transaction() as conn:
        await conn.execute("SELECT pg_advisory_xact_lock_shared(1380274274, 2147483647)")
        assert await pool.fetch_value("SELECT relay.settled_seq()") == 2147483647
        await conn.execute("SELECT pg_advisory_xact_lock_shared(1380274274, 100)")
        assert await pool.fetch_value("SELECT relay.settled_seq()") == 2147483647


@pytest.mark.parametrize(
    ("login", "recipient", "header", "tags"),
    [
        (None, "ada@relay.localhost", b"", None),
        (None, None, b"", None),
        ("billing", "ada@relay.localhost", b"", ["billing"]),
        (None, "ada+news@x.example", b"", ["news"]),
        (None, "ada+a+b@x.example", b"", ["a+b"]),
        (None, "ada+@x.example", b"", None),
        (None, None, b"X-Tags: one, two ,,one,  three four\r\n", ["one", "two", "three four"]),
        (None, None, b"x-tags: a\r\nX-TAGS: b\r\n", ["a", "b"]),
        ("app", "ada+plus@x.example", b"X-Tags: plus, head\r\n", ["app", "plus", "head"]),
        (None, None, b"X-Tags: " + b"l" * 150 + b"\r\n", ["l" * 100]),
        (None, None, b"X-Tags: =?utf-8?q?gr=C3=BC=C3=9Fe?=\r\n", ["grüße"]),
        (None, None, b"X-Tags: , ,\r\n", None),
        (None, None, b"X-Tags: " + b",".join(b"%d" % n for n in range(30)) + b"\r\n",
         [str(n) for n in range(20)]),
    ],
)  # fmt: skip
async def test_tags_of_a_message(
    pool: Pool, store: Store, login: str, recipient: str, header: bytes, tags: list[str] | None
):
    """From the login, the plus part and X-Tags, in this order, each once, and not too many."""
    mailbox = (await store.create()).mailbox.id
    message = await claimed(
        pool,
        mailbox,
        **{name: value for name, value in (("login", login), ("recipient", recipient)) if value},
    )
    assert await summaries.store(pool, [message], [parsed("x", header)])
    assert await pool.fetch_value("SELECT tags FROM relay.summaries") == tags


async def test_the_mailbox_has_a_plus_part_where_nobody_said_the_recipient(
    pool: Pool, store: Store
):
    """Mail that came by SQL names no recipient: it is the mailbox's address."""
    mailbox = (await store.create(local_part="ada+shop")).mailbox.id
    assert await summaries.store(pool, [await claimed(pool, mailbox)], [parsed("x")])
    assert await pool.fetch_value("SELECT tags FROM relay.summaries") == ["shop"]


async def test_a_recipient_is_found_in_any_case(pool: Pool, store: Store, everything: AllMessages):
    """Letters outside ASCII, too."""
    mailbox = (await store.create(local_part="ada")).mailbox.id
    await pool.execute("UPDATE relay.mailboxes SET address = 'grüße@relay.localhost'")
    message = await claimed(pool, mailbox)
    assert await summaries.store(pool, [message], [parsed("x")])
    for query in ("to:GRÜSSE", "to:Grüße", "to:GRÜße", "to:Ü", "GRÜ"):
        found = await listed(everything, EVERYTHING, query)
        assert len(found) == (query != "to:GRÜSSE"), query
