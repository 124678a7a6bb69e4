"""How a connection to PostgreSQL waits for its socket.

Names of Trio and psycopg, gathered so that there is one place to put others instead, as in
`relay.net`: `relay simulate` lets the loop stand still until the server has answered, and has the
answer come later by its own clock (`simulation/database`).

`ready_now` is a poll() with a time-out of zero, in C.  `more_now` is the same, asked for the rest
of an answer that has begun to come.
"""

from __future__ import annotations

from psycopg.waiting import _ready as more_now
from psycopg.waiting import _ready as ready_now
from trio.lowlevel import wait_readable, wait_writable

__all__ = ["more_now", "ready_now", "wait_readable", "wait_writable"]
