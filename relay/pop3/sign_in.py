"""Who may read which mailbox by POP3: the law of the HTTP interface, by user and password.

The user is the mailbox's address; the password its session token, its owner's API key, or the
administrator's token.

Promises
- Unknown, expired and foreign mailboxes and wrong passwords are all alike: None, after the same
  look-ups.
- A key needs the scope `read`, and to delete the scope `send`, as over HTTP.
- When a password is checked at all is `relay.access.password_checks`'s to say.

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from relay.access.bearers import bearer_of
from relay.access.keys import Keys
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Credential


@dataclass(frozen=True)
class Reader:
    """Who has signed in, and to which mailbox."""

    mailbox_id: UUID
    may_delete: bool
    key_id: UUID | None
    """The API key that they hold; None: another credential, which lasts as long as they do."""


class MailboxAuthenticator:
    """Finds out who may read which mailbox of one relay."""

    def __init__(self, store: Store, keys: Keys, admin_token_hash: bytes) -> None:
        self._store = store
        self._keys = keys
        self._admin_token_hash = admin_token_hash

    async def check(self, user: str, password: str) -> Reader | None:
        """Return who this is, or None."""
        bearer = await bearer_of(password, self._keys, self._admin_token_hash)
        if bearer is None:
            return None
        key = bearer.key
        owner_id = key.id if key is not None and key.allows("read") else None
        credential = Credential(bearer.token_hash, owner_id, bearer.administrator)
        mailbox = await self._store.find(user, credential)
        if mailbox is None:
            return None
        if key is None or owner_id is None:
            return Reader(mailbox.id, True, None)
        return Reader(mailbox.id, key.allows("send"), key.id)

    async def still(self, reader: Reader) -> bool:
        """Whether they may go on: a key may have been revoked, or have ended."""
        if reader.key_id is None:
            return True
        key = await self._keys.live(reader.key_id)
        return key is not None and key.allows("read")
