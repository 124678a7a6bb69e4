"""A delivery that failed for now is tried again later: after n² units, give or take a fifth."""

import pytest

from relay.outbound.pacing.backoff import JITTER
from tests.outbound.running import running_outbound
from tests.outbound.sink import Session, running_sink


async def unwilling(session: Session, verb: str, line: str) -> bytes | None:
    """A server that takes nobody's mail now, and names the recipient when it says so."""
    return b"451 4.2.0 <ada@example.net> try again later\r\n" if verb == "RCPT" else None


@pytest.mark.parametrize("attempt", [1, 2, 3])
async def test_failed_smtp_call_updates_next_retry(pool, attempt: int):
    """After attempt n the row is queued again, due in n² minutes, and says why without a name."""
    async with running_sink(unwilling) as sink, running_outbound(pool, sink.url) as outbound:
        message_id = await pool.fetch_value(
            "SELECT relay.send('shop@example.org', 'ada@example.net', 'Your order', 'text')"
        )
        # As if the attempts before this one had been made, and their delays were over.
        await pool.execute(
            "UPDATE relay.outbound_due SET attempt = %s WHERE id = %s", (attempt - 1, message_id)
        )
        outbound.wake()
        _, attempts, seconds, error = await outbound.becomes(message_id, "queued", attempt)

    assert attempts == attempt
    formula = attempt**2 * 60.0
    assert formula * (1 - JITTER) - 10 <= seconds <= formula * (1 + JITTER)
    assert "451 4.2.0" in error
    assert "ada@example.net" not in error
    assert sink.received == []
