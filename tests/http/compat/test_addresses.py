"""Addresses of header fields whose names were decoded."""

from __future__ import annotations

import time

import pytest

from relay.http.compat.addresses import Address, addresses


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a@x.y", [("", "a@x.y")]),
        ("Ada <a@x.y>, b@x.y, Bob <c@x.y>", [("Ada", "a@x.y"), ("", "b@x.y"), ("Bob", "c@x.y")]),
        ('"Lovelace, Ada" <a@x.y>', [("Lovelace, Ada", "a@x.y")]),
        ("Lovelace, Ada <a@x.y>, b@x.y", [("Lovelace, Ada", "a@x.y"), ("", "b@x.y")]),
        (r'"a \"b\" c" <a@x.y>', [('a "b" c', "a@x.y")]),
        ("Team: Ada <a@x.y>, b@x.y;", [("Ada", "a@x.y"), ("", "b@x.y")]),
        ("undisclosed-recipients:;", []),
        ("", []),
    ],
)
def test_each_address_has_its_own_name(value: str, found: list[tuple[str, str]]) -> None:
    """A comma in a name divides nothing; a group's name is nobody's."""
    assert addresses([value]) == [Address(*one) for one in found]


@pytest.mark.parametrize(
    "value", [one * (50_000 // len(one)) for one in ('"', '"\\', "<", "a@", "a", "a.", "a<b>")]
)
def test_hostile_fields_take_no_time(value: str) -> None:
    """However they are made."""
    began = time.process_time()
    addresses([value])
    assert time.process_time() - began < 1.0
