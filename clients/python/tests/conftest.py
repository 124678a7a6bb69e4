"""What the tests share.  They are a user of the plug-in themselves: their relay is its."""

from __future__ import annotations

import smtplib
from email.message import EmailMessage
from pathlib import Path
from typing import Callable

import pytest

import relay_client
from relay_client import Relay

pytest_plugins = ["pytester"]

Deliver = Callable[..., None]


@pytest.fixture(scope="session")
def deliver(relay: Relay) -> Deliver:
    """Return what hands a message to the relay."""
    host, _, port = str(relay.info().smtp).rpartition(":")

    def put(
        to: str,
        subject: str = "Reset",
        text: str = "Your code is 271828.\nhttps://id.shop.example/reset?token=1\n",
        sender: str = "Shop <a@shop.example>",
        **files: bytes,
    ) -> None:
        message = EmailMessage()
        message["From"], message["To"], message["Subject"] = sender, to, subject
        message.set_content(text)
        for name, content in files.items():
            message.add_attachment(
                content, maintype="application", subtype="pdf", filename=f"{name}.pdf"
            )
        with smtplib.SMTP(host, int(port)) as smtp:
            smtp.send_message(message)

    return put


@pytest.fixture
def inner(
    pytester: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Return a place to run pytest in, against the relay of this run."""
    monkeypatch.setenv("RELAY_URL", relay.url)
    monkeypatch.setenv("RELAY_TOKEN", str(relay.token))
    monkeypatch.setenv("PYTHONPATH", str(Path(relay_client.__file__).parents[1]))
    # Where the relay's own tests are installed, these would be most of what a run loads: the last
    # two bring Hypothesis along.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis -p no:hypothesispytest -p no:trio")
    pytester.makeini("[pytest]")
    return pytester
