"""Upstream identities: which server takes the mail of a sender, and as whom.

Promises
- Mail of an owner from an address that has a sender goes through that sender's upstream, all
  other mail through the relay's own (`outbound.upstream`).
- Passwords are stored encrypted, each for its account alone (`relay.crypto.Vault`), and are
  never given out again: what is listed has user name and server.
- Replacing a sender is one statement: there is no instant at which its mail would take another
  route.

Fails with `MalformedMessage` for a value that is not usable and `DatabaseUnavailable` from the
pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote, urlsplit
from uuid import UUID

import trio

from relay.crypto import Vault
from relay.db.pool import Pool
from relay.errors import Bug
from relay.ids import new_id
from relay.ip import is_loopback
from relay.outbound.composing.message import MalformedMessage, check_text, plain_address
from relay.outbound.sealed import Sealed
from relay.ssrf_guard import NotPublic, addresses_of

LOOP = "loop:"
"""The upstream that leads to this relay's own mailboxes."""

DIRECT = "mx:"
"""The upstream that is none: mail goes to the exchangers of its domain."""

PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
"""The schemes of an upstream that is a server, and the port each means when none is named."""

_MAX_URL = 2048
_RESOLVE_TIMEOUT = 5.0  # s


@dataclass(frozen=True, slots=True)
class Upstream:
    """An upstream taken apart: `url` is `loop:`, `mx:` or `scheme://host:port`, without
    credentials."""

    url: str
    username: str | None = None
    password: str | None = None


@dataclass(frozen=True, slots=True)
class Sender:
    """One identity, without its password."""

    address: str
    upstream: str
    username: str | None
    created_at: datetime


def parse_upstream(text: str) -> Upstream:
    """Take `loop:`, `mx:` or `smtps://user:password@host:port` apart, or raise `MalformedMessage`.

    `smtp+starttls://` likewise; `smtp://`, which is in clear, to loopback only.  User name and
    password are percent-encoded.  The sentence never repeats what was given: it holds a secret.
    """
    check_text(text, "upstream", limit=_MAX_URL)
    if text in {LOOP, DIRECT}:
        return Upstream(text)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
        username = unquote(parts.username, errors="strict") if parts.username else None
        password = unquote(parts.password, errors="strict") if parts.password else None
    except ValueError as error:
        raise MalformedMessage("upstream", "is not a URL") from error
    if parts.scheme not in PORTS or not host or parts.path not in {"", "/"}:
        raise MalformedMessage(
            "upstream",
            "must be loop:, mx:, smtp://, smtp+starttls:// or smtps://user:password@host:port",
        )
    if parts.query or parts.fragment or port == 0 or any(c.isspace() for c in host):
        raise MalformedMessage("upstream", "holds more than user, password, host and port")
    if parts.scheme == "smtp" and not is_loopback(host):
        raise MalformedMessage(
            "upstream",
            "sends in clear, which is for loopback only; use smtp+starttls:// or smtps://",
        )
    if (username is None) != (password is None):
        raise MalformedMessage("upstream", "must have both a user name and a password, or neither")
    for value in (username, password):
        check_text(value or "", "upstream")
    shown = f"[{host}]" if ":" in host else host
    return Upstream(f"{parts.scheme}://{shown}:{port or PORTS[parts.scheme]}", username, password)


async def _check_public(upstream: Upstream) -> None:
    """Refuse an upstream whose host is inside this network, as far as can be known now."""
    parts = urlsplit(upstream.url)
    if parts.hostname is None or parts.port is None:
        return  # the loop, or whatever a domain's exchangers are
    try:
        with trio.move_on_after(_RESOLVE_TIMEOUT):
            await addresses_of(parts.hostname, parts.port)
    except NotPublic as error:
        raise MalformedMessage("upstream", "must be a host of the public internet") from error
    except (OSError, UnicodeError):
        pass  # no address yet; it is looked at again whenever it is connected to


