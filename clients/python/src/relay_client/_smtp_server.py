"""Where the application under a test hands over its mail: what the fixture `smtp_server` gives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from relay_client import Info, RelayError
from relay_client._connect import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping


class SmtpServer(NamedTuple):
    """Where an application hands over its mail, in clear."""

    host: str
    port: int
    user: str
    """Of this test; it becomes a tag of what is captured.  Empty where nobody can sign in."""
    password: str
    tls: bool
    """Whether STARTTLS is offered; the certificate may be one that only its own machine trusts."""

    def django(self) -> Mapping[str, Any]:
        """Return Django's settings."""
        return {
            "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
            "EMAIL_HOST": self.host,
            "EMAIL_PORT": self.port,
            "EMAIL_HOST_USER": self.user,
            "EMAIL_HOST_PASSWORD": self.password,
            "EMAIL_USE_TLS": False,
            "EMAIL_USE_SSL": False,
        }

    def flask_mail(self) -> Mapping[str, Any]:
        """Return Flask-Mail's settings."""
        return {
            "MAIL_SERVER": self.host,
            "MAIL_PORT": self.port,
            "MAIL_USERNAME": self.user,
            "MAIL_PASSWORD": self.password,
            "MAIL_USE_TLS": False,
            "MAIL_USE_SSL": False,
            "MAIL_SUPPRESS_SEND": False,
        }


def smtp_server_of(url: str, info: Info, test: str) -> SmtpServer:
    """Return where a relay at `url`, which says this of itself, takes the mail of a test."""
    found = re.fullmatch(r"\[?(.*?)\]?:(\d+)", info.smtp or "")
    if found is None:
        raise RelayError("this relay takes no mail by SMTP")
    host, port = found[1], found[2]
    url_host = urlsplit(url).hostname or host
    # A relay that listens at all addresses names one by which its own machine reaches it.
    if is_loopback(host) and not is_loopback(url_host):
        host = url_host
    user, password = "", ""
    # It takes any password while it captures, but from another machine none in clear where there
    # could be TLS.
    if info.capture and (is_loopback(host) or not info.starttls):
        user = login_of(test)
        password = "secret"  # noqa: S105  # it opens nothing
    return SmtpServer(host, int(port), user, password, info.starttls)


def login_of(test: str) -> str:
    """Return as whom the application signs in while this test runs."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", test).strip("-")[:64] or "test"
