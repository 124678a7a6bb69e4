"""Who may hear that mail for an address was refused."""

from __future__ import annotations

import pytest

from relay.mailboxes.misaddressed import is_near, is_slip

MEANT = "lorih-pajos-rivah-vagud@relay.localhost"


@pytest.mark.parametrize(
    "written",
    [
        "lorih-pajos-rivah-vagd@relay.localhost",
        "lorih-pajos-rivah-vagudd@relay.localhost",
        "lorih-pajos-rivah-vaguh@relay.localhost",
        "lorih-pajso-rivah-vagud@relay.localhost",
        "orih-pajos-rivah-vagud@relay.localhost",
        "lorih-pajos-rivah-vagud@relay.localho",
        "xxxlorih-pajos-rivah-vagud@relay.localhost",
    ],
)
def test_a_slip_is_in_one_place(written: str) -> None:
    """A letter that is missing, doubled, wrong, two that changed places, an end that was cut."""
    assert is_slip(written, MEANT)


@pytest.mark.parametrize(
    "written",
    [
        MEANT,
        "vagud@relay.localhost",
        "lorih-pajos-rivah@relay.localhost",
        "orih-pajos-rivah-vagd@relay.localhost",
        "xxxxlorih-pajos-rivah-vagud@relay.localhost",
        "",
    ],
)
def test_anything_else_is_another_address(written: str) -> None:
    """Itself, a part, two slips in two places."""
    assert not is_slip(written, MEANT)


def test_neighbours_of_short_names_are_other_peoples() -> None:
    """Who makes `anna@` learns nothing of `anne@`."""
    assert not is_slip("anne@relay.localhost", "anna@relay.localhost")
    assert not is_slip("elevenchars@relay.localhost", "elevencharz@relay.localhost")
    assert is_slip("twelve-chars@relay.localhost", "twelve-charz@relay.localhost")


@pytest.mark.parametrize(
    ("written", "near"),
    [
        ("ada.k3x9@relay.localhost", True),
        ("ada.k3x9x@relay.localhost", True),
        ("ada.3x9@relay.localhost", True),
        ("eve.k3x9@relay.localhost", True),
        ("ada.k3x9@relay.localhos", True),
        ("ada.k3x9@relay.example", False),
        ("xda.k3x9z@relay.localhost", False),
        ("q7w2.m4p8@relay.localhost", False),
    ],
)
def test_what_is_nearly_an_address_is_told_to_whose_sender_is_known(
    written: str, near: bool
) -> None:
    """However short its name is."""
    assert is_near(written, "ada.k3x9@relay.localhost") is near


def test_of_a_short_name_no_more_than_half_may_differ() -> None:
    """Or each would be nearly any other."""
    assert is_near("aaa@relay.localhost", "aa@relay.localhost")
    assert not is_near("bob@relay.localhost", "ada@relay.localhost")
