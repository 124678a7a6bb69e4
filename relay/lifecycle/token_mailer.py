"""Mails tokens: a batch of them becomes letters in the outbound queue, in one transaction.

Promises
- Taken, queued and paid for together or not at all: whatever dies in between, a token has exactly
  one letter.
- A letter ends with its token: expired, consumed or deleted, it is cancelled where it waits.
- A token whose letter can never be written or sent (the recipient is suppressed, an address that
  is none, a template that fails on it) is taken and reported, so it holds up no other.

Fails with `DatabaseUnavailable`.  If only the answer of the COMMIT was lost, the letters are there
and nobody was told; the claimer's sweep finds them.  A failover that undoes a commit in doubt
undoes letters and taking together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import trio

from relay.chance import time
from relay.db.connection import Connection
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable
from relay.lifecycle import token_queue
from relay.lifecycle.budget import Budget
from relay.lifecycle.letters import Letters, Unwritable
from relay.lifecycle.taking import taking
from relay.lifecycle.tokens import Action, Signer
from relay.outbound.composing.message import Message
from relay.outbound.queue.enqueue import Suppressed, enqueue
from relay.outbound.queue.lanes import DueLane

_TIMEOUT = 20.0  # s for a statement; a stopped backend defeats the server's own limits
_CHUNK = 100  # letters that are written without letting others run: about 7 ms


@dataclass(frozen=True, slots=True)
class RefusedToken:
    """A token that got no letter, and why; never an address."""

    token: int
    reason: str


@dataclass(frozen=True, slots=True)
class MailedBatch:
    """What became of a batch.

    `rows` tokens were taken; `due_lanes` have something due now (for the claimer); `rest` is None,
    or the seconds that the budget wants to pass before the next batch; `saved` is how many
    letters the budget would pay for now.
    """

    rows: int = 0
    due_lanes: frozenset[DueLane] = frozenset()
    refused: tuple[RefusedToken, ...] = ()
    rest: float | None = None
    saved: float | None = None


@dataclass(frozen=True)
class TokenMailer:
    """Mails tokens in batches of up to `limit`; `timeout` is the batch timeout, in seconds."""

    pool: Pool
    letters: Letters
    limit: int
    timeout: float
    budget: Budget | None = None

    async def mail_batch(self, key: bytes) -> MailedBatch:
        """Take a batch and queue its letters, signed with `key`; commit."""
        with trio.move_on_after(_TIMEOUT) as patience:
            async with self.pool.transaction(patience=_TIMEOUT) as connection:
                return await self._batch(connection, key, patience)
        raise DatabaseUnavailable(f"PostgreSQL did not answer within {_TIMEOUT:g} s")

    async def waiting(self) -> int:
        """How many tokens wait, counted up to the limit."""
        async with self.pool.connection(patience=_TIMEOUT) as connection:
            return await token_queue.waiting(connection, self.limit)

    async def _batch(
        self, connection: Connection, key: bytes, patience: trio.CancelScope
    ) -> MailedBatch:
        signer = Signer(key)
        due_lanes: set[DueLane] = set()
        refused: list[RefusedToken] = []
        async with taking(
            connection, limit=self.limit, batch_timeout=self.timeout, budget=self.budget
        ) as batch:
            for at in range(0, len(batch.rows), _CHUNK):
                # Others run while each part is stored.
                patience.deadline = trio.current_time() + _TIMEOUT
                messages = self._write(batch.rows[at : at + _CHUNK], signer, refused)
                due_lanes |= await self._enqueue(connection, messages, refused)
            batch.refused = len(refused)
        return MailedBatch(
            len(batch.rows), frozenset(due_lanes), tuple(refused), batch.rest, batch.saved
        )

    def _write(
        self, rows: Sequence[token_queue.QueuedToken], signer: Signer, refused: list[RefusedToken]
    ) -> dict[int, Message]:
        messages: dict[int, Message] = {}
        now = time()
        for row in rows:
            action = Action(row.action)
            try:
                letter = self.letters.write(
                    action=action,
                    email=row.email,
                    login=row.login,
                    token=signer.token(action, row.secret, row.code),
                    code=row.code,
                    minutes=max(1, round((row.expires_at - now) / 60)),
                )
            except Unwritable as error:
                refused.append(RefusedToken(row.id, str(error)))
                continue
            until = datetime.fromtimestamp(row.expires_at, UTC)
            messages[row.id] = replace(letter, letter_of=row.id, not_after=until)
        return messages

    async def _enqueue(
        self, connection: Connection, messages: dict[int, Message], refused: list[RefusedToken]
    ) -> set[DueLane]:
        try:
            queued = await enqueue(self.pool, list(messages.values()), conn=connection)
        except Suppressed as error:
            # Nothing was written, and the transaction is as it was.
            barred = set(error.addresses)
            wanted = []
            for token, message in messages.items():
                if message.recipients[0].address.lower() in barred:
                    refused.append(RefusedToken(token, "the recipient is suppressed"))
                else:
                    wanted.append(message)
            queued = await enqueue(self.pool, wanted, conn=connection)
        return queued.due_lanes
