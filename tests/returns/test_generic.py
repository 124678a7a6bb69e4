"""What follows from a report in the words of this relay."""

from __future__ import annotations

from typing import Any

import pytest

from relay.returns.generic import read
from relay.returns.law import finding
from relay.returns.upstream_report import MalformedReport

ADA = "ada@customer.example"
PATH = "b-token@returns.example"

Follows = tuple[str, str | None, bool, bool] | None


def report(kind: str = "bounced", status: str | None = "5.1.1", **more: Any) -> dict[str, Any]:
    """A report of one recipient."""
    return {"type": kind, "message": PATH, "recipient": ADA, "status": status, **more}


CASES: list[tuple[str, dict[str, Any], Follows]] = [
    ("gone", report(), ("bounced", "5.1.1", True, False)),
    ("gone, by the text", report(status=None, text="550 5.1.1 no"),
     ("bounced", "5.1.1", True, False)),
    ("nobody named", report(recipient=None), ("bounced", "5.1.1", False, False)),
    ("somebody else's", report(recipient="eve@x.example"), ("bounced", "5.1.1", False, False)),
    ("of policy", report(status="5.7.1"), ("bounced", "5.7.1", False, False)),
    ("full", report(status="5.2.2"), ("bounced", "5.2.2", False, True)),
    ("no more than that", {"type": "bounced", "message": PATH}, ("bounced", None, False, False)),
    ("delayed", report("delayed", "4.4.1"), ("delayed", "4.4.1", False, False)),
    ("delayed for good", report("delayed", "5.1.1"), ("delayed", "5.1.1", False, False)),
    ("complained", report("complained", None), ("complained", None, True, False)),
    ("of a success", report(status="2.0.0"), None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "follows"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_each_report_has_what_follows_from_it(said: dict[str, Any], follows: Follows):
    """The law of mail that comes back, whatever way it came."""
    notice = read(said)
    found = finding(notice.report, ADA)
    assert (found and (str(found.kind), found.enhanced, found.suppress, found.is_full)) == follows
    assert notice.names == (PATH,)


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({}, "type"),
        ({**report(), "type": "delivered"}, "bounced, delayed, complained"),
        ({**report(), "type": None}, "type"),
        ({**report(), "type": ["bounced"]}, "type"),
        ({"type": "bounced"}, "message"),
        ({**report(), "message": ""}, "message"),
        ({**report(), "message": 7}, "message"),
        ({**report(), "recipient": [ADA]}, "recipient"),
        ({**report(), "status": "550"}, "status"),
        ({**report(), "status": ""}, "status"),
        ({**report(), "status": "5.1.1x"}, "status"),
        ({**report(), "text": {}}, "text"),
        ({**report(), "reason": "gone"}, "members"),
    ],
)
def test_anything_else_is_malformed(said: dict[str, Any], named: str):
    """The sentence says what is wrong."""
    with pytest.raises(MalformedReport, match=named):
        read(said)
