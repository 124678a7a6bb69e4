"""`relay db backup` and `relay db restore`: everything that a relay is, in one file.

The file is a tar: `manifest.json`, `database.dump` (pg_dump's custom format, the schema `relay`
alone), `devices.db` where devices' blobs are kept in SQLite, and the keys of the data directory,
without which stored passwords cannot be read nor tokens verified.  It is as secret as the data
directory: mode 0600.

Promises
  * A backup is taken while the relay runs and is consistent in each part: the dump is one
    snapshot, the blobs are one snapshot, the keys open whatever the dump holds, a rotation
    under way included.  The file appears whole, or not at all.
  * It holds no session of the operator's page: whoever signed out before the restore stays out.
  * A restore replaces the schema in one transaction: it is all there, or what was there before
    still is.  Then the migrations that the backup lacks are applied.  Nothing is overwritten
    without --force, and no relay may run on the data directory meanwhile.
  * Restored, the outbound queue is paused: what was waiting when the backup was made may have
    been sent since, and only a person can say.

Fails with one sentence; with 78 for the backup of a newer relay.

Why pg_dump and not copies of files: it does not stop anybody, works on a server of one's own too,
and its dump goes into another version of PostgreSQL.  Its binaries come with the embedded server.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from relay import __version__, child_environment
from relay.cli import exits, options, output
from relay.cli.client import Api
from relay.cli.db import with_database
from relay.cli.exits import Failure
from relay.datadir import SECRETS, DataDir
from relay.errors import ConfigError
from relay.files import sync_directory

if TYPE_CHECKING:
    from relay.settings import Settings

FORMAT = 1
DUMP, DEVICES, MANIFEST = "database.dump", "devices.db", "manifest.json"
_ASIDE = "relay_before_restore"

_PAUSE = b"""
DO $$
BEGIN
    IF to_regclass('relay.outbound_control') IS NOT NULL THEN
        UPDATE relay.outbound_control SET paused = true, paused_at = now();
    END IF;
END $$;
"""
# pg_restore says this at the top for every server; one before 17 does not know it.
_UNKNOWN_BEFORE_17 = b"SET transaction_timeout"


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@options.config
@options.data_dir
@options.as_json
def backup(file: Path, config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Write database, devices' blobs and keys to FILE, while the relay runs or not.

    FILE holds every secret of the relay; keep it as you would keep the data directory.
    """
    from relay.settings import load

    settings = load(config=config)
    if file.exists():
        raise Failure(f"{file} exists already; name another file.")
    with _beside(file) as folder, output.working("Backing up"):
        keys = _keys(data_dir)
        server = with_database(config, data_dir, _dump_to(folder / DUMP, settings), make=False)
        _copy_devices(settings, data_dir, folder / DEVICES)
        for name, text in _joined(keys, _keys(data_dir)).items():
            (folder / name).write_text(text + "\n")
        manifest = _manifest(folder, server)
        _pack(folder, manifest, file)
    size = file.stat().st_size
    if as_json:
        output.document({"file": str(file), "size": size, **manifest})
        return
    output.say(f"Written to {file}: {output.size(size)}, {', '.join(manifest['files'])}.")
    if "secret_key" not in manifest["files"]:
        output.note("relay: The keys are not in it: they are set by variables; keep those too.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--force", is_flag=True, help="Replace what is there; the keys' files move aside.")
@options.config
@options.data_dir
@options.as_json
def restore(file: Path, force: bool, config: Path | None, data_dir: Path, as_json: bool) -> None:
    """Put what FILE holds into the database and the data directory.

    The relay must not run. Afterwards the outbound queue is paused, since what was waiting may
    have been sent after the backup was made: look at `relay queue list --status queued`, cancel
    what has gone out, then `relay queue resume`.
    """
    from relay.settings import load

    settings = load(config=config)
    data = DataDir(data_dir)
    if data.is_held():
        raise Failure(f"A relay runs on {data.path}; stop it first.", exits.UNAVAILABLE)
    with _unpacked(file, data_dir) as (folder, manifest), output.working("Restoring"):
        _refuse_newer(manifest)
        theirs = {
            name: (folder / name).read_text().strip()
            for name in SECRETS
            if name in manifest["files"]
        }
        set_elsewhere = {
            name
            for name, value in (
                ("secret_key", settings.secret_key),
                ("encryption_keys", settings.encryption_keys),
                ("device_key", settings.devices.key),
            )
            if value
        }
        theirs = {name: text for name, text in theirs.items() if name not in set_elsewhere}
        _refuse_to_replace(data, theirs, manifest, force)
        applied = with_database(config, data_dir, _restore_from(folder, settings, force))
        _place(data, theirs, folder if DEVICES in manifest["files"] else None)
    if as_json:
        output.document({"made_at": manifest["made_at"], "applied": applied, "paused": True})
        return
    output.say(f"Restored what {file} held, made {output.moment(manifest['made_at'])}.")
    if applied:
        output.say(f"Applied {', '.join(f'{number:04}' for number in applied)} to it.")
    output.say(
        "The outbound queue is paused: cancel what was sent since, then `relay queue resume`."
    )


