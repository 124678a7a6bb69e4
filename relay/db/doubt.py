"""Doubt: a commit of which nobody knows whether it survives, and what ends the doubt.

A commit that did not end well may be there all the same.  Its answer was lost (a broken connection,
a deadline), or its wait for a synchronous standby was cut short: PostgreSQL then commits on the
primary alone, says so in a warning, and the row is there for all to see.  If the primary dies
before the standby has it, the row is gone.  So *visible is not durable*; a look settles nothing.

Promises
- A commit whose wait was cancelled, by whomever, is an error (`NotReplicated`) and no success:
  `relay.db.connection` raises it, `relay.db.pool` makes it `DatabaseUnavailable`, like every other
  commit whose end was not seen.
- `BARRIER`, run in one transaction with a look, makes what the look showed durable once that
  transaction has committed: its commit record lies behind all that the look could see, and waits
  for the standbys as every commit does.  `Pool.fetch_durable` and `Pool.execute_durable` do it.

The rule for callers: an answer that rests on a row of one's own commit that ended well needs
nothing more.  An answer that rests on what was *found* (a repeat, a key that is taken, a change
that is made already) needs the barrier, whoever wrote the row: another node's doubt is not known
here.  Without it the answer is 451 or 503.  What merely shows the present state (lists, look-ups)
promises nothing and needs none.  A transaction that writes anything, or locks a row, after its look
is a barrier already.

Fails: where `client_min_messages` is above `warning`, a wait that somebody else cancelled is not
heard of; `relay doctor` looks for it.
"""

from __future__ import annotations

import psycopg

BARRIER = b"SELECT pg_logical_emit_message(true, 'relay', '')"
"""A statement that writes to the log and changes nothing.  Every role may run it; at any
`wal_level`; subscribers see nothing of it unless they ask for messages."""

_SOURCE = (
    "SyncRepWaitForLSN"  # the function of PostgreSQL that waits, in every version and language
)
_ENGLISH = (
    "canceling wait for synchronous replication",
    "canceling the wait for synchronous replication",
)


NAMED = "SELECT current_setting('synchronous_standby_names') <> ''"
"""Whether commits may wait for a standby: cheap, for those who look often."""

HELD_UP = """
SELECT CASE
         WHEN current_setting('synchronous_commit') IN ('off', 'local')
           THEN NULL
         WHEN NOT EXISTS (SELECT FROM pg_stat_replication)
           THEN 'none is connected'
         WHEN NOT EXISTS (
           SELECT FROM pg_stat_replication
           WHERE sync_state IS NULL OR sync_state IN ('sync', 'quorum')
         )
           THEN 'none that is connected is named'
         WHEN EXISTS (
           SELECT FROM pg_stat_activity
           WHERE wait_event = 'SyncRep'
             AND usename = current_user
             AND query_start < clock_timestamp() - interval '3 s'
         )
           THEN 'none confirms'
       END
"""
"""Why no commit ends on a server whose commits wait for a standby, or NULL.  A role without
`pg_monitor` does not see in which state a standby is."""


class NotReplicated(psycopg.errors.TransactionResolutionUnknown):
    """The transaction is committed on the primary and perhaps nowhere else."""


def is_doubt(notice: psycopg.errors.Diagnostic) -> bool:
    """Whether a notice says that a commit did not wait for its synchronous standby."""
    return notice.source_function == _SOURCE or (notice.message_primary or "").startswith(_ENGLISH)
