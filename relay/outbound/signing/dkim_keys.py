"""The keys of DKIM in `relay.dkim_keys`: made, rotated, shown, removed.

A domain has a key for each of `dkim.ALGORITHMS`, made and rotated together.  The states of a key
(the words of RFC 7583):

    standby   published, and not used yet: made where the domain has active keys; `rotate` uses it
    active    signs
    retired   signs no more, and must stay published for as long as what it signed is verified

Promises
- Private keys are stored encrypted, each for its row alone, and are given out to nobody; that of a
  retired key is deleted.
- What `rotate` does is one transaction: at no instant has the domain no active key.
- Every change is announced to the senders of all nodes (channels.DKIM, by a trigger).

Fails with `MalformedMessage` for a domain or selector that is none, `SelectorTaken`,
`StandbyWaits` and `NoKeys`, and `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import trio

from relay.addresses import canonical_domain
from relay.chance import utc_now
from relay.crypto import Vault
from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.db.text import storable
from relay.dns.questions import is_name
from relay.errors import PermanentFailure, RolledBack
from relay.ids import new_id
from relay.outbound.composing.message import MalformedMessage
from relay.outbound.sealed import Sealed
from relay.outbound.signing.dkim import ALGORITHMS, PrivateKey, dump, generate, record

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,48}[a-z0-9])?")
_SUFFIXES = {"rsa-sha256": "", "ed25519-sha256": "-ed25519"}
"""What follows the name that was asked for: two keys need two selectors."""


class SelectorTaken(PermanentFailure):
    """A key of the domain has this selector."""

    def __init__(self) -> None:
        super().__init__("a key of the domain has this selector")


class StandbyWaits(PermanentFailure):
    """The domain has standby keys already, and may have one of each algorithm."""

    def __init__(self) -> None:
        super().__init__("the domain has standby keys")


class NoKeys(PermanentFailure):
    """The domain has no active keys."""

    def __init__(self) -> None:
        super().__init__("the domain has no keys")


@dataclass(frozen=True, slots=True)
class DkimKey:
    """One key, without its private half."""

    domain: str
    selector: str
    algorithm: str
    state: str
    record: str
    created_at: datetime
    activated_at: datetime | None
    retired_at: datetime | None

    @property
    def name(self) -> str:
        """Where its record is published."""
        return f"{self.selector}._domainkey.{self.domain}"


@dataclass(frozen=True, slots=True)
class DkimDomain:
    """A domain and its keys, those that sign first."""

    domain: str
    keys: Sequence[DkimKey]


class SealedKey(NamedTuple):
    """An active key as it is stored."""

    id: UUID
    domain: str
    selector: str
    algorithm: str
    private_key: bytes


_COLUMNS = "domain, selector, algorithm, state, record, created_at, activated_at, retired_at"
_ORDER = "domain, state = 'retired', state, created_at DESC, algorithm DESC"


class DkimKeys:
    """The keys of all domains."""

    def __init__(self, pool: Pool, vault: Vault) -> None:
        self._pool = pool
        self._vault = vault
        self.sealed = Sealed(pool, vault, "relay.dkim_keys", "private_key")
        """The private keys."""

    async def create(self, domain: str, selector: str | None = None) -> DkimDomain:
        """Make keys: active ones, or standby ones where the domain has active ones.

        `selector`: of the RSA key, and what that of the other begins with; None: by the time.
        """
        domain = domain_name(domain)
        if selector is not None:
            selector = _selector(selector, domain)
        made = await _make()
        async with self._pool.transaction() as conn:
            there = await _lock(conn, domain)
            states = {key.state for key in there}
            if "standby" in states:
                raise StandbyWaits
            state = "standby" if "active" in states else "active"
            return await self._insert(conn, domain, selector, state, made, there)

    async def rotate(self, domain: str, selector: str | None = None) -> DkimDomain:
        """Sign with the standby keys, or with new ones where there are none; the old ones retire.

        Returns the keys that sign now.  `selector` as in `create`, for new ones only.
        """
        domain = _known(domain)
        if selector is not None:
            selector = _selector(selector, domain)
        states = {key.state for key in await self._keys(domain)}
        if "active" not in states:
            raise NoKeys
        made = () if "standby" in states else await _make()
        async with self._pool.transaction() as conn:
            there = await _lock(conn, domain)
            states = {key.state for key in there}
            if "active" not in states:
                raise NoKeys
            if "standby" in states and selector is not None:
                raise StandbyWaits
            if "standby" not in states and not made:
                raise RolledBack("the standby keys went meanwhile")
            await conn.execute(
                """
                UPDATE relay.dkim_keys
                SET state = 'retired', private_key = NULL, key_id = NULL,
                    retired_at = now()
                WHERE domain = %s
                  AND state = 'active'
                """,
                (domain,),
            )
            if "standby" not in states:
                return await self._insert(conn, domain, selector, "active", made, there)
            cursor = await conn.execute(
                f"""
                UPDATE relay.dkim_keys
                SET state = 'active', activated_at = now()
                WHERE domain = %s
                  AND state = 'standby'
                RETURNING {_COLUMNS}
                """,  # noqa: S608 - constants of this module only
                (domain,),
            )
            found = [DkimKey(*row) for row in await cursor.fetchall()]
            return DkimDomain(domain, sorted(found, key=_by_algorithm))

    async def show(self, domain: str) -> DkimDomain | None:
        """The keys of a domain, or None."""
        try:
            domain = _known(domain)
        except NoKeys:
            return None
        keys = await self._keys(domain)
        return DkimDomain(domain, keys) if keys else None

    async def list(self, limit: int, after: str | None = None) -> list[DkimDomain]:
        """The domains that have keys, by name, from beyond `after`."""
        rows = await self._pool.fetch(
            f"""
            SELECT {_COLUMNS}
            FROM relay.dkim_keys
            WHERE domain IN (
                SELECT DISTINCT domain
                FROM relay.dkim_keys
                WHERE domain > %s
                ORDER BY domain
                LIMIT %s
            )
            ORDER BY {_ORDER}
            """,  # noqa: S608 - constants of this module only
            (after or "", limit),
        )
        found: dict[str, list[DkimKey]] = {}
        for key in (DkimKey(*row) for row in rows):
            found.setdefault(key.domain, []).append(key)
        return [DkimDomain(domain, keys) for domain, keys in found.items()]

    async def remove(self, domain: str, selector: str | None = None) -> bool:
        """Remove the keys of a domain, or those of a selector; False if there were none.

        `selector`: what `create` was given, for both, or that of one key.
        """
        try:
            domain = _known(domain)
        except NoKeys:
            return False
        selectors = None
        if selector is not None:
            selectors = [storable(selector.lower()) + suffix for suffix in _SUFFIXES.values()]
        removed = await self._pool.execute_durable(
            """
            DELETE FROM relay.dkim_keys
            WHERE domain = %(domain)s
              AND (%(selectors)s::text[] IS NULL OR selector = ANY (%(selectors)s))
            """,
            {"domain": domain, "selectors": selectors},
        )
        return removed > 0

    async def active(self) -> Sequence[SealedKey]:
        """The keys that sign, of all domains, as they are stored; RSA before Ed25519."""
        rows = await self._pool.fetch(
            """
            SELECT id, domain, selector, algorithm, private_key
            FROM relay.dkim_keys
            WHERE state = 'active'
            ORDER BY domain, algorithm DESC
            """
        )
        return [SealedKey(*row) for row in rows]

    async def _keys(self, domain: str) -> Sequence[DkimKey]:
        rows = await self._pool.fetch(
            f"SELECT {_COLUMNS} FROM relay.dkim_keys WHERE domain = %s ORDER BY {_ORDER}",  # noqa: S608
            (domain,),
        )
        return [DkimKey(*row) for row in rows]

    async def _insert(
        self,
        conn: Connection,
        domain: str,
        selector: str | None,
        state: str,
        made: Sequence[tuple[str, PrivateKey]],
        there: Sequence[DkimKey],
    ) -> DkimDomain:
        taken = {key.selector for key in there}
        if selector is None:
            selector = _new_selector(taken)
        if any(selector + suffix in taken for suffix in _SUFFIXES.values()):
            raise SelectorTaken
        found = []
        for algorithm, key in made:
            row_id = new_id()
            cursor = await conn.execute(
                f"""
                INSERT INTO relay.dkim_keys
                    (id, domain, selector, algorithm, state, record, private_key, key_id,
                     activated_at)
                VALUES (%s, %s, %s, %s, %s, %s, %s, %s,
                        CASE WHEN %s = 'active' THEN now() END)
                RETURNING {_COLUMNS}
                """,  # noqa: S608 - constants of this module only
                (
                    row_id,
                    domain,
                    selector + _SUFFIXES[algorithm],
                    algorithm,
                    state,
                    record(key),
                    self._vault.seal(row_id, dump(key)),
                    self._vault.key_id,
                    state,
                ),
            )
            found += [DkimKey(*row) for row in await cursor.fetchall()]
        return DkimDomain(domain, found)


async def _make() -> Sequence[tuple[str, PrivateKey]]:
    """A key for each algorithm, in a thread: RSA takes tenths of a second."""
    return await trio.to_thread.run_sync(lambda: [(name, generate(name)) for name in ALGORITHMS])


async def _lock(conn: Connection, domain: str) -> Sequence[DkimKey]:
    """The keys of a domain, which nobody else changes until the transaction ends."""
    await conn.execute("LOCK TABLE relay.dkim_keys IN SHARE ROW EXCLUSIVE MODE")
    cursor = await conn.execute(
        f"SELECT {_COLUMNS} FROM relay.dkim_keys WHERE domain = %s",  # noqa: S608
        (domain,),
    )
    return [DkimKey(*row) for row in await cursor.fetchall()]


def _by_algorithm(key: DkimKey) -> int:
    return ALGORITHMS.index(key.algorithm)


def domain_name(text: str) -> str:
    """The one spelling of a domain's name, or `MalformedMessage`."""
    try:
        domain = canonical_domain(text)
    except ValueError:
        domain = ""
    if not re.fullmatch(r"[a-z0-9._-]+", domain) or not is_name(domain):
        raise MalformedMessage("domain", "is no domain name")
    return domain


def _known(text: str) -> str:
    """The name of a domain that may have keys; `NoKeys` for what is none."""
    try:
        return domain_name(text)
    except MalformedMessage as error:
        raise NoKeys from error


def _selector(text: str, domain: str) -> str:
    selector = text.lower()
    longest = f"{selector}{max(_SUFFIXES.values(), key=len)}._domainkey.{domain}"
    if not all(map(_LABEL.fullmatch, selector.split("."))) or not is_name(longest):
        raise MalformedMessage(
            "selector", "has labels of letters, digits and hyphens, of at most 50 characters"
        )
    return selector


def _new_selector(taken: set[str]) -> str:
    """A selector of this second: one that was removed, and is still cached, is never made again."""
    made = f"r{utc_now():%Y%m%d%H%M%S}"
    return next(
        name
        for name in (made, *(f"{made}-{number}" for number in range(2, len(taken) + 3)))
        if name not in taken
    )
