"""Proof to a receiver that a post comes from this relay, and to whom it was meant.

Promises
- The signature is that of Standard Webhooks (standardwebhooks.com): `webhook-id`,
  `webhook-timestamp` (epoch seconds of this attempt) and `webhook-signature`, which is
  `v1,` and the base64 of HMAC-SHA256 over `id.timestamp.body`; one for each signing key, parted by
  spaces, so that a rotation breaks nobody.
- Each owner has a secret of their own, derived from the relay's signing key: no receiver can forge
  what another gets.  An anonymous mailbox's secret is its own.

Pure.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Sequence
from uuid import UUID


def secret_of(key: bytes, signer: UUID) -> str:
    """Return what a receiver verifies with, as Standard Webhooks write it: `whsec_` and base64."""
    return "whsec_" + b64encode(_derive(key, signer)).decode()


def signed_headers(
    keys: Sequence[bytes], signer: UUID, event_id: UUID, body: bytes, at: int
) -> dict[str, str]:
    """Return the headers that prove `body`; `at` in epoch seconds, `keys` newest first."""
    content = f"{event_id}.{at}.".encode() + body
    signatures = [
        "v1," + b64encode(hmac.digest(_derive(key, signer), content, "sha256")).decode()
        for key in keys
    ]
    return {
        "webhook-id": str(event_id),
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(signatures),
        "Content-Type": "application/json",
        "User-Agent": "Relay",
    }


def _derive(key: bytes, signer: UUID) -> bytes:
    return hmac.digest(key, b"relay webhook v1\0" + signer.bytes, hashlib.sha256)
