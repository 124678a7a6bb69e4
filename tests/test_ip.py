"""Which addresses are whose."""

from __future__ import annotations

from relay.ip import ip_address, is_loopback


def test_an_address_is_read_as_a_socket_shows_it():
    """Without its zone, and IPv4 as such."""
    assert str(ip_address("fe80::1%eth0")) == "fe80::1"
    assert str(ip_address("::ffff:192.0.2.7")) == "192.0.2.7"


def test_loopback_is_told_from_the_world():
    """Names and addresses of this machine alone count as loopback."""
    here = ("localhost", "a.localhost", "127.8.9.1", "::1", "[::1]", "::ffff:127.0.0.1")
    assert all(map(is_loopback, here))
    assert not any(map(is_loopback, ("10.0.0.1", "example.org", "0.0.0.0", "::", "unix", "")))
