"""The law of who sees which mailbox, and until when, once, as SQL.

A mailbox is visible while it is active and its `expires_at` lies ahead, by the database's clock, to
whoever has one of its credentials.  Both are tested in the very statement that reads or writes.
In the SQL `b` is relay.mailboxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relay.db.arrays import BOOLEAN, BYTEA, ONE_UUID

LIVE = "b.is_active AND b.expires_at > now()"
"""The mailbox accepts and shows mail."""
DELETED = "NOT b.is_active AND b.closed_at < b.expires_at"
"""The mailbox was deleted before its time; it can only be purged (an expired one cannot)."""
# NULL = NULL is not true, so a credential without a token or a key matches by neither.
_ALLOWED = "({} OR b.token_hash = {} OR b.owner_id = {})"
ALLOWED = _ALLOWED.format("%(administrator)s", "%(token_hash)s", "%(owner_id)s")
"""One of the credentials of `Credential.values` opens the mailbox."""
ALLOWED_BY_NUMBER = _ALLOWED.format("$1", "$2", "$3")
"""The same for `Credential.parameters`, the first of a `Statement`."""
ALLOWED_TYPES = (BOOLEAN, BYTEA, ONE_UUID)
"""The types (OIDs) of these."""


@dataclass(frozen=True)
class Credential:
    """The credential of whoever asks: any of a session token, an API key, the administrator.

    `token_hash` is the SHA-256 of a session token, `owner_id` the id of an API key.
    """

    token_hash: bytes | None = None
    owner_id: UUID | None = None
    administrator: bool = False

    def values(self) -> dict[str, Any]:
        """The parameters that `ALLOWED` needs."""
        return {
            "administrator": self.administrator,
            "token_hash": self.token_hash,
            "owner_id": self.owner_id,
        }

    def parameters(self) -> tuple[bytes, bytes | None, bytes | None]:
        """The parameters that `ALLOWED_BY_NUMBER` needs, in PostgreSQL's binary form."""
        owner = None if self.owner_id is None else self.owner_id.bytes
        return bytes([self.administrator]), self.token_hash, owner


@dataclass(frozen=True)
class Reach:
    """The mailboxes that a caller may see all at once: a key's, or the one of a session token.

    With neither: everybody's, which is the administrator's reach.
    """

    owner_id: UUID | None = None
    mailbox_id: UUID | None = None

    @property
    def sees_all(self) -> bool:
        """Whether it is the administrator's."""
        return self.owner_id is None and self.mailbox_id is None

    @property
    def sql(self) -> str:
        """The condition on `b`; each has an index of its own."""
        if self.mailbox_id is not None:
            return "b.id = %(reach_mailbox)s"
        if self.owner_id is None:
            return "true"
        return "b.owner_id = %(reach_owner)s AND b.captured_at IS NULL"  # as no key has any

    def values(self) -> dict[str, Any]:
        """The parameters that `sql` needs."""
        return {"reach_mailbox": self.mailbox_id, "reach_owner": self.owner_id}
