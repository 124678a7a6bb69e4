"""What the summary of a message costs the child that parses: CPU of one process, nothing else.

Figures are CPU milliseconds a message, of the mail in `tests.mailboxes.corpus`: the best of the
rounds, since what disturbs a measurement only adds.
"""

from __future__ import annotations

import time
from typing import Any

from relay.mailboxes.summary import summarise
from tests.mailboxes import corpus

_AT_LEAST = 0.3  # s of CPU for each kind and round
_BUDGETS = {"plain, 2 kB": 0.15, "newsletter, 30 kB": 0.6, "attachment, 200 kB": 0.5}
"""CPU milliseconds that a message of the kind may cost."""


def run(rounds: int) -> dict[str, Any]:
    """CPU a message for four kinds of mail."""
    kinds = {
        "plain, 2 kB": [corpus.plain(number) for number in range(20)],
        "newsletter, 30 kB": [corpus.newsletter(number) for number in range(5)],
        "attachment, 200 kB": [corpus.with_attachment(number) for number in range(3)],
        "tests of email": corpus.real(),
    }
    found = {
        kind: min(_milliseconds(messages) for _ in range(rounds))
        for kind, messages in kinds.items()
        if messages
    }
    return {
        "name": "Summaries",
        "unit": "ms CPU a message",
        "results": found,
        "ratios": {
            f"milliseconds, {kind}": {"value": found[kind], "at_most": most}
            for kind, most in _BUDGETS.items()
        },
    }


def _milliseconds(messages: list[bytes]) -> float:
    parsed, began = 0, time.process_time()
    while time.process_time() - began < _AT_LEAST:
        for raw in messages:
            summarise(raw).as_row()
        parsed += len(messages)
    return 1000 * (time.process_time() - began) / parsed