async def any_direct(pool: Pool) -> bool:
    """Whether a sender's mail goes to the exchangers of its domain."""
    found: bool = await pool.fetch_value(
        "SELECT EXISTS (SELECT FROM relay.senders WHERE upstream = %s)", (DIRECT,)
    )
    return found


class Senders:
    """The identities in `relay.senders`."""

    def __init__(self, pool: Pool, vault: Vault, *, private_upstreams: bool = False) -> None:
        """`private_upstreams`: whether everybody's upstream may lie inside this network."""
        self._pool = pool
        self._vault = vault
        self._private_upstreams = private_upstreams
        self.sealed = Sealed(pool, vault, "relay.senders", "password")
        """The passwords."""

    async def put(
        self, owner: UUID, address: str, upstream: str, *, private: bool = True
    ) -> tuple[Sender, bool]:
        """Make or replace the sender of `address`; True if it was made.

        `private`: whether its upstream may lie inside this network, now and whenever it is
        connected to (what `private_upstreams` allows is not remembered); if it does and may not,
        `MalformedMessage`.
        """
        address = plain_address(address)
        parsed = parse_upstream(upstream)
        if not private and not self._private_upstreams:
            await _check_public(parsed)
        account = new_id()
        sealed = None if parsed.password is None else self._vault.seal(account, parsed.password)
        row = await self._pool.fetch_row(
            """
            INSERT INTO relay.senders
                (id, owner, address, upstream, username, password, key_id, private)
            VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
            ON CONFLICT (owner, address) DO UPDATE
            -- The id too: the password was sealed for it, and connections are kept by it.
            SET id = excluded.id, upstream = excluded.upstream, username = excluded.username,
                password = excluded.password, key_id = excluded.key_id,
                private = excluded.private
            RETURNING address, upstream, username, created_at, xmax = 0
            """,
            (
                account,
                owner,
                address,
                parsed.url,
                parsed.username,
                sealed,
                None if sealed is None else self._vault.key_id,
                private,
            ),
        )
        if row is None:
            raise Bug("an insert without a row")
        return Sender(*row[:4]), row[4]

    async def upstreams_of(self, domain: str) -> list[str]:
        """The upstreams of the senders whose addresses are in a domain."""
        rows = await self._pool.fetch(
            """
            SELECT DISTINCT upstream
            FROM relay.senders
            WHERE split_part(address, '@', 2) = %s
            LIMIT 20
            """,
            (domain,),
        )
        return [upstream for (upstream,) in rows]

    async def list(self, owner: UUID, limit: int, after: str | None = None) -> list[Sender]:
        """The owner's senders by address, from beyond `after`."""
        rows = await self._pool.fetch(
            """
            SELECT address, upstream, username, created_at
            FROM relay.senders
            WHERE owner = %s
              AND address > %s
            ORDER BY address
            LIMIT %s
            """,
            (owner, after or "", limit),
        )
        return [Sender(*row) for row in rows]

    async def remove(self, owner: UUID, address: str) -> bool:
        """Remove a sender of the owner's; False if there was none.

        Its queued mail goes through the relay's own upstream from then on.
        """
        removed = await self._pool.execute_durable(
            "DELETE FROM relay.senders WHERE address = %s AND owner = %s",
            (plain_address(address), owner),
        )
        return removed > 0

    async def upstream(self, owner: UUID, address: str) -> str | None:
        """The upstream (without credentials) of the owner's sender of an address, or None."""
        found: str | None = await self._pool.fetch_value(
            "SELECT upstream FROM relay.senders WHERE owner = %s AND address = %s",
            (owner, address.lower()),
        )
        return found

    async def leads_out(self, owner: UUID) -> bool:
        """Whether a sender of the owner's has an upstream of its own that is not this relay."""
        found: bool = await self._pool.fetch_value(
            "SELECT EXISTS (SELECT FROM relay.senders WHERE owner = %s AND upstream <> %s)",
            (owner, LOOP),
        )
        return found
