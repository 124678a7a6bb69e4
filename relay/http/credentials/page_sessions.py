"""The sessions of the operator's page: who is signed in, until when, and by which secrets.

A session is a row of `relay.page_sessions`, shared by all relays on the database.  It stands for a
credential: the administrator's token, an API key, or a mailbox's session token.  Its two secrets
(`cookies.py`) are random, handed out once and stored as hashes: nothing that is in a backup makes
one.

Promises
  * A session ends by signing out, by age, and with what it stands for: a key's with its
    revocation, an administrator's with the next start of the relay that let them in (which
    has another token).  From that commit on its cookie, page key and tickets open nothing on any
    relay; streams hear of it by NOTIFY.
  * A sign-in code is used once, whichever relay it is shown to.
  * The administrator's page works while the database is away, when it is needed most: sessions
    that this process saw good go on, and signing in makes one of this process alone.

Fails with `DatabaseUnavailable` from the pool, where the above does not apply.  A sign-out that the
database did not take holds here at once and there as soon as it answers again: for certain that of
an operator who was seen here lately, of others the latest thousand.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import trio

from relay.access.keys import ApiKey, Keys
from relay.chance import token_urlsafe, uuid4
from relay.crypto import hash_token, tokens_equal
from relay.db.channels import SESSIONS
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.http.credentials.cookies import Shown

SESSION_AGE = 12 * 3600.0
"""Seconds after which a signed-in page has to sign in again."""

_MOST = 100  # sessions of one key, or of one mailbox; the oldest go
_REMEMBERED = 1000
_LOOK = 2.0  # s; the page of somebody who looks at an outage should not hang in it, too


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a session.  `token_hash`: of the administrator's or the mailbox's token."""

    kind: Literal["administrator", "key", "mailbox"]
    key_id: UUID | None = None
    token_hash: bytes | None = None
    node: bytes | None = None  # the relay that let the administrator in


@dataclass(frozen=True, slots=True)
class PageSession:
    """A live session; `ends_at` is Trio's clock."""

    id: UUID
    holder: Holder
    cookie_hash: bytes
    page_key_hash: bytes
    ends_at: float


@dataclass(frozen=True, slots=True)
class Opened:
    """A session just made, with its secrets; nobody can read them again."""

    session: PageSession
    cookie: str
    page_key: str
    lasts: float  # s


@dataclass(frozen=True, slots=True)
class _Seen:
    session: PageSession
    key: ApiKey | None  # with a session of the kind key


_Pair = tuple[bytes, bytes]  # the hashes of a cookie and of a page key

Proof = Callable[[PageSession], bool]
"""Whether a request that shows a session's cookie shows its page key, or a ticket, too."""


