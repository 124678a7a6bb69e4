"""What an address at the domain of faults asks for."""

from __future__ import annotations

import pytest

from relay.smtp.chaos import Fault, fault_of


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("550-5.1.1", Fault(reply="550 5.1.1 Chaos, as you asked")),
        ("451", Fault(reply="451 4.0.0 Chaos, as you asked")),
        ("421-4.7.0", Fault(reply="421 4.7.0 Chaos, as you asked")),
        ("250", Fault()),
        ("slow-20s", Fault(delay=20)),
        ("SLOW-300S", Fault(delay=300)),
        ("drop-at-dot", Fault(drop="dot")),
    ],
)
def test_what_an_address_asks_for(name, fault):
    """Its local part, without regard to case, at the one domain."""
    assert fault_of(f"{name}@chaos.relay.localhost") == fault
    assert fault_of(f"{name}@chaos.example") == Fault()


@pytest.mark.parametrize("name", ["bob", "350", "650", "550-5.1", "slow-301s", "drop-at-end", ""])
def test_what_is_no_fault(name):
    """A misspelt one is an error, or a test would pass that tests nothing."""
    with pytest.raises(ValueError, match="no fault"):
        fault_of(f"{name}@chaos.relay.localhost")
