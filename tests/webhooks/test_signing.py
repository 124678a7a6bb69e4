"""Signing: a receiver verifies with its own secret, and with no other."""

import base64
import json
from uuid import UUID

from relay.webhooks.signing import secret_of, signed_headers
from tests.webhooks.receiver import verify


def test_each_owner_has_a_secret_of_his_own():
    """In the form that libraries of Standard Webhooks take."""
    one, other = (secret_of(bytes(32), UUID(int=number)) for number in (1, 2))
    assert one != other
    assert len(base64.b64decode(one.removeprefix("whsec_"), validate=True)) == 32


def test_a_post_is_proved_with_every_key_and_to_its_owner_alone():
    """While keys are rotated the old secret verifies, too; another owner's never does."""
    new, old, owner, other = bytes(32), b"o" * 32, UUID(int=1), UUID(int=2)
    body = json.dumps({"id": "x"}).encode()
    headers = {
        name.lower(): value
        for name, value in signed_headers(
            (new, old), owner, UUID(int=7), body, 1_700_000_000
        ).items()
    }
    assert verify(secret_of(new, owner), headers, body)
    assert verify(secret_of(old, owner), headers, body)
    assert not verify(secret_of(new, other), headers, body)
    assert not verify(secret_of(new, owner), headers, body + b" ")
