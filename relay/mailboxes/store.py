"""Expiring inboxes in PostgreSQL: mailboxes, their messages, and what was parsed of them.

Promises
- A mailbox is visible while `is_active AND expires_at > now()` by the database's clock, tested
  in the very statement that reads or writes; from the instant of `expires_at` every call here
  answers None, whether or not the ticker has flipped the flag.
- Unknown, expired, deleted and foreign mailboxes are all alike: None, after the same work.
- Session tokens are stored as hashes and returned once.
- Paging is by keyset: rows that arrive meanwhile neither repeat nor hide others.

Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid` for a value that cannot be
used, `AddressTaken` for a local part in use (by a closed mailbox too, until it is reclaimed: an
address that comes back to a stranger would show him somebody else's mail).

Why one statement a call: a look-up followed by a read would have a gap in which a mailbox can
expire, and a transaction over two statements costs more round trips than one join.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from relay.crypto import hash_token, new_session_token
from relay.db.pool import Pool
from relay.errors import OverQuota, PermanentFailure
from relay.mailboxes import search
from relay.mailboxes.address import canonical
from relay.mailboxes.grams import probes
from relay.mailboxes.names import ANONYMOUS, Names
from relay.mailboxes.plans import LIMITED, USED, Allowance, Invalid, Usage, lifetime_minutes
from relay.public import BadUrl, check_url

T = TypeVar("T")

ADMINISTRATOR_ID = UUID(int=0)
"""`owner_id` of the mailboxes that the administrator made."""

_RAW_TIMEOUT = 60.0  # s; the largest message over a slow network
_PURGED_ROWS, _PURGED_BYTES = 1000, 32 * 2**20  # a statement
_CONSONANTS, _VOWELS = "bdfghjklmnprstvz", "aiou"


class AddressTaken(PermanentFailure):
    """The address that was asked for belongs to another mailbox (409)."""


class ReservedName(PermanentFailure):
    """The local part that was asked for is the administrator's alone (403)."""


@dataclass(frozen=True)
class Credential:
    """Who asks: any of a session token, an API key, the administrator.

    `token_hash` is the SHA-256 of a session token, `owner_id` the id of an API key.
    """

    token_hash: bytes | None = None
    owner_id: UUID | None = None
    administrator: bool = False

    @classmethod
    def of_session(cls, token: str) -> Credential:
        """The credential of whoever knows a mailbox's session token."""
        return cls(token_hash=hash_token(token))


@dataclass(frozen=True)
class Mailbox:
    """A live mailbox; `expires_in` is the seconds it had left when it was read.

    `usage` is None where nobody asked for it.
    """

    id: UUID
    address: str
    plan: str
    owner_type: str
    owner_id: UUID | None
    webhook_url: str | None
    created_at: datetime
    expires_at: datetime
    expires_in: float
    is_active: bool
    usage: Usage | None = None

    def as_json(self) -> dict[str, Any]:
        """The mailbox as the HTTP API shows it, which needs its `usage`."""
        usage = self.usage or Usage()
        return {
            "address": self.address,
            "expires_at": rfc3339(self.expires_at),
            "is_active": self.is_active,
            "owner_type": self.owner_type,
            "message_count": usage.messages,
            "bytes": usage.bytes,
            "max_messages": usage.max_messages,
            "max_bytes": usage.max_bytes,
            "plan": self.plan,
            "created_at": rfc3339(self.created_at),
        }


@dataclass(frozen=True)
class Created:
    """A new mailbox; `session_token` is None when a key or the administrator owns it."""

    mailbox: Mailbox
    session_token: str | None

    def as_json(self) -> dict[str, Any]:
        """The answer of the call that creates a mailbox."""
        return {
            "address": self.mailbox.address,
            "expires_at": rfc3339(self.mailbox.expires_at),
            "session_token": self.session_token,
            "plan": self.mailbox.plan,
        }


@dataclass(frozen=True)
class Entry:
    """A message as a list shows it; `summarised` is False while it still waits for parsing."""

    id: UUID
    from_address: str
    subject: str | None
    received_at: datetime
    is_read: bool
    has_attachments: bool | None
    size: int
    summarised: bool
    seq: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as the HTTP API shows it."""
        return {
            "id": str(self.id),
            "from_address": self.from_address,
            "subject": self.subject,
            "received_at": rfc3339(self.received_at),
            "is_read": self.is_read,
            "has_attachments": self.has_attachments,
            "size": self.size,
        }


@dataclass(frozen=True)
class Message(Entry):
    """One message with everything that was parsed; `error` says why parsing was partial."""

    to: str = ""
    headers: list[list[str]] = field(default_factory=list)
    body_text: str | None = None
    body_html: str | None = None
    attachments: list[dict[str, Any]] = field(default_factory=list)
    otp: str | None = None
    links: list[str] = field(default_factory=list)
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The message as the HTTP API shows it.

        `headers` is an object; a name that occurs several times has a list of values.
        """
        headers: dict[str, str | list[str]] = {}
        for name, value in self.headers:
            known = headers.get(name)
            if known is None:
                headers[name] = value
            elif isinstance(known, list):
                known.append(value)
            else:
                headers[name] = [known, value]
        return {
            **super().as_json(),
            "to": self.to,
            "headers": headers,
            "body_text": self.body_text,
            "body_html": self.body_html,
            "attachments": self.attachments,
            "otp": self.otp,
            "links": self.links,
            "error": self.error,
        }


