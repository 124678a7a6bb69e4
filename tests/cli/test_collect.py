"""`relay collect`, as a program on a pipe."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import psycopg
import pytest

from tests.cli.command import RELAY, cli, environment
from tests.eventually import eventually_sync
from tests.lifecycle.collecting import KEY, batches, collect


def insert(dsn: str, count: int = 1, prefix: str = "p", status: str = "provisioned") -> None:
    """Insert accounts in one statement, as any program may."""
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute(
            """
            INSERT INTO relay.accounts (email, login, status)
            SELECT %(prefix)s || i || '@example.org', %(prefix)s || i, %(status)s
            FROM generate_series(1, %(count)s) i
            """,
            {"prefix": prefix, "count": count, "status": status},
        )


def waiting(dsn: str) -> int:
    """How many tokens are queued."""
    with psycopg.connect(dsn, autocommit=True) as user:
        row = user.execute("SELECT count(*) FROM relay.token_queue").fetchone()
    assert row is not None
    return int(row[0])


def test_it_drains_in_batches_and_ends(any_database_url):
    """Ten a line by default, the rest at once; every token is good; nothing is left; status 0."""
    insert(any_database_url, 25)
    with collect(any_database_url) as process:
        lines = batches(process.rest())
        assert process.wait(10) == 0, process.log
        assert [len(line) for line in lines] == [10, 10, 5]
        assert {email for line in lines for email in line} == {
            f"p{n}@example.org" for n in range(1, 26)
        }
        reasons = [line for line in process.log.splitlines() if '"collector.batch"' in line]
        assert len(reasons) == 3
        assert all('"reason":"drain"' in line for line in reasons)
    assert waiting(any_database_url) == 0


def test_a_budget_that_pays_for_all_changes_no_line(database_url):
    """Taken in psycopg's way, within a budget, rows make the lines that they make without one."""
    plenty = {"monthly_budget": "1000000", "price_per_thousand": "0.01"}
    for settings in ({}, plenty):
        with psycopg.connect(database_url, autocommit=True) as user:
            user.execute("TRUNCATE relay.accounts CASCADE")
            user.execute("TRUNCATE relay.token_queue")
            user.execute("UPDATE relay.token_budget SET at = now(), letters = 1000")
        insert(database_url, 25, prefix="ü")
        with collect(database_url, **settings) as process:
            lines = batches(process.rest())
            assert process.wait(10) == 0, process.log
        assert [len(line) for line in lines] == [10, 10, 5]
        assert {email for line in lines for email in line} == {
            f"ü{n}@example.org" for n in range(1, 26)
        }


def test_a_primary_that_the_relay_has_seen_replaced_gives_nothing(database_url, tmp_path):
    """The timeline that is kept in the data directory counts, and is left as it is."""
    insert(database_url, 3)
    with psycopg.connect(database_url) as user:
        row = user.execute("SELECT system_identifier FROM pg_control_system()").fetchone()
    assert row is not None
    known = tmp_path / "timeline"
    known.write_text(f'{{"system": {row[0]}, "timeline": 9}}')
    found = cli(
        "collect",
        "--data-dir",
        tmp_path,
        env={"RELAY_DATABASE__URL": database_url, "RELAY_SECRET_KEY": KEY.hex()},
    )
    assert found.returncode != 0
    assert not found.stdout
    assert b"an old primary that was left behind" in found.stderr
    assert f'"system": {row[0]}, "timeline": 9' in known.read_text()
    assert waiting(database_url) == 3


def test_nothing_queued_is_nothing_written(database_url):
    """No line, not even an empty one."""
    with collect(database_url) as process:
        assert process.rest() == b""
        assert process.wait(10) == 0, process.log


def test_recovery_is_action_two_and_comes_first(database_url):
    """Its code is signed, and written."""
    insert(database_url, 2)
    insert(database_url, prefix="late", status="active")
    with psycopg.connect(database_url, autocommit=True) as user:
        user.execute("SELECT relay.recover_account(id) FROM relay.accounts WHERE login = 'late1'")
    with collect(database_url) as process:
        written = process.rest()
    assert batches(written)[0][0] == "late1@example.org"
    assert written.startswith(b"2,late1@example.org,late1,")


def test_the_documents_timing(database_url):
    """Limit 3, five accounts: three at once, two when the batch timeout has passed."""
    with collect(database_url, "--follow", batch_limit="3", batch_timeout="0.8") as process:
        process.listens()
        insert(database_url, prefix="first")
        assert len(batches(process.line())[0]) == 1  # so the drain of the start is over
        insert(database_url, 5)
        assert len(batches(process.line())[0]) == 3
        began = time.monotonic()
        assert len(batches(process.line())[0]) == 2
        assert time.monotonic() - began > 0.5  # not at once
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0, process.log
        assert '"rows":3,"reason":"limit"' in process.log
        assert '"rows":2,"reason":"timeout"' in process.log


def test_adaptive_does_not_wait(database_url):
    """With a batch timeout of an hour, a line for each account."""
    with collect(database_url, "--follow", "--adaptive", batch_timeout="1h") as process:
        process.listens()
        for number in range(3):
            insert(database_url, prefix=f"a{number}x")
            assert batches(process.line()) == [[f"a{number}x1@example.org"]]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130, process.log


def test_a_reader_that_goes_away_ends_it(database_url):
    """While idle, too: status 0, and what comes afterwards stays queued."""
    with collect(database_url, "--follow") as process:
        process.listens()
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(10) == 0, process.log
    insert(database_url, 3)
    assert waiting(database_url) == 3


