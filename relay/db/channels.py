"""The channels of NOTIFY: by which the database, and relays among themselves, wake each other.

A payload is keys joined by commas, cut to what a notification may hold; "*" and the empty one
concern everybody on the channel, KEY:PART those who wait for KEY, =OWNER those who wait for all of
an owner's mailboxes, and so does a payload in which none is named so; "*" with owners concerns
those alone.  Each notification is a hint: whoever waits also looks unasked.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

MESSAGES: Final = "relay_messages"
"""Messages were inserted by SQL, and wait for their summaries.  By a trigger; no keys."""
SUMMARIES: Final = "relay_summaries"
"""Mail became readable.  By the summariser; the ids of mailboxes, and =OWNER of each, or "="."""
EXPIRY: Final = "relay_expiry"
"""A mailbox was made or changed that ends then.  By a trigger; one instant, in epoch seconds."""
MAILBOXES: Final = "relay_mailboxes"
"""Mailboxes were changed, closed or removed, before they were due.  By triggers; their ids, of very
many "*", and =OWNER of each, or "=", where there is room."""
CHANGES: Final = "relay_changes"
"""Messages were deleted, marked or tagged.  By triggers; MAILBOX:MESSAGE, of many MAILBOX, of more
"*", and =OWNER of each, or "=", where there is room."""
OUTBOUND: Final = "relay_outbound"
"""Mail to be sent is due.  By relays and `relay.send`; nothing, `high` (high mail is), or `flush`
(all that was deferred is, and pauses end)."""
WEBHOOKS: Final = "relay_webhooks"
"""A webhook is to be told something.  By triggers; no keys."""
DEVICES: Final = "relay_devices"
"""Blobs were stored in PostgreSQL.  By a trigger; the devices' keys, in hexadecimal digits."""
SESSIONS: Final = "relay_sessions"
"""Page sessions ended.  By a trigger; their ids."""
DKIM: Final = "relay_dkim"
"""Keys of DKIM were made, activated, retired or removed.  By a trigger; no keys."""
SHAPING: Final = "relay_shaping"
"""Receivers were suspended, slowed or let go.  By a trigger; no keys."""
RETURNS: Final = "relay_returns"
"""Something came back of mail that was sent.  By a trigger; no keys."""
NOTICES: Final = "relay_notices"
"""Something is to be told to submitters of mail.  By triggers; no keys."""
TOKENS: Final = "token_insert"
"""Tokens wait for their letters.  By triggers, under the name that docs/sql.md gives; no keys."""

ALL: Final = (
    MESSAGES,
    SUMMARIES,
    EXPIRY,
    MAILBOXES,
    CHANGES,
    OUTBOUND,
    WEBHOOKS,
    DEVICES,
    SESSIONS,
    DKIM,
    SHAPING,
    RETURNS,
    NOTICES,
    TOKENS,
)


def of_owner(owner_id: UUID | None) -> str:
    """Return the key of those who wait for all of an owner's mailboxes, or what names nobody."""
    return f"={owner_id or ''}"
