"""docs/devices.md says what goes over the wire; that a client can be written from it, another test
shows (tests/clients/test_device_client.py)."""

from __future__ import annotations

import re

from relay.devices import wire
from relay.devices.limits import DeviceLimits
from relay.devices.noise import NK, XX, Handshake, KeyPair
from tests.docs.pages import DOCS

TEXT = (DOCS / "devices.md").read_text()


def test_the_table_of_frames_is_that_of_the_wire() -> None:
    """Each type has the name under which the relay knows it."""
    rows = re.findall(r"^\| (0\d) \| (\w+) \|", TEXT, re.MULTILINE)
    named = {int(kind): re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() for kind, name in rows}
    assert sorted(named) == [1, 2, 3, 4, 5, 6, 7]
    assert all(getattr(wire, name) == kind for kind, name in named.items())


def test_the_table_of_errors_is_that_of_the_wire() -> None:
    """Each reason is there, and whether it is worth trying again."""
    rows = dict(re.findall(r"^\| (\d) \| [^|]+ \| (never|after|likewise)", TEXT, re.MULTILINE))
    assert {int(number) for number in rows} == set(wire.Reason)
    assert all(wire.Reason(int(n)).temporary == (word != "never") for n, word in rows.items())


def test_sizes_and_deadlines_are_those_of_the_program() -> None:
    """Handshake messages, the largest envelope, and how long a peer may be silent."""
    key = KeyPair.generate()
    sizes: dict[str, list[int]] = {}
    for pattern in (NK, XX):
        ours = Handshake(pattern, initiator=True, static=key, remote_static=key.public)
        theirs = Handshake(pattern, initiator=False, static=key)
        sizes[pattern.name] = []
        for turn in range(len(pattern.messages)):
            one, other = (ours, theirs) if turn % 2 == 0 else (theirs, ours)
            message = one.write()
            sizes[pattern.name].append(len(message))
            other.read(message)
    assert "NK: {} bytes, then {}.".format(*sizes["NK"]) in TEXT
    assert "XX: {} bytes, then {}, then {}.".format(*sizes["XX"]) in TEXT
    assert f"0 to {wire.MAX_ENVELOPE:,} bytes" in TEXT
    assert f"exceeds {wire.MAX_BODY:,}" in TEXT
    limits = DeviceLimits()
    assert f"| the handshake | {limits.handshake:g} s |" in TEXT
    assert f"without a whole frame | {limits.push_idle:g} s," in TEXT
    assert f"of the device's | {limits.receive_idle:g} s," in TEXT
    assert f"After {limits.heartbeat_every:g} s" in TEXT
    assert f"At most {limits.window_blobs} Delivers" in TEXT
