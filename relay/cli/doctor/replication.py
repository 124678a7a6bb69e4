"""Does what was promised survive the loss of the server?  What SQL can tell of it, and no more.

docs/machines.md ("Which standby promises what") says what each mode is worth.  From a connection
one sees the settings and the standbys of this moment.  Not seen: what a failover manager will do.
Patroni's `synchronous_mode` without `synchronous_mode_strict` empties `synchronous_standby_names`
when the last standby goes, and commits wait for nobody from then on; that is told only once it has
happened.  A role without `pg_monitor` sees how many standbys stream, not in which state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from relay.cli.doctor.findings import OK, WARN, Finding

if TYPE_CHECKING:
    from relay.db.connection import Connection

CHECK = "replication"
TABLE = "see docs/machines.md, Which standby promises what"
WITHOUT = (
    "bring the standby back, or attach another; or ALTER SYSTEM SET synchronous_standby_names = ''"
    " and SELECT pg_reload_conf(): commits then wait for none"
)
LOSES = "a failover loses the last moment's mail although it was answered 250"


@dataclass(frozen=True)
class Facts:
    """What the server says of itself.

    `senders` standbys (or other receivers of the log) are connected, of which `waited_for` count
    for a commit, None where the role may not see that; `slots` are kept for standbys; `managed`:
    started with a `cluster_name` on the command line, as Patroni does.
    """

    commit: str
    names: str
    level: str
    senders: int
    waited_for: int | None
    slots: int
    managed: bool


async def inspect(connection: Connection) -> Finding:
    """Ask the server, and judge."""
    cursor = await connection.execute(
        """
        SELECT current_setting('synchronous_commit'),
               current_setting('synchronous_standby_names'),
               current_setting('client_min_messages'),
               (SELECT count(*) FROM pg_stat_replication),
               (SELECT CASE WHEN count(*) = count(sync_state)
                            THEN count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')) END
                FROM pg_stat_replication),
               (SELECT count(*)
                FROM pg_replication_slots
                WHERE slot_type = 'physical' AND NOT temporary),
               EXISTS (SELECT FROM pg_settings
                       WHERE name = 'cluster_name' AND source = 'command line' AND setting <> '')
        """
    )
    row = await cursor.fetchone()
    assert row is not None
    return judge(Facts(*row))


def judge(facts: Facts) -> Finding:
    """Say what the facts are worth, the worst first."""
    standbys = max(facts.senders, facts.slots)
    if facts.commit == "off":  # the check of durability has said what that loses
        found = "synchronous_commit is off: nothing waits for a standby, or for the disk"
        return Finding(CHECK, WARN, found, "ALTER ROLE … SET synchronous_commit = on")
    if not facts.names:
        return _asynchronous(facts, standbys)
    if facts.commit == "local":
        found = f"synchronous_commit is local: no commit waits for the standbys named, so {LOSES}"
        return Finding(CHECK, WARN, found, "ALTER ROLE … SET synchronous_commit = on")
    if facts.commit == "remote_write":
        found = (
            "synchronous_commit is remote_write: a standby has it in memory only, so that the loss "
            "of both machines' power loses the last moment's mail"
        )
        return Finding(CHECK, WARN, found, "ALTER ROLE … SET synchronous_commit = on")
    if facts.level not in _HEARD:
        found = (
            f"client_min_messages is {facts.level}: when an operator cancels a commit's wait for "
            "its standby, the relay does not hear of it and answers 250"
        )
        return Finding(CHECK, WARN, found, "ALTER ROLE … SET client_min_messages = warning")
    if not facts.senders or facts.waited_for == 0:
        found = "no synchronous standby is connected: commits wait in vain, and mail gets 451"
        return Finding(CHECK, WARN, found, WITHOUT)
    found = f"commits wait for a standby ({facts.commit})"
    if facts.managed and facts.names != "*":
        found += (
            "; whether its manager gives that up when the standby goes cannot be seen from here "
            "(Patroni: only with synchronous_mode_strict it does not)"
        )
    return Finding(CHECK, OK, found)


_HEARD = frozenset(
    {"debug5", "debug4", "debug3", "debug2", "debug1", "debug", "log", "notice", "info", "warning"}
)


def _asynchronous(facts: Facts, standbys: int) -> Finding:
    if not standbys:
        return Finding(CHECK, OK, "no standby: what is committed is as safe as this server's disk")
    seen = f"{facts.senders} connected" if facts.senders else f"{facts.slots} slots kept for some"
    found = f"standbys ({seen}), but synchronous_standby_names is empty: {LOSES}"
    if facts.managed:
        found += "; Patroni's synchronous_mode without synchronous_mode_strict does this by itself"
    return Finding(CHECK, WARN, found, f"name them, or accept it; {TABLE}")
