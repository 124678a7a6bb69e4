"""The file of the SQLite store: its schema, its pragmas, every statement.  Blocking; one thread.

Promises
- One connection, and by `locking_mode = EXCLUSIVE` nobody else's beside it (SQLite before 3.51.3
  can corrupt a WAL that several connections use); WAL and synchronous = FULL are read back.
- A file that is new gets mode 0600, our `application_id` and our version; a newer version or a
  file that is not ours is a `ConfigError` and stays as it is.
- `write` is one transaction: when it returns, the rows are on disk.  When it raises, close the
  file and open it anew: after a failed fsync nobody knows what of the WAL is on disk, while the
  page cache shows it all, and what was appended behind the gap would be lost with it.  Opening
  copies what the WAL holds into the database with an fsync of its own, empties the WAL, and makes
  one commit as a probe.
- Counts are kept by triggers, so they are true whoever changes the rows.

Fails with `sqlite3.Error`, and with `StoreUnavailable` where another process holds the file.

Why one INSERT for all the Puts of a group: Python's sqlite3 gives the interpreter lock away for
each step and has to get it back from the event loop.  One statement is one such exchange, and a
seventh cheaper for 64 rows than executemany (10.8 and 12.7 µs of CPU a row).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relay.devices.store import Blob, Fullness, Missed, StoreStatistics, StoreUnavailable
from relay.errors import ConfigError

APPLICATION_ID = 0x52446576
"""`RDev`, in the header of the file."""
VERSION = 1
OLDEST_SQLITE = (3, 35, 0)

MOST_ROWS = 256
"""Blobs that one `write` takes."""

_SCHEMA = """
    CREATE TABLE inbox (
        id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice
        recipient  BLOB NOT NULL,     -- 32-byte X25519 public key
        envelope   BLOB NOT NULL,     -- opaque
        expires_at INTEGER NOT NULL   -- Unix seconds; a fraction makes it REAL
    );
    CREATE INDEX inbox_recipient ON inbox (recipient);  -- and, within one, by id
    CREATE INDEX inbox_expiry ON inbox (expires_at);    -- what is reaped next

    -- What waits in each inbox, and of how many lost blobs its device must hear.
    CREATE TABLE inboxes (
        recipient BLOB PRIMARY KEY,
        blobs     INTEGER NOT NULL DEFAULT 0,
        bytes     INTEGER NOT NULL DEFAULT 0,
        -- Both begin at the id of the first blob, and `missed` rises by one for each that expired.
        -- Each of those has used an id, so what is remembered of a row that is gone (an inbox with
        -- nothing in it and nothing to tell) is never above where the next one begins.
        missed    INTEGER NOT NULL,
        told      INTEGER NOT NULL
    ) WITHOUT ROWID;

    CREATE TRIGGER inbox_put AFTER INSERT ON inbox BEGIN
        INSERT INTO inboxes (recipient, blobs, bytes, missed, told)
        VALUES (NEW.recipient, 1, length(NEW.envelope), NEW.id, NEW.id)
        ON CONFLICT (recipient) DO UPDATE
        SET blobs = blobs + 1, bytes = bytes + excluded.bytes;
    END;
    CREATE TRIGGER inbox_delete AFTER DELETE ON inbox BEGIN
        UPDATE inboxes
        SET blobs = blobs - 1, bytes = bytes - length(OLD.envelope)
        WHERE recipient = OLD.recipient;
        DELETE FROM inboxes
        WHERE recipient = OLD.recipient
          AND blobs = 0
          AND missed = told;
    END;
"""

# For this connection alone, so that the limits are the program's and not the file's.  A row that
# does not fit is passed over; the others of the statement are stored.
_LIMITS = """
    CREATE TEMP TRIGGER inbox_full BEFORE INSERT ON main.inbox
    WHEN (SELECT blobs >= {max_blobs} OR bytes + length(NEW.envelope) > {max_bytes}
          FROM main.inboxes
          WHERE recipient = NEW.recipient)
    BEGIN
        SELECT RAISE(IGNORE);
    END
