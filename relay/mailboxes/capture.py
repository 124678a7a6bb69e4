"""Capture: mail for domains that are not the relay's own is kept in mailboxes made for it.

An application under development sends to addresses of the world; each gets a mailbox here, of owner
type `capture`, the administrator's, that lives for a time from its last mail.  It is made in the
statement that stores the first message, so that nothing is left of mail that is not accepted.

Promises
- `store` makes what mailboxes are missing and stores the messages in one statement: a message that
  is stored has its mailbox, and was not captured before it is durable.
- One mailbox an address, whoever captures at the same moment, on whatever node.
- An address whose mailbox is over gets a new one; what the old one held does not come back.
- A live mailbox that was made otherwise takes the mail as ever, and lives as long as it would have.
- `evict` closes the oldest, by their last mail, of the sender that has most until no more than so
  many live, and never one that may stay: whoever evicts at the same moment, and whatever mail comes
  meanwhile.  So no sender loses any while another has more.

The bound (`Capture.most`) holds a moment later: what is accepted waits for nobody's eviction.  The
writer evicts beside its commits, all that came in a quarter of a second at once, again until there
are not too many, and when it starts, for what a relay that was killed left, or a new setting.

A mailbox counts for the sender whose mail made it, so nobody takes one over by writing to it.  A
sender is the address it connects from, or on this machine the name it signed in with, or else the
domain of its reverse-path (`sender_of`).  The first nobody can choose; the others anybody can, so
that they keep apart programs that are well meant, however much one of them sends, and no others.

| killed …                      | and then                                                         |
|-------------------------------|------------------------------------------------------------------|
| before the commit of the mail | there is neither mail nor mailbox                                |
| after it, before the eviction | there are too many, until a relay has started                    |
| after the eviction            | what was closed takes no mail and is not shown; the reaper of    |
|                               | whichever relay leads deletes it with its mail                   |

Fails as `relay.mailboxes.accept` does.  Nothing of it runs for mail to the relay's own domains.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast
from uuid import UUID

import psycopg

from relay.accepted import Origin
from relay.access.owners import ADMINISTRATOR_ID
from relay.addresses import as_said, canonical_domain
from relay.db.arrays import (
    BYTEA,
    BYTEAS,
    DOUBLE,
    TEXT,
    TEXTS,
    UUIDS,
    byteas,
    texts,
    uuids,
)
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.ids import new_ids
from relay.mailboxes.accept import SHED, mailboxes_of
from relay.ports.peers import peer_key

_ASIDE = "expired.invalid"
"""The domain of mailboxes that lost their address; nobody can send to it (RFC 2606)."""

_seconds = struct.Struct(">d").pack


@dataclass(frozen=True)
class Capture:
    """What is captured: all that is not for a domain in `own` (in its canonical spelling).

    `ttl`: seconds that a mailbox lives after its last mail; `most`: how many may live at once.
    """

    own: frozenset[str]
    ttl: float = 86400.0
    most: int = 10_000

    @classmethod
    def beside(cls, domains: Iterable[str], ttl: float, most: int) -> Capture:
        """All but these domains."""
        own = {canonical_domain(domain) for domain in domains}
        return cls(frozenset(own | {_ASIDE}), ttl, most)

    def takes(self, address: str) -> bool:
        """Whether mail to a canonical address is captured."""
        return address.rpartition("@")[2] not in self.own

    def among(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Which of these are captured."""
        return tuple(address for address in addresses if self.takes(address))


class Captured(NamedTuple):
    """A message with what capture knows of it.

    `recipients`: (message id, canonical address); `captured`: those among the addresses whose
    mailbox may be made; `login`: as whom its sender signed in; `origin`: where it came from.
    """

    recipients: Sequence[tuple[UUID, str]]
    reverse_path: str
    raw: bytes
    login: str | None
    captured: Sequence[str]
    origin: Origin | None = None


def sender_of(message: Captured) -> str:
    """Return for whom mailboxes count that a message makes, with a word for what it is known by."""
    if message.origin is not None:
        return f"client {peer_key(message.origin.client)}"
    if message.login is not None:
        return f"login {message.login}"
    return f"domain {message.reverse_path.rpartition('@')[2].lower()}"


