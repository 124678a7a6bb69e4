"""Consuming a token, once; whether a link still works, and another mail for one that does not.

Promises
- Of any number of callers who use one token at once, on any number of nodes, one succeeds: the
  database decides, by one statement.
- Used, expired, forged, unknown, without its code or with a wrong one: the caller gets None, and
  nothing has changed.  A token whose account does not fit (suspended) is refused likewise, and is
  good again when the account is.
- Forged tokens and wrong codes cost no query, and neither do tokens that this process has seen
  used: it remembers those until they expire.
- Codes cannot be tried out.  A recovery token takes `FREE_GUESSES` wrong codes, then one every
  `GUESS_EVERY` seconds, so at most 79 of the 100,000 in its 15 minutes (a node).  What comes
  faster is refused unseen, a right code too; that does not consume the token, and after the pause
  the right code is taken.
- A link that is of no use any more mails its account another, if it was one of ours that ended
  within a day: whoever asks learns nothing, and the account gets at most five in 15 minutes.

Fails with `DatabaseUnavailable`: whether the token was used is then unknown.  That one is used is
said only when it is durable: the click before this one may have ended in doubt (`relay.db.doubt`),
and after a failover its token is good again.

The guesses are counted in memory: written to the token's row, they would let whoever holds a link
fill the log of the database, and tell by the time taken which links are real.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

import psycopg
import trio
from prometheus_client import Counter

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, RolledBack
from relay.gcra import Gcra
from relay.lifecycle.tokens import Action, Verified, secret_in, verify
from relay.metrics import registry

FREE_GUESSES = 20
GUESS_EVERY = 15.0
"""Seconds after which one more wrong code is listened to."""
REMEMBERED = 100_000
"""How many used tokens, and how many guessed ones, are remembered at once."""
RESEND_WITHIN = 86_400.0
"""Seconds after its expiry for which a link may still ask for another mail."""

_FITTING = {Action.ACTIVATION: "provisioned", Action.PASSWORD_RECOVERY: "active"}

_ANSWERS = Counter(
    "relay_tokens_consumed",
    "Tokens that were to be used.  outcome: consumed; signature (forged, or its code missing or "
    "wrong), guesses (too many wrong codes), remembered (used here before), state (used, expired, "
    "unknown, or the account does not fit).",
    ["outcome"],
    registry=registry,
)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A token that was used just now, and its account as it is after that.

    `owner` made the account: an api_keys.id, or the nil uuid for the administrator and for SQL.
    """

    action: Action
    account: int
    login: str
    status: str
    owner: UUID


