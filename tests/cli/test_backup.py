"""`relay db backup` and `restore`: nothing is lost, nothing is overwritten unasked."""

from __future__ import annotations

import io
import json
import shutil
import smtplib
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import trio

from relay.db.migrate import migrate, migrations
from tests.cli.command import cli
from tests.conftest import Clusters
from tests.relay_process import RelayProcess

ALL = [migration.number for migration in migrations()]
LETTER = b"Subject: kept\r\n\r\nbyte for byte \xff\r\n"
DEVICE = "ab" * 32


def rewritten(backup: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Path:
    """Return a copy of a backup whose manifest and members were changed."""
    with tarfile.open(backup) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}  # type: ignore[union-attr]
    manifest = json.loads(files.pop("manifest.json"))
    change(manifest, files)
    target = backup.with_name("changed.tar")
    with tarfile.open(target, "w") as tar:
        for name, content in {"manifest.json": json.dumps(manifest).encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target


def test_a_relay_is_moved_to_another_machine(tmp_path: Path) -> None:
    """Mail, keys, senders, queue and blobs of a running relay are there after a restore."""
    backup = tmp_path / "relay.backup"
    with RelayProcess(tmp_path / "old", first_start=True) as relay:
        address = relay.create_mailbox()
        with smtplib.SMTP(*relay.smtp, timeout=30) as session:
            session.ehlo()
            session.sendmail("a@example.org", address, LETTER, ["BODY=8BITMIME"])
        with relay.http() as api:
            sender = {"address": "s@example.org", "upstream": "smtps://u:geheim@mail.example:465"}
            api.post("/api/v1/senders", json=sender).raise_for_status()
            letter = {"from": "s@example.org", "to": [address], "subject": "later", "text": "x"}
            later = {**letter, "send_at": "2099-01-01T00:00:00Z"}
            api.post("/api/v1/messages/send", json=later).raise_for_status()
            key = api.post("/api/v1/keys", json={"owner": "ci", "scopes": ["read"]}).json()
            # Neither a page that is signed in nor a link that signs one in is in the backup.
            api.post("/api/v1/session", json={"token": key["token"]}).raise_for_status()
            api.post("/api/v1/session/links").raise_for_status()
            api.post(
                f"/api/v1/devices/{DEVICE}/blobs",
                content=b"blob",
                headers={"Content-Type": "application/octet-stream"},
            ).raise_for_status()
        done = cli("db", "backup", backup, "--data-dir", relay.data_dir, "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["migrations"] == ALL
        again = cli("db", "backup", backup, "--data-dir", relay.data_dir)
        assert (again.returncode, b"exists already" in again.stderr) == (1, True)
        refused = cli("db", "restore", backup, "--data-dir", relay.data_dir)
        assert (refused.returncode, b"stop it first" in refused.stderr) == (69, True)
        assert relay.stop() == 0
    assert backup.stat().st_mode & 0o777 == 0o600
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []

    new = RelayProcess(tmp_path / "new")
    done = cli("db", "restore", backup, "--data-dir", new.data_dir, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["applied"] == []
    for name in ("secret_key", "encryption_keys", "device_key"):
        assert (new.data_dir / name).read_text() == (relay.data_dir / name).read_text()
        assert (new.data_dir / name).stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(new.data_dir / "devices.db")) as blobs:
        assert blobs.execute("SELECT envelope FROM inbox").fetchall() == [(b"blob",)]
    with new:
        with new.http() as api:
            (entry,) = api.get(f"/api/v1/mailboxes/{address}/messages").json()
            raw = api.get(f"/api/v1/mailboxes/{address}/messages/{entry['id']}/raw")
            assert raw.content == LETTER
            assert [s["address"] for s in api.get("/api/v1/senders").json()] == ["s@example.org"]
            queue = api.get("/api/v1/queue").json()
            assert (queue["paused"], queue["queued"]) == (True, 1)
        with new.http(Authorization=f"Bearer {key['token']}") as api:
            assert api.get("/api/v1/mailboxes").status_code == 200
        with psycopg.connect(new.run["database_url"]) as sql:
            for table in ("page_sessions", "page_links"):
                found = sql.execute(f"SELECT count(*) FROM relay.{table}").fetchone()
                assert found == (0,), table
        rotated = cli("keys", "rotate", "--data-dir", new.data_dir)
        assert rotated.returncode == 0, "every stored password could be read with the keys restored"
        assert new.stop() == 0

    # The same again on top: refused, then done, and what it replaced is kept.
    refused = cli("db", "restore", backup, "--data-dir", new.data_dir)
    assert refused.returncode == 1
    assert b"--force" in refused.stderr
    assert b"secret_key" in refused.stderr
    done = cli("db", "restore", backup, "--force", "--data-dir", new.data_dir)
    assert done.returncode == 0, done.stderr
    assert (new.data_dir / "secret_key.before-restore").exists()
    assert (new.data_dir / "before-restore.devices.db").exists()
    assert (new.data_dir / "secret_key").read_text() == (relay.data_dir / "secret_key").read_text()


@pytest.fixture(params=[18, 15], ids=lambda version: f"pg{version}")
def old_url(clusters: Clusters, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A database of the first two migrations, with mail in it."""
    cluster = clusters.get(request.param)
    name = cluster.new_database("template1")
    folder = tmp_path / "migrations"
    folder.mkdir()
    for migration in migrations()[:2]:
        (folder / migration.name).write_text(migration.sql)
    trio.run(partial(migrate, cluster.dsn(name), folder))
    with psycopg.connect(cluster.dsn(name), autocommit=True) as sql:
        sql.execute("SELECT relay.create_mailbox(60)")
    yield cluster.dsn(name)
    cluster.drop_database(name)


def test_a_backup_of_an_older_relay_is_brought_up_to_date(old_url: str, tmp_path: Path) -> None:
    """On one's own server of any version: the schema is replaced whole, then migrated."""
    env = {"RELAY_DATABASE__URL": old_url}
    backup = tmp_path / "b"
    arguments = ("--data-dir", tmp_path / "data")
    done = cli("db", "backup", backup, *arguments, "--json", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["migrations"] == ALL[:2]
    refused = cli("db", "restore", backup, *arguments, env=env)
    assert (refused.returncode, b"has mail in it" in refused.stderr) == (1, True), refused.stderr
    with psycopg.connect(old_url, autocommit=True) as sql:
        sql.execute("SELECT relay.create_mailbox(60)")
        done = cli("db", "restore", backup, "--force", *arguments, "--json", env=env)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["applied"] == ALL[2:]
        assert sql.execute("SELECT count(*) FROM relay.mailboxes").fetchone() == (1,)
        assert sql.execute("SELECT to_regnamespace('relay_before_restore')").fetchone() == (None,)
        assert sql.execute("SELECT paused FROM relay.outbound_control").fetchone() == (True,)


@pytest.mark.parametrize("old_url", [18], indirect=True)
def test_a_restore_that_fails_changes_nothing(old_url: str, tmp_path: Path) -> None:
    """A damaged backup is found out; one that PostgreSQL refuses leaves what was there."""
    env = {"RELAY_DATABASE__URL": old_url}
    backup = tmp_path / "b"
    arguments = ("--force", "--data-dir", tmp_path / "data")
    assert cli("db", "backup", backup, "--data-dir", tmp_path / "data", env=env).returncode == 0

    def damage(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        files["database.dump"] = files["database.dump"][:-2000] + bytes(2000)

    done = cli("db", "restore", rewritten(backup, damage), *arguments, env=env)
    assert (done.returncode, b"damaged" in done.stderr) == (1, True)

    def damage_and_sign(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        import hashlib

        damage(manifest, files)
        digest = hashlib.sha256(files["database.dump"]).hexdigest()
        manifest["files"]["database.dump"]["sha256"] = digest

    done = cli("db", "restore", rewritten(backup, damage_and_sign), *arguments, env=env)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(b"\n") == 1
    with psycopg.connect(old_url) as sql:
        assert sql.execute("SELECT count(*) FROM relay.mailboxes").fetchone() == (1,)
        assert sql.execute("SELECT to_regnamespace('relay_before_restore')").fetchone() == (None,)

    def newer(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        manifest["migrations"].append(9999)

    done = cli("db", "restore", rewritten(backup, newer), *arguments, env=env)
    assert (done.returncode, b"newer" in done.stderr) == (78, True)

    def strange(manifest: dict[str, Any], files: dict[str, bytes]) -> None:
        manifest["files"]["../../etc/passwd"] = {"sha256": ""}

    done = cli("db", "restore", rewritten(backup, strange), *arguments, env=env)
    assert (done.returncode, b"no backup" in done.stderr) == (1, True)
    nonsense = tmp_path / "nonsense"
    nonsense.write_bytes(b"x" * 4096)
    done = cli("db", "restore", nonsense, *arguments, env=env)
    assert (done.returncode, b"is no backup" in done.stderr) == (1, True)
    shutil.rmtree(tmp_path / "data", ignore_errors=True)


def test_nothing_to_back_up_is_said(tmp_path: Path) -> None:
    """Without a database there is no backup, and no half of one."""
    done = cli("db", "backup", tmp_path / "b", "--data-dir", tmp_path / "data")
    assert done.returncode == 69
    assert list(tmp_path.iterdir()) == []
    done = cli("db", "backup", tmp_path / "nowhere" / "b", "--data-dir", tmp_path / "data")
    assert (done.returncode, b"cannot be written" in done.stderr) == (1, True)
