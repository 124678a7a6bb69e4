"""Who may hear that mail for an address was refused."""

from __future__ import annotations

import pytest

from relay.mailboxes.misaddressed import is_slip

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
