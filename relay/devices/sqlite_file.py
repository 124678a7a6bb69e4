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
- What an inbox holds is counted, never stored: from an index that has all it takes, when first
  asked, and then in memory, for the file is ours alone.  So it is true whoever changed the rows
  before, and a Put writes no page for it.

- The pages in use stay below `max_total`, but for what one commit puts beside the blobs; the WAL
  comes on top.

Fails with `sqlite3.Error`, and with `StoreUnavailable` where another process holds the file.

Why one INSERT for all the Puts of a group: Python's sqlite3 gives the interpreter lock away for
each step and has to get it back from the event loop.  One statement is one such exchange, and a
seventh cheaper for 64 rows than executemany.  Most of what a row costs are the pages of the WAL,
8 µs each; with counts in a table of their own, kept by triggers, it was half as much again.
`tests/devices/test_store.py` holds both to what the other store does; `python -m tests.bench
devices` is where they pay.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from relay.devices.store import OVERHEAD, Blob, Fullness, Missed, StoreUnavailable
from relay.errors import ConfigError
from relay.files import sync_directory

APPLICATION_ID = 0x52446576
"""`RDev`, in the header of the file."""
VERSION = 2
OLDEST_SQLITE = (3, 35, 0)

MOST_ROWS = 256
"""Blobs that one `write` takes."""

_COUNTED = 32_768  # inboxes whose counts are remembered, in about 10 MB

_INBOX = """
    CREATE TABLE inbox (
        id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice
        recipient  BLOB NOT NULL,     -- 32-byte X25519 public key
        expires_at INTEGER NOT NULL,  -- Unix seconds; a fraction makes it REAL
        bytes      INTEGER NOT NULL CHECK (bytes = length(envelope)),
        envelope   BLOB NOT NULL      -- opaque; last, for the rest to be read without it
    );
"""
_INDEXES = """
    CREATE INDEX inbox_recipient ON inbox (recipient, id, bytes);  -- in order, and counted
    CREATE INDEX inbox_expiry ON inbox (expires_at);               -- what is reaped next
"""
_MISSED = """
    -- Of how many lost blobs a device must hear.  Both numbers begin at the last id given, and
    -- each blob that is counted uses up an id too.  So a row that was deleted (its device was told
    -- of all) and made again never begins below a number that the device remembers of it.
    CREATE TABLE missed (
        recipient BLOB PRIMARY KEY,
        missed    INTEGER NOT NULL,  -- rises by one for each blob that expired
        told      INTEGER NOT NULL   -- below `missed`
    ) WITHOUT ROWID;
"""
_SCHEMA = _INBOX + _INDEXES + _MISSED

# By version: how a file of the one before becomes it.  All blobs are copied, in one transaction.
_UPGRADES = {
    2: f"""
        -- Version 1 had no column `bytes`; triggers kept the counts, in `inboxes`.
        ALTER TABLE inbox RENAME TO inbox_1;
        DROP INDEX inbox_recipient;
        DROP INDEX inbox_expiry;
        {_INBOX}
        INSERT INTO inbox
        SELECT id, recipient, expires_at, length(envelope), envelope FROM inbox_1;
        {_INDEXES}
        DELETE FROM sqlite_sequence WHERE name = 'inbox';
        UPDATE sqlite_sequence SET name = 'inbox' WHERE name = 'inbox_1';
        DROP TABLE inbox_1;
        {_MISSED}
        INSERT INTO missed SELECT recipient, missed, told FROM inboxes WHERE missed > told;
        DROP TABLE inboxes;
    """,  # noqa: S608 - ours
}

_TALLY_INBOXES, _TALLY_BLOBS = 1000, 10_000  # that are added up at once, about
_AUTOCHECKPOINT = 16_000  # pages
_CACHE_KIB = 16 * 1024
_WORTH_SHRINKING = 16 << 20  # bytes
_COPIED = 256 << 20  # bytes; some seconds' work, while Puts wait


STORE_FULL = 0
"""What `write` returns for a blob for which all inboxes together have no room."""


class BlobRow(NamedTuple):
    """A blob to be stored."""

    recipient: bytes
    envelope: bytes
    expires_at: float


