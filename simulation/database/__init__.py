"""PostgreSQL in a simulated world: a real server, whose answers are waited for and then delayed.

The product talks to a server of its own binaries over its own connections.  When it waits for an
answer (`answers`), the whole loop stands still until the answer is there; then the answer is late
by the virtual clock.  So a statement takes no virtual time in the server, its answer takes some,
and between the two the node may be killed, as between COMMIT and 250.

What runs in the server beside the statement that is waited for has to be known (`rest`):
- A statement that waits for a lock (`pg_blocking_pids`) lets the loop go on, and is looked at again
  after every other answer.  Its backend is stopped meanwhile: two that one lock let go at once
  would race each other (for a row's new version, say); so they go on one after the other, in the
  order in which they began to wait.
- Notifications are signals between processes.  An observer (`site`) listens to the same channels;
  once it has answered after a commit that notifies, its backend has been given what the others have
  been given, and the loop stands still until these bytes are in the sockets of those who listen
  (`wire`).  Which commits notify is in their answers (`pg_notify` in shadows.sql), at which the
  simulation looks before the product reads them: the others cost no more round trips than in life.
- Background work is off (autovacuum), or changes nothing that is seen (checkpoints).

PostgreSQL's own clock and chance are shadowed (`shadows.sql`).  What only the server can time
(deadlock_timeout, statement_timeout, lock_timeout) is off.

Servers (`server`) are killed, stopped, promoted, and their disks are full (`servers`); an answer is
lost, or the log fails, at what an actor asks next (`aimed`).
"""

from __future__ import annotations

from simulation.database.answers import Database
from simulation.database.patience import Stuck
from simulation.database.server import Server

__all__ = ["Database", "Server", "Stuck"]
