"""`relay db` and `relay doctor` without a running relay, on real servers."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg

from relay.db.migrate import migrations
from tests.cli.command import cli
from tests.conftest import Clusters

ALL = [migration.number for migration in migrations()]


def test_an_external_database_is_found_by_the_settings(database_url: str, tmp_path: Path) -> None:
    """url, check and migrate use RELAY_DATABASE__URL and need no data directory."""
    settings = {"RELAY_DATABASE__URL": database_url}
    assert cli("db", "url", cwd=tmp_path, env=settings).stdout.decode().strip() == database_url
    done = cli("db", "check", "--json", cwd=tmp_path, env=settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"server_version": 18, "applied": ALL, "pending": []}
    assert not (tmp_path / "var").exists()


def test_a_schema_that_is_behind_is_1_until_migrated(clusters: Clusters, tmp_path: Path) -> None:
    """check ends with 1 and says what to run; migrate does it once, and then has nothing to do."""
    cluster = clusters.get(18)
    name = cluster.new_database("template1")
    try:
        settings = {"RELAY_DATABASE__URL": cluster.dsn(name)}
        behind = cli("db", "check", cwd=tmp_path, env=settings)
        assert behind.returncode == 1
        assert b"relay db migrate" in behind.stdout
        ill = cli("doctor", "--json", cwd=tmp_path, env=settings)
        assert ill.returncode == 1
        findings = {item["check"]: item for item in json.loads(ill.stdout)}
        assert findings["schema"]["state"] == "FAIL"
        first = cli("db", "migrate", "--json", cwd=tmp_path, env=settings)
        assert json.loads(first.stdout) == {"applied": ALL}
        assert (
            cli("db", "migrate", cwd=tmp_path, env=settings).stdout == b"The schema is current.\n"
        )
        assert cli("db", "check", cwd=tmp_path, env=settings).returncode == 0
    finally:
        cluster.drop_database(name)


def test_a_schema_of_a_newer_relay_is_78(database_url: str, tmp_path: Path) -> None:
    """The database of a newer program is refused in one sentence by check, migrate and doctor."""
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "INSERT INTO relay.schema_migrations (number, name, checksum) VALUES (9999, 'x', 'y')"
        )
    for command in ("check", "migrate"):
        done = cli("db", command, cwd=tmp_path, env={"RELAY_DATABASE__URL": database_url})
        assert done.returncode == 78
        assert b"9999" in done.stderr
        assert done.stderr.count(b"\n") == 1
    assert cli("doctor", cwd=tmp_path, env={"RELAY_DATABASE__URL": database_url}).returncode == 1


def test_a_database_that_is_away_is_69(tmp_path: Path) -> None:
    """A server that does not answer is one sentence without the password, and 69."""
    url = "postgresql://user:geheim@127.0.0.1:9/nothing"
    done = cli("db", "check", cwd=tmp_path, env={"RELAY_DATABASE__URL": url})
    assert done.returncode == 69
    assert b"geheim" not in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_the_embedded_server_runs_for_the_time_of_the_command(tmp_path: Path) -> None:
    """Without a relay, migrate makes the embedded database and check finds it; nothing stays up."""
    data = tmp_path / "data"
    nothing = cli("db", "check", "--data-dir", data)
    assert nothing.returncode == 69
    assert b"There is no database" in nothing.stderr
    assert not data.exists()
    made = cli("db", "migrate", "--json", "--data-dir", data)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == {"applied": ALL}
    assert cli("db", "check", "--data-dir", data).returncode == 0
    assert not _inhabitants(data)
    stopped = cli("db", "url", "--data-dir", data)
    assert stopped.returncode == 69
    assert b"relay up" in stopped.stderr


def test_the_doctor_names_what_is_wrong(tmp_path: Path) -> None:
    """Each fault has its line: a bad setting, a directory open to others, a readable key."""
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    data.chmod(0o755)
    (data / "secret_key").write_text("00" * 32)
    (data / "secret_key").chmod(0o644)
    done = cli("doctor", "--json", "--data-dir", data, env={"RELAY_SMTP__BINDD": "x"})
    assert done.returncode == 1
    findings = {item["check"]: item for item in json.loads(done.stdout)}
    assert findings["settings"]["state"] == "FAIL"
    assert "RELAY_SMTP__BIND?" in findings["settings"]["found"]
    assert findings["data directory"]["state"] == "warn"
    assert findings["secret_key"]["advice"] == f"chmod 600 {data / 'secret_key'}"
    assert findings["relay"]["state"] == "warn"


def test_the_doctor_reminds_of_the_domains(tmp_path: Path) -> None:
    """SMTP open to the world for local domains, and HTTP without a public URL, are warned of."""
    done = cli(
        "doctor",
        "--json",
        "--data-dir",
        tmp_path,
        env={
            "RELAY_SMTP__BIND": "0.0.0.0:0",
            "RELAY_HTTP__BIND": "0.0.0.0:0",
            "RELAY_LOG__LEVEL": "debug",
        },
    )
    findings = {item["check"]: item for item in json.loads(done.stdout)}
    assert [findings[name]["state"] for name in ("domains", "public URL", "log level")] == [
        "warn"
    ] * 3


def _inhabitants(directory: Path) -> list[str]:
    """Return the processes that work in `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(directory):
                found.append((process / "comm").read_text().strip())
        except OSError:
            continue
    return found
