"""Lists right after a 250, as suites that were written for Mailpit and MailHog ask for them: of the
whole program, whose sessions are in several processes."""

from __future__ import annotations

import smtplib
from collections.abc import Iterator

import pytest

from tests.relay_process import RelayProcess

MAILPIT, MAILHOG = "/compat/mailpit/api/v1/messages", "/compat/mailhog/api/v2/messages"


@pytest.fixture
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with two processes of sessions, which has parsed a message already."""
    env = {"RELAY_SMTP__PROCESSES": "2"}
    with RelayProcess(tmp_path_factory.mktemp("after") / "relay", env=env) as process:
        send(process, "first")
        with process.http() as api:
            api.get("/api/v1/messages/wait", params={"timeout": "30"}).raise_for_status().json()
        yield process


def send(relay: RelayProcess, subject: str) -> None:
    """Have a mail accepted, in a session of its own."""
    text = f"Subject: {subject}\r\n\r\nYour code is 482913.\r\n"
    with smtplib.SMTP(*relay.smtp) as smtp:
        smtp.sendmail("shop@shop.example", ["ada@customer.example"], text)


def test_mail_is_listed_as_soon_as_its_250_was_said(relay: RelayProcess) -> None:
    """Sixty times, each looked for once: by Mailpit's list and by MailHog's.  What is deleted then
    is all of it."""
    with relay.http() as api:
        for number in range(60):
            send(relay, f"number {number}")
            path = (MAILPIT, MAILHOG)[number % 2]
            found = api.get(path, params={"limit": 1}).raise_for_status().json()
            assert found["total"] == number + 2
            assert f"number {number}" in str(found)
        for path in (MAILPIT, MAILHOG.replace("v2", "v1")):
            send(relay, "last")
            api.delete(path).raise_for_status()
            assert api.get(MAILPIT).json()["total"] == 0