class PageSessions:
    """The page sessions in `relay.page_sessions`."""

    def __init__(self, pool: Pool, keys: Keys, *, admin_token_hash: bytes, node: str = "") -> None:
        """`node` names this relay and outlives its restarts."""
        self._pool = pool
        self._keys = keys
        self._admin = Holder(
            "administrator", token_hash=admin_token_hash,
            node=hashlib.sha256(node.encode("utf-8", "surrogatepass")).digest(),
        )  # fmt: skip
        # By the cookie's hash: what operators had a while ago.  Inboxes are opened by anybody, so
        # they would only push the administrator out.
        self._seen: dict[bytes, _Seen] = {}
        self._own: dict[bytes, PageSession] = {}  # made while the database was away
        # Cookies and page keys of sign-outs that the database did not take: of sessions that were
        # known, and of those that may or may not exist, as anybody can show secrets of none.
        self._ended: set[_Pair] = set()
        self._ended_unknown: dict[_Pair, None] = {}

    @property
    def administrator(self) -> Holder:
        """The holder of this start's administrator's token."""
        return self._admin

    async def run(self, hub: Hub) -> None:
        """Forget what was seen of a session as soon as it ended anywhere; end those of former
        starts."""
        with hub.subscribe(SESSIONS) as ended:
            former = True
            while True:
                if former:
                    former = not await self._end_former()
                await ended.wait()  # after an outage, too: then the hub wakes everybody
                gone = ended.heard
                self._seen = {
                    cookie: seen
                    for cookie, seen in self._seen.items()
                    if gone is not None and str(seen.session.id) not in gone
                }

    # Signing in and out ----------------------------------------------------------------------

    async def open(
        self, holder: Holder, lasts: float = SESSION_AGE, replacing: Sequence[bytes] = ()
    ) -> Opened:
        """Make a session of `lasts` seconds; the holder's own of the cookies `replacing` end."""
        cookie, page_key = token_urlsafe(32), "rp_" + token_urlsafe(32)
        session = PageSession(
            uuid4(), holder, hash_token(cookie), hash_token(page_key), trio.current_time() + lasts
        )
        try:
            await self._insert(session, lasts, replacing)
        except DatabaseUnavailable:
            if holder != self._admin:
                raise
            self._own = {c: s for c, s in self._own.items() if s.ends_at > trio.current_time()}
            self._own[session.cookie_hash] = session
        return Opened(session, cookie, page_key, lasts)

    async def _insert(self, session: PageSession, lasts: float, replacing: Sequence[bytes]) -> None:
        holder = session.holder
        whose = {"kind": holder.kind, "key": holder.key_id, "token": holder.token_hash}
        async with self._pool.transaction(timeout=_LOOK) as conn:
            await conn.execute(
                """
                DELETE FROM relay.page_sessions
                WHERE expires_at <= clock_timestamp()
                   OR (cookie_hash = ANY(%(replacing)s)
                       AND kind = %(kind)s
                       AND key_id IS NOT DISTINCT FROM %(key)s
                       AND token_hash IS NOT DISTINCT FROM %(token)s)
                   OR id IN (
                       SELECT id
                       FROM relay.page_sessions
                       WHERE key_id = %(key)s OR token_hash = %(token)s
                       ORDER BY created_at DESC
                       OFFSET %(others)s)
                """,
                {**whose, "replacing": list(replacing), "others": _MOST - 1},
            )
            await conn.execute(
                """
                INSERT INTO relay.page_sessions
                    (id, kind, key_id, token_hash, node, cookie_hash, page_key_hash, expires_at)
                VALUES (%s, %s, %s, %s, %s, %s, %s,
                        clock_timestamp() + make_interval(secs => %s))
                """,
                (
                    session.id, holder.kind, holder.key_id, holder.token_hash, holder.node,
                    session.cookie_hash, session.page_key_hash, lasts,
                ),
            )  # fmt: skip

    async def close(self, shown: Shown) -> None:
        """End the sessions whose two secrets are shown."""
        cookies = set(shown.cookies)
        for cookie in shown.cookies:
            seen = self._seen.get(cookie)
            session = self._own.get(cookie) or (None if seen is None else seen.session)
            if session is None:
                self._end_unknown([(cookie, key) for key in shown.keys])
            elif _has(shown.keys, session.page_key_hash):
                self._seen.pop(cookie, None)
                if self._own.pop(cookie, None) is not None:
                    cookies.discard(cookie)
                else:
                    self._ended.add((cookie, session.page_key_hash))  # until the database has it
        if not cookies or not shown.keys:
            return
        await self._pool.execute_durable(  # that there is none any more is promised, too
            """
            DELETE FROM relay.page_sessions
            WHERE cookie_hash = ANY(%s)
              AND page_key_hash = ANY(%s)
            """,
            (list(cookies), list(shown.keys)),
        )
        self._taken({(cookie, key) for cookie in cookies for key in shown.keys})

    def _end_unknown(self, pairs: Sequence[_Pair]) -> None:
        for pair in pairs:
            self._ended_unknown[pair] = None
        while len(self._ended_unknown) > _REMEMBERED:
            del self._ended_unknown[next(iter(self._ended_unknown))]

    def _taken(self, pairs: set[_Pair]) -> None:
        """Note that the database has no session of these any more."""
        self._ended -= pairs
        for pair in pairs:
            self._ended_unknown.pop(pair, None)

    # Sign-in codes ---------------------------------------------------------------------------

    async def new_code(self, lasts: float) -> str:
        """Return a code that signs this relay's administrator in once, within `lasts` seconds."""
        code = "rl_" + token_urlsafe(32)
        async with self._pool.transaction() as conn:
            await conn.execute("DELETE FROM relay.page_links WHERE expires_at <= clock_timestamp()")
            await conn.execute(
                """
                INSERT INTO relay.page_links (code_hash, token_hash, node, expires_at)
                VALUES (%s, %s, %s, clock_timestamp() + make_interval(secs => %s))
                """,
                (hash_token(code), self._admin.token_hash, self._admin.node, lasts),
            )
        return code

    async def redeem(self, code: str) -> Holder | None:
        """Use a sign-in code up.

        Returns the administrator that it was made for, or None if it is unknown, used or too old.
        """
        row = await self._pool.fetch_row(
            """
            DELETE FROM relay.page_links
            WHERE code_hash = %s
            RETURNING token_hash, node, expires_at > clock_timestamp()
            """,
            (hash_token(code),),
        )
        if row is None or not row[2]:
            return None
        holder = Holder("administrator", token_hash=bytes(row[0]), node=bytes(row[1]))
        return None if self._is_former(holder) else holder

    # Looking up ------------------------------------------------------------------------------

    async def find(self, shown: Shown, proof: Proof) -> list[tuple[PageSession, ApiKey | None]]:
        """Return the live sessions whose cookies are shown, and for which `proof` holds.

        With a session of a key comes the key.  At most one is of a mailbox and one of another kind.
        """
        if not shown:
            return []
        good: list[tuple[PageSession, ApiKey | None]] = [
            (session, None)
            for cookie in shown.cookies
            if (session := self._own.get(cookie)) is not None and proof(session)
        ]
        others = [cookie for cookie in shown.cookies if cookie not in self._own]
        if others:
            try:
                for session in await self._look(others):
                    if proof(session):
                        good.append((session, await self._key_of(session)))
            except DatabaseUnavailable:
                good += [
                    (seen.session, None)
                    for cookie in others
                    if (seen := self._seen.get(cookie)) is not None
                    and seen.session.holder.kind == "administrator"
                    and proof(seen.session)
                ]
                if not good:
                    raise
        found: dict[bool, tuple[PageSession, ApiKey | None]] = {}
        for session, key in good:
            revoked = session.holder.kind == "key" and key is None
            pair = session.cookie_hash, session.page_key_hash
            ended = pair in self._ended or pair in self._ended_unknown
            if not revoked and not ended and session.ends_at > trio.current_time():
                if session.holder.kind != "mailbox":
                    self._remember(session, key)
                found.setdefault(session.holder.kind == "mailbox", (session, key))
        return list(found.values())

    def known(self, shown: Shown, proof: Proof) -> tuple[PageSession, ApiKey | None] | None:
        """Return the operator's session that a request shows, as it was last seen, or None.

        Costs no query, and says nothing of what the caller may.
        """
        for cookie in shown.cookies if shown else ():
            seen = self._seen.get(cookie)
            if (
                seen is not None
                and seen.session.ends_at > trio.current_time()
                and proof(seen.session)
            ):
                return seen.session, seen.key
        return None

    async def _look(self, cookies: Sequence[bytes]) -> list[PageSession]:
        now = trio.current_time()
        gone = self._ended.union(self._ended_unknown)
        if gone:
            await self._pool.execute(
                """
                DELETE FROM relay.page_sessions
                WHERE (cookie_hash, page_key_hash) IN (
                    SELECT * FROM unnest(%s::bytea[], %s::bytea[]))
                """,
                ([cookie for cookie, _ in gone], [key for _, key in gone]),
                timeout=_LOOK,
            )
            self._taken(gone)
        rows = await self._pool.fetch(
            """
            SELECT id, kind, key_id, token_hash, node, cookie_hash, page_key_hash,
                   extract(epoch FROM expires_at - clock_timestamp())::float8
            FROM relay.page_sessions
            WHERE cookie_hash = ANY(%s)
              AND expires_at > clock_timestamp()
            """,
            (list(cookies),),
            timeout=_LOOK,
        )
        found = [_session(row, now) for row in rows]
        for cookie in set(cookies) - {session.cookie_hash for session in found}:
            self._seen.pop(cookie, None)
        return [session for session in found if not self._is_former(session.holder)]

    def _is_former(self, holder: Holder) -> bool:
        # Let in by a token that this relay had before it was started again.
        return holder.node == self._admin.node and holder.token_hash != self._admin.token_hash

    async def _key_of(self, session: PageSession) -> ApiKey | None:
        key_id = session.holder.key_id
        return None if key_id is None else await self._keys.live(key_id)

    def _remember(self, session: PageSession, key: ApiKey | None) -> None:
        self._seen.pop(session.cookie_hash, None)
        if len(self._seen) >= _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[session.cookie_hash] = _Seen(session, key)

    async def _end_former(self) -> bool:
        try:
            for table in ("page_sessions", "page_links"):
                await self._pool.execute(
                    f"DELETE FROM relay.{table} WHERE node = %s AND token_hash <> %s",  # noqa: S608 - two names of ours
                    (self._admin.node, self._admin.token_hash),
                )
        except DatabaseUnavailable:
            return False  # `_is_former` refuses them here meanwhile
        return True


def _has(hashes: Sequence[bytes], wanted: bytes) -> bool:
    return any(tokens_equal(one, wanted) for one in hashes)


def _session(row: tuple[Any, ...], now: float) -> PageSession:
    id_, kind, key_id, token_hash, node, cookie_hash, page_key_hash, left = row
    holder = Holder(
        kind, key_id, None if token_hash is None else bytes(token_hash),
        None if node is None else bytes(node),
    )  # fmt: skip
    return PageSession(id_, holder, bytes(cookie_hash), bytes(page_key_hash), now + left)