"""

_AUTOCHECKPOINT = 16_000  # pages
_CACHE_KIB = 64 * 1024


class Row(NamedTuple):
    """A blob to be stored."""

    recipient: bytes
    envelope: bytes
    expires_at: float


class InboxFile:
    """The open file.  Every method blocks, and belongs to the thread that made it."""

    def __init__(self, path: Path, *, max_blobs: int, max_bytes: int) -> None:
        """Open `path`, or make it.  `ConfigError`, `StoreUnavailable`, `sqlite3.Error`."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigError(
                f"SQLite is {sqlite3.sqlite_version}, and the device store needs"
                f" {'.'.join(map(str, OLDEST_SQLITE))} or newer: use a newer Python,"
                " or RELAY_DEVICES__STORE=postgres."
            )
        _make(path)
        self._path = path
        self._held = False
        self._connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            self._prepare(max_blobs, max_bytes)
        except BaseException:
            self._connection.close()
            raise
        (self._last_id,) = self._row("SELECT COALESCE(max(seq), 0) FROM sqlite_sequence")

    def close(self) -> None:
        """Close; what the WAL holds goes into the database first, if the disk lets it."""
        self._connection.close()

    # Writing -------------------------------------------------------------------------------------

    def write(
        self, puts: Sequence[Row], deletes: Sequence[tuple[bytes, int]] = ()
    ) -> list[int | None]:
        """Store and delete (recipient, id) in one transaction; on disk when this returns.

        Returns the id of each put, None where its inbox is full.  At most `MOST_ROWS` puts.
        """
        if not deletes:
            return self._put(puts)  # a statement alone is a transaction: one step, begin to commit
        if not puts:
            self._delete(deletes)
            return []
        with self._transaction():
            ids = self._put(puts)
            self._delete(deletes)
        return ids

    def _put(self, puts: Sequence[Row]) -> list[int | None]:
        first = self._last_id + 1
        values: list[Any] = []
        for number, (recipient, envelope, expires_at) in enumerate(puts, first):
            values += (number, recipient, envelope, expires_at)
        if len(puts) == 1:
            sql = _PUT_ONE
        else:
            # One statement for each power of two is prepared; what is missing to it is NULL.
            width = 1 << (len(puts) - 1).bit_length()
            values += [None] * (4 * (width - len(puts)))
            sql = _put_sql(width)
        stored = self._connection.execute(sql, values).rowcount
        last = self._last_id = self._last_id + len(puts)
        if stored == len(puts):
            return list(range(first, last + 1))
        there = {
            number
            for (number,) in self._connection.execute(
                "SELECT id FROM inbox WHERE id BETWEEN ? AND ?", (first, last)
            )
        }
        return [number if number in there else None for number in range(first, last + 1)]

    def _delete(self, deletes: Sequence[tuple[bytes, int]]) -> None:
        for start in range(0, len(deletes), MOST_ROWS):
            part = deletes[start : start + MOST_ROWS]
            width = 1 << (len(part) - 1).bit_length()
            values = [value for pair in part for value in pair]
            self._connection.execute(
                _delete_sql(width), values + [None] * (2 * (width - len(part)))
            )

    def expire(self, recipient: bytes, now: float, limit: int) -> int:
        """Reap at most `limit` blobs of one inbox; return how many."""
        (due,) = self._row(
            """
            SELECT EXISTS (SELECT 1
                           FROM inbox
                           WHERE recipient = ?
                             AND expires_at <= ?)
            """,
            (recipient, now),
        )
        if not due:
            return 0  # every session asks, and a commit would cost a flush
        with self._transaction():
            self._connection.execute(
                """
                UPDATE inboxes
                SET missed = missed + (SELECT count(*)
                                       FROM (SELECT id
                                             FROM inbox
                                             WHERE recipient = ?1
                                               AND expires_at <= ?2
                                             ORDER BY id
                                             LIMIT ?3))
                WHERE recipient = ?1
                """,
                (recipient, now, limit),
            )
            return self._connection.execute(
                """
                DELETE FROM inbox
                WHERE id IN (SELECT id
                             FROM inbox
                             WHERE recipient = ?1
                               AND expires_at <= ?2
                             ORDER BY id
                             LIMIT ?3)
                """,
                (recipient, now, limit),
            ).rowcount

    def reap(self, now: float, limit: int) -> int:
        """Reap at most `limit` blobs of all inboxes, the longest expired first."""
        (due,) = self._row("SELECT EXISTS (SELECT 1 FROM inbox WHERE expires_at <= ?)", (now,))
        if not due:
            return 0
        with self._transaction():
            # Counted before they are deleted: an inbox that is empty and has nothing to tell goes.
            self._connection.execute(
                """
                UPDATE inboxes
                SET missed = missed + due.blobs
                FROM (SELECT recipient, count(*) AS blobs
                      FROM (SELECT recipient
                            FROM inbox
                            WHERE expires_at <= ?1
                            ORDER BY expires_at, id  -- inbox_expiry
                            LIMIT ?2)
                      GROUP BY recipient) AS due
                WHERE inboxes.recipient = due.recipient
                """,
                (now, limit),
            )
            return self._connection.execute(
                """
                DELETE FROM inbox
                WHERE id IN (SELECT id
                             FROM inbox
                             WHERE expires_at <= ?1
                             ORDER BY expires_at, id
                             LIMIT ?2)
                """,
                (now, limit),
            ).rowcount

    def told(self, recipient: bytes, mark: int) -> None:
        """Remember that the device heard of its missed blobs up to `mark`."""
        with self._transaction():
            self._connection.execute(
                """
                UPDATE inboxes
                SET told = max(told, min(missed, ?2))
                WHERE recipient = ?1
                """,
                (recipient, mark),
            )
            self._connection.execute(
                """
                DELETE FROM inboxes
                WHERE recipient = ?
                  AND blobs = 0
                  AND missed = told
                """,
                (recipient,),
            )

    # Reading -------------------------------------------------------------------------------------

    def flush(
        self, recipient: bytes, after: int, now: float, limit: int, max_bytes: int
    ) -> list[Blob]:
        """Return a page of what waits, in the order of ids; the first whatever its size."""
        page: list[Blob] = []
        size = 0
        with contextlib.closing(
            self._connection.execute(
                """
                SELECT id, envelope, expires_at
                FROM inbox
                WHERE recipient = ?  -- inbox_recipient
                  AND id > ?
                  AND expires_at > ?
                ORDER BY id
                LIMIT ?
                """,
                (recipient, after, now, limit),
            )
        ) as rows:
            for number, envelope, expires_at in rows:
                size += len(envelope)
                if size > max_bytes and page:
                    break
                page.append(Blob(number, envelope, expires_at))
        return page

    def missed(self, recipient: bytes) -> Missed:
        """Return what of the counted the device has not heard of."""
        found = self._connection.execute(
            "SELECT missed, told FROM inboxes WHERE recipient = ?", (recipient,)
        ).fetchone()
        missed, told = found or (0, 0)
        return Missed(missed - told, missed)

    def statistics(self, now: float, ttl: float) -> StoreStatistics:
        """Add everything up: a walk over all inboxes."""
        inboxes, blobs, size = self._row(
            """
            SELECT count(*) FILTER (WHERE blobs > 0), COALESCE(sum(blobs), 0),
                   COALESCE(sum(bytes), 0)
            FROM inboxes
            """
        )
        oldest = self._connection.execute(
            "SELECT expires_at FROM inbox ORDER BY expires_at LIMIT 1"
        ).fetchone()
        fullest = self._connection.execute(
            """
            SELECT recipient, blobs, bytes
            FROM inboxes
            WHERE blobs > 0
            ORDER BY bytes DESC
            LIMIT 5
            """
        ).fetchall()
        return StoreStatistics(
            blobs=blobs,
            bytes=size,
            inboxes=inboxes,
            oldest_age=0.0 if oldest is None else max(0.0, ttl - (oldest[0] - now)),
            fullest=tuple(Fullness(*one) for one in fullest),
        )

    # The file ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read something."""
        self._row("SELECT EXISTS (SELECT 1 FROM inbox)")

    def probe(self) -> None:
        """Make a commit, through to the disk, that changes nothing: the same version again."""
        self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def checkpoint(self) -> None:
        """Move what the WAL holds into the database, so that the WAL begins anew; unless held."""
        if not self._held:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def hold(self) -> InboxFile:
        """Bring the database up to date, and from then on write to the WAL alone.

        So its file can be copied while this goes on.  Returns itself, for whoever copies it to
        see that it was this very file, and not one opened since, that was held.
        """
        busy, *_ = self._row("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise sqlite3.OperationalError("the WAL could not be moved into the database")
        self._connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        self._held = True
        return self

    def let_go(self) -> None:
        """End the hold, if there is one."""
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTOCHECKPOINT}").fetchall()
        self._held = False

    def _prepare(self, max_blobs: int, max_bytes: int) -> None:
        try:
            self._recognise()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error):
                raise
            raise StoreUnavailable(f"another process holds {self._path}") from error
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
                raise
            raise ConfigError(
                f"{self._path} is not a database; move it away, or restore it."
            ) from error
        busy, *_ = self._row("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise StoreUnavailable(f"another process reads {self._path}")
        self.probe()
        self._connection.execute(_LIMITS.format(max_blobs=int(max_blobs), max_bytes=int(max_bytes)))

    def _recognise(self) -> None:
        self._set("locking_mode", "EXCLUSIVE", "exclusive")  # before anything touches the file
        application, version = (
            self._row("PRAGMA application_id")[0],
            self._row("PRAGMA user_version")[0],
        )
        (tables,) = self._row("SELECT count(*) FROM sqlite_schema")
        if application != APPLICATION_ID and (application or version or tables):
            raise ConfigError(f"{self._path} is not a device store; move it away.")
        if version > VERSION:
            raise ConfigError(
                f"{self._path} has version {version}, and this relay knows none after {VERSION}:"
                " run the newer relay."
            )
        self._set("journal_mode", "WAL", "wal")
        self._set("synchronous", "FULL", 2)
        # Where fsync only reaches the drive's own memory (macOS), the call that reaches the disk.
        self._set("fullfsync", "ON", 1)
        self._set("checkpoint_fullfsync", "ON", 1)
        # The owner makes checkpoints, when nobody waits for them; this is for what it misjudged.
        self._set("wal_autocheckpoint", str(_AUTOCHECKPOINT), _AUTOCHECKPOINT)
        self._set("cache_size", str(-_CACHE_KIB), -_CACHE_KIB)
        if version == 0:
            # `executescript` would commit first; here the whole schema is there or nothing is.
            with self._transaction():
                for statement in _statements(_SCHEMA):
                    self._connection.execute(statement)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def _set(self, pragma: str, value: str, expected: str | int) -> None:
        """Set a pragma and read it back: unknown and refused ones are silent."""
        self._connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
        (found,) = self._row(f"PRAGMA {pragma}")
        if found != expected:
            raise ConfigError(
                f"SQLite keeps {pragma} at {found} for {self._path}, which is not safe: put the"
                " data directory on a local disk, or use RELAY_DEVICES__STORE=postgres."
            )

    def _row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        row: tuple[Any, ...] = self._connection.execute(sql, values).fetchone()
        return row

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


_PUT_ONE = "INSERT INTO inbox (id, recipient, envelope, expires_at) VALUES (?, ?, ?, ?)"


def _put_sql(width: int) -> str:
    # The ids are ours, so nothing has to be returned, row by row.
    return f"""
        INSERT INTO inbox (id, recipient, envelope, expires_at)
        SELECT *
        FROM (VALUES {", ".join(["(?, ?, ?, ?)"] * width)})
        WHERE column1 IS NOT NULL
        """  # noqa: S608 - question marks


def _delete_sql(width: int) -> str:
    return f"""
        DELETE FROM inbox
        WHERE id IN (SELECT inbox.id
                     FROM (VALUES {", ".join(["(?, ?)"] * width)}) AS gone
                     CROSS JOIN inbox ON inbox.id = gone.column2
                                     AND inbox.recipient = gone.column1)
        """  # noqa: S608 - question marks


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script, triggers whole."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _make(path: Path) -> None:
    """Make the file where there is none: mode 0600, and its name on disk."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
