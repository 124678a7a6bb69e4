"""Signing: a receiver verifies with its own secret, and with no other."""

import base64
import hashlib
import hmac
import json
from uuid import UUID

import pytest

from relay.webhooks.signing import TOLERANCE, key_of, proves, secret_of, signed_headers
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


NOW = 1_700_000_000
BODY = b'{"type": "bounced"}'
SECRETS = ("a secret of sixteen", "whsec_" + base64.b64encode(b"k" * 32).decode())
KEYS = (b"a secret of sixteen", b"k" * 32)


def headers(key: bytes = KEYS[1], at: object = NOW, name: str = "msg_1", body: bytes = BODY):
    """A signed post's, as the specification of Standard Webhooks says it."""
    made = hmac.new(key, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(made).decode()}"
    return {"webhook-id": name, "webhook-timestamp": str(at), "webhook-signature": signature}


def test_a_post_that_comes_is_proved_by_any_of_the_secrets():
    """Written as `whsec_` or as it is, beside signatures of other kinds, five minutes off."""
    assert tuple(map(key_of, SECRETS)) == KEYS
    for key in KEYS:
        assert proves(KEYS, headers(key), BODY, NOW)
        for at in (NOW - TOLERANCE, NOW + TOLERANCE):
            assert proves(KEYS, headers(key, at), BODY, NOW)
    several = headers()
    several["webhook-signature"] = f"v1a,AAAA v1,AAAA v1,! {several['webhook-signature']}"
    assert proves(KEYS, several, BODY, NOW)


def test_ours_are_proved_as_any_other():
    """What this relay signs, another may take."""
    key, owner = bytes(32), UUID(int=1)
    made = signed_headers((key,), owner, UUID(int=7), BODY, NOW)
    assert proves([key_of(secret_of(key, owner))], made, BODY, NOW)


@pytest.mark.parametrize(
    "other",
    [
        headers(b"x" * 32),
        headers(body=BODY + b" "),
        headers(at=NOW - TOLERANCE - 1),
        headers(at=NOW + TOLERANCE + 1),
        headers(at=f"{NOW}.0"),
        headers(at="١٧٠٠٠٠٠٠٠٠"),
        headers(at=""),
        headers(at=-NOW),
        headers(name=""),
        headers(name="é"),
        headers(name="x" * 300),
        {**headers(), "webhook-id": "msg_2"},
        {**headers(), "webhook-timestamp": str(NOW + 1)},
        {**headers(), "webhook-signature": ""},
        {**headers(), "webhook-signature": "v1,"},
        {**headers(), "webhook-signature": headers()["webhook-signature"].replace("v1", "v2")},
        {**headers(), "webhook-signature": "v1,AAAA " * 20 + headers()["webhook-signature"]},
        {},
    ],
)
def test_no_other_post_is(other: dict[str, str]):
    """Another key, body, id or time; too old, too new; nothing at all."""
    assert not proves(KEYS, other, BODY, NOW)
    assert not proves((), headers(), BODY, NOW)
