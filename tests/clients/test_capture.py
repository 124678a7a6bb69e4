"""Applications pointed at a relay as it is: nothing is made first, any user and password do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.senders import SENDERS, Job
from tests.clients.test_clients import MESSAGES, received
from tests.relay_process import RelayProcess

pytestmark = pytest.mark.clients

SIGNING_IN = [name for name in SENDERS if name != "smtp-source"]  # which cannot


@pytest.mark.parametrize("client", SENDERS)
def test_mail_for_anybody_is_seen(relay: RelayProcess, client: str, tmp_path: Path) -> None:
    """Byte for byte, in a mailbox of its own."""
    address, message = f"ada-{client}@customer.example", MESSAGES["dots"]
    job = Job(relay.smtp[1], "shop@shop.example", address, message, tmp_path)
    sent = SENDERS[client](job)
    assert sent.ok, sent.said
    assert received(relay, address) == [message + sent.added]


@pytest.mark.parametrize("client", SIGNING_IN)
def test_anybody_may_sign_in(relay: RelayProcess, client: str, tmp_path: Path) -> None:
    """The client takes its mail for delivered, and it is there."""
    address, message = f"eve-{client}@customer.example", MESSAGES["plain"]
    login = (f"app-{client}", "any-password")
    job = Job(relay.smtp[1], "shop@shop.example", address, message, tmp_path, login)
    sent = SENDERS[client](job)
    assert sent.ok, sent.said
    assert received(relay, address) == [message + sent.added]


def test_own_domains_keep_their_law(relay: RelayProcess, tmp_path: Path) -> None:
    """Signed in or not: an address of the relay's own that nobody made does not exist."""
    address = "nobody@relay.localhost"
    for login in (None, ("app", "any-password")):
        job = Job(relay.smtp[1], "a@b.example", address, MESSAGES["plain"], tmp_path, login)
        sent = SENDERS["smtplib"](job)
        assert not sent.ok
        assert "5.1.1" in sent.said
