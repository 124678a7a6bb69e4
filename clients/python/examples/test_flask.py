"""A Flask application's mail.  Needs Flask-Mail, and a relay or an installed one."""

from __future__ import annotations

import pytest
from flask import Flask
from flask_mail import Mail, Message

from relay_client import Inbox
from relay_client.pytest_plugin import SmtpServer


@pytest.fixture
def app(smtp_server: SmtpServer) -> Flask:
    """Your application, pointed at the relay."""
    app = Flask("shop")
    app.config.update(smtp_server.flask_mail(), MAIL_DEFAULT_SENDER="shop@shop.example")
    Mail(app)
    return app


def test_a_code_comes(app: Flask, inbox: Inbox) -> None:
    """It is read from the message."""
    with app.app_context():
        app.extensions["mail"].send(
            Message("Welcome", recipients=[inbox.address], body="Your code is 482913.")
        )

    assert inbox.wait(subject="Welcome").code == "482913"
