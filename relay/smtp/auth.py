"""How the client proves who it is: AUTH PLAIN, LOGIN and CRAM-MD5 (RFC 4954, 4616, 2195).

A mechanism is a generator: it yields what goes with the AUTH command (nothing, for most), and
then, for each challenge sent to it, the answer.  Base64 is the caller's work.  Whether
credentials may be sent at all is not decided here but in `client.py`.

Promises: a password appears in no `repr` and in no error; a NUL in a credential, which would
shift the fields of PLAIN, is refused when the credentials are made.

Pure.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Generator
from dataclasses import dataclass, field

Exchange = Generator[bytes, bytes, None]


@dataclass(frozen=True)
class Credentials:
    """A user's name and password at an upstream."""

    username: str
    password: str = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what no mechanism can carry."""
        if "\0" in self.username or "\0" in self.password:
            raise ValueError("a user name or a password cannot hold a NUL")

    def spellings(self) -> tuple[str, ...]:
        """Return how a peer would show them that repeats what it was told: in words and base64."""
        said = (self.username, self.password, f"\0{self.username}\0{self.password}")
        coded = (base64.b64encode(each.encode()).decode() for each in said)
        return (self.username, self.password, *coded)


def choose(offered: frozenset[str], *, encrypted: bool) -> str | None:
    """Return the mechanism to use of those offered, or None when none is known.

    Inside TLS, PLAIN: one round trip, and the server need not keep passwords.  In clear (on
    loopback only), CRAM-MD5 first, which does not show the password.
    """
    order = ("PLAIN", "LOGIN", "CRAM-MD5") if encrypted else ("CRAM-MD5", "PLAIN", "LOGIN")
    return next((mechanism for mechanism in order if mechanism in offered), None)


def exchange(mechanism: str, credentials: Credentials) -> Exchange:
    """Return the conversation of `mechanism`, one that `choose` returned."""
    user, password = credentials.username.encode(), credentials.password.encode()
    if mechanism == "PLAIN":
        return _plain(user, password)
    return _login(user, password) if mechanism == "LOGIN" else _cram_md5(user, password)


def _plain(user: bytes, password: bytes) -> Exchange:
    yield b"\0" + user + b"\0" + password


def _login(user: bytes, password: bytes) -> Exchange:
    yield b""
    # What the challenges say ("Username:") is not specified, so it is not looked at.
    yield user
    yield password


def _cram_md5(user: bytes, password: bytes) -> Exchange:
    challenge = yield b""
    digest = hmac.new(password, challenge, "md5").hexdigest()
    yield user + b" " + digest.encode()
