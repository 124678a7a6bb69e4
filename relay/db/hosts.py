"""What is known of the servers that a database URL names: who answers, and who is out of date.

PostgreSQL gives each promotion a new, higher timeline.  A primary that was cut off or frozen
while its standby was promoted stays on the old one; when it comes back it takes writes that
nobody will keep.  So every connection made with a `Hosts` tells it which timeline it met.

Promises:
- A server on a lower timeline than the highest one met is refused, and the moment a higher one is
  met every open connection to a lower one is closed, in the middle of a call too.
- The highest timeline outlives the process, and the machine's power, when there is a `file`: a
  relay that is restarted while only the old primary answers waits instead of writing there.
- The host that answered last is tried first; one that was silent is tried last, and not for long.

Timelines are compared within one database system (`pg_control_system()`).  Another system is a
database that the operator moved to: it is taken, with a warning, and its own timeline counts
from then on.  A server that tells neither (not every product that speaks the protocol does) is
taken as it is.  Who restores an old state on purpose, on a lower timeline, deletes the file.

Fails: a file that cannot be read or written is a warning; what is known is kept in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

from psycopg.abc import ConnDict

from relay import files
from relay.log import get_logger

log = get_logger()

Host = tuple[str, str]
"""Address (or the directory of a socket) and port."""

SILENT_SHARE = 2.0
"""Seconds that a host which was silent is given, where there are others to try."""


class OpenConnection(Protocol):
    """What is asked of a connection: `relay.db.connection.Connection` is one."""

    system: int
    timeline: int
    """Of its server; 0 until they are known."""

    @property
    def host(self) -> Host:
        """The server that it leads to."""

    def abandon(self) -> None:
        """Close it, in the middle of a call too."""


class Hosts:
    """The servers of one database, as this process has met them.  No I/O but the small `file`."""

    def __init__(self, file: Path | None = None, *, keep: bool = True) -> None:
        """`file` is read; what is met is written there if we `keep` it."""
        self.silent: set[Host] = set()
        """The hosts that did not answer in time, and have not answered since."""
        self.held_up: str | None = None
        """Why no commit ends on the server in use, as it was last looked at; None: they do."""
        self._file = file
        self._keeps = keep
        self._best: Host | None = None
        self._connections: WeakSet[OpenConnection] = WeakSet()
        self._refused: set[Host] = set()
        self._system: int | None = None
        self._timeline = 0
        if file is not None:
            try:
                known = json.loads(file.read_text())
                self._system, self._timeline = int(known["system"]), int(known["timeline"])
            except FileNotFoundError:
                pass
            except (OSError, ValueError, KeyError, TypeError) as error:
                log.warning("db.timeline_not_kept", error=f"{file.name}: {error}")

    def ordered(self, attempts: list[ConnDict], but: Host | None = None) -> list[ConnDict]:
        """The same attempts in the order to make them: the last good host, the rest as they
        came, the silent ones; those to `but` are left out."""

        def place(attempt: ConnDict) -> int:
            host = host_of(attempt)
            return 2 if host in self.silent else int(host != self._best)

        return sorted((a for a in attempts if host_of(a) != but), key=place)

    def answered(self, host: Host) -> None:
        """Note that this host let us in, or answered."""
        self.silent.discard(host)
        self._best = host

    def fell_silent(self, host: Host) -> None:
        """Note that this host did not answer in time."""
        self.silent.add(host)

    def commits(self, host: Host, held_up: str | None) -> None:
        """Note why no commit ends on this host; None: they do."""
        if held_up is not None and self.held_up is None:
            log.warning("db.commits_held_up", host=":".join(host), why=held_up)
        elif held_up is None and self.held_up is not None:
            log.info("db.commits_end_again", host=":".join(host))
        self.held_up = held_up

    def met(self, connection: OpenConnection, system: int, timeline: int) -> str | None:
        """Note the timeline of a connection; returns why it must not be used, or None.

        One that was met before and is on an earlier timeline now leads through a pooler, which
        was turned round to an old primary: all that lead there are closed.
        """
        host = connection.host
        if system != self._system:
            if self._system is not None:
                log.warning("db.another_system", host=":".join(host), system=system)
            self._system, self._timeline = system, timeline
            self._keep()
        elif timeline < self._timeline:
            why = (
                f"it is on timeline {timeline} and the database has been on {self._timeline}:"
                " an old primary that was left behind"
            )
            if self._file is not None:
                why += f" (restored on purpose? delete {self._file})"
            if host not in self._refused:
                self._refused.add(host)
                log.warning("db.old_primary", host=":".join(host), error=why)
            if connection.timeline:
                for other in list(self._connections):
                    if other.host == host:
                        other.abandon()
            return why
        elif timeline > self._timeline:
            log.info("db.promoted", host=":".join(host), timeline=timeline, before=self._timeline)
            connection.timeline = timeline
            self._rise(timeline)
        self._refused.discard(host)
        connection.system, connection.timeline = system, timeline
        self._connections.add(connection)
        return None

    @property
    def in_use(self) -> Host | None:
        """The host that answered last, if one has."""
        return self._best

    @property
    def known(self) -> tuple[int, int] | None:
        """The system and its highest timeline met; None: no server has told yet."""
        return None if self._system is None else (self._system, self._timeline)

    def left_behind(self, connection: OpenConnection) -> str | None:
        """Return why an open connection leads to what is not the database any more, or None."""
        if not connection.system or (connection.system, connection.timeline) == self.known:
            return None
        if connection.system != self._system:
            return "the database is another system by now"
        return f"the database is on timeline {self._timeline} by now"

    def learn(self, system: int, timeline: int) -> None:
        """Note what another process of this relay has met.

        Of another system than the one met here nothing is noted: who has moved is met soon.
        """
        if self._system is None:
            self._system = system
        if system == self._system and timeline > self._timeline:
            self._rise(timeline)

    def _rise(self, timeline: int) -> None:
        self._timeline = timeline
        self._keep()
        for other in list(self._connections):
            if 0 < other.timeline < timeline:
                other.abandon()

    def _keep(self) -> None:
        if self._file is None or not self._keeps:
            return
        known = {"system": self._system, "timeline": self._timeline}
        try:
            files.replace(self._file, json.dumps(known).encode())
        except OSError as error:
            log.warning("db.timeline_not_kept", error=str(error))


def shown(host: Host) -> str:
    """A host as people write it."""
    address, port = host
    if address.startswith(("/", "@")):
        return address if port == "5432" else f"{address} port {port}"
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def host_of(attempt: ConnDict) -> Host:
    """The host that a set of connection parameters leads to."""
    return str(attempt.get("hostaddr") or attempt.get("host") or ""), str(
        attempt.get("port") or "5432"
    )