class Consumption:
    """Uses tokens, with a memory of its own.  `signing` gives the keys, which may be rotated."""

    def __init__(
        self,
        pool: Pool,
        signing: Callable[[], Sequence[bytes]],
        most: int = REMEMBERED,
    ) -> None:
        """`most`: how many used tokens, and how many guessed ones, are remembered at once."""
        self._most = most
        self._pool = pool
        self._signing = signing
        self._used: OrderedDict[bytes, float] = OrderedDict()  # secret -> until (Trio's clock)
        self._guessed = Guesses(most)

    async def consume(
        self, token: str, code: str | None = None, *, action: Action | None = None
    ) -> Consumed | None:
        """Use `token` (with its `code`, for a recovery), or return None, whatever is wrong.

        `action`: refuse tokens of another kind.
        """
        outcome, consumed = await self._consume(token, code, action)
        _ANSWERS.labels(outcome).inc()
        return consumed

    async def _consume(
        self, token: str, code: str | None, action: Action | None
    ) -> tuple[str, Consumed | None]:
        verified = verify(self._signing(), token, code)
        # Judged before it is known whether the code was right, or a pause would give it away.
        guess = sha256(token.encode("utf-8", "replace")).digest()
        if verified is None or verified.action is Action.PASSWORD_RECOVERY:
            if code is not None and not self._guessed.may(guess):
                return "guesses", None
            if verified is None:
                if code is not None:
                    self._guessed.wrong(guess)
                return "signature", None
        if action is not None and verified.action is not action:
            return "signature", None
        if verified.secret in self._used:
            if self._used[verified.secret] > trio.current_time():
                return "remembered", None
            del self._used[verified.secret]
        try:
            row = await self._use(verified, code)
        except RolledBack as error:
            # Somebody's SQL locks token and account the other way round; nothing has changed.
            raise DatabaseUnavailable("the token was locked by somebody else") from error
        if row is None:
            await self._confirm(verified.secret)
            return "state", None
        account, login, owner, seconds_left = row
        self.remember(verified.secret, seconds_left)
        # Either way: consuming an activation makes it so (trigger), a recovery asks for it.
        return "consumed", Consumed(verified.action, account, login, "active", owner)

    async def usable(self, token: str, action: Action) -> bool:
        """Whether a link may still be used; changes nothing.

        The signature of a recovery covers its code, which the link does not hold: that it is a
        token of ours is told by its secret, which nobody can guess.
        """
        secret = self._secret(token, action)
        if secret is None:
            return False
        found: bool = await self._pool.fetch_value(
            """
            SELECT EXISTS (
                SELECT
                FROM relay.tokens t
                JOIN relay.accounts a ON a.id = t.account
                WHERE t.secret = %(secret)s
                  AND t.action = %(action)s::relay.token_action
                  AND t.consumed_at IS NULL
                  AND t.expires_at > extract(epoch FROM clock_timestamp())
                  AND a.status = %(status)s::relay.account_status
            )
            """,
            {"secret": secret, "action": action.label, "status": _FITTING[action]},
        )
        return found

    async def resend(self, token: str, action: Action) -> None:
        """Mail the account of a link that ended within a day another one; else do nothing."""
        secret = self._secret(token, action)
        if secret is None:
            return
        row = await self._pool.fetch_row(
            """
            SELECT t.account
            FROM relay.tokens t
            WHERE t.secret = %(secret)s
              AND t.action = %(action)s::relay.token_action
              AND t.expires_at > extract(epoch FROM clock_timestamp()) - %(recent)s
            """,
            {"secret": secret, "action": action.label, "recent": RESEND_WITHIN},
        )
        if row is None:
            return
        # What the account is, and how often it was mailed, is not for whoever asks.
        with suppress(
            psycopg.errors.NoDataFound,
            psycopg.errors.ObjectNotInPrerequisiteState,
            psycopg.errors.ProgramLimitExceeded,
        ):
            await self._pool.execute(
                "SELECT relay.new_token(%s, %s::relay.token_action)", (row[0], action.label)
            )

    def _secret(self, token: str, action: Action) -> bytes | None:
        if action is Action.PASSWORD_RECOVERY:
            return secret_in(token)
        verified = verify(self._signing(), token)
        return verified.secret if verified is not None and verified.action is action else None

    async def _use(
        self, verified: Verified, code: str | None
    ) -> tuple[int, str, UUID, float] | None:
        """Mark the token used; return account, login, owner and the seconds until it expires."""
        row = await self._pool.fetch_row(
            # The account first, and locked: were it suspended between the two, the token would be
            # used up for nothing.  Of two at once the second waits there, then finds it used.
            """
            WITH fit AS MATERIALIZED (
                SELECT t.id, a.login, COALESCE(a.owner, %(administrator)s) AS owner
                FROM relay.tokens t
                JOIN relay.accounts a ON a.id = t.account
                WHERE t.secret = %(secret)s
                  AND t.action = %(action)s::relay.token_action
                  AND (t.code = %(code)s OR t.action = 'activation')
                  AND t.consumed_at IS NULL
                  AND t.expires_at > extract(epoch FROM clock_timestamp())
                  AND a.status = %(status)s::relay.account_status
                FOR NO KEY UPDATE OF a
            )
            UPDATE relay.tokens t
            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))
            FROM fit
            WHERE t.id = fit.id
              AND t.consumed_at IS NULL
              AND t.expires_at > extract(epoch FROM clock_timestamp())
            RETURNING t.account, fit.login, fit.owner,
                      (t.expires_at - extract(epoch FROM clock_timestamp()))::double precision
            """,
            {
                "secret": verified.secret,
                "action": verified.action.label,
                # Five digits, having been verified; beside an activation it may be anything.
                "code": code if verified.action is Action.PASSWORD_RECOVERY else None,
                "status": _FITTING[verified.action],
                "administrator": ADMINISTRATOR_ID,
            },
        )
        return None if row is None else (row[0], row[1], row[2], row[3])

    async def _confirm(self, secret: bytes) -> None:
        """If a token was refused for having been used, make sure that it stays so."""
        if await self._pool.fetch(_USED, (secret,)):
            rows = await self._pool.fetch_durable(_USED, (secret,))
            if rows:
                self.remember(secret, rows[0][0])

    @property
    def remembered(self) -> int:
        """Used tokens that are remembered."""
        return len(self._used)

    def remember(self, secret: bytes, seconds: float) -> None:
        """Refuse a used token for so long without asking the database."""
        now = trio.current_time()
        # Nearly in the order in which they expire; what lies on is small and expires too.
        while self._used and (
            len(self._used) >= self._most or next(iter(self._used.values())) <= now
        ):
            self._used.popitem(last=False)
        self._used[secret] = now + seconds


_USED = """
    SELECT (expires_at - extract(epoch FROM clock_timestamp()))::double precision
    FROM relay.tokens
    WHERE secret = %s
      AND consumed_at IS NOT NULL
    """


class Guesses:
    """Wrong codes, by token.

    Bounded: above `most` the tokens that were guessed longest ago are forgotten, so to make it
    forget takes far more calls than the guesses that are won.
    """

    def __init__(self, most: int = REMEMBERED) -> None:
        self._limit = Gcra[bytes](most)

    def __len__(self) -> int:
        """How many tokens are remembered."""
        return len(self._limit)

    def may(self, token: bytes) -> bool:
        """Whether one more code for this token is listened to now."""
        burst = FREE_GUESSES * GUESS_EVERY
        return not self._limit.wait(token, trio.current_time(), GUESS_EVERY, burst)

    def wrong(self, token: bytes) -> None:
        """Count a wrong code."""
        self._limit.spend(token, trio.current_time(), GUESS_EVERY)
