"""The steps of a delivery as they are stored: what was answered, when, and how fast.

One step is eleven bytes, big-endian: the number of its phase in `PHASES` (u8), the reply's
code (u16; 0: none), microseconds from the start of the attempt to the reply (u32), microseconds
from the command to the reply (u32).  `relay.outbound_steps` in SQL makes JSON of them, which is
what `relay.outbound_attempts` shows.

Why packed: as JSON they were the larger half of what a delivery writes to the log, and cost its
worker as much as reading the replies.  `tests/outbound/queue/test_steps.py` holds them to what SQL
reads;
`python -m tests.bench outbound` is where they pay.  Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

PHASES = ("connect", "tls", "ehlo", "auth", "mail", "rcpt", "data", "dot")
"""The phases of a delivery by their stored numbers, which never change."""

_STEP = struct.Struct(">BHII").pack
_FOUR = struct.Struct(">BHIIBHIIBHIIBHII").pack
_NUMBERS = {phase: number for number, phase in enumerate(PHASES)}
_MOST = 2**32 - 1  # microseconds: over an hour, where a delivery has minutes


def pack(steps: Sequence[tuple[str, int, float, float]], began_at: float) -> bytes:
    """Return `(phase, code, instant, seconds)` each, of an attempt that began at `began_at`."""
    if len(steps) == 4:
        # MAIL, RCPT, DATA and the dot, nearly always: in half the time of the loop below.
        (p, c, at, took), (q, d, at_2, took_2), (r, e, at_3, took_3), (s, f, at_4, took_4) = steps
        number = _NUMBERS
        try:
            # fmt: off
            return _FOUR(
                number[p], c, int((at - began_at) * 1e6), int(took * 1e6),
                number[q], d, int((at_2 - began_at) * 1e6), int(took_2 * 1e6),
                number[r], e, int((at_3 - began_at) * 1e6), int(took_3 * 1e6),
                number[s], f, int((at_4 - began_at) * 1e6), int(took_4 * 1e6),
            )
            # fmt: on
        except struct.error:
            pass  # what does not fit is cut below
    parts = []
    for phase, code, at, took in steps:
        after = int((at - began_at) * 1e6)
        if not 0 <= after <= _MOST:
            after = min(max(after, 0), _MOST)
        parts.append(_STEP(_NUMBERS[phase], code, after, min(int(took * 1e6), _MOST)))
    return b"".join(parts)
