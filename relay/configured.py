"""What settings name, read: addresses, files, classes.

`relay.settings` says what is malformed and what contradicts; what takes knowing an upstream, a
source or a certificate is here, for the start and for `relay config check`.

Promises: what `check` finds nothing wrong with starts, but for what only the machine knows (ports,
the data directory, the database).

Fails with `ConfigError`, a sentence that says what to change.
"""

from __future__ import annotations

from relay.errors import ConfigError
from relay.lifecycle.letters import letters_of
from relay.outbound.composing.message import Address, MalformedMessage, parse_address
from relay.outbound.routing import sources
from relay.outbound.routing.senders import Upstream, parse_upstream
from relay.outbound.shaping.file import ShapingFile
from relay.ports.certificate import Certificate
from relay.settings import Settings
from relay.smtp import filtering
from relay.smtp.connection import client_tls


def upstream(settings: Settings) -> Upstream:
    """Where mail without a sender of its own goes."""
    try:
        return parse_upstream(settings.outbound.upstream)
    except MalformedMessage as error:
        raise ConfigError(f"RELAY_OUTBOUND__UPSTREAM is not usable: {error}.") from error


def reports_from(settings: Settings) -> Address | None:
    """Whom reports of TLS are from; None: nobody makes any."""
    if not settings.outbound.tls_reports:
        return None
    try:
        return parse_address(settings.outbound.tls_reports, "RELAY_OUTBOUND__TLS_REPORTS")
    except MalformedMessage as error:
        raise ConfigError(f"{error}.") from error


def check(settings: Settings) -> None:
    """Read all of it, as a start does."""
    upstream(settings)
    reports_from(settings)
    sources.parse(settings.outbound.sources)
    letters_of(settings, settings.http.link_base or "http://localhost")
    ShapingFile.load(settings.outbound.shaping)
    client_tls(settings.outbound.ca_file or None)
    if settings.smtp.certificate:
        Certificate.load(*settings.smtp.certificate)
    if settings.smtp.filter:
        filtering.load(settings.smtp.filter)
