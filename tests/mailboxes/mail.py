"""Mail that is in a mailbox already."""

from typing import Any
from uuid import UUID

from relay.db.pool import Pool


async def deliver(pool: Pool, mailbox: UUID, subject: str, **summary: Any) -> UUID:
    """Store a message as if accepted, and its summary as if parsed."""
    message: UUID = await pool.fetch_value(
        """
        INSERT INTO relay.messages (mailbox_id, raw_email, reverse_path)
        VALUES (%s, %s, 'bounce@a.example')
        RETURNING id
        """,
        (mailbox, f"Subject: {subject}\r\n\r\n".encode()),
    )
    await pool.execute(
        """
        INSERT INTO relay.summaries (message_id, mailbox_id, subject, from_address, body_text)
        VALUES (%s, %s, %s, %s, %s)
        """,
        (message, mailbox, subject, summary.get("sender"), summary.get("text")),
    )
    return message
