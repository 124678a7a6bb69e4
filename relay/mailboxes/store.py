"""Expiring mailboxes in PostgreSQL: made, found, listed, closed.

Their messages are in `messages.py` and, for those who wait for them, in `arrivals.py`.

Promises
- From the instant of a mailbox's `expires_at` every call about it answers None (`visibility.py`),
  whether or not the ticker has flipped its flag.
- Unknown, expired, deleted and foreign mailboxes are all alike: None, after the same work.
- Session tokens are stored as hashes and returned once.
- Paging is by keyset: rows that arrive meanwhile neither repeat nor hide others.

Crash safety: what a kill leaves

    killed                            the mailbox                            its messages
    --------------------------------  -------------------------------------  -------------------
    before the commit of `create`     is not there                           -
    after it, before the answer       lives to its end; nobody has the       come in
                                      token of an anonymous one
    before the commit of `delete`     is live                                are there
    after it                          is closed                              until its retention
    before the first of `purge`       is as it was                           are there
    between its statements            is closed, shown to nobody, and the    some are gone
                                      first that the reaper's next round
                                      takes; its address is not free
    after the last                    is gone                                are gone

Fails with `DatabaseUnavailable` (temporary) from the pool, `Invalid` for a value that cannot be
used, `AddressTaken` for a local part in use (by a closed mailbox too, until it is reclaimed: an
address that comes back to a stranger would show them somebody else's mail).

Why one statement a call: a look-up followed by a read would have a gap in which a mailbox can
expire, and a transaction over two statements costs more round trips than one join.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from relay.access.owners import ADMINISTRATOR_ID
from relay.access.plans import Allowance, lifetime_minutes
from relay.addresses import canonical, canonical_domain
from relay.crypto import hash_token, new_session_token
from relay.db.arrays import TEXT
from relay.db.connection import Statement
from relay.db.pool import Pool
from relay.errors import Invalid, OverQuota, PermanentFailure
from relay.ids import parse_uuid
from relay.mailboxes.cursors import decode_cursor, encode_cursor
from relay.mailboxes.known import KnownMailboxes
from relay.mailboxes.matching import IN_UNICODE
from relay.mailboxes.names import ANONYMOUS, Names, random_local_part
from relay.mailboxes.records import (
    MAILBOX_COLUMNS,
    USAGE_COLUMNS,
    WITH_USAGE,
    Created,
    Mailbox,
    Page,
)
from relay.mailboxes.usage import USED, Usage
from relay.mailboxes.visibility import (
    ALLOWED,
    ALLOWED_BY_NUMBER,
    ALLOWED_TYPES,
    DELETED,
    LIVE,
    Credential,
)
from relay.ssrf_guard import BadUrl, check_url

_PURGED_ROWS, _PURGED_BYTES = 1000, 32 * 2**20  # a statement


class AddressTaken(PermanentFailure):
    """The address that was asked for belongs to another mailbox (409)."""


class ReservedName(PermanentFailure):
    """The local part that was asked for is the administrator's alone (403)."""


# How many live mailboxes an owner has, or else a source; index-only scans, bounded.  Captured ones
# are the administrator's, and have an index of their own.
_COUNT_LIVE = f"""(
    SELECT count(*)
    FROM (
        SELECT FROM relay.mailboxes
        WHERE owner_id = %(owner)s::uuid AND captured_at IS NULL
          AND is_active AND expires_at > now()
        UNION ALL
        SELECT FROM relay.mailboxes
        WHERE %(owner)s::uuid = '{ADMINISTRATOR_ID}' AND captured_at IS NOT NULL
          AND is_active AND expires_at > now()
        UNION ALL
        SELECT FROM relay.mailboxes
        WHERE source = %(source)s::bytea AND is_active AND expires_at > now()
        LIMIT {{most}}
    ) live)"""  # noqa: S608 - a constant of ours
_OWNED = f"{ALLOWED} AND b.captured_at IS NULL"  # as no key has any: relay.mailboxes_owner
_GONE = f"""
    SELECT
    FROM relay.mailboxes b
    WHERE b.address = %(address)s
      AND NOT ({LIVE})
      AND {ALLOWED}
    """  # noqa: S608 - constants of this module only


