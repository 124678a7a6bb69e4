"""The way back to the product: the address to which the pages of a mailed link lead afterwards.

    RETURN_URL?action=password_recovery&account=42&at=1795209753&signature=…

Promises: `signature` is the base64url (without padding) of HMAC-SHA256 over `action.account.at`,
keyed with the bytes of the webhook secret of the account's owner (what follows `whsec_`, decoded),
so the product knows that the person came from a token that was used at `at` (epoch seconds), and
nobody else can say so for an account that is not theirs.  Accept it once, and for minutes.

Fails: never.  Pure.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, urlsafe_b64encode
from urllib.parse import urlencode, urlsplit, urlunsplit

from relay.lifecycle.consumption import Consumed
from relay.webhooks.signing import secret_of


def return_link(base: str, key: bytes, used: Consumed, at: int) -> str:
    """Return where a person goes on whose token was used at `at` (epoch seconds).

    `base` is the product's address, whose own query is kept; `key` the relay's signing key.
    """
    action, account = used.action.label, str(used.account)
    secret = b64decode(secret_of(key, used.owner).removeprefix("whsec_"))
    digest = hmac.digest(secret, f"{action}.{account}.{at}".encode(), "sha256")
    signature = urlsafe_b64encode(digest).rstrip(b"=").decode()
    proof = urlencode({"action": action, "account": account, "at": at, "signature": signature})
    parts = urlsplit(base)
    query = f"{parts.query}&{proof}" if parts.query else proof
    return urlunsplit(parts._replace(query=query))
