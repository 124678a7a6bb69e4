"""Is the database there, of this relay's schema, and does it keep what it is given?

Promises: looks are over within `TIMEOUT` seconds and change no row; a pooler is found by a
notification that does not come back within `HEARD_WITHIN` seconds.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, LiteralString

from relay.cli import output
from relay.cli.doctor import replication
from relay.cli.doctor.findings import FAIL, OK, Check, Finding, Patient, judged
from relay.errors import RelayError

if TYPE_CHECKING:
    from relay.db.connection import Connection
    from relay.db.hosts import Hosts

SKEW = 1.0  # seconds between the clocks of database and host
TIMEOUT = 10.0  # seconds
HEARD_WITHIN = 2.0  # seconds that a notification may take
AWAY = "see RELAY_DATABASE__URL"
NO_PRIMARY = "start the primary, or promote the standby: docs/failover.md, By hand, step by step"
SPARE = 10  # connections of the server that should be left beside this relay's


def check_database(patient: Patient) -> Iterator[Finding]:
    """See whether the database answers, and what is in it."""
    url = patient.database_url
    if url is None:
        yield Finding("database", OK, "embedded; it runs when the relay runs")
        return
    import psycopg
    import trio

    from relay.db.connection import NO_HOST

    findings: list[Finding] = []

    async def inspect() -> None:
        with trio.fail_after(TIMEOUT):
            async for finding in _inspect(url, patient):
                findings.append(finding)

    try:
        trio.run(inspect)
    except trio.TooSlowError:
        findings.append(
            Finding("database", FAIL, "it does not answer", "see whether it hangs, and its load")
        )
    except (RelayError, psycopg.OperationalError) as error:
        _, none, each = str(error).partition(NO_HOST)
        found = f"no host takes writes: {each}" if none else str(error)
        findings.append(Finding("database", FAIL, output.line(found), NO_PRIMARY if none else AWAY))
    yield from findings


async def _inspect(url: str, patient: Patient) -> AsyncIterator[Finding]:
    from psycopg.conninfo import conninfo_to_dict

    from relay.db.connection import connect, names_several
    from relay.db.hosts import Hosts, shown
    from relay.db.migrate import check

    hosts = Hosts(patient.data.timeline_file, keep=False)  # of several, one that takes writes
    status = await check(url, hosts=hosts)
    async with await connect(url, application_name="relay-doctor", hosts=hosts) as looker:
        if await _one(looker, "SELECT pg_is_in_recovery()"):
            found = "a standby, not promoted: it takes no writes"
            yield Finding("database", FAIL, found, NO_PRIMARY)
            return
        at = f" at {shown(looker.host)}" if names_several(conninfo_to_dict(url)) else ""
    yield Finding("database", OK, f"PostgreSQL {status.server_version} answers{at}")
    yield judged(
        "schema",
        not status.pending,
        f"{len(status.pending)} migrations are missing" if status.pending else "current",
        "relay db migrate",
        bad=FAIL,
    )
    direct = url
    if patient.settings is not None and patient.settings.database.url:
        direct = patient.settings.database.direct_url or url
    async with (
        await connect(
            url, application_name="relay-doctor", prepare_threshold=None, hosts=hosts
        ) as connection,
        await connect(direct, application_name="relay-doctor", autocommit=True, hosts=hosts) as ear,
    ):
        await connection.set_autocommit(True)
        yield await check_skew(connection)
        yield await check_keeps_what_it_is_given(connection)
        yield await replication.inspect(connection)
        yield await check_room(connection, patient)
        yield await check_passwords(connection, patient)
        yield await check_heard(connection, ear)
        if patient.settings is None or patient.settings.database.prepare:
            yield await check_remembers(url, hosts)


async def _one(connection: Connection, query: LiteralString) -> Any:
    row = await (await connection.execute(query)).fetchone()
    assert row is not None
    return row[0]


async def check_skew(connection: Connection) -> Finding:
    """Compare this machine's clock with the server's."""
    best = None
    for _ in range(3):  # the quickest answer says it best
        before = time.time()
        theirs = await _one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
        after = time.time()
        if best is None or after - before < best[0]:
            best = after - before, theirs - (before + after) / 2
    assert best is not None
    skew = best[1]
    return judged(
        "clocks",
        abs(skew) < SKEW,
        f"the database's is {abs(skew) * 1000:.0f} ms {'ahead' if skew > 0 else 'behind'}",
        "run NTP on both machines",
    )


async def check_keeps_what_it_is_given(connection: Connection) -> Finding:
    """See whether what is answered 250 survives a crash of the server."""
    off = []
    if await _one(connection, "SHOW fsync") == "off":
        off.append("fsync")
    if await _one(connection, "SHOW full_page_writes") == "off":
        off.append("full_page_writes")
    if off:
        return Finding(
            "durability",
            FAIL,
            f"{' and '.join(off)} off: a crash loses mail that was answered 250, or all of it",
            "set it to on in postgresql.conf",
        )
    lazy = await _one(connection, "SHOW synchronous_commit") == "off"
    return judged(
        "durability",
        not lazy,
        "synchronous_commit is off: a crash loses the last moment's mail"
        if lazy
        else "commits reach the disk",
        "ALTER ROLE … SET synchronous_commit = on",
    )


async def check_room(connection: Connection, patient: Patient) -> Finding:
    """See whether the server has connections left for another node."""
    most = int(await _one(connection, "SHOW max_connections"))
    used = int(
        await _one(
            connection,
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'",
        )
    )
    size = 8 if patient.settings is None else patient.settings.database_connections
    wanted = SPARE if patient.run is not None else size + SPARE
    return judged(
        "connections",
        most - used >= wanted,
        f"{used} of {most} in use",
        "raise max_connections, or lower RELAY_DATABASE__POOL_SIZE or RELAY_SMTP__PROCESSES on some"
        " nodes",
    )


async def check_passwords(connection: Connection, patient: Patient) -> Finding:
    """See whether the keys here open what is stored there."""
    from relay.crypto import Unreadable, Vault

    rows = []
    for table, column in (("senders", "password"), ("dkim_keys", "private_key")):
        if await _one(connection, f"SELECT to_regclass('relay.{table}') IS NOT NULL"):
            cursor = await connection.execute(
                f"SELECT id, {column} FROM relay.{table} WHERE {column} IS NOT NULL LIMIT 1000"  # noqa: S608 - the two above
            )
            rows += await cursor.fetchall()
    if not rows:
        return Finding("keys", OK, "nothing is sealed yet")
    text = "" if patient.settings is None else patient.settings.encryption_keys
    file = patient.data.path / "encryption_keys"
    if not text and file.exists():
        text = file.read_text()
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    unreadable = len(rows)
    if keys:
        vault = Vault(keys)
        unreadable = 0
        for account, sealed in rows:
            try:
                vault.open(account, sealed)
            except Unreadable:
                unreadable += 1
    return judged(
        "keys",
        not unreadable,
        f"{unreadable} of {len(rows)} stored secrets cannot be read: their mail waits"
        if unreadable
        else f"{len(rows)} stored secrets can be read",
        "give this node the keys of the others (RELAY_ENCRYPTION_KEYS), or restore the key files",
        bad=FAIL,
    )


async def check_heard(mouth: Connection, ear: Connection, within: float = HEARD_WITHIN) -> Finding:
    """Send a notification and see whether it arrives in time where the relay would listen."""
    from contextlib import aclosing

    import trio

    channel = f"relay_doctor_{time.monotonic_ns()}"
    heard = False
    await ear.execute(f'LISTEN "{channel}"'.encode())
    await mouth.execute("SELECT pg_notify(%s, '')", [channel])
    with trio.move_on_after(within):
        async with aclosing(ear.notifies()) as notifications:
            async for _ in notifications:
                heard = True
                break
    return judged(
        "wake-ups",
        heard,
        "notifications arrive" if heard else "notifications do not arrive: work waits for sweeps",
        "behind a pooler in transaction mode set RELAY_DATABASE__DIRECT_URL to the server itself",
    )


async def check_remembers(url: str, hosts: Hosts | None = None) -> Finding:
    """Use a prepared statement in two transactions, with another client's between them.

    A pooler in transaction mode that keeps none (PgBouncer before 1.21, or told to keep none)
    runs the second on another server connection, which has never heard of it, or meets the name
    there already.
    """
    from contextlib import AsyncExitStack

    import psycopg

    from relay.db.connection import Statement, connect

    statement = Statement("SELECT 1", ())
    statement.name = b"relay_doctor_%d" % time.monotonic_ns()
    kept = True
    async with AsyncExitStack() as stack:
        first, second, third = [
            await stack.enter_async_context(
                await connect(url, application_name="relay-doctor", autocommit=True, hosts=hosts)
            )
            for _ in range(3)
        ]
        try:
            await first.run(statement, ())
            await second.run(statement, ())
            async with third.transaction():
                await third.execute("SELECT 1", prepare=False)
                for connection in (first, second):
                    await connection.run_prepared(statement, ())
        except (psycopg.errors.DuplicatePreparedStatement, psycopg.errors.InvalidSqlStatementName):
            kept = False
    return judged(
        "prepared statements",
        kept,
        "they are kept"
        if kept
        else "the pooler in front of the database loses them: mail is answered 451",
        "RELAY_DATABASE__PREPARE=false, or PgBouncer 1.21 or newer with max_prepared_statements",
        bad=FAIL,
    )


CHECKS: tuple[Check, ...] = (check_database,)
