"""A suite as its users write one: every fixture of pytest-mailpit, with its documented calls."""

import asyncio
import smtplib
from collections.abc import Sequence
from email.message import EmailMessage
from typing import Any

import pytest
from django.conf import settings
from django.core.mail import send_mail

settings.configure(EMAIL_HOST_USER="not used", EMAIL_USE_TLS=True)


def send(
    smtp: Any, *recipients: str, subject: str = "Reset your password", hidden: Sequence[str] = ()
) -> None:
    """Send a mail, as the application under test would."""
    message = EmailMessage()
    message["From"] = "Shop <shop@shop.example>"
    message["To"] = ", ".join(recipients)
    message["Subject"] = subject
    message["List-Unsubscribe"] = "<https://shop.example/unsubscribe?u=1>"
    message.set_content("Your code is 482913.\nhttps://shop.example/reset?t=1")
    message.add_alternative(
        '<p>Your code is <b>482913</b>. <a href="https://shop.example/reset?t=1">Reset</a></p>',
        subtype="html",
    )
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="invoice.pdf")
    with smtplib.SMTP(smtp.host, smtp.port) as client:
        client.send_message(message, to_addrs=[*recipients, *hidden])


def test_mailpit_inbox(mailpit_inbox, mailpit_smtp):
    send(mailpit_smtp, mailpit_inbox.address)
    message = mailpit_inbox.wait_for_message(subject="Reset", sender="shop@shop.example")
    assert message.link("/reset") == "https://shop.example/reset?t=1"
    assert message.code() == "482913"
    assert message.sender.name == "Shop"
    assert message.unsubscribe_link() == "https://shop.example/unsubscribe?u=1"
    assert len(mailpit_inbox.messages()) == 1
    mailpit_inbox.clear()
    assert mailpit_inbox.messages() == []
    mailpit_inbox.assert_no_message(within=0.1)


def test_mailpit_inbox_factory(mailpit_inbox_factory, mailpit_smtp):
    ada, bob, eve = (mailpit_inbox_factory() for _ in range(3))
    send(mailpit_smtp, ada.address, bob.address, hidden=[eve.address])
    found = [box.wait_for_message() for box in (ada, bob, eve)]
    assert len({message.id for message in found}) == 1
    assert [one.address for one in found[0].bcc] == [eve.address]
    send(mailpit_smtp, ada.address, subject="Another")
    assert [one.subject for one in ada.wait_for_messages(2)] == ["Reset your password", "Another"]
    with pytest.raises(AssertionError, match="Expected 1 message"):
        bob.wait_for_message(subject="Nothing", timeout=0.1)


def test_mailpit(mailpit, mailpit_inbox, mailpit_smtp):
    assert mailpit.is_ready()
    before = mailpit.server_time()
    send(mailpit_smtp, mailpit_inbox.address)
    summary = mailpit.wait_for_message(recipient=mailpit_inbox.address, since=before)
    message = mailpit.get_message(summary.id)
    part = message.attachment("invoice.pdf", content_type="application/pdf")
    assert mailpit.get_attachment(part) == b"%PDF"
    assert len(part.checksums["SHA256"]) == 64
    assert mailpit.get_headers(message.id)["Subject"] == ["Reset your password"]
    assert b"Subject: Reset your password" in mailpit.get_raw(message.id)
    (entry,) = mailpit.search(f'to:"{mailpit_inbox.address}"').messages
    assert entry.read
    assert entry.attachments == 1
    mailpit.mark_read([message.id], read=False)
    mailpit.set_tags([message.id], ["shop", "reset"])
    (entry,) = mailpit.search("tag:shop is:unread").messages
    assert set(entry.tags) == {"shop", "reset"}
    assert mailpit.info().messages == mailpit.messages().total == 1
    mailpit.delete_search("tag:shop")
    assert mailpit.messages().messages == ()
    mailpit.delete_all()


def test_mailpit_async(mailpit_async, mailpit_async_inbox, mailpit_smtp):
    send(mailpit_smtp, mailpit_async_inbox.address)

    async def look() -> Any:
        message = await mailpit_async_inbox.wait_for_message()
        return await mailpit_async.get_message(message.id)

    assert asyncio.run(look()).subject == "Reset your password"


def test_mailpit_django(mailpit_django, mailpit_inbox):
    send_mail("Welcome", "Your code is 482913.", "shop@shop.example", [mailpit_inbox.address])
    assert mailpit_inbox.wait_for_message(subject="Welcome").code() == "482913"


def test_mailpit_chaos(mailpit_chaos, mailpit_inbox, mailpit_smtp):
    mailpit_chaos.reject_recipients(450)
    with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
        send(mailpit_smtp, mailpit_inbox.address)
    assert refused.value.recipients[mailpit_inbox.address][0] == 450
    mailpit_chaos.reset()
    send(mailpit_smtp, mailpit_inbox.address)
    mailpit_inbox.wait_for_message()
