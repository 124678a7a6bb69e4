"""From a queued row to a message at the server: dispatched, recorded, and built as MIME."""

import email
import email.policy
from email.message import EmailMessage

from relay.outbound.composing.message import Address, Attachment, Message
from relay.outbound.queue.enqueue import enqueue
from tests.outbound.running import running_outbound
from tests.outbound.sink import running_sink


async def test_successful_smtp_dispatch(pool):
    """A queued message is claimed, reaches the server once, and ends as sent after one attempt."""
    message = Message(
        Address("shop@example.org", "Der Laden"),
        [Address("ada@example.net", "Ada")],
        "Your order",
        text="On its way.",
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        (queued,) = (await enqueue(pool, [message])).messages
        assert (await outbound.row(queued.id))[:2] == ("queued", 0)
        outbound.wake()
        _, attempts, next_retry, error = await outbound.becomes(queued.id, "sent")
    (received,) = sink.received
    assert (received.sender, received.recipients) == ("shop@example.org", ("ada@example.net",))
    assert (attempts, next_retry, error) == (1, None, None)
    sent_at = "SELECT sent_at >= created_at FROM relay.outbound_messages WHERE id = %s"
    assert await pool.fetch_value(sent_at, (queued.id,)) is True


async def test_mime_multipart_construction(pool):
    """Text and HTML arrive as the two alternatives, the attachment beside them, headers intact."""
    message = Message(
        Address("shop@example.org", "Der Laden"),
        [Address("ada@example.net", "Ada Lovelace")],
        "Grüße",
        text="Plain café\n",
        html="<p>Rich café</p>\n",
        attachments=[Attachment("bill.pdf", "application/pdf", b"%PDF-1.7\x00\xff")],
    )
    async with running_sink() as sink, running_outbound(pool, sink.url) as outbound:
        (queued,) = (await enqueue(pool, [message])).messages
        outbound.wake()
        await outbound.becomes(queued.id, "sent")

    parsed = email.message_from_bytes(sink.received[0].data, policy=email.policy.default)
    assert isinstance(parsed, EmailMessage)
    assert not parsed.defects
    assert parsed["Subject"] == "Grüße"
    assert parsed["From"] == "Der Laden <shop@example.org>"
    assert parsed["To"] == "Ada Lovelace <ada@example.net>"
    assert parsed["Message-ID"] == f"<{queued.id}@example.org>"
    assert parsed["Date"].datetime.tzinfo is not None
    assert parsed.get_content_type() == "multipart/mixed"
    alternatives, attached = list(parsed.iter_parts())
    assert alternatives.get_content_type() == "multipart/alternative"
    plain, rich = list(alternatives.iter_parts())
    assert (plain.get_content_type(), plain.get_content()) == ("text/plain", "Plain café\r\n")
    assert (rich.get_content_type(), rich.get_content()) == ("text/html", "<p>Rich café</p>\r\n")
    assert (attached.get_filename(), attached.get_content_type()) == ("bill.pdf", "application/pdf")
    assert attached.get_content() == b"%PDF-1.7\x00\xff"