class InboxFile:
    """The open file.  Every method blocks, and belongs to the thread that made it."""

    def __init__(
        self,
        path: Path,
        *,
        max_blobs: int,
        max_bytes: int,
        max_total: int | None = None,
        counted: int = _COUNTED,
        tallied: int = _TALLY_INBOXES,
    ) -> None:
        """Open `path`, or make it.  `ConfigError`, `StoreUnavailable`, `sqlite3.Error`.

        `max_blobs` and `max_bytes` are of one inbox, `max_total` of all (None: any number);
        `counted`: inboxes whose counts are remembered; `tallied`: added up at once.
        """
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise ConfigError(
                f"SQLite is {sqlite3.sqlite_version}, and the device store needs"
                f" {'.'.join(map(str, OLDEST_SQLITE))} or newer: use a newer Python,"
                " or RELAY_DEVICES__STORE=postgres."
            )
        _make(path)
        self._path = path
        self._max_blobs, self._max_bytes = max_blobs, max_bytes
        self._max_total = max_total
        self._room: float = 0  # bytes that may come before what is there is measured again
        self._counts: dict[bytes, list[int]] = {}  # blobs and bytes
        self._counted_most, self._tallied = counted, tallied
        self._held = False
        found = os.stat(path)
        self._inode = found.st_dev, found.st_ino
        self._connection = sqlite3.connect(path, timeout=0.5, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise
        (self._page_size,) = self.row("PRAGMA page_size")
        (self._last_id,) = self.row("SELECT COALESCE(max(seq), 0) FROM sqlite_sequence")

    def close(self) -> None:
        """Close; what the WAL holds goes into the database first, if the disk lets it."""
        self._connection.close()

    # Writing -------------------------------------------------------------------------------------

    def write(
        self, puts: Sequence[BlobRow], deletes: Sequence[tuple[bytes, int]] = ()
    ) -> list[int | None]:
        """Store and delete (recipient, id) in one transaction; on disk when this returns.

        Returns the id of each put, None where its inbox is full, `STORE_FULL` where there is no
        room for anybody's.  At most `MOST_ROWS` puts.
        """
        try:
            return self._write(puts, deletes)
        except BaseException:
            self._counts.clear()  # they tell of what has been undone
            raise

    def _write(
        self, puts: Sequence[BlobRow], deletes: Sequence[tuple[bytes, int]]
    ) -> list[int | None]:
        if not deletes:
            return self._put(puts)  # a statement alone is a transaction: one step, begin to commit
        if not puts and len(deletes) <= MOST_ROWS:
            self._delete(deletes)
            return []
        with self._transaction():
            ids = self._put(puts)
            self._delete(deletes)
        return ids

    def _put(self, puts: Sequence[BlobRow]) -> list[int | None]:
        if len(self._counts) > self._counted_most:
            # Only now: what is not stored yet cannot be counted again.
            self._counts.clear()
        ids: list[int | None] = []
        values: list[Any] = []
        room = self._room_for(puts)
        for recipient, envelope, expires_at in puts:
            if len(envelope) + OVERHEAD > room:
                ids.append(STORE_FULL)
                continue
            counts = self._counts.get(recipient) or self._counted(recipient)
            size = counts[1] + len(envelope)
            if counts[0] >= self._max_blobs or size > self._max_bytes:
                ids.append(None)
                continue
            room -= len(envelope) + OVERHEAD
            counts[0] += 1
            counts[1] = size
            self._last_id += 1
            ids.append(self._last_id)
            values += (self._last_id, recipient, expires_at, len(envelope), envelope)
        self._room = room
        if values:
            rows = len(values) // 5
            sql = _PUT_ONE if rows == 1 else _put_sql(_padded(values, rows, 5))
            self._connection.execute(sql, values)
        return ids

    def _room_for(self, puts: Sequence[BlobRow]) -> float:
        """Return how many bytes may come, looked up anew if these blobs do not fit what is known.

        What is deleted is noticed then: its pages are free.
        """
        if self._max_total is None:
            return math.inf
        if sum([len(put.envelope) for put in puts]) + OVERHEAD * len(puts) > self._room:
            (pages,), (free,) = self.row("PRAGMA page_count"), self.row("PRAGMA freelist_count")
            self._room = self._max_total - (pages - free) * self._page_size
        return self._room

    def _counted(self, recipient: bytes) -> list[int]:
        """Count what an inbox holds, for as long as nobody else can change it."""
        counts = self._counts[recipient] = list(self.row(COUNT, (recipient,)))
        return counts

    def _delete(self, deletes: Sequence[tuple[bytes, int]]) -> None:
        for start in range(0, len(deletes), MOST_ROWS):
            part = deletes[start : start + MOST_ROWS]
            values: list[Any] = [value for pair in part for value in pair]
            self._deleted(_delete_sql(_padded(values, len(part), 2)), values)

    def _deleted(self, sql: str, values: Sequence[Any]) -> list[tuple[bytes, int]]:
        """Delete, and return (recipient, bytes) of each blob that is gone."""
        gone: list[tuple[bytes, int]] = self._connection.execute(sql, values).fetchall()
        for recipient, size in gone:
            counts = self._counts.get(recipient)
            if counts is not None:
                counts[0] -= 1
                counts[1] -= size
        return gone

    def expire(self, recipient: bytes, now: float, limit: int) -> int:
        """Reap at most `limit` blobs of one inbox; return how many."""
        return self._reap("recipient = ?3 AND expires_at <= ?1", "id", (now, limit, recipient))

    def reap(self, now: float, limit: int) -> int:
        """Reap at most `limit` blobs of all inboxes, the longest expired first."""
        return self._reap("expires_at <= ?1", "expires_at, id", (now, limit))

    def _reap(self, which: str, order: str, values: tuple[Any, ...]) -> int:
        due = f"SELECT id FROM inbox WHERE {which} ORDER BY {order} LIMIT ?2"  # noqa: S608 - ours
        if self._connection.execute(due, values).fetchone() is None:
            return 0  # every session asks, and a commit would cost a flush
        with self._transaction():
            gone = self._deleted(
                f"DELETE FROM inbox WHERE id IN ({due}) RETURNING recipient, bytes",  # noqa: S608
                values,
            )
            lost = Counter(recipient for recipient, _ in gone)
            self._connection.executemany(
                """
                INSERT INTO missed (recipient, missed, told)
                VALUES (?1, ?2 + ?3, ?2)
                ON CONFLICT (recipient) DO UPDATE
                SET missed = missed + ?3
                """,
                [(recipient, self._last_id, blobs) for recipient, blobs in lost.items()],
            )
            self._last_id += len(gone)
            self._connection.execute(
                "UPDATE sqlite_sequence SET seq = ? WHERE name = 'inbox'", (self._last_id,)
            )
        return len(gone)

    def told(self, recipient: bytes, mark: int) -> None:
        """Remember that the device heard of its missed blobs up to `mark`."""
        with self._transaction():
            self._connection.execute(
                """
                UPDATE missed
                SET told = max(told, min(missed, ?2))
                WHERE recipient = ?1
                """,
                (recipient, mark),
            )
            self._connection.execute(
                """
                DELETE FROM missed
                WHERE recipient = ?
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
            "SELECT missed, told FROM missed WHERE recipient = ?", (recipient,)
        ).fetchone()
        missed, told = found or (0, 0)
        return Missed(missed - told, missed)

    def tally(self, after: bytes) -> list[Fullness]:
        """Add up the next inboxes behind the key `after`, in the order of keys: a few milliseconds.

        Empty at the end.
        """
        found: list[Fullness] = []
        blobs = 0
        with contextlib.closing(self._connection.execute(TALLY, (after,))) as rows:
            for row in rows:
                found.append(Fullness(*row))
                blobs += row[1]
                if len(found) == self._tallied or blobs >= _TALLY_BLOBS:
                    break
        return found

    def expires_first(self) -> float | None:
        """Return when the first of all blobs expires, in Unix seconds."""
        found = self._connection.execute("SELECT min(expires_at) FROM inbox").fetchone()
        first: float | None = found[0]
        return first

    # The file ------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read something, of the file that has this name now."""
        self._same()
        self.row("SELECT EXISTS (SELECT 1 FROM inbox)")

    def _same(self) -> None:
        try:
            now = os.stat(self._path)
        except OSError as error:
            raise sqlite3.OperationalError(f"the file is gone ({error.strerror})") from error
        if (now.st_dev, now.st_ino) != self._inode:
            raise sqlite3.OperationalError("the file was moved away, and another is in its place")

    def probe(self) -> None:
        """Make a commit, through to the disk, that changes nothing: the same version again."""
        self._same()
        self._connection.execute(f"PRAGMA user_version = {VERSION}")

    def checkpoint(self) -> None:
        """Move what the WAL holds into the database, so that the WAL begins anew; unless held."""
        if not self._held:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def shrink(self, spare: int) -> int:
        """Give the disk back what the file has and does not use; return how many bytes.

        What is in use is copied for that, so it is done only where it is worth while: where much is
        unused, and what is used is little, and fits the `spare` bytes of the disk twice.
        """
        (pages,), (free,) = self.row("PRAGMA page_count"), self.row("PRAGMA freelist_count")
        used = (pages - free) * self._page_size
        if (
            self._held
            or free * self._page_size < _WORTH_SHRINKING
            or 2 * used > min(spare, _COPIED)
        ):
            return 0
        self._connection.execute("VACUUM")
        self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        (left,) = self.row("PRAGMA page_count")
        return int((pages - left) * self._page_size)

    def hold(self) -> InboxFile:
        """Bring the database up to date, and from then on write to the WAL alone.

        So its file can be copied while this goes on.  Returns itself, for whoever copies it to
        see that it was this very file, and not one opened since, that was held.
        """
        busy, *_ = self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise sqlite3.OperationalError("the WAL could not be moved into the database")
        self._connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
        self._held = True
        return self

    def let_go(self) -> None:
        """End the hold, if there is one."""
        self._connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTOCHECKPOINT}").fetchall()
        self._held = False

    def _prepare(self) -> None:
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
        busy, *_ = self.row("PRAGMA wal_checkpoint(TRUNCATE)")
        if busy:
            raise StoreUnavailable(f"another process reads {self._path}")
        self.probe()

    def _recognise(self) -> None:
        self._set("locking_mode", "EXCLUSIVE", "exclusive")  # before anything touches the file
        application, version = (
            self.row("PRAGMA application_id")[0],
            self.row("PRAGMA user_version")[0],
        )
        (tables,) = self.row("SELECT count(*) FROM sqlite_schema")
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
            self._change(_SCHEMA, VERSION)
        else:
            for newer in range(version + 1, VERSION + 1):
                self._change(_UPGRADES[newer], newer)

    def _change(self, script: str, version: int) -> None:
        """Make all of it or nothing: `executescript` would commit first."""
        with self._transaction():
            for statement in _statements(script):
                self._connection.execute(statement)
            self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._connection.execute(f"PRAGMA user_version = {version}")

    def _set(self, pragma: str, value: str, expected: str | int) -> None:
        """Set a pragma and read it back: unknown and refused ones are silent."""
        self._connection.execute(f"PRAGMA {pragma} = {value}").fetchall()
        (found,) = self.row(f"PRAGMA {pragma}")
        if found != expected:
            raise ConfigError(
                f"SQLite keeps {pragma} at {found} for {self._path}, which is not safe: put the"
                " data directory on a local disk, or use RELAY_DEVICES__STORE=postgres."
            )

    @property
    def connection(self) -> sqlite3.Connection:
        """SQLite's own, for whoever looks into the file: it is locked against all others."""
        return self._connection

    @property
    def held(self) -> bool:
        """Whether the database stands still, to be copied."""
        return self._held

    def row(self, sql: str, values: Sequence[Any] = ()) -> tuple[Any, ...]:
        """Return the first row of a statement that has one."""
        row: tuple[Any, ...] = self._connection.execute(sql, values).fetchone()
        return row

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            self._counts.clear()  # they tell of what is undone
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise


_COLUMNS = "id, recipient, expires_at, bytes, envelope"
_PUT_ONE = f"INSERT INTO inbox ({_COLUMNS}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608 - question marks

# Both from inbox_recipient alone.
COUNT = "SELECT count(*), COALESCE(sum(bytes), 0) FROM inbox WHERE recipient = ?"
TALLY = """
    SELECT recipient, count(*), sum(bytes)
    FROM inbox
    WHERE recipient > ?
    GROUP BY recipient
    ORDER BY recipient
"""


def _padded(values: list[Any], rows: int, columns: int) -> int:
    """Fill up to a power of two with rows of NULL, so that few statements are prepared."""
    width = 1 << (rows - 1).bit_length()
    values += [None] * (columns * (width - rows))
    return width


def _put_sql(width: int) -> str:
    # The ids are ours, so nothing has to be returned, row by row.
    return f"""
        INSERT INTO inbox ({_COLUMNS})
        SELECT *
        FROM (VALUES {", ".join(["(?, ?, ?, ?, ?)"] * width)})
        WHERE column1 IS NOT NULL
        """  # noqa: S608 - question marks


def _delete_sql(width: int) -> str:
    return f"""
        DELETE FROM inbox
        WHERE id IN (SELECT inbox.id
                     FROM (VALUES {", ".join(["(?, ?)"] * width)}) AS gone
                     CROSS JOIN inbox ON inbox.id = gone.column2
                                     AND inbox.recipient = gone.column1)
        RETURNING recipient, bytes
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
    sync_directory(path.parent)