def _finding(shown: str) -> Statement:
    """Statement of the look-up that nearly every call begins with, of a mailbox so `shown`."""
    return Statement(
        f"""
        SELECT {MAILBOX_COLUMNS}
        FROM relay.mailboxes b
        WHERE b.address = $4
          AND ({shown})
          AND {ALLOWED_BY_NUMBER}
        """,  # noqa: S608 - constants of ours only
        (*ALLOWED_TYPES, TEXT),
    )


_FIND, _FIND_DELETED = _finding(LIVE), _finding(f"{LIVE} OR {DELETED}")


class Store:
    """The mailboxes of one relay.

    `domains` are those it receives for, the first the default; the names of `senders` (addresses)
    are reserved, like those of `names.ROLES`.
    """

    def __init__(self, pool: Pool, domains: Sequence[str], senders: Sequence[str] = ()) -> None:
        self._pool = pool
        self.domains = tuple(_canonical_domain(domain) for domain in domains)
        self.names = Names(self.domains, senders)
        self._known = KnownMailboxes()

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
                RETURNING {MAILBOX_COLUMNS}
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
                mailbox = Mailbox(*row)
                self._known.note(address, _opens(owner_id, token), mailbox)
                return Created(replace(mailbox, usage=Usage(0, 0, 0, *limits)), token)
        if chosen:
            # Whoever hears this may have made it themselves, and not been told so.
            await self._pool.fetch_durable(
                "SELECT FROM relay.mailboxes WHERE address = %s", (chosen,)
            )
        raise AddressTaken(f"{chosen or domain} is taken")

    async def find(
        self, address: str, credential: Credential, *, deleted: bool = False
    ) -> Mailbox | None:
        """The live mailbox at `address`, if `credential` may see it; else None, whatever the
        reason.  Without its usage.

        `deleted`: also one that was deleted before its time, to be purged.
        """
        try:
            spelled = canonical(address)
        except ValueError:
            return None
        rows = await self._pool.rows(
            _FIND_DELETED if deleted else _FIND, (*credential.parameters(), spelled.encode())
        )
        mailbox = Mailbox(*rows[0]) if rows else None
        if not deleted:
            self._known.note(spelled, credential, mailbox)
        return mailbox

    def known(self, address: str, credential: Credential) -> Mailbox | None:
        """What `credential` made or found at `address` last, by this relay, if it did.

        It may be over by now.  For what looks by the mailbox's id whether it lives, and asks `find`
        where it does not.
        """
        try:
            return self._known.get(canonical(address), credential)
        except ValueError:
            return None

    async def find_by_session(self, token_hash: bytes) -> Mailbox | None:
        """The live mailbox that the session token of this hash opens, or None; without usage."""
        row = await self._pool.fetch_row(
            # relay.mailboxes_token
            f"""
            SELECT {MAILBOX_COLUMNS}
            FROM relay.mailboxes b
            WHERE b.token_hash = %s
              AND {LIVE}
            """,  # noqa: S608 - constants of ours only
            (token_hash,),
        )
        return Mailbox(*row) if row else None

    async def confirm_gone(self, address: str, credential: Credential) -> None:
        """If `credential` had a mailbox at `address` that is no longer live, see that it stays so.

        For the answer to whoever deletes it again, having heard nothing the first time.
        """
        try:
            values = {"address": canonical(address), **credential.values()}
        except ValueError:
            return
        if await self._pool.fetch(_GONE, values):
            await self._pool.fetch_durable(_GONE, values)

    async def usage(self, mailbox_id: UUID) -> Usage | None:
        """What a live mailbox holds, and may hold; None if it is no longer live."""
        row = await self._pool.fetch_row(
            f"""
            SELECT {USAGE_COLUMNS}
            FROM relay.mailboxes b
            {WITH_USAGE}
            WHERE b.id = %s
              AND {LIVE}
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
            SELECT {_COUNT_LIVE.format(most="100000")}, max_mailboxes, max_messages, max_bytes,
                   default_ttl_minutes, max_ttl_minutes
            FROM (SELECT) one
            LEFT JOIN relay.plans p ON p.name = %(plan)s
            """,  # noqa: S608 - constants of this module only
            {"plan": plan, "owner": owner_id, "source": source},
        )
        assert row is not None
        mailboxes, max_mailboxes, max_messages, max_bytes, *lifetimes = row
        if owner_id == ADMINISTRATOR_ID:
            max_mailboxes = max_messages = max_bytes = None
        return Allowance(plan, mailboxes, max_mailboxes, max_messages, max_bytes, *lifetimes)

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
        after = decode_cursor(cursor, 1)
        before = parse_uuid(after[0]) if after else None
        if after and before is None:
            raise Invalid("the cursor is not one of ours")
        rows = await self._pool.fetch(
            # relay.mailboxes_owner, or the primary key for the administrator, gives the order.
            f"""
            SELECT {MAILBOX_COLUMNS}, {USAGE_COLUMNS}
            FROM (
                SELECT *
                FROM relay.mailboxes b
                WHERE {"true" if credential.administrator else _OWNED}
                  AND {LIVE}
                  AND (%(before)s::uuid IS NULL OR b.id < %(before)s)
                  AND (strpos(lower(b.address), %(q)s) > 0
                       OR strpos({IN_UNICODE}, %(q)s) > 0)
                ORDER BY b.id DESC
                LIMIT %(limit)s
            ) b
            {WITH_USAGE}
            ORDER BY b.id DESC
            """,  # noqa: S608 - constants of this module only
            {"before": before, "limit": limit + 1, "q": q.lower(), **credential.values()},
        )
        items = [replace(Mailbox(*row[:-5]), usage=Usage(*row[-5:])) for row in rows[:limit]]
        return Page(items, encode_cursor(str(items[-1].id)) if len(rows) > limit else None)

    async def count_unread(
        self, credential: Credential, most: int = 1000, mailboxes: int = 2000
    ) -> int:
        """How many messages in the live mailboxes of an owner (of everybody, for the administrator)
        nobody has read, counted up to `most`; of owners with more, so many `mailboxes` are looked
        at, the newest."""
        count: int = await self._pool.fetch_value(
            # By what is counted of each mailbox: what was read is not walked over.
            f"""
            SELECT count(*)
            FROM (
                SELECT
                FROM (
                    SELECT id
                    FROM relay.mailboxes b
                    WHERE {"true" if credential.administrator else _OWNED}
                      AND {LIVE}
                    ORDER BY id DESC
                    LIMIT %(mailboxes)s
                ) b
                CROSS JOIN LATERAL ({USED}) used
                CROSS JOIN generate_series(1, LEAST(used.unread, %(most)s))
                LIMIT %(most)s
            ) counted
            """,  # noqa: S608 - constants of this module only
            {"most": most, "mailboxes": mailboxes, **credential.values()},
        )
        return count

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
              AND {LIVE}
            """,  # noqa: S608 - constants of this module only
            (mailbox_id,),
        )
        return changed > 0

    async def purge(self, mailbox_id: UUID) -> bool:
        """Delete a mailbox, live or deleted before, with all that is in it.  False without one.

        Closed at the beginning of time it is what the reaper takes first, so that a purge which
        breaks off is finished by the next round.
        """
        changed = await self._pool.execute_durable(
            f"""
            UPDATE relay.mailboxes b
            SET is_active = false, closed_at = '-infinity'
            WHERE b.id = %s
              AND ({LIVE} OR {DELETED})
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


def _opens(owner_id: UUID | None, token: str | None) -> Credential:
    """The credential that opens a new mailbox."""
    if token is not None:
        return Credential(hash_token(token))
    if owner_id == ADMINISTRATOR_ID:
        return Credential(administrator=True)
    return Credential(owner_id=owner_id)


def _canonical_domain(domain: str) -> str:
    try:
        return canonical_domain(domain)
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
        raise Invalid(f"webhook_url: it {error}") from error
