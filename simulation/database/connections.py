"""The product's connections: whose each is, to which server, and what it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import trio
from psycopg import pq

from simulation.database.site import Site
from simulation.database.wire import unread


def is_open(conn: Any) -> bool:
    """Whether a connection is there still, as far as its client knows."""
    return bool(conn.pgconn.status == pq.ConnStatus.OK)


class Listener:
    """A connection that listens, and how much of what it was sent is in its socket."""

    def __init__(self, conn: Any) -> None:
        self.conn = conn
        self.had = 0


class Connections:
    """Those that there are, or were."""

    def __init__(self) -> None:
        self.listeners: dict[int, Listener] = {}
        """Those that listen, by descriptor."""
        self.blocked: dict[Any, trio.Event] = {}
        """Those whose statement waits for a lock; what is set once it was answered."""
        self._by_fileno: dict[int, Any] = {}
        self._owners: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._where: WeakKeyDictionary[Any, Site] = WeakKeyDictionary()

    def add(self, conn: Any, node: str, sites: dict[str, Site]) -> None:
        """Know of a connection that is open, and that this node has it."""
        self._by_fileno[conn.pgconn.socket] = conn
        if conn not in self._owners:
            self._owners[conn] = node
            self._where[conn] = sites[conn.pgconn.host.decode()]

    def at(self, fileno: int) -> Any:
        """The one that has a descriptor; None: one that is not let in yet."""
        conn = self._by_fileno.get(fileno)
        if conn is not None and not (is_open(conn) and conn.pgconn.socket == fileno):
            del self._by_fileno[fileno]
            conn = None
        return conn

    def site(self, conn: Any) -> Site | None:
        """The server of a connection; None: it is not known of."""
        return None if conn is None else self._where.get(conn)

    def of(self, site: Site) -> Iterator[Any]:
        """Those to a server."""
        return (conn for conn in list(self._owners) if self._where[conn] is site)

    def end(self, node: str) -> Iterator[Any]:
        """Those of a node that are open; forget that they are."""
        for conn, owner in list(self._owners.items()):
            if owner == node and is_open(conn):
                self.listeners.pop(conn.pgconn.socket, None)
                self._by_fileno.pop(conn.pgconn.socket, None)
                yield conn

    def look(self) -> None:
        """Look what listeners have not read: what comes on top of it is new."""
        for fileno, listener in list(self.listeners.items()):
            # One that was abandoned has given its descriptor to whoever came next.
            if is_open(listener.conn):
                listener.had = unread(fileno)
            else:
                del self.listeners[fileno]