@dataclass(frozen=True)
class Page(Generic[T]):
    """Part of a list; `cursor` asks for the next part and is None at the end."""

    items: list[T]
    cursor: str | None


@dataclass(frozen=True)
class Found:
    """What a waiter found: the oldest match if any, and the seconds until the mailbox expires."""

    message: Message | None
    expires_in: float


@dataclass(frozen=True)
class Events:
    """Entries that became readable after a cursor, the cursor to go on from, seconds to expiry."""

    entries: list[Entry]
    cursor: int
    expires_in: float


# The law, once.  `b` is relay.mailboxes.
_LIVE = "b.is_active AND b.expires_at > now()"
# NULL = NULL is not true, so a credential without a token or a key matches by neither.
_ALLOWED = "(%(administrator)s OR b.token_hash = %(token_hash)s OR b.owner_id = %(owner_id)s)"
_MAILBOX = """
    b.id, b.address, b.plan, b.owner_type::text, b.owner_id, b.webhook_url, b.created_at,
    b.expires_at, extract(epoch FROM b.expires_at - now())::float8, b.is_active"""
# Beside `_WITH_USAGE`.
_USAGE = f"""
    used.messages, used.bytes,
    CASE WHEN {LIMITED} THEN p.max_messages END, CASE WHEN {LIMITED} THEN p.max_bytes END"""
_WITH_USAGE = f"LEFT JOIN relay.plans p ON p.name = b.plan CROSS JOIN LATERAL ({USED}) used"
# How many live mailboxes an owner has, or else a source; an index-only scan, bounded.
_COUNT_LIVE = """(
    SELECT count(*)
    FROM (
        SELECT FROM relay.mailboxes
        WHERE owner_id = %(owner)s::uuid AND is_active AND expires_at > now()
        UNION ALL
        SELECT FROM relay.mailboxes
        WHERE source = %(source)s::bytea AND is_active AND expires_at > now()
        LIMIT {most}
    ) live)"""
_GONE = f"""
    SELECT
    FROM relay.mailboxes b
    WHERE b.address = %(address)s
      AND NOT ({_LIVE})
      AND {_ALLOWED}
    """  # noqa: S608 - constants of this module only
_ENTRY = """
    m.id, coalesce(s.from_address, m.reverse_path), s.subject, m.received_at, m.is_read,
    s.has_attachments, m.size, s.message_id IS NOT NULL, s.seq"""
_MESSAGE = (
    _ENTRY
    + """, coalesce(m.recipient, b.address), s.headers, s.body_text, s.body_html,
    s.attachments, s.otp, s.links, s.error"""
)
_ENTRY_WIDTH = 9
_BEHIND = """(%(at)s::timestamptz IS NULL
    OR (m.received_at, m.id) < (%(at)s::timestamptz, %(id)s::uuid))"""
_MATCHES = """(coalesce(s.from_address, m.reverse_path) ILIKE %(like)s
    OR s.subject ILIKE %(like)s
    OR coalesce(s.body_text, s.body_html) ILIKE %(like)s)"""
# OFFSET 0: the chunks' summaries and no others, whatever the statistics say.
_IN_CHUNKS = """
    CROSS JOIN unnest(%(after)s::bigint[], %(last)s::bigint[]) c (after_seq, last_seq)
    CROSS JOIN LATERAL (
        SELECT *
        FROM relay.summaries
        WHERE mailbox_id = b.id AND seq > c.after_seq AND seq <= c.last_seq
        OFFSET 0
    ) s
    CROSS JOIN LATERAL (SELECT * FROM relay.messages WHERE id = s.message_id OFFSET 0) m"""
_ANYWHERE = """
    CROSS JOIN relay.summaries s
    JOIN relay.messages m ON m.id = s.message_id"""
_FIRST_CHUNKS, _MOST_CHUNKS = 2, 32  # read by one statement of a search


