"""Clocks and chance: what the relay knows of time, and everything that is decided by a throw.

Names of the standard library, gathered so that there is one place to put others instead: whoever
needs one takes it from here by its name (`from relay.chance import urandom`).  It is bound when the
module that needs it is loaded, so a call costs what it costs anywhere else, and `relay simulate`
binds its own before it loads anything of the relay (`simulation/seams.py`).

Waiting is Trio's business and goes by Trio's clock.  Whoever measures how long something took, to
give others a turn, takes `monotonic` from here: in a simulation computing takes no time, and turns
go by counts alone.  How much CPU a thread or a process has used is not here: `relay.load` asks the
system, and a simulation has an answer of its own there; in other processes it is a limit.
tests/test_seams.py finds who goes around this module, and says why the few that do may.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from os import urandom
from random import Random
from secrets import randbelow, randbits, token_bytes, token_hex, token_urlsafe
from time import monotonic, time, time_ns
from uuid import uuid4

__all__ = [
    "monotonic",
    "new_rng",
    "randbelow",
    "randbits",
    "time",
    "time_ns",
    "token_bytes",
    "token_hex",
    "token_urlsafe",
    "urandom",
    "utc_now",
    "uuid4",
]

utc_now = partial(datetime.now, UTC)
"""Return this instant, in UTC."""


def new_rng() -> Random:
    """A source of chance of one's own, for times and never for secrets.

    Who is to be tested with seeds takes an `rng`, and asks for one here when it was given none.
    """
    return Random()  # noqa: S311 - for times, not for secrets