def _dump_to(file: Path, settings: Settings) -> Any:
    """Return what dumps the schema to `file`, given the database's URL."""

    async def dump(dsn: str) -> dict[str, Any]:
        from relay.db.migrate import check

        dsn = settings.database.direct_url or dsn  # a pooler would mix its session with others'
        found = await check(dsn)
        await _run(
            "pg_dump", dsn, "--format=custom", "--schema=relay", "--no-owner", "--no-privileges",
            # Who is signed in to the page now must not be again after a restore.
            "--exclude-table-data=relay.page_*", f"--file={file}",
        )  # fmt: skip
        return {"server_version": found.server_version, "migrations": list(found.applied)}

    return dump


def _restore_from(folder: Path, settings: Settings, force: bool) -> Any:
    """Return what replaces the schema by the dump, in one transaction, and migrates it.

    Given the database's URL, it returns the migrations that the backup lacked.
    """

    async def restore(dsn: str) -> list[int]:
        import psycopg

        from relay.db.connection import connect
        from relay.db.migrate import migrate

        dsn = settings.database.direct_url or dsn
        async with await connect(dsn, application_name="relay-restore") as connection:
            cursor = await connection.execute(
                "SELECT to_regnamespace('relay') IS NOT NULL, to_regclass('relay.mailboxes')"
            )
            row = await cursor.fetchone()
            assert row is not None
            there = bool(row[0])
            if row[1] is not None and not force:
                with suppress(psycopg.Error):
                    cursor = await connection.execute(
                        "SELECT EXISTS (SELECT FROM relay.mailboxes)"
                        " OR EXISTS (SELECT FROM relay.outbound_messages)"
                    )
                    row = await cursor.fetchone()
                    if row is not None and row[0]:
                        raise Failure(
                            "The database has mail in it; --force replaces it by the backup's."
                        )
        script = folder / "restore.sql"
        await _run("pg_restore", None, "--no-owner", "--no-privileges", f"--file={script}",
                   str(folder / DUMP))  # fmt: skip
        _frame(script, there)
        await _run(
            "psql", dsn, "--no-psqlrc", "--quiet", "--single-transaction",
            "--set=ON_ERROR_STOP=1", f"--file={script}", "--output=/dev/null",
        )  # fmt: skip
        return await migrate(dsn)

    return restore


def _frame(script: Path, there: bool) -> None:
    """Put the old schema aside before the script, and drop it after; pause the queue."""
    framed = script.with_suffix(".framed")
    with script.open("rb") as body, framed.open("wb") as out:
        if there:
            out.write(f"ALTER SCHEMA relay RENAME TO {_ASIDE};\n".encode())
        for number, line in enumerate(body):
            if number < 50 and line.startswith(_UNKNOWN_BEFORE_17):
                continue
            out.write(line)
        if there:
            out.write(
                f"SET client_min_messages = warning;\nDROP SCHEMA {_ASIDE} CASCADE;\n".encode()
            )
        out.write(_PAUSE)
    framed.replace(script)


