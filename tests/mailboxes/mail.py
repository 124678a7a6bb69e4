"""Mail that is in a mailbox already."""

import struct
from typing import Any
from uuid import UUID

from relay.db.pool import Pool
from relay.mailboxes.summary import COLUMNS


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


def read_row(row: bytes) -> dict[str, str | None]:
    """The values of a row that `Summary.as_row` made, by column; of a boolean, its one byte."""
    ends = struct.unpack_from(f">{len(COLUMNS)}I", row)
    assert ends[-1] == len(row)
    values: dict[str, str | None] = {}
    position = 4 * len(COLUMNS)
    for column, end in zip(COLUMNS, ends, strict=True):
        (length,) = struct.unpack_from(">i", row, position)
        value = row[position + 4 : end]
        assert len(value) == max(length, 0)
        values[column] = None if length < 0 else value.decode()
        position = end
    return values
