"""How long a server is waited for in real time, with the loop standing still."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

PATIENCE = 30.0
"""Real seconds after which a server that says nothing is a fault of the simulation."""
LOOK = 2
"""Real milliseconds; a statement that takes longer may be waiting for a lock."""


class Stuck(RuntimeError):
    """The server does not do what the simulation waits for: a fault of the simulation."""


def looks(why: Callable[[], str] | str, every: float) -> Iterator[None]:
    """Look again and again, with so many seconds in between; `Stuck` says why not for ever."""
    until = time.monotonic() + PATIENCE
    while True:
        yield
        if time.monotonic() > until:
            raise Stuck(why if isinstance(why, str) else why())
        time.sleep(every)


def await_(condition: Callable[[], Any], why: str, every: float = 0.005) -> None:
    """Wait until something is true; `Stuck` says why not."""
    for _ in looks(why, every):
        if condition():
            return