async def _run(program: str, dsn: str | None, *arguments: str) -> None:
    """Run one of PostgreSQL's programs; what it says when it fails is the failure's sentence."""
    import trio

    from relay.db.cluster import binaries

    environment = child_environment.environment()
    if dsn is not None:  # not as an argument, where every user of the machine could read it
        environment |= _as_environment(dsn)
    done = await trio.run_process(
        [str(binaries() / program), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in said if "error" in line.lower() or "fatal" in line.lower()]
        raise Failure(
            f"{program} failed: {' '.join((errors or said or ['for no reason given'])[:2])}"
        )


def _as_environment(dsn: str) -> dict[str, str]:
    """Return a connection string as the variables that libpq reads."""
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(dsn)
    names = {
        option.keyword.decode(): option.envvar.decode()
        for option in pq.Conninfo.get_defaults()
        if option.envvar
    }
    return {names[key]: str(value) for key, value in given.items() if key in names}


def _copy_devices(settings: Settings, data_dir: Path, target: Path) -> None:
    """Copy the devices' blobs, from the running relay or from the file."""
    data = DataDir(data_dir)
    source = data.path / DEVICES
    if settings.devices.store != "sqlite" or not source.exists():
        return
    run = data.read_run()
    if run is not None:
        if "devices_push" not in run:
            return  # this relay does not serve devices, so the file is none of its
        copy = Path(
            Api.find(data_dir)
            .call("POST", "/api/v1/devices/snapshot", timeout=600.0)
            .json()["path"]
        )
        shutil.move(copy, target)
        return
    data.prepare()  # so that no relay starts meanwhile
    try:
        with sqlite3.connect(source) as ours, sqlite3.connect(target) as copied:
            ours.backup(copied)
        for connection in (ours, copied):
            connection.close()
    except sqlite3.Error as error:
        raise Failure(f"{source} cannot be copied: {error}.") from error
    finally:
        data.release()


def _keys(data_dir: Path) -> dict[str, str]:
    found = {}
    for name in SECRETS:
        with suppress(FileNotFoundError):
            found[name] = (data_dir / name).read_text().strip()
    return found


def _joined(before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """Return the keys of both, newest first: a rotation may have come between."""
    return {
        name: ",".join(
            dict.fromkeys([*text.split(","), *filter(None, before.get(name, "").split(","))])
        )
        for name, text in after.items()
    }


def _manifest(folder: Path, server: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "relay": __version__,
        "made_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **server,
        "files": {
            file.name: {"size": file.stat().st_size, "sha256": _digest(file)}
            for file in sorted(folder.iterdir())
        },
    }


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """Give a private directory on the same file system as `file`."""
    parent = file.absolute().parent
    try:
        folder = Path(tempfile.mkdtemp(prefix=".relay-backup-", dir=parent))
    except OSError as error:
        raise Failure(f"{parent} cannot be written to: {error.strerror}.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pack(folder: Path, manifest: dict[str, Any], file: Path) -> None:
    draft = folder / "whole.tar"
    names = list(manifest["files"])
    with (
        open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out,
        tarfile.open(fileobj=out, mode="w") as tar,
    ):
        text = json.dumps(manifest, indent=2).encode()
        entry = tarfile.TarInfo(MANIFEST)
        entry.size, entry.mode = len(text), 0o600
        tar.addfile(entry, io.BytesIO(text))
        for name in names:
            entry = tar.gettarinfo(folder / name, name)
            entry.mode, entry.uid, entry.gid, entry.uname, entry.gname = 0o600, 0, 0, "", ""
            with (folder / name).open("rb") as content:
                tar.addfile(entry, content)
    with draft.open("rb") as whole:
        os.fsync(whole.fileno())
    draft.replace(file)
    sync_directory(file.parent)


@contextmanager
def _unpacked(file: Path, data_dir: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Give a directory with the backup's files, each as it was written, and the manifest."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _beside(data_dir / "x") as folder:
        try:
            with tarfile.open(file) as tar:
                manifest = json.load(_member(tar, MANIFEST))
                for name in manifest["files"]:
                    if name not in {DUMP, DEVICES, *SECRETS}:
                        raise Failure(f"{file} holds {name!r}, which no backup of a relay does.")
                    with (folder / name).open("wb") as out:
                        shutil.copyfileobj(_member(tar, name), out)
                    if _digest(folder / name) != manifest["files"][name]["sha256"]:
                        raise Failure(f"{file} is damaged: {name} is not what was written.")
        except (tarfile.TarError, ValueError, KeyError, TypeError, EOFError) as error:
            raise Failure(f"{file} is no backup of a relay.") from error
        yield folder, manifest


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    found = tar.extractfile(name)
    if found is None:
        raise KeyError(name)
    return found


def _refuse_newer(manifest: dict[str, Any]) -> None:
    from relay.db.migrate import migrations

    known = {migration.number for migration in migrations()}
    if manifest["format"] > FORMAT or set(manifest["migrations"]) - known:
        raise ConfigError(
            f"The backup was made by relay {manifest['relay']}, which is newer than this one: "
            "restore it with that, or a later one."
        )


def _refuse_to_replace(
    data: DataDir, theirs: dict[str, str], manifest: dict[str, Any], force: bool
) -> None:
    ours = _keys(data.path)
    different = [name for name, text in theirs.items() if ours.get(name, text) != text]
    if DEVICES in manifest["files"] and (data.path / DEVICES).exists():
        different.append(DEVICES)
    if different and not force:
        raise Failure(
            f"{data.path} has {', '.join(different)} of its own; --force replaces them, and "
            "keeps the old beside."
        )


def _place(data: DataDir, keys: dict[str, str], devices: Path | None) -> None:
    """Put keys and blobs in place; what they replace moves aside."""
    data.prepare()
    try:
        for name, text in keys.items():
            if (data.path / name).exists() and (data.path / name).read_text().strip() != text:
                os.replace(data.path / name, data.path / f"{name}.before-restore")
            data.keep(name, text)
        if devices is not None:
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    name = DEVICES + suffix
                    os.replace(data.path / name, data.path / f"before-restore.{name}")
            shutil.move(devices / DEVICES, data.path / DEVICES)
            (data.path / DEVICES).chmod(0o600)
    finally:
        data.release()
