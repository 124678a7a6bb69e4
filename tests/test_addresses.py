"""The one spelling of a mailbox's address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.addresses import canonical


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("bob@relay.localhost", "bob@relay.localhost"),
        ("BOB@Relay.LocalHost", "bob@relay.localhost"),
        ('"bob"@x.example', "bob@x.example"),
        ('"b\\ob"@x.example', "bob@x.example"),
        ("bob+Tag@x.example", "bob+tag@x.example"),
        ("a..b@x.example", "a..b@x.example"),
        ("BÜCHER@BÜCHER.example", "bücher@xn--bcher-kva.example"),
        ("bu\u0308cher@x.example", "bücher@x.example"),
        ("bob@[127.0.0.1]", "bob@[127.0.0.1]"),
    ],
)
def test_spellings_of_one_mailbox_come_out_alike(address, expected):
    """Case, quotes and Unicode forms do not matter; a tag and dots do."""
    assert canonical(address) == expected


NO_ADDRESSES = [
    "",
    "bob",
    "@x.example",
    "bob@",
    '"a b"@x.example',
    '"a@b"@x.example',
    "a b@x.example",
]
NO_ADDRESSES += ["bob@x..", "bob@-x", "b\x00b@x", "b\u202eb@x", "bob@x y", "bob@\u2603\u3002"]
# Letters of which Python's codec makes others: the domain would be somebody else's.
NO_ADDRESSES += ["bob@straße.example", "bob@STRAẞE.example", "bob@βόλος.example", "bob@a\u200db.in"]
NO_ADDRESSES += ["a" * 65 + "@x", "a@" + "b" * 253, "ü" * 33 + "@x.example"]


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_what_names_no_mailbox_is_refused(address):
    """Nothing with a space, a control, a second @, or beyond its length."""
    with pytest.raises(ValueError):
        canonical(address)


@given(
    st.from_regex(r"[A-Za-z0-9+_=-]{1,10}(\.[a-z!#$%&'*]{1,5}){0,2}", fullmatch=True),
    st.from_regex(r"[a-zA-Z0-9]{1,8}(-[a-z]{1,3})?(\.[a-z]{1,4}){0,2}", fullmatch=True),
)
def test_the_short_way_of_plain_addresses_gives_what_the_long_way_gives(local, domain):
    """In quotes, which the long way takes off, an address is the same."""
    assert canonical(f"{local}@{domain}") == canonical(f'"{local}"@{domain}')


@given(st.text(max_size=20), st.text(max_size=20))
def test_canonical_is_idempotent(local, domain):
    """Its result is its own canonical spelling, fits the schema's checks, and is UTF-8."""
    try:
        address = canonical(f"{local}@{domain}")
    except ValueError:
        return
    assert canonical(address) == address
    assert address.count("@") == 1
    assert address.isprintable()
    assert " " not in address
    assert len(address.encode()) <= 254
