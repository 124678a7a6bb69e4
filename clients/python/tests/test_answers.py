"""What a relay's answer is, and what is none."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from cases import CASES

from relay_client import Refused, _answers
from relay_client._exchange import Answer, decoded


@pytest.mark.parametrize("case", CASES["answers"], ids=lambda case: f"{case}")
def test_both_clients_take_the_same_for_an_answer(case: dict[str, Any]) -> None:
    """A number is one however it is written, what is infinite is none, and links are few."""
    body = case["body"].replace("*", ",".join(['""'] * case.get("links", 0)))
    answer = Answer(200, httpx.Headers(), body.encode())
    shape = getattr(_answers, case["shape"])
    if case["good"]:
        counts = [one["count"] for one in decoded(answer, shape) if case["shape"] == "CAPTURED"]
        assert all(type(count) is int for count in counts)
    else:
        with pytest.raises(Refused, match="no relay answered"):
            decoded(answer, shape)
