"""Addresses of header fields whose names were decoded."""

from __future__ import annotations

import pytest

from relay.http.compat.mailpit.addresses import Address, addresses


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("a@x.y", [("", "a@x.y")]),
        ("Ada <a@x.y>, b@x.y, Bob <c@x.y>", [("Ada", "a@x.y"), ("", "b@x.y"), ("Bob", "c@x.y")]),
        ('"Lovelace, Ada" <a@x.y>', [("Lovelace, Ada", "a@x.y")]),
        ("Lovelace, Ada <a@x.y>, b@x.y", [("Lovelace, Ada", "a@x.y"), ("", "b@x.y")]),
        (r'"a \"b\" c" <a@x.y>', [('a "b" c', "a@x.y")]),
        ('"a\\\n\\"b" <a@x.y>', [('a\n"b', "a@x.y")]),
        ("Team: Ada <a@x.y>, b@x.y;", [("Ada", "a@x.y"), ("", "b@x.y")]),
        ("undisclosed-recipients:;", []),
        ("", []),
    ],
)
def test_each_address_has_its_own_name(value: str, found: list[tuple[str, str]]) -> None:
    """A comma in a name divides nothing; a group's name is nobody's."""
    assert addresses([value]) == [Address(*one) for one in found]


def test_of_a_long_field_the_beginning_is_looked_at() -> None:
    """However it is made; what it costs is counted where all patterns are (`test_linear.py`)."""
    assert addresses([f"{32 * 1024 * 'x'} <a@x.y>"]) == []
    assert addresses(["b@x.y", f"{32 * 1024 * 'x'} <a@x.y>"]) == [Address("", "b@x.y")]
    assert addresses(1001 * ["a@x.y"]) == 1000 * [Address("", "a@x.y")]