def insert_unchecked(dsn: str, *logins: str) -> None:
    """Insert accounts where somebody dropped the constraints."""
    with psycopg.connect(dsn, autocommit=True) as user:
        names = user.execute(
            """
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'relay.accounts'::regclass AND contype = 'c'
            """
        ).fetchall()
        for (name,) in names:
            user.execute(f'ALTER TABLE relay.accounts DROP CONSTRAINT "{name}"'.encode())
        for login in logins:
            user.execute(
                "INSERT INTO relay.accounts (email, login) VALUES (%s, %s)",
                (f"x{len(login)}{hash(login)}@example.org", login),
            )


def test_rows_that_would_break_the_line_never_reach_it(database_url):
    """Refused, logged by number, out of the way."""
    insert_unchecked(database_url, "good", "a,b", "a\nb", "a\rb")
    with collect(database_url) as process:
        written = process.rest()
        assert process.wait(10) == 0, process.log
        assert written.count(b",") == 4
        assert written.count(b"\n") == 1
        assert process.log.count('"collector.refused"') == 3
        assert "a,b" not in process.log
    assert waiting(database_url) == 0


def test_a_budget_is_kept(database_url):
    """A hundred letters a month: the first now, the others in their time."""
    insert(database_url, 5)
    with collect(database_url, "--follow", monthly_budget="1", price_per_thousand="10") as process:
        assert len(batches(process.line())[0]) == 1
        process.listens()
        process.send_signal(signal.SIGTERM)
        assert process.rest() == b""
        assert process.wait(10) == 0, process.log
    assert waiting(database_url) == 4


def test_rows_that_never_reach_the_line_are_not_paid_for(database_url):
    """Three letters are paid for: one row is refused, and the letter saved buys another line."""
    insert_unchecked(database_url, "a,b", "one", "two", "three")
    with psycopg.connect(database_url, autocommit=True) as user:
        user.execute("UPDATE relay.token_budget SET at = now(), letters = 3")
        user.execute(
            """
            UPDATE relay.token_queue q
            SET expires_at = q.expires_at - 60  -- so it comes first
            FROM relay.accounts a
            WHERE a.id = q.account
              AND a.login = 'a,b'
            """
        )
        with collect(database_url, monthly_budget="1", price_per_thousand="10") as process:
            written = process.rest()
            assert process.wait(10) == 0, process.log
            assert process.log.count('"collector.refused"') == 1
        assert sum(len(batch) for batch in batches(written)) == 3
        assert user.execute("SELECT spent FROM relay.token_budget").fetchone() == (3,)
    assert waiting(database_url) == 0


def test_standard_output_may_be_a_file(database_url, tmp_path):
    """Or anything else that can be written."""
    insert(database_url, 25)
    with (tmp_path / "out").open("wb") as out:
        done = subprocess.run(
            [*RELAY, "collect", "--data-dir", tmp_path],
            env=environment(RELAY_DATABASE__URL=database_url, RELAY_SECRET_KEY=KEY.hex()),
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert [len(line) for line in batches((tmp_path / "out").read_bytes())] == [10, 10, 5]


def test_a_full_disk_is_said_and_loses_nothing(database_url, tmp_path):
    """The rows come again."""
    insert(database_url, 5)
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RELAY, "collect", "--data-dir", tmp_path],
            env=environment(RELAY_DATABASE__URL=database_url, RELAY_SECRET_KEY=KEY.hex()),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert done.returncode == 1
    assert b"relay: Standard output cannot be written: No space left on device." in done.stderr
    assert waiting(database_url) == 5


def test_one_who_reads_later_gets_everything(database_url):
    """A program that waits for our end before it reads does not wait for ever."""
    insert(database_url, 60)
    with collect(database_url) as process:
        assert process.wait(20) == 0, process.log
        assert sum(map(len, batches(process.rest()))) == 60


@pytest.mark.parametrize(
    ("url", "status", "says"),
    [
        ("host=/nowhere dbname=relay", 69, b"no connection to PostgreSQL"),
        ("", 69, b"There is no database in"),
    ],
)
def test_without_a_database_it_says_so(tmp_path, url, status, says):
    """One sentence, and the exit code of sysexits.h."""
    done = cli("collect", "--data-dir", tmp_path, env={"RELAY_DATABASE__URL": url})
    assert done.returncode == status
    assert says in done.stderr
    assert done.stdout == b""


def test_a_database_without_the_schema_is_not_touched(clusters, tmp_path):
    """It says what to run."""
    cluster = clusters.get(18)
    name = cluster.new_database()
    done = cli("collect", "--data-dir", tmp_path, env={"RELAY_DATABASE__URL": cluster.dsn(name)})
    cluster.drop_database(name)
    assert done.returncode == 1
    assert b"relay db migrate" in done.stderr


def test_the_embedded_database_is_started_for_it(tmp_path):
    """No relay runs; SIGTERM ends both, and leaves no server behind."""
    assert cli("db", "migrate", "--data-dir", tmp_path).returncode == 0
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*RELAY, "collect", "--follow", "--data-dir", tmp_path],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=errors,
            bufsize=0,
        )
    try:
        eventually_sync(
            lambda: b"collector.listening" in log.read_bytes(), "it is at work", within=60.0
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert not list(tmp_path.rglob("postmaster.pid"))
    assert len((tmp_path / "secret_key").read_text().strip()) == 64
    assert os.stat(tmp_path / "secret_key").st_mode & 0o777 == 0o600
