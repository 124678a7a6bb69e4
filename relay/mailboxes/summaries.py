"""What waits to be parsed, claimed and read; and summaries, stored.

`claim` gives the raw bytes of some of the messages in `relay.unsummarised`, under a lease; `store`
writes their summaries and takes them out of the queue; `with_mail` has the statement that stores
messages store their summaries, too; `arrays` makes statement parameters of what the parser found,
for either; `unparsed` counts what waits.

Promises
- Nothing is lost: a message leaves the queue in the statement that stores its summary, or when it
  is gone itself.  One that is stored together with its summary was never in it.
- Nothing is stored twice: two that parsed the same message store the first one's summary.
- `seq` rises within a mailbox in the order in which summaries become visible, and follows the
  order of arrival within a statement.
- No lock is held while anybody parses, none is waited for but the one that orders a mailbox's
  summaries (those are taken in one order: no deadlock).

Crash safety
    before the claim            the row is in `relay.unsummarised`, nobody has it in hand
    between claim and store     the row is there; other nodes leave it alone until the lease is over
    two claims at one instant   both get it and parse it; the second `store` changes nothing
    before the storing commit   as after the claim
    after it                    the summary is there and the row gone, in one statement

Fails with `DatabaseUnavailable` when nothing is known about the outcome: look again.

Why a lease by parser, and no lock or mark on the rows: a lock would be held in an open transaction
for as long as parsing takes; a mark writes each row once more, and into the log.  The lease is one
small update a group, of a table that is not logged.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple, cast
from uuid import UUID

from relay.db.arrays import (
    BOOLEAN,
    BOOLEANS,
    DOUBLE,
    ONE_UUID,
    SMALLINT,
    TEXT,
    TEXTS,
    UUIDS,
    Array,
    uuids_of,
)
from relay.db.channels import SUMMARIES
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.mailboxes.fair_order import Waiting
from relay.mailboxes.parser import Parsed
from relay.mailboxes.summary import COLUMNS, ENDS

COUNTED = 10_000
"""Messages that are counted while they wait to be parsed, at most."""

_STATEMENT = 30.0  # s; client-side deadline of each statement

_parser = struct.Struct(">h").pack
_seconds = struct.Struct(">d").pack
_size = struct.Struct(">i").unpack

_TYPES = dict.fromkeys(COLUMNS, (TEXTS, TEXT)) | {"has_attachments": (BOOLEANS, BOOLEAN)}
TYPES = tuple(_TYPES[column][0] for column in COLUMNS)
"""The types (OIDs) of the parameters that `arrays` gives."""


class Claimed(NamedTuple):
    """A message to be parsed; the ids are those of UUIDs as 16 bytes.

    `received_at` sorts as the times of arrival do, and is good for nothing else.
    """

    message_id: bytes
    mailbox_id: bytes
    raw: bytes
    received_at: bytes


def _in_hand(node: str) -> str:
    """What is found where another node has the message `u` in hand; `node`: our parameter."""
    return f"""
    SELECT FROM relay.parse_leases l
    WHERE l.node <> {node}
      AND l.expires_at > now()
      AND u.message_id = ANY (l.message_ids)"""


# Arrays, in sub-queries: planned once, whatever their length, and never for a scan of a table that
# was empty then and is a backlog now (`test_plans_look_rows_up`).
_CLAIM = Statement(
    f"""
    WITH free AS MATERIALIZED (
        SELECT u.message_id
        FROM relay.unsummarised u
        WHERE u.message_id = ANY ((SELECT $1)::uuid[])
          AND NOT EXISTS ({_in_hand("$2")})
    ), leased AS (
        INSERT INTO relay.parse_leases (node, parser, message_ids, expires_at)
        SELECT $2, $3, ARRAY(SELECT message_id FROM free), now() + make_interval(secs => $4)
        ON CONFLICT (node, parser) DO UPDATE
        SET message_ids = EXCLUDED.message_ids, expires_at = EXCLUDED.expires_at
    )
    SELECT m.id, m.mailbox_id, m.raw_email, m.received_at
    FROM relay.messages m
    WHERE m.id = ANY (ARRAY(SELECT message_id FROM free))
    """,  # noqa: S608 - a constant of this module
    (UUIDS, ONE_UUID, SMALLINT, DOUBLE),
)


@functools.cache
def _claiming_all(messages: int, size: int) -> Statement:
    """The look and the claim in one: all that wait, where they are few and in nobody else's hand.

    The bounds stand in its text: of a LIMIT that is a parameter PostgreSQL makes no plan to keep,
    and planning takes seven times what it takes to run.
    """
    return Statement(
        f"""
        WITH waiting AS MATERIALIZED (
            SELECT message_id, mailbox_id, size
            FROM relay.unsummarised
            ORDER BY message_id
            LIMIT {messages + 1}
        ), free AS MATERIALIZED (
            SELECT *
            FROM waiting
            WHERE (SELECT count(*) <= {messages} AND sum(size) <= {size} FROM waiting)
              AND NOT EXISTS (SELECT FROM waiting u WHERE EXISTS ({_in_hand("$1")}))
        ), leased AS (
            INSERT INTO relay.parse_leases (node, parser, message_ids, expires_at)
            SELECT $1, $2, ARRAY(SELECT message_id FROM free), now() + make_interval(secs => $3)
            WHERE EXISTS (SELECT FROM free)
            ON CONFLICT (node, parser) DO UPDATE
            SET message_ids = EXCLUDED.message_ids, expires_at = EXCLUDED.expires_at
        )
        SELECT w.message_id, w.mailbox_id, w.size, f.message_id IS NOT NULL,
               m.raw_email, m.received_at
        FROM waiting w
        LEFT JOIN free f ON f.message_id = w.message_id
        LEFT JOIN LATERAL (
            SELECT raw_email, received_at
            FROM relay.messages
            WHERE id = f.message_id
            OFFSET 0
        ) m ON true
        ORDER BY w.message_id
        """,  # noqa: S608 - constants of ours
        (ONE_UUID, SMALLINT, DOUBLE),
    )


def _locked(mailboxes: str) -> str:
    """The locks of mailboxes, whose column is `id`.

    `seq` is drawn after a lock per mailbox is held, and the lock ends with the commit.  The shared
    lock says from where on, to `relay.settled_seq`; nobody waits for it.
    """
    return f"""locked AS MATERIALIZED (
        SELECT key, pg_advisory_xact_lock(1380274273, key), (
            SELECT pg_advisory_xact_lock_shared(
                1380274274, (last_value - (NOT is_called)::integer & 2147483647)::integer)
            FROM relay.summaries_seq_seq)
        FROM (SELECT DISTINCT hashtext(id::text) AS key FROM {mailboxes} ORDER BY key) keys
    )"""  # noqa: S608 - constants of ours


TOLD = f"""(SELECT pg_notify('{SUMMARIES}', (
        SELECT CASE WHEN count(*) <= 200 THEN coalesce(string_agg(key, ','), '') ELSE '*' END
        FROM (
            SELECT mailbox_id::text AS key FROM stored
            UNION
            SELECT '=' || coalesce((
                SELECT owner_id FROM relay.mailboxes b WHERE b.id = stored.mailbox_id)::text, '')
            FROM stored
        ) keys)))"""  # noqa: S608 - a constant of ours
"""Has those hear of it who wait for the mailboxes of `stored`."""

# Most have none of the three, and pay for looking.
_TAGS = r"""
    CASE WHEN tags IS NOT NULL OR login IS NOT NULL OR strpos(recipient, '+') > 0
    THEN relay.tags_of(
        ARRAY[login, rtrim(substring(recipient FROM '^[^+@]*\+([^@]+)@'), '"')]
        || string_to_array(tags, ','))
    END"""
# KEY SHARE: a message is not deleted before its summary refers to it; one that is being deleted is
# left alone, and leaves the queue as an orphan.  The rows come in the order in which they are to be
# numbered (`_locked`).
_STORE = Statement(
    f"""
    WITH {_locked("unnest($2) id")}, alive AS MATERIALIZED (
        SELECT m.id, m.login, coalesce(m.recipient, (
            SELECT address FROM relay.mailboxes b WHERE b.id = m.mailbox_id)) AS recipient
        FROM relay.messages m
        WHERE m.id = ANY ((SELECT $1)::uuid[])
        FOR KEY SHARE SKIP LOCKED
    ), stored AS (
        INSERT INTO relay.summaries (message_id, mailbox_id, {", ".join(COLUMNS)})
        SELECT message_id, mailbox_id, {", ".join(_TAGS if c == "tags" else c for c in COLUMNS)}
        FROM unnest($1, $2, {", ".join(f"${number + 3}" for number in range(len(COLUMNS)))})
            WITH ORDINALITY AS r (message_id, mailbox_id, {", ".join(COLUMNS)}, number)
        JOIN locked ON locked.key = hashtext(r.mailbox_id::text)
        JOIN alive ON alive.id = r.message_id
        ORDER BY number
        ON CONFLICT (message_id) DO NOTHING
        RETURNING mailbox_id
    ), finished AS (
        DELETE FROM relay.unsummarised
        WHERE message_id = ANY (ARRAY(SELECT id FROM alive))
    )
    SELECT id, {TOLD}
    FROM alive
    """,  # noqa: S608 - constants of ours
    (UUIDS, UUIDS, *TYPES),
)


def with_mail(first: int) -> str:
    """Return CTEs that store the summaries of the messages of `stored` (id, mailbox_id, recipient).

    `$1` are the messages' ids, in the order of arrival; the parameters from `first` on are those of
    `arrays`, of the types `TYPES`.  Captured mail, which has a login, is not for this.
    """
    types = {TEXTS: "text[]", BOOLEANS: "boolean[]"}
    given = ", ".join(f"(SELECT ${first + n})::{types[type_]}" for n, type_ in enumerate(TYPES))
    columns = ", ".join(COLUMNS)
    return f"""{_locked("(SELECT mailbox_id AS id FROM stored) s")}, summarised AS (
        INSERT INTO relay.summaries (message_id, mailbox_id, {columns})
        SELECT stored.id, mailbox_id, {", ".join(_TAGS if c == "tags" else c for c in COLUMNS)}
        FROM unnest((SELECT $1)::uuid[], {given})
            WITH ORDINALITY AS r (message_id, {columns}, number)
        JOIN stored ON stored.id = r.message_id
        JOIN locked ON locked.key = hashtext(mailbox_id::text)
        CROSS JOIN (SELECT NULL::text AS login) AS nobody
        ORDER BY number
    )"""  # noqa: S608 - constants of ours


# Rows whose message was deleted before its turn came.
_ORPHANS = """
    DELETE FROM relay.unsummarised u
    WHERE NOT EXISTS (SELECT FROM relay.messages m WHERE m.id = u.message_id)"""
_ORPHANS_AMONG = Statement(
    """
    DELETE FROM relay.unsummarised
    WHERE message_id = ANY ((SELECT $1)::uuid[])
      AND message_id <> ALL (ARRAY(
          SELECT id FROM relay.messages WHERE id = ANY ((SELECT $1)::uuid[])))
    """,
    (UUIDS,),
)
# Every start of a relay is a node of its own.
_TIDY = f"""
    WITH over AS (
        DELETE FROM relay.parse_leases
        WHERE expires_at < now() - interval '1 minute'
    )
    {_ORPHANS}
    """  # noqa: S608 - a constant of this module


def arrays(found: Sequence[Parsed]) -> tuple[bytes, ...]:
    """An array a column of `relay.mailboxes.summary.COLUMNS`, in PostgreSQL's binary form.

    Nothing is read or converted: the rows are cut into their values, and those joined.
    """
    columns: tuple[list[bytes], ...] = tuple([] for _ in COLUMNS)
    ends_of, head = ENDS.unpack_from, ENDS.size
    for row, _ in found:
        start = head
        for values, end in zip(columns, ends_of(row), strict=True):
            values.append(row[start:end])
            start = end
    return tuple(
        Array(*_TYPES[column], values).data for column, values in zip(COLUMNS, columns, strict=True)
    )


async def claim(
    pool: Pool, message_ids: Sequence[bytes], *, node: UUID, parser: int, seconds: float
) -> list[Claimed]:
    """Read those of the messages that still wait and that no other node has in hand.

    They are the node's for `seconds`, or until the next claim for the same of its parsers.
    """
    parameters = (uuids_of(message_ids).data, node.bytes, _parser(parser), _seconds(seconds))
    result = await pool.run(_CLAIM, parameters, timeout=_STATEMENT)
    value = result.get_value
    return [
        Claimed(*(cast(bytes, value(row, column)) for column in range(4)))
        for row in range(result.ntuples)
    ]


async def claim_all(
    pool: Pool, *, node: UUID, parser: int, seconds: float, messages: int, size: int
) -> list[tuple[Waiting, Claimed | None]] | None:
    """See what waits, and where it is few, claim all of it and read it, as `claim` does.

    In the order of arrival; without a `Claimed` is what was deleted.  None, and nothing is claimed,
    where it is more than so many `messages` or a `size` in bytes, or another node has some in hand.
    """
    parameters = (node.bytes, _parser(parser), _seconds(seconds))
    result = await pool.run(_claiming_all(messages, size), parameters, timeout=_STATEMENT)
    value = result.get_value
    found: list[tuple[Waiting, Claimed | None]] = []
    for row in range(result.ntuples):
        if value(row, 3) != b"\x01":
            return None
        message_id, mailbox_id, bytes_, _, raw, at = (
            cast(bytes, value(row, column)) for column in range(6)
        )
        waiting = Waiting(message_id, mailbox_id, _size(bytes_)[0])
        gone = cast("bytes | None", raw) is None
        found.append((waiting, None if gone else Claimed(message_id, mailbox_id, raw, at)))
    return found


async def unparsed(pool: Pool) -> int:
    """Return how many messages wait to be parsed, as far as they are counted: `COUNTED`."""
    found: int = await pool.fetch_value(
        "SELECT count(*) FROM (SELECT FROM relay.unsummarised LIMIT %s) AS u", (COUNTED,)
    )
    return found


async def store(pool: Pool, claimed: Sequence[Claimed], found: Sequence[Parsed]) -> set[bytes]:
    """Store what was found in the messages that were claimed, and take them out of the queue.

    Returns the ids of those that have a summary now; the others are gone, or somebody is about to
    delete them.
    """
    if not claimed:
        return set()
    # In the order of arrival, whichever was parsed first.
    pairs = sorted(
        zip(claimed, found, strict=True), key=lambda pair: (pair[0].received_at, pair[0].message_id)
    )
    columns = (
        uuids_of([message.message_id for message, _ in pairs]).data,
        uuids_of([message.mailbox_id for message, _ in pairs]).data,
        *arrays([parsed for _, parsed in pairs]),
    )
    result = await pool.run(_STORE, columns, timeout=_STATEMENT)
    return {cast(bytes, result.get_value(row, 0)) for row in range(result.ntuples)}


async def drop_orphans(pool: Pool, message_ids: Collection[bytes]) -> None:
    """Take those of the messages that are gone out of the queue."""
    await pool.run(_ORPHANS_AMONG, (uuids_of([*message_ids]).data,))


async def tidy(pool: Pool) -> None:
    """Take all that are gone out of the queue, and forget the leases of nodes that are gone."""
    await pool.execute(_TIDY)
