"""Proof to a receiver that a post comes from this relay, and to whom it was meant; and the same
proof of a post that comes here.

Promises
- The signature is that of Standard Webhooks (standardwebhooks.com): `webhook-id`,
  `webhook-timestamp` (epoch seconds of this attempt) and `webhook-signature`, which is
  `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; one for each signing key, parted by
  spaces, so that a rotation breaks nobody.
- Each owner has a secret of their own, derived from the relay's signing key: no receiver can forge
  what another gets.  An anonymous mailbox's secret is its own.
- `proves` holds for the bytes that were signed with one of the keys no longer than `TOLERANCE` ago,
  and for nothing else; each key is tried, in constant time.

Pure.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from uuid import UUID

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = 300
"""Seconds that a clock may be off and a post be under way."""

_PREFIX = "whsec_"
_PARTS = 16  # signatures of one post
_NAME = re.compile(r"[!-~]{1,256}", re.ASCII)
_SECONDS = re.compile(r"\d{1,12}", re.ASCII)


def secret_of(key: bytes, signer: UUID) -> str:
    """Return what a receiver verifies with, as Standard Webhooks write it: `whsec_` and base64."""
    return _PREFIX + b64encode(_derive(key, signer)).decode()


def key_of(secret: str) -> bytes:
    """Return the key that a secret is: what `whsec_` is followed by, or else its own bytes.

    ValueError where `whsec_` is not followed by base64.
    """
    if not secret.startswith(_PREFIX):
        return secret.encode()
    return b64decode(secret.removeprefix(_PREFIX), validate=True)


def signed_headers(
    keys: Sequence[bytes], signer: UUID, event_id: UUID, body: bytes, at: int
) -> dict[str, str]:
    """Return the headers that prove `body`; `at` in epoch seconds, `keys` newest first."""
    signatures = [_sign(_derive(key, signer), str(event_id), str(at), body) for key in keys]
    return {
        ID: str(event_id),
        TIMESTAMP: str(at),
        SIGNATURE: " ".join("v1," + b64encode(made).decode() for made in signatures),
        "Content-Type": "application/json",
        "User-Agent": "Relay",
    }


def proves(keys: Sequence[bytes], headers: Mapping[str, str], body: bytes, now: float) -> bool:
    """Whether a post was signed with one of `keys`; `now` in epoch seconds."""
    name, at, said = (headers.get(each) or "" for each in (ID, TIMESTAMP, SIGNATURE))
    if not _NAME.fullmatch(name) or not _SECONDS.fullmatch(at):
        return False
    if abs(now - int(at)) > TOLERANCE:
        return False
    made = [_sign(key, name, at, body) for key in keys]
    given = [one for part in said.split(" ")[:_PARTS] if (one := _given(part)) is not None]
    fits = [hmac.compare_digest(one, other) for one in given for other in made]
    return any(fits)


def _given(part: str) -> bytes | None:
    version, _, text = part.partition(",")
    try:
        return b64decode(text, validate=True) if version == "v1" else None
    except (binascii.Error, ValueError):
        return None


def _sign(key: bytes, name: str, at: str, body: bytes) -> bytes:
    content = f"{name}.{at}.".encode() + body
    return hmac.digest(key, content, "sha256")


def _derive(key: bytes, signer: UUID) -> bytes:
    return hmac.digest(key, b"relay webhook v1\0" + signer.bytes, hashlib.sha256)