class Store:
    """The mailboxes of one relay.

    `domains` are those it receives for, the first the default; the names of `senders` (addresses)
    are reserved, like those of `names.ROLES`.
    """

    def __init__(self, pool: Pool, domains: Sequence[str], senders: Sequence[str] = ()) -> None:
        self._pool = pool
        self.domains = tuple(_canonical_domain(domain) for domain in domains)
        self.names = Names(self.domains, senders)

    async def register_domains(self) -> None:
        """Tell SQL (`relay.create_mailbox`) which domains this relay receives for.

        Run at start, after the migrations.  Several relays on one database are expected to
        have the same setting; the last to start is believed.
        """
        # One statement, so that no reader ever meets an empty table.
        await self._pool.execute(
            """
            WITH wanted AS (
                SELECT name, min(position)::integer AS position
                FROM unnest(%s::text[]) WITH ORDINALITY AS w (name, position)
                GROUP BY name
            ), gone AS (
                DELETE FROM relay.domains
                WHERE name NOT IN (SELECT name FROM wanted)
            )
            INSERT INTO relay.domains (name, position)
            SELECT name, position FROM wanted
            ON CONFLICT (name) DO UPDATE SET position = excluded.position
            """,
            (list(self.domains),),
        )

    # -- mailboxes --------------------------------------------------------------------------

    async def create(
        self,
        *,
        ttl_minutes: float | None = None,
        local_part: str | None = None,
        domain: str | None = None,
        webhook_url: str | None = None,
        owner_id: UUID | None = None,
        owner_type: str | None = None,
        plan: str = "free",
        source: bytes | None = None,
    ) -> Created:
        """Make a mailbox that lives `ttl_minutes`, at most what `plan` allows.

        With an `owner_id` (an API key's id, or `ADMINISTRATOR_ID`) it belongs to that owner and
        has no session token; without one it is anonymous and has.  `owner_type` is then `api`
        unless given (`mcp`).  `source` (16 bytes) is whoever makes it anonymously.  `OverQuota`
        where owner or source has as many live ones as the plan allows (several at once may pass it
        by their number).  `AddressTaken`, `ReservedName` for a name that is the
        administrator's, or `Invalid` for a bad value.
        """
        domain = self.domains[0] if domain is None else _canonical_domain(domain)
        if domain not in self.domains:
            raise Invalid(f"domain must be one of {', '.join(self.domains)}")
        if webhook_url is not None:
            _check_url(webhook_url)
        kind = owner_type or ("api" if owner_id is not None else "anonymous")
        chosen = None
        if local_part is not None:
            chosen = _check_local_part(local_part, domain)
            name = chosen.rpartition("@")[0]
            if owner_id != ADMINISTRATOR_ID and self.names.reserves(name):
                raise ReservedName("the local part is reserved")
            if owner_id is None and not ANONYMOUS.fullmatch(name):
                raise Invalid("local_part may hold letters a to z, digits and . _ + - only")
        row = await self._pool.fetch_row(
            f"""
            SELECT default_ttl_minutes, max_ttl_minutes, max_messages, max_bytes,
                   max_mailboxes IS NOT NULL
                   AND {_COUNT_LIVE.format(most="p.max_mailboxes")} >= max_mailboxes
            FROM relay.plans p
            WHERE name = %(plan)s
            """,  # noqa: S608 - constants of this module only
            {
                "plan": plan,
                "owner": None if owner_id == ADMINISTRATOR_ID else owner_id,
                "source": source,
            },
        )
        if row is None:
            raise Invalid(f"there is no plan named {plan!r}")
        *lifetimes, max_messages, max_bytes, full = row
        minutes = lifetime_minutes(ttl_minutes, *lifetimes)
        if full and owner_id != ADMINISTRATOR_ID:
            raise OverQuota("there are as many live mailboxes as the plan allows")
        limits = (None, None) if owner_id == ADMINISTRATOR_ID else (max_messages, max_bytes)
        token = new_session_token() if owner_id is None else None
        # A random name of 64 bits is not taken; three attempts are for the sake of argument.
        for address in [chosen] if chosen else _random_addresses(domain):
            row = await self._pool.fetch_row(
                f"""
                INSERT INTO relay.mailboxes AS b
                    (address, plan, owner_type, owner_id, token_hash, webhook_url, source,
                     expires_at)
                VALUES (%s, %s, %s, %s, %s, %s, %s, now() + make_interval(secs => %s))
                ON CONFLICT (address) DO NOTHING
                RETURNING {_MAILBOX}
                """,  # noqa: S608 - constants of this module only
                (
                    address,
                    plan,
                    kind,
                    owner_id,
                    hash_token(token) if token else None,
                    webhook_url,
                    source,
                    minutes * 60.0,
                ),
            )
            if row is not None:
                return Created(replace(Mailbox(*row), usage=Usage(0, 0, *limits)), token)
        if chosen:
            # Said to somebody who may have made it himself, and was not told so.
            await self._pool.fetch_durable(
                "SELECT FROM relay.mailboxes WHERE address = %s", (chosen,)
            )
        raise AddressTaken(f"{chosen or domain} is taken")

    async def find(self, address: str, credential: Credential) -> Mailbox | None:
        """The live mailbox at `address`, if `credential` may see it; else None, whatever the
        reason.  Without its usage."""
        try:
            spelled = canonical(address)
        except ValueError:
            return None
        row = await self._pool.fetch_row(
            f"""
            SELECT {_MAILBOX}
            FROM relay.mailboxes b
            WHERE b.address = %(address)s
              AND {_LIVE}
              AND {_ALLOWED}
            """,  # noqa: S608 - constants of this module only
            {"address": spelled, **_credential(credential)},
        )
        return Mailbox(*row) if row else None

    async def confirm_gone(self, address: str, credential: Credential) -> None:
        """If `credential` had a mailbox at `address` that is no longer live, see that it stays so.

        For the answer to whoever deletes it again, having heard nothing the first time.
        """
        try:
            values = {"address": canonical(address), **_credential(credential)}
        except ValueError:
            return
        if await self._pool.fetch(_GONE, values):
            await self._pool.fetch_durable(_GONE, values)

    async def usage(self, mailbox_id: UUID) -> Usage | None:
        """What a live mailbox holds, and may hold; None if it is no longer live."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {_USAGE}
            FROM relay.mailboxes b
            {_WITH_USAGE}
            WHERE b.id = %s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id,),
        )
        return Usage(*row) if row else None

    async def allowance(
        self, *, plan: str = "free", owner_id: UUID | None = None, source: bytes | None = None
    ) -> Allowance:
        """What an owner, or else a source of anonymous calls, has of what the plan allows."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {_COUNT_LIVE.format(most="100000")}, max_mailboxes, max_messages, max_bytes
            FROM (SELECT) one
            LEFT JOIN relay.plans p ON p.name = %(plan)s AND NOT %(exempt)s
            """,  # noqa: S608 - constants of this module only
            {
                "plan": plan,
                "exempt": owner_id == ADMINISTRATOR_ID,
                "owner": owner_id,
                "source": source,
            },
        )
        return Allowance(plan, *(row or (0, None, None, None)))

    async def mailboxes(
        self,
        credential: Credential,
        *,
        limit: int = 50,
        cursor: str | None = None,
        q: str = "",
    ) -> Page[Mailbox]:
        """The live mailboxes of an owner (of everybody, for the administrator), newest first.

        `q`: only those whose address contains it, compared without case.
        `Invalid` for a cursor that was not made here.
        """
        after = _decode(cursor, 1)
        before = _uuid(after[0]) if after else None
        if after and before is None:
            raise Invalid("the cursor is not one of ours")
        rows = await self._pool.fetch(
            # relay.mailboxes_owner, or the primary key for the administrator, gives the order.
            f"""
            SELECT {_MAILBOX}, {_USAGE}
            FROM (
                SELECT *
                FROM relay.mailboxes b
                WHERE {"true" if credential.administrator else _ALLOWED}
                  AND {_LIVE}
                  AND (%(before)s::uuid IS NULL OR b.id < %(before)s)
                  AND strpos(lower(b.address), %(q)s) > 0
                ORDER BY b.id DESC
                LIMIT %(limit)s
            ) b
            {_WITH_USAGE}
            ORDER BY b.id DESC
            """,  # noqa: S608 - constants of this module only
            {"before": before, "limit": limit + 1, "q": q.lower(), **_credential(credential)},
        )
        items = [replace(Mailbox(*row[:-4]), usage=Usage(*row[-4:])) for row in rows[:limit]]
        return Page(items, _encode(str(items[-1].id)) if len(rows) > limit else None)

    async def count_active(self, most: int = 100_000) -> int:
        """How many mailboxes accept mail, counted up to `most`."""
        count: int = await self._pool.fetch_value(
            # An index-only scan of relay.mailboxes_due, bounded.
            """
            SELECT count(*)
            FROM (SELECT FROM relay.mailboxes
                  WHERE is_active AND expires_at > now()
                  LIMIT %s) live
            """,
            (most,),
        )
        return count

    async def delete(self, mailbox_id: UUID) -> bool:
        """Close a live mailbox (soft: reclaimed after the retention).  False if it was not live."""
        changed = await self._pool.execute_durable(
            f"""
            UPDATE relay.mailboxes b
            SET is_active = false
            WHERE b.id = %s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id,),
        )
        return changed > 0

    async def purge(self, mailbox_id: UUID) -> bool:
        """Close a live mailbox and delete it with all that is in it.  False if it was not live.

        Closed at the beginning of time it is what the reaper takes first, so that a purge which
        breaks off is finished by the next round.
        """
        changed = await self._pool.execute_durable(
            f"""
            UPDATE relay.mailboxes b
            SET is_active = false, closed_at = '-infinity'
            WHERE b.id = %s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id,),
        )
        # In short statements, as the reaper does; the cascade then has next to nothing to do.
        while changed and await self._pool.execute(
            """
            DELETE FROM relay.messages
            WHERE id = ANY (ARRAY(
                SELECT id
                FROM (
                    SELECT id, sum(size) OVER (ROWS UNBOUNDED PRECEDING) - size AS bytes_before
                    FROM (SELECT id, size FROM relay.messages WHERE mailbox_id = %s LIMIT %s) batch
                ) counted
                WHERE bytes_before < %s))
            """,
            (mailbox_id, _PURGED_ROWS, _PURGED_BYTES),
        ):
            pass
        # Waits for mail that is being stored, which then goes with it.
        await self._pool.execute_durable(
            """
            DELETE FROM relay.mailboxes
            WHERE id = %s
              AND NOT is_active
              AND closed_at = '-infinity'
            """,
            (mailbox_id,),
        )
        return changed > 0

    # -- messages ---------------------------------------------------------------------------

    async def messages(
        self,
        mailbox_id: UUID,
        *,
        limit: int = 50,
        offset: int = 0,
        cursor: str | None = None,
        query: str | None = None,
    ) -> Page[Entry] | None:
        """The messages of a mailbox, newest first; None if it is no longer live.

        `query` is a sub-string, without regard to case, of sender, subject or body.  `offset`
        skips rows after the cursor.  `Invalid` for a cursor that was not made here.
        """
        after = _decode(cursor, 2)
        before_at, before_id = None, None
        if after:
            before_at, before_id = _instant(after[0]), _uuid(after[1])
            if before_at is None or before_id is None:
                raise Invalid("the cursor is not one of ours")
        values = {
            "mailbox": mailbox_id,
            "at": before_at,
            "id": before_id,
            "like": _like(query),
            "limit": limit + 1,
            "offset": min(offset, 2**62),
        }
        if not query:
            rows = await self._list(values)
        elif mark := await search.mark(self._pool, mailbox_id):
            rows = await self._find(values, query, mark)
        else:
            rows = await self._scan(values)
        if not rows:
            return None
        items = [Entry(*row) for row in rows[:limit] if row[0] is not None]
        more = len(rows) > limit
        last = items[-1] if items else None
        return Page(
            items, _encode(last.received_at.isoformat(), str(last.id)) if more and last else None
        )

    # Of the three, a live mailbox without matches gives one row of NULLs, one that is gone none.

    async def _list(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Messages from beyond a cursor and an offset, newest first."""
        return await self._pool.fetch(
            # The ids first, from relay.messages_mailbox alone: what an offset skips is not read.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {_ENTRY}
                FROM (
                    SELECT id
                    FROM relay.messages
                    WHERE mailbox_id = b.id
                      AND (%(at)s::timestamptz IS NULL
                           OR (received_at, id) < (%(at)s::timestamptz, %(id)s::uuid))
                    ORDER BY received_at DESC, id DESC
                    LIMIT %(limit)s
                    OFFSET %(offset)s
                ) page
                JOIN relay.messages m ON m.id = page.id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                ORDER BY m.received_at DESC, m.id DESC
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )

    async def _scan(self, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        """Those among all messages that match, newest first."""
        return await self._pool.fetch(
            # relay.messages_mailbox gives the order.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {_ENTRY}
                FROM relay.messages m
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE m.mailbox_id = b.id
                  AND {_BEHIND}
                  AND {_MATCHES}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(limit)s
                OFFSET %(offset)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )

    async def _find(self, values: dict[str, Any], query: str, mark: int) -> list[tuple[Any, ...]]:
        """What `_scan` gives, for a mailbox all of which up to `mark` is in chunks."""
        mailbox_id, offset = values["mailbox"], values["offset"]
        needed = values["limit"] + offset
        values = values | {"needed": needed, "mark": mark}
        rows = await self._pool.fetch(
            # The tail: what is in no chunk yet.
            f"""
            SELECT e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {_ENTRY}
                FROM (
                    SELECT message_id FROM relay.summaries
                    WHERE mailbox_id = b.id AND seq > %(mark)s
                    UNION
                    SELECT message_id FROM relay.unsummarised WHERE mailbox_id = b.id
                ) tail
                JOIN relay.messages m ON m.id = tail.message_id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE {_BEHIND}
                  AND {_MATCHES}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(needed)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )
        if not rows:
            return []
        found = {row[0]: row for row in rows if row[0] is not None}
        asked = probes(_storable(query))
        below: search.Chunk | None = None
        batch = _FIRST_CHUNKS
        while True:
            chunks = await search.candidates_backwards(
                self._pool, mailbox_id, asked, below=below, before=values["at"], most=batch
            )
            best = sorted(found.values(), key=_newest_first)[:needed]
            # No chunk that is left has anything as new as the last of what is asked for.
            if not chunks or (len(best) == needed and best[-1][3] > chunks[0].newest_at):
                break
            rows = await self._pool.fetch(
                f"""
                SELECT {_ENTRY}
                FROM relay.mailboxes b
                {_IN_CHUNKS}
                WHERE b.id = %(mailbox)s
                  AND {_LIVE}
                  AND {_BEHIND}
                  AND {_MATCHES}
                ORDER BY m.received_at DESC, m.id DESC
                LIMIT %(needed)s
                """,  # noqa: S608 - constants of this module only
                values | _ranges(chunks),
            )
            found |= {row[0]: row for row in rows}
            below, batch = chunks[-1], min(2 * batch, _MOST_CHUNKS)
        return best[offset:] or [(None,)]

    async def message(
        self, mailbox_id: UUID, message_id: str | UUID, *, mark_read: bool = True
    ) -> Message | None:
        """One message of a live mailbox, marked read; None if either is not there."""
        wanted = _uuid(message_id)
        if wanted is None:
            return None
        row = await self._pool.fetch_row(
            # The UPDATE runs though nobody reads from it; a message read before is not written
            # again.  The answer shows the flag as it is after this call.
            f"""
            WITH found AS MATERIALIZED (
                SELECT {_MESSAGE}
                FROM relay.mailboxes b
                JOIN relay.messages m ON m.mailbox_id = b.id
                LEFT JOIN relay.summaries s ON s.message_id = m.id
                WHERE b.id = %(mailbox)s
                  AND m.id = %(message)s
                  AND {_LIVE}
            ), marked AS (
                UPDATE relay.messages
                SET is_read = true
                WHERE %(mark)s
                  AND id IN (SELECT id FROM found WHERE NOT is_read)
            )
            SELECT * FROM found
            """,  # noqa: S608 - constants of this module only
            {"mailbox": mailbox_id, "message": wanted, "mark": mark_read},
        )
        if row is None:
            return None
        if mark_read:
            row = (*row[:4], True, *row[5:])
        return _message(row)

    async def raw(self, mailbox_id: UUID, message_id: str | UUID) -> bytes | None:
        """The message byte for byte as it was accepted; None if it or its mailbox is not there."""
        wanted = _uuid(message_id)
        if wanted is None:
            return None
        sql = f"""
            SELECT m.raw_email
            FROM relay.mailboxes b
            JOIN relay.messages m ON m.mailbox_id = b.id
            WHERE b.id = %s
              AND m.id = %s
              AND {_LIVE}
            """  # noqa: S608 - constants of this module only
        async with self._pool.connection(patience=_RAW_TIMEOUT) as conn:
            # Binary: as text every byte travels as two hexadecimal digits.
            cursor = await conn.execute(sql, (mailbox_id, wanted), binary=True)
            row = await cursor.fetchone()
            return bytes(row[0]) if row else None

    async def raw_size(self, mailbox_id: UUID, message_id: str | UUID) -> int | None:
        """Bytes that `raw` gives, without reading them; None if it or its mailbox is not there."""
        wanted = _uuid(message_id)
        if wanted is None:
            return None
        row = await self._pool.fetch_row(
            f"""
            SELECT m.size
            FROM relay.mailboxes b
            JOIN relay.messages m ON m.mailbox_id = b.id
            WHERE b.id = %s
              AND m.id = %s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id, wanted),
        )
        return row[0] if row else None

    async def raw_piece(
        self, mailbox_id: UUID, message_id: str | UUID, at: int, count: int
    ) -> bytes | None:
        """`count` bytes of a message from byte `at` on; None if it is no more.

        It is stored as it came, so a piece costs no more than its own pages.  Whoever began to read
        may go on when the mailbox is over, until its mail is deleted.
        """
        async with self._pool.connection() as conn:
            cursor = await conn.execute(
                """
                SELECT substring(raw_email FROM %s FOR %s)
                FROM relay.messages
                WHERE mailbox_id = %s
                  AND id = %s
                """,
                (at + 1, count, mailbox_id, _uuid(message_id)),
                binary=True,
            )
            row = await cursor.fetchone()
            return bytes(row[0]) if row else None

    async def delete_message(self, mailbox_id: UUID, message_id: str | UUID) -> bool:
        """Delete a message of a live mailbox for good.  False if either is not there."""
        wanted = _uuid(message_id)
        if wanted is None:
            return False
        changed = await self._pool.execute_durable(
            f"""
            DELETE FROM relay.messages m
            USING relay.mailboxes b
            WHERE b.id = %s
              AND m.id = %s
              AND m.mailbox_id = b.id
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id, wanted),
        )
        return changed > 0

    async def next_match(
        self,
        mailbox_id: UUID,
        *,
        sender: str | None = None,
        subject: str | None = None,
        after: UUID | datetime | None = None,
    ) -> Found | None:
        """The oldest parsed message that matches; None if the mailbox is no longer live.

        `sender` and `subject` are sub-strings without regard to case; `after` (see
        `parse_after`) is exclusive.  Order is that in which messages became readable, so a
        caller that passes the id it got last sees every message once, also when a message that
        came earlier took longer to parse.  Nothing is marked read.
        """
        seq = await self._seq(mailbox_id, after) if isinstance(after, UUID) else None
        values: dict[str, Any] = {
            "mailbox": mailbox_id,
            "from": _like(sender),
            "subject": _like(subject),
            "at": after if isinstance(after, datetime) else None,
            "id": after if isinstance(after, UUID) and seq is None else None,
            "seq": seq or 0,
        }
        if values["from"] or values["subject"] or values["at"]:
            asked = probes(_storable(sender or ""), _storable(subject or ""))
            batch = _FIRST_CHUNKS
            mark = await search.mark(self._pool, mailbox_id)
            while mark > values["seq"]:
                chunks = await search.candidates(
                    self._pool,
                    mailbox_id,
                    asked,
                    above=values["seq"],
                    since=values["at"],
                    most=batch,
                )
                if not chunks:
                    values["seq"] = mark
                    break
                found = await self._oldest(_IN_CHUNKS, values | _ranges(chunks))
                if found is None or found.message is not None:
                    return found
                values["seq"], batch = chunks[-1].last_seq, min(2 * batch, _MOST_CHUNKS)
        return await self._oldest(_ANYWHERE, values)

    async def _oldest(self, where: str, values: dict[str, Any]) -> Found | None:
        """The oldest match with a `seq` above the one given, in some chunks or anywhere."""
        rows = await self._pool.fetch(
            # relay.summaries_mailbox gives the order.  An `after` whose message is gone or not
            # parsed yet falls back to the ids' own order, which is that of arrival.
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8, e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {_MESSAGE}
                FROM (SELECT) one
                {where}
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(seq)s
                  AND (%(from)s::text IS NULL
                       OR coalesce(s.from_address, m.reverse_path) ILIKE %(from)s)
                  AND (%(subject)s::text IS NULL OR s.subject ILIKE %(subject)s)
                  AND (%(at)s::timestamptz IS NULL OR m.received_at > %(at)s)
                  AND (%(id)s::uuid IS NULL OR m.id > %(id)s)
                ORDER BY s.seq
                LIMIT 1
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            values,
        )
        if not rows:
            return None
        seconds, *row = rows[0]
        return Found(_message(tuple(row)) if row[0] is not None else None, seconds)

    async def events(
        self, mailbox_id: UUID, cursor: int | None = None, *, limit: int = 100
    ) -> Events | None:
        """What became readable after `cursor`, in that order; None if the mailbox is not live.

        `cursor` None starts at the present: no entries, and the cursor to go on from.  A full
        answer (`limit` entries) means: ask again at once.
        """
        rows = await self._pool.fetch(
            f"""
            SELECT extract(epoch FROM b.expires_at - now())::float8,
                   (SELECT max(seq) FROM relay.summaries WHERE mailbox_id = b.id),
                   e.*
            FROM relay.mailboxes b
            LEFT JOIN LATERAL (
                SELECT {_ENTRY}
                FROM relay.summaries s
                JOIN relay.messages m ON m.id = s.message_id
                WHERE s.mailbox_id = b.id
                  AND s.seq > %(cursor)s
                ORDER BY s.seq
                LIMIT %(limit)s
            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {_LIVE}
            """,  # noqa: S608 - constants of this module only
            {"mailbox": mailbox_id, "cursor": cursor, "limit": limit},
        )
        if not rows:
            return None
        seconds, newest = rows[0][:2]
        entries = [Entry(*row[2:]) for row in rows if row[2] is not None]
        if cursor is None:
            cursor = newest or 0
        elif entries:
            cursor = cast(int, entries[-1].seq)
        return Events(entries, cursor, seconds)

    async def cursor_after(self, mailbox_id: UUID, message_id: str | UUID) -> int:
        """The cursor of `events` that goes on behind a message, which may be deleted by now.

        An id that is none starts at the beginning.
        """
        wanted = _uuid(message_id)
        if wanted is None:
            return 0
        seq = await self._seq(mailbox_id, wanted)
        if seq is None:  # deleted: ids go by age, so behind the youngest that is not younger
            seq = await self._pool.fetch_value(
                "SELECT max(seq) FROM relay.summaries WHERE mailbox_id = %s AND message_id < %s",
                (mailbox_id, wanted),
            )
        return cast("int | None", seq) or 0

    async def _seq(self, mailbox_id: UUID, message_id: UUID) -> int | None:
        value = await self._pool.fetch_value(
            "SELECT seq FROM relay.summaries WHERE message_id = %s AND mailbox_id = %s",
            (message_id, mailbox_id),
        )
        return cast("int | None", value)


def random_local_part() -> str:
    """64 random bits as four pronounceable groups (proquints, arXiv:0901.4016).

    `relay.random_local_part` is the same in SQL.
    """
    groups = []
    for _ in range(4):
        word = secrets.randbits(16)
        groups.append(
            _CONSONANTS[word >> 12]
            + _VOWELS[word >> 10 & 3]
            + _CONSONANTS[word >> 6 & 15]
            + _VOWELS[word >> 4 & 3]
            + _CONSONANTS[word & 15]
        )
    return "-".join(groups)


def parse_after(value: str) -> UUID | datetime:
    """Read the `after` of a waiter: a message id or an RFC 3339 time.  `Invalid` if neither."""
    found = _uuid(value) or _instant(value)
    if found is None:
        raise Invalid("after must be a message id or an RFC 3339 time")
    return found


def rfc3339(instant: datetime) -> str:
    """An instant as the API writes it: RFC 3339 in UTC, with microseconds."""
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(row: tuple[Any, ...]) -> Message:
    """A row of `_MESSAGE`, whose columns are in the order of the record's fields."""
    to, headers, text, html, attachments, otp, links, error = row[_ENTRY_WIDTH:]
    fields: list[Any] = [*row[:_ENTRY_WIDTH], to, headers or [], text, html]
    fields += [attachments or [], otp, links or [], error]
    return Message(*fields)


def _newest_first(row: tuple[Any, ...]) -> tuple[float, int]:
    """The order of lists, for rows of `_ENTRY`."""
    return -row[3].timestamp(), -row[0].int


def _ranges(chunks: Sequence[search.Chunk]) -> dict[str, Any]:
    return {
        "after": [chunk.after_seq for chunk in chunks],
        "last": [chunk.last_seq for chunk in chunks],
    }


def _credential(credential: Credential) -> dict[str, Any]:
    return {
        "administrator": credential.administrator,
        "token_hash": credential.token_hash,
        "owner_id": credential.owner_id,
    }


def _canonical_domain(domain: str) -> str:
    try:
        return canonical(f"x@{domain.rstrip('.')}").partition("@")[2]
    except ValueError as error:
        raise Invalid(f"{domain!r} is not a domain name") from error


def _check_local_part(value: str, domain: str) -> str:
    """The canonical address that `value` makes in `domain`."""
    if "@" in value:
        raise Invalid("local_part is what stands before the @, without one")
    try:
        return canonical(f"{value}@{domain}")
    except ValueError as error:
        raise Invalid(f"local_part cannot be part of an address: {error}") from error


def _random_addresses(domain: str, attempts: int = 3) -> list[str]:
    return [f"{random_local_part()}@{domain}" for _ in range(attempts)]


def _check_url(url: str) -> None:
    try:
        # Whether private addresses may be posted to is known, and asked again, at each post.
        check_url(url, allow_private=True)
    except BadUrl as error:
        raise Invalid(f"webhook_url {error}") from error


def _storable(value: str) -> str:
    """`value` without what PostgreSQL's text refuses (NUL, lone surrogates): such a character
    becomes U+FFFD, so the value matches nothing rather than raising."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _like(needle: str | None) -> str | None:
    """An ILIKE pattern for a literal sub-string; None or an empty string asks for nothing."""
    if not needle:
        return None
    return "%" + re.sub(r"([\\%_])", r"\\\1", _storable(needle)) + "%"


def _encode(*parts: str) -> str:
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def _decode(cursor: str | None, count: int) -> list[str] | None:
    if cursor is None:
        return None
    try:
        parts = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, binascii.Error, RecursionError) as error:
        raise Invalid("the cursor is not one of ours") from error
    if not (isinstance(parts, list) and len(parts) == count):
        raise Invalid("the cursor is not one of ours")
    return [part if isinstance(part, str) else "" for part in parts]


def _uuid(value: str | UUID) -> UUID | None:
    if isinstance(value, UUID):
        return value
    try:
        return UUID(value)
    except ValueError:
        return None


def _instant(value: str) -> datetime | None:
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    # Outside of what PostgreSQL and every zone can hold, a time says nothing useful.
    return instant if 1 < instant.year < 9999 else None
