"""What settings name is read before a start as at a start."""

from __future__ import annotations

import pytest

from relay import configured
from relay.errors import ConfigError
from relay.settings import Settings, load
from tests.actors.test_tree import FILTER, OFTEN_OFF, names

FAULTS = {
    "RELAY_OUTBOUND__UPSTREAM": "smtps://relay.example:465/path?x=\x01",
    "RELAY_OUTBOUND__TLS_REPORTS": "nobody",
    "RELAY_OUTBOUND__SOURCES": '[{"name": "out", "ehlo": "no name"}]',
    "RELAY_OUTBOUND__CA_FILE": "/nowhere/ca.pem",
    "RELAY_COLLECTOR__SENDER": "nobody",
    "RELAY_COLLECTOR__TEMPLATES": "/nowhere",
    "RELAY_SMTP__FILTER": "no_such_module:Filter",
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_start_refuses_is_found_before(name: str):
    """By the same sentence as the tree is refused with."""
    settings = load(environ={name: FAULTS[name]})
    with pytest.raises(ConfigError) as before:
        configured.check(settings)
    with pytest.raises(ConfigError) as at_the_start:
        names(settings)
    assert str(before.value) == str(at_the_start.value)


def test_a_certificate_that_is_none_is_found_before(tmp_path):
    """`relay up` loads it before its tree is made."""
    there = str(tmp_path / "cert.pem")
    settings = load(environ={"RELAY_SMTP__TLS_CERT": there, "RELAY_SMTP__TLS_KEY": there})
    with pytest.raises(ConfigError, match="RELAY_SMTP__TLS_CERT"):
        configured.check(settings)


def test_what_starts_is_found_right():
    """The defaults, and what is often off."""
    for settings in (Settings(), load(environ=OFTEN_OFF), load(environ=FILTER)):
        configured.check(settings)
