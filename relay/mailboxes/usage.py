"""What a mailbox holds, and may hold: the count as SQL, in which `b` is relay.mailboxes.

`relay.find_mailboxes` (migration 0021), which RCPT asks, says the same in SQL of its own, for it is
planned otherwise; tests/mailboxes/test_usage.py holds both to each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.access.owners import ADMINISTRATOR_ID

USED = """
    SELECT coalesce(sum(messages), 0)::bigint AS messages, coalesce(sum(bytes), 0)::bigint AS bytes,
           (coalesce(sum(messages), 0) - coalesce(sum(was_read), 0))::bigint AS unread
    FROM (
        SELECT messages, bytes, was_read FROM relay.mailbox_usage WHERE mailbox_id = b.id
        UNION ALL
        SELECT messages, bytes, was_read FROM relay.usage_changes WHERE mailbox_id = b.id
    ) folded_and_since"""
"""What the mailbox `b` holds, as a sub-select of one row; in one snapshot it is exact."""

LIMITED = f"(b.owner_id IS DISTINCT FROM '{ADMINISTRATOR_ID}' OR b.captured_at IS NOT NULL)"
"""Whether the quotas of its plan hold for the mailbox `b`: not for the administrator's, but for
those that capture made."""


@dataclass(frozen=True)
class Usage:
    """What a mailbox holds, and what its plan allows; None: no limit."""

    messages: int = 0
    bytes: int = 0
    unread: int = 0
    max_messages: int | None = None
    max_bytes: int | None = None
