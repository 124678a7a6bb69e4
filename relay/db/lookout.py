"""A look at the servers that a URL names: whether the one in use answers and ends commits, and who
was promoted.

What it finds it tells its `Hosts`, and that closes every connection of the process that leads to
what is not the database any more: those who used one connect anew, and wait for nothing.

Promises: with `turn` every `LOOK_CLOSELY_EVERY` seconds a server that froze is known after
`LOOK_TIMEOUT`, and a primary that was left behind, alive and answering, after `LOOK_AROUND_EVERY`.
Of a URL that names one host nothing is asked: there is nobody else to go to.

Fails with `DatabaseUnavailable` when nobody answers; the next look connects anew.
"""

from __future__ import annotations

import psycopg
import trio
from psycopg.conninfo import conninfo_to_dict

from relay.db.connection import Connection, connect, names_several
from relay.db.hosts import Hosts
from relay.errors import DatabaseUnavailable
from relay.log import get_logger

log = get_logger()

LOOK_AROUND_EVERY = 5.0
"""Seconds between looks at the other hosts that a URL names: as long as a primary that was left
behind, alive, may keep the mail that it cannot commit."""

LOOK_CLOSELY_EVERY = 1.0
"""Seconds between looks at the server in use where there is another to go to."""

LOOK_TIMEOUT = 2.0
"""Seconds for the answer, where there is another server to go to."""


class Lookout:
    """A connection of its own to one of the hosts of `dsn`.  For one task at a time."""

    def __init__(self, dsn: str, hosts: Hosts, *, around_every: float = LOOK_AROUND_EVERY) -> None:
        """`hosts` is told; `around_every`: seconds between looks at the others, in `turn`."""
        self.several_hosts = names_several(conninfo_to_dict(dsn))
        """Whether there is another host to go to when one fails."""
        self._dsn = dsn
        self._hosts = hosts
        self._around_every = around_every
        self._around_at = trio.current_time() + around_every
        self._connection: Connection | None = None

    async def turn(self) -> None:
        """Look, and look around when that is due; nothing where the URL names one host."""
        if not self.several_hosts:
            return
        try:
            await self.look(LOOK_TIMEOUT)
        finally:
            if trio.current_time() >= self._around_at:
                await self.look_around(LOOK_TIMEOUT)
                self._around_at = trio.current_time() + self._around_every

    async def look(self, patience: float) -> None:
        """See that the server answers within `patience` seconds.

        If it does not, and another host of the DSN takes writes on a later timeline, the calls
        that wait for the silent one fail now, not at their time-outs.  `DatabaseUnavailable`
        when nobody answers.
        """
        conn = self._connection
        if conn is not None and not conn.closed:
            try:
                with trio.move_on_after(patience):
                    await conn.look_at_commits(self._hosts)
                    return
                self._hosts.fell_silent(conn.host)
            except psycopg.Error as error:
                log.debug("db.idle_connection_lost", error=str(error))
            self._hosts.held_up = None  # whoever answers next is looked at anew
            conn.abandon()
        try:
            with trio.move_on_after(patience):
                self._connection = conn = await connect(
                    self._dsn, connect_timeout=patience, hosts=self._hosts
                )
                conn.cleanup_timeout = 0.0  # it holds nothing that a cancelled query could lose
                return
        except psycopg.Error as error:
            raise DatabaseUnavailable(f"no connection to PostgreSQL: {error}".rstrip()) from error
        raise DatabaseUnavailable(f"no connection to PostgreSQL within {patience:g} s")

    async def look_around(self, patience: float) -> None:
        """Ask the other hosts of the DSN whether one takes writes on a later timeline.

        Then it was promoted while this process was well served by the old primary, and every
        connection there is closed.  Waits `patience` seconds at most; fails for no outage.
        """
        if self._connection is None:
            return
        with trio.move_on_after(patience):
            try:
                other = await connect(
                    self._dsn,
                    connect_timeout=patience,
                    hosts=self._hosts,
                    but=self._connection.host,
                )
            except psycopg.Error:
                return  # a standby, as a rule
            other.abandon()

    def close(self) -> None:
        """Close the connection; the next look opens another."""
        if self._connection is not None:
            self._connection.abandon()
