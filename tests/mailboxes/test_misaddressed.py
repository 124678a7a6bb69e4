"""Who may hear that mail for an address was refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay.mailboxes.misaddressed import is_near, is_slip

CASES = json.loads((Path(__file__).parents[2] / "clients/cases.json").read_text())
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


@pytest.mark.parametrize("case", CASES["slips"], ids=lambda case: case["written"])
def test_what_is_nearly_an_address_is_so_to_the_clients_too(case: dict[str, Any]) -> None:
    """Of short names no more than half."""
    assert is_near(case["written"].lower(), case["meant"]) is case["near"]
