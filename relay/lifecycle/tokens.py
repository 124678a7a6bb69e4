"""Signed tokens: 64 bytes as 86 URL-safe characters.

    token   = base64url(secret[32] || HMAC-SHA256(key, message)[32]), without padding
    message = "/activate" || secret            (41 bytes), or
              "/recover"  || secret || code    (45 bytes; code is 5 ASCII digits)

The format is that of docs/tokens.md and is frozen.  The two messages cannot be confused: they
differ in length.  An activation is good without its code (the link alone proves the mailbox); a
recovery needs both, so a link that leaks from a log or a referrer recovers nothing.

Promises: `verify` compares in constant time, with every key and as either action whatever it
finds, so the time it takes tells nothing about which key or action it was; of each token there is
exactly one spelling (base64's four spare bits must be zero, there is no padding).

Fails by returning None, without telling a malformed token from a forged one.

Pure.  Whether a token is unused and in time, only the database knows (`consumption.py`).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

SECRET_BYTES = 32
TOKEN_LENGTH = 86

_ACTIVATE, _RECOVER = b"/activate", b"/recover"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{86}", re.ASCII)
_CODE = re.compile(r"[0-9]{5}", re.ASCII)


class Action(IntEnum):
    """What a token is for; the value is the number on the wire."""

    ACTIVATION = 1
    PASSWORD_RECOVERY = 2

    @property
    def path(self) -> str:
        """The page that takes such a token, and the first part of what is signed."""
        return "/activate" if self is Action.ACTIVATION else "/recover"

    @property
    def label(self) -> str:
        """Its name in the database and in JSON."""
        return self.name.lower()


class Verified(NamedTuple):
    """What a token that carries a good signature says."""

    action: Action
    secret: bytes


class Signer:
    """Signs with one key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        # Keyed once: a copy is a fifth of the price of keying.  Held to another program's tokens
        # by tests/lifecycle/test_tokens.py; pays in `python -m tests.bench collector`.
        self._activation = hmac.new(key, _ACTIVATE, "sha256")
        self._recovery = hmac.new(key, _RECOVER, "sha256")

    def raw(self, action: int, secret: bytes, code: bytes) -> bytes:
        """Return the 64 bytes of a token: `secret` (32 bytes), and its signature.

        The code (5 digits) is signed for a recovery only.
        """
        if action == 1:  # an activation; comparing members takes a tenth of all this
            signature = self._activation.copy()
            signature.update(secret)
        else:
            signature = self._recovery.copy()
            signature.update(secret + code)
        return secret + signature.digest()

    def token(self, action: Action, secret: bytes, code: str) -> str:
        """Return the token as it is spelled: 86 characters."""
        return base64.urlsafe_b64encode(self.raw(action, secret, code.encode()))[:-2].decode()


def sign(key: bytes, action: Action, secret: bytes, code: str) -> str:
    """Return one token of `secret` (32 bytes), signed with `key`; see `Signer`."""
    return Signer(key).token(action, secret, code)


def verify(keys: Iterable[bytes], token: str, code: str | None = None) -> Verified | None:
    """Return what `token` says if one of `keys` signed it, else None.

    A recovery needs its `code`; for an activation the code does not matter.
    """
    if not _TOKEN.fullmatch(token):
        return None
    try:
        raw = base64.b64decode(token + "==", altchars=b"-_", validate=True)
    except binascii.Error:  # cannot be, after the pattern
        return None
    if base64.urlsafe_b64encode(raw)[:-2].decode("ascii") != token:
        return None
    secret, signature = raw[:SECRET_BYTES], raw[SECRET_BYTES:]
    # Without a code a recovery is checked all the same, against one that is none.
    spelled = code if code is not None and _CODE.fullmatch(code) else "-----"
    found: Action | None = None
    for key in keys:
        for action in Action:
            expected = hmac.digest(key, _message(action, secret, spelled), "sha256")
            if hmac.compare_digest(expected, signature):
                found = action
    return None if found is None else Verified(found, secret)


def secret_in(token: str) -> bytes | None:
    """Return the secret that `token` spells, whoever signed it, or None for what spells none.

    Not a proof: for looking up what only its holder can know (32 random bytes), where the code that
    the signature covers is not there yet.
    """
    if not _TOKEN.fullmatch(token):
        return None
    raw = base64.urlsafe_b64decode(token + "==")
    if base64.urlsafe_b64encode(raw)[:-2].decode("ascii") != token:
        return None
    return raw[:SECRET_BYTES]


def _message(action: Action, secret: bytes, code: str) -> bytes:
    if action == Action.ACTIVATION:
        return _ACTIVATE + secret
    return _RECOVER + secret + code.encode("ascii")