# Addresses and ids of mailboxes are sorted by whoever calls, so that two who capture for the same
# addresses wait for each other in one order.  A mailbox that is over keeps its row and gives none
# here.  One that is not in `made` was made otherwise, is not to be made, or is over: it is looked
# up by the index, for each by itself.
_STORE = f"""
    WITH said AS MATERIALIZED (
        SELECT clock_timestamp() AS at,
               set_config('relay.quiet', 'on', true),  -- until the commit
               set_config('relay.counted', 'on', true),
               set_config('enable_seqscan', 'off', true)  -- of the check that the mailbox is there
    ), made AS (
        INSERT INTO relay.mailboxes AS b
            (id, address, owner_type, owner_id, captured_at, captured_from, expires_at)
        SELECT wanted.id, wanted.address, 'capture', '{ADMINISTRATOR_ID}', said.at, wanted.sender,
               said.at + make_interval(secs => $3)
        FROM unnest((SELECT $1)::uuid[], (SELECT $2)::text[], (SELECT $11)::text[])
                 AS wanted (id, address, sender)
        CROSS JOIN said
        ON CONFLICT (address) DO UPDATE
        SET captured_at = excluded.captured_at,
            expires_at = greatest(b.expires_at, excluded.expires_at)
        WHERE b.is_active
          AND b.expires_at > clock_timestamp()
          AND b.captured_at IS NOT NULL
        RETURNING id, address, xmax = 0 AS is_new
    ), stored AS (
        INSERT INTO relay.messages
            (id, mailbox_id, received_at, reverse_path, recipient, raw_email, login, client, helo)
        SELECT id, mailbox_id, clock_timestamp(), reverse_path, address, raw, login, client, helo
        FROM (
            SELECT o.id, o.address, o.reverse_path, o.raw, o.login, o.client::inet, o.helo,
                   coalesce(made.id, (
                       SELECT b.id
                       FROM relay.mailboxes b
                       WHERE b.address = o.address  -- mailboxes_address_key
                         AND b.is_active
                         AND b.expires_at > clock_timestamp()
                         AND (b.captured_at IS NULL OR b.address <> ALL ((SELECT $2)::text[]))
                       LIMIT 1
                   )) AS mailbox_id
            FROM {{source}} AS o (id, address, reverse_path, raw, login, client, helo)
            CROSS JOIN said
            LEFT JOIN made ON made.address = o.address
        ) found
        WHERE mailbox_id IS NOT NULL
        {{conflict}}
        RETURNING id, mailbox_id, size
    ), queued AS (
        INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
        SELECT id, mailbox_id, size FROM stored
        {{requeue}}
    ), counted AS (
        INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
        SELECT mailbox_id, count(*), sum(size)
        FROM stored
        GROUP BY mailbox_id
    )
    SELECT id, mailbox_id, (SELECT count(*) FROM made WHERE is_new) FROM stored
    """  # noqa: S608 - a constant of ours
# Sub-selects, as in `relay.mailboxes.accept`: planned once.
_MANY = """unnest(
                (SELECT $4)::uuid[], (SELECT $5)::text[], (SELECT $6)::text[], (SELECT $7)::bytea[],
                (SELECT $8)::text[], (SELECT $9)::text[], (SELECT $10)::text[])"""
_ONE = """(SELECT r.id, r.address, $6, $7, $8, $9, $10
                  FROM unnest((SELECT $4)::uuid[], (SELECT $5)::text[]) AS r (id, address))"""


def _statements(source: str, *types: int) -> tuple[Statement, Statement]:
    """For messages that are new, as a rule they are, and where some may be stored already."""
    fresh = _STORE.format(source=source, conflict="", requeue="")
    again = _STORE.format(
        source=source,
        conflict="ON CONFLICT (id) DO NOTHING",
        requeue="ON CONFLICT (message_id) DO NOTHING",
    )
    types = (UUIDS, TEXTS, DOUBLE, UUIDS, TEXTS, *types, TEXTS)
    return Statement(fresh, types), Statement(again, types)


_STORE_MANY = _statements(_MANY, TEXTS, BYTEAS, TEXTS, TEXTS, TEXTS)
_STORE_ONE = _statements(_ONE, TEXT, BYTEA, TEXT, TEXT, TEXT)

# Locked in the order in which `_STORE` locks them.
_SET_ASIDE = f"""
    UPDATE relay.mailboxes
    SET address = id::text || '@{_ASIDE}'
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM relay.mailboxes
        WHERE address = ANY (%s)
          AND NOT (is_active AND expires_at > clock_timestamp())
        ORDER BY address
        FOR UPDATE))
    """  # noqa: S608 - a constant of ours

# Locked in the order in which `_STORE` locks them.
_KEEP_SAID = """
    UPDATE relay.mailboxes b
    SET said = found.said
    FROM (
        SELECT one.id, wanted.said, set_config('relay.quiet', 'on', true)
        FROM unnest(%(addresses)s::text[], %(said)s::text[]) AS wanted (address, said)
        JOIN relay.mailboxes one ON one.address = wanted.address
        WHERE one.captured_at IS NOT NULL
          AND one.said IS NULL
        ORDER BY one.address
        FOR NO KEY UPDATE OF one
    ) found
    WHERE b.id = found.id
    """

