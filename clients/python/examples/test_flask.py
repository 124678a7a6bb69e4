"""A Flask application's mail.  Needs Flask-Mail, and a relay or an installed one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from flask import Flask
from flask_mail import Mail, Message

from relay_client import Inbox
from relay_client.pytest_plugin import SmtpServer

mail = Mail()


def create_app(settings: Mapping[str, Any]) -> Flask:
    """Your application's factory.  What is set after `init_app` Flask-Mail does not see."""
    app = Flask("shop")
    app.config["MAIL_DEFAULT_SENDER"] = "shop@shop.example"
    app.config.update(settings)
    mail.init_app(app)
    return app


@pytest.fixture
def app(smtp_server: SmtpServer) -> Flask:
    """Your application, pointed at the relay."""
    return create_app(smtp_server.flask_mail())


def test_a_code_comes(app: Flask, inbox: Inbox) -> None:
    """It is read from the message."""
    with app.app_context():
        mail.send(Message("Welcome", recipients=[inbox.address], body="Your code is 482913."))

    assert inbox.wait(subject="Welcome").code == "482913"
