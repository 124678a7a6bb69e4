"""A Django application's mail.  Needs pytest-django, and a relay or an installed one."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as project
from django.core.mail import EmailMultiAlternatives, send_mail

from relay_client import Inbox
from relay_client.pytest_plugin import SmtpServer

if not project.configured:
    project.configure()  # yours is found by DJANGO_SETTINGS_MODULE


@pytest.fixture(autouse=True)
def mail(settings: Any, smtp_server: SmtpServer) -> None:
    """Point Django at the relay, for each test under the test's own name."""
    for name, value in smtp_server.django().items():
        setattr(settings, name, value)


def test_a_code_comes(inbox: Inbox) -> None:
    """It is read from the message."""
    send_mail("Welcome", "Your code is 482913.", "shop@shop.example", [inbox.address])

    assert inbox.wait(subject="Welcome").code == "482913"


def test_an_invoice_has_its_file(inbox: Inbox) -> None:
    """And a link to pay it by."""
    invoice = EmailMultiAlternatives("Invoice", "See below.", "shop@shop.example", [inbox.address])
    invoice.attach_alternative('<a href="https://shop.example/pay?n=7">Pay</a>', "text/html")
    invoice.attach("invoice.pdf", b"%PDF", "application/pdf")
    invoice.send()

    message = inbox.wait(subject="Invoice")
    assert message.link("/pay") == "https://shop.example/pay?n=7"
    assert message.attachments[0].content == b"%PDF"