# By the first that is one too many, not by how many are too many: two who evict at once close the
# same, and none that may stay.  Sorted are each sender's newest, then each one's second, and so on:
# what comes last there is the oldest of those who have most.  One that gets mail meanwhile is
# spared.  Those that are due and not flipped yet count, too.  Closed at the beginning of time,
# their rows are what the reaper takes next.  All that live are read, where there are too many and
# not otherwise: 16 ms for 10,000.
_EVICT = """
    WITH beyond AS MATERIALIZED (
        SELECT
        FROM relay.mailboxes
        WHERE is_active AND captured_at IS NOT NULL
        ORDER BY captured_at DESC, id DESC  -- mailboxes_captured
        OFFSET %(most)s
        LIMIT 1
    ), placed AS (
        SELECT id, captured_at, row_number() OVER (
                   PARTITION BY captured_from ORDER BY captured_at DESC, id DESC) AS place
        FROM relay.mailboxes
        WHERE is_active
          AND captured_at IS NOT NULL
          AND EXISTS (SELECT FROM beyond)
    ), gone AS MATERIALIZED (
        SELECT id, captured_at, place
        FROM placed
        ORDER BY place, captured_at DESC, id DESC
        OFFSET %(most)s
    ), closed AS (
        UPDATE relay.mailboxes
        SET is_active = false, closed_at = '-infinity'
        WHERE id = ANY (ARRAY(
            SELECT b.id
            FROM gone
            JOIN relay.mailboxes b ON b.id = gone.id AND b.captured_at = gone.captured_at
            WHERE b.is_active
            ORDER BY gone.place DESC, b.captured_at, b.id
            LIMIT %(limit)s
            FOR NO KEY UPDATE OF b SKIP LOCKED))
        RETURNING id
    )
    SELECT (SELECT count(*) FROM closed)
    FROM beyond
    """
_EVICTED = 10_000  # a statement


async def store(
    pool: Pool, messages: Sequence[Captured], ttl: float
) -> tuple[dict[UUID, bytes], int]:
    """Store messages, small together or one alone; return the mailbox of each that was stored now
    (16 bytes), by its id, and how many mailboxes were made for them.

    Not stored is what was stored before, and what is for a mailbox that is over (`set_aside`).
    """
    senders: dict[str, str] = {}
    for message in messages:
        if message.captured:
            sender = sender_of(message)
            for address in message.captured:
                senders.setdefault(address, sender)
    wanted = sorted(senders)
    columns: tuple[bytes | None, ...] = (
        uuids(new_ids(len(wanted))).data,
        texts(wanted).data,
        _seconds(ttl),
    )
    if len(messages) == 1:
        (message,) = messages
        origin = message.origin
        fresh, again = _STORE_ONE
        columns += (
            uuids([id_ for id_, _ in message.recipients]).data,
            texts([address for _, address in message.recipients]).data,
            message.reverse_path.encode(),
            message.raw,  # as it is: between here and libpq's buffer it is copied once
            None if message.login is None else message.login.encode(),
            *((None, None) if origin is None else (origin.client.encode(), origin.helo.encode())),
        )
    else:
        rows = [(*recipient, message) for message in messages for recipient in message.recipients]
        origins = [message.origin for _, _, message in rows]
        fresh, again = _STORE_MANY
        columns += (
            uuids([id_ for id_, _, _ in rows]).data,
            texts([address for _, address, _ in rows]).data,
            texts([message.reverse_path for _, _, message in rows]).data,
            byteas([message.raw for _, _, message in rows]).data,
            texts([message.login for _, _, message in rows]).data,
            texts([origin and origin.client for origin in origins]).data,
            texts([origin and origin.helo for origin in origins]).data,
        )
    columns += (texts([senders[address] for address in wanted]).data,)
    async with pool.connection() as conn:
        try:
            result = await conn.run(fresh, columns)
        except psycopg.errors.UniqueViolation:
            result = await conn.run(again, columns)
        if sum(len(message.raw) for message in messages) > SHED:
            await conn.close()
    stored = mailboxes_of(result, [id_ for message in messages for id_, _ in message.recipients])
    made = int.from_bytes(cast(bytes, result.get_value(0, 2))) if result.ntuples else 0
    return stored, made


async def set_aside(pool: Pool, addresses: Sequence[str]) -> int:
    """Free the addresses of mailboxes that are over; return of how many."""
    return await pool.execute(_SET_ASIDE, (list(addresses),))


def said_of(captured: Iterable[str], recipients: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return (address, how it was said) of those among `captured` with an international domain.

    `recipients`: as they were given, by canonical address.
    """
    return tuple((one, as_said(recipients[one])) for one in captured if "xn--" in one)


async def keep_said(pool: Pool, said: Mapping[str, str]) -> None:
    """Have mailboxes of capture shown as their addresses were said first.

    Beside `store`, so that other mail pays nothing for it.
    """
    await pool.execute(_KEEP_SAID, {"addresses": list(said), "said": list(said.values())})


async def evict(pool: Pool, most: int) -> int | None:
    """Close mailboxes of capture beyond `most`: of who has most, the longest without mail first.

    Returns how many; None: there were not too many.  Some may be left otherwise: such as were
    locked, for mail that came to them, or more than one statement closes.
    """
    closed: int | None = await pool.fetch_value(_EVICT, {"most": most, "limit": _EVICTED})
    return closed
