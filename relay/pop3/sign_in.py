"""Who may read which mailbox by POP3: the law of the HTTP interface, by user and password.

The user is the mailbox's address; the password its session token, its owner's API key, or the
administrator's token.

Promises
- Unknown, expired and foreign mailboxes and wrong passwords are all alike: None, after the same
  look-ups.
- A key needs the scope `read`, and to delete the scope `send`, as over HTTP.
- Tokens are compared as hashes, the administrator's in constant time.

Fails with `DatabaseUnavailable` from the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from relay.access.keys import Keys
from relay.crypto import hash_token, tokens_equal
from relay.mailboxes.store import Store
from relay.mailboxes.visibility import Credential

_MAX_TOKEN = 512  # characters; a password beyond is not even looked up


@dataclass(frozen=True)
class Reader:
    """Who has signed in, and to which mailbox."""

    mailbox_id: UUID
    may_delete: bool
    key_id: UUID | None
    """The API key that they hold; None: another credential, which lasts as long as they do."""


class SignIn:
    """One relay's."""

    def __init__(self, store: Store, keys: Keys, admin_token_hash: bytes) -> None:
        self._store = store
        self._keys = keys
        self._admin_token_hash = admin_token_hash

    async def check(self, user: str, password: str) -> Reader | None:
        """Return who this is, or None."""
        if len(password) > _MAX_TOKEN:
            return None
        token_hash = hash_token(password)
        administrator = tokens_equal(token_hash, self._admin_token_hash)
        key = await self._keys.authenticate(token_hash)
        owner_id = key.id if key is not None and key.allows("read") else None
        credential = Credential(token_hash, owner_id, administrator)
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
