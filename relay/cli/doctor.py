"""`relay doctor`: what a person would forget to check, each with what to do about it.

Promises: changes nothing, starts nothing; each check stands alone (one that cannot be made
because another failed says so); every call has a deadline.  Exit code 1 when one FAILs.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay import __version__
from relay.cli import exits, options, output
from relay.cli.client import Api
from relay.cli.exits import Failure
from relay.datadir import DataDir
from relay.errors import ConfigError, RelayError

if TYPE_CHECKING:
    from relay.settings import Settings

OK, WARN, FAIL = "ok", "warn", "FAIL"
STYLES = {OK: "green", WARN: "yellow", FAIL: "red"}

LITTLE_SPACE, NO_SPACE = 2 << 30, 200 << 20  # bytes free
SKEW = 1.0  # seconds between the clocks of database and host
OTHER_FILES = 200  # descriptors beside one a session: pool, workers, HTTP, libraries
DATABASE_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ok, warn or FAIL, what was found, what to do."""

    check: str
    state: str
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Patient:
    """What the checks look at; `settings` is None where they are not valid."""

    data: DataDir
    settings: Settings | None
    fault: str
    run: dict[str, Any] | None

    @property
    def database_url(self) -> str | None:
        """The URL of a server that should be up, else None."""
        if self.settings is not None and self.settings.database.url:
            return self.settings.database.url
        return None if self.run is None else self.run.get("database_url")


@click.command()
@options.config
@options.data_dir
@options.as_json
def doctor(config: Path | None, data_dir: Path, as_json: bool) -> int:
    """Check the machine, the settings, the data directory, the database and the relay."""
    with output.working("Examining"):
        findings = list(examine(_patient(config, data_dir)))
    if as_json:
        output.document([asdict(finding) for finding in findings])
    else:
        output.table(
            ("check", "", "found", "what to do"),
            [(f.check, (f.state, STYLES[f.state]), f.found, f.advice) for f in findings],
        )
    return exits.REFUSED if any(f.state == FAIL for f in findings) else exits.OK


def _patient(config: Path | None, data_dir: Path) -> Patient:
    from relay.settings import load

    data = DataDir(data_dir)
    try:
        return Patient(data, load(config=config), "", data.read_run())
    except ConfigError as error:
        return Patient(data, None, str(error), data.read_run())


def examine(patient: Patient) -> Iterator[Finding]:
    """Make every check; one that breaks is itself a FAIL."""
    for check in CHECKS:
        try:
            yield from check(patient)
        except Exception as error:  # a check that cannot be made is a finding, not an end
            name = check.__name__.removeprefix("_").replace("_", " ")
            yield Finding(name, FAIL, f"the check itself failed: {output.line(error)}")


def _python(_: Patient) -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding(
        "python", FAIL if old else OK, version, "Relay needs Python 3.11 or newer" if old else ""
    )


def _settings(patient: Patient) -> Iterator[Finding]:
    settings = patient.settings
    if settings is None:
        yield Finding("settings", FAIL, output.line(patient.fault), "change that setting")
        return
    yield Finding("settings", OK, "valid")
    level = settings.log.level
    yield Finding(
        "log level",
        WARN if level == "debug" else OK,
        level,
        "debug is slow and verbose; use info unless you hunt something" if level == "debug" else "",
    )
    from relay.settings import is_loopback, parse_address

    if not is_loopback(parse_address(settings.smtp.bind)[0]) and all(
        name == "localhost" or name.endswith(".localhost") for name in settings.smtp.domains
    ):
        yield Finding(
            "domains",
            WARN,
            f"SMTP listens on {settings.smtp.bind}, but every domain is local",
            "set RELAY_SMTP__DOMAINS to the domains whose MX points here",
        )
    if not is_loopback(parse_address(settings.http.bind)[0]) and not settings.http.public_url:
        yield Finding(
            "public URL",
            WARN,
            f"HTTP listens on {settings.http.bind} without a public URL",
            "set RELAY_HTTP__PUBLIC_URL: other Host headers are refused",
        )


def _data_directory(patient: Patient) -> Iterator[Finding]:
    path = patient.data.path
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding("data directory", OK, f"{path} will be made at the first start")
        else:
            yield Finding(
                "data directory",
                FAIL,
                f"{path} cannot be made in {above}",
                "name another with --data-dir or RELAY_DATA_DIR",
            )
        return
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "data directory",
            FAIL,
            f"{path} is not a directory this user can write to",
            "change its owner, or name another with --data-dir or RELAY_DATA_DIR",
        )
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield Finding(
            "data directory",
            WARN,
            f"{path} has mode {mode:04o}: others can look into it",
            f"chmod 700 {path}",
        )
    else:
        yield Finding("data directory", OK, f"{path}, mode {mode:04o}")
    for name in ("secret_key", "encryption_keys", "run/relay.json"):
        file = path / name
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield Finding(name, FAIL, f"{file} can be read by others", f"chmod 600 {file}")


def _disk_space(patient: Patient) -> Iterator[Finding]:
    path = patient.data.path
    existing = next(place for place in (path, *path.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    state = FAIL if free < NO_SPACE else WARN if free < LITTLE_SPACE else OK
    yield Finding(
        "disk space",
        state,
        f"{output.size(free)} free",
        "" if state == OK else "free some, or move the data directory",
    )


def _ports(patient: Patient) -> Iterator[Finding]:
    if patient.settings is None:
        return
    from relay.settings import parse_address

    for name, setting in (
        ("http", patient.settings.http.bind),
        ("smtp", patient.settings.smtp.bind),
    ):
        host, port = parse_address(setting)
        variable = f"RELAY_{name.upper()}__BIND"
        held = str((patient.run or {}).get(name, "")).removeprefix("http://")
        if held:
            same = port in {0, parse_address(held)[1]}
            yield Finding(
                f"{name} port",
                OK if same else WARN,
                f"{held}, held by this relay",
                "" if same else f"{variable} says {setting}; restart the relay to apply it",
            )
        elif port == 0:
            yield Finding(f"{name} port", OK, "any free port")
        else:
            yield _free(f"{name} port", host, port, variable)


def _free(check: str, host: str, port: int, variable: str) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = f"set {variable} to an address of this machine and a free port"
            if error.errno == errno.EADDRINUSE:
                advice = f"stop the program that holds it, or set {variable}"
            elif error.errno == errno.EACCES:
                advice = f"ports below 1024 need privileges; set {variable} to a higher one"
            return Finding(check, FAIL, f"{host}:{port}: {os.strerror(error.errno or 0)}", advice)
    return Finding(check, OK, f"{host}:{port} is free")


def _open_files(patient: Patient) -> Iterator[Finding]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sessions = 1000 if patient.settings is None else patient.settings.smtp.max_connections
    enough = hard == resource.RLIM_INFINITY or hard >= sessions + OTHER_FILES
    yield Finding(
        "open files",
        OK if enough else WARN,
        f"at most {'any number' if hard == resource.RLIM_INFINITY else hard}",
        "" if enough else f"raise the hard limit (ulimit -Hn) to {sessions + OTHER_FILES}",
    )


def _embedded(patient: Patient) -> Iterator[Finding]:
    if patient.settings is None or patient.settings.database.url:
        return
    from relay.db.embedded import binaries, namespace_command

    try:
        yield Finding("embedded PostgreSQL", OK, str(binaries()))
    except ConfigError as error:
        yield Finding("embedded PostgreSQL", FAIL, output.line(error), "make setup")
    if os.geteuid() == 0:
        allowed = namespace_command() is not None
        yield Finding(
            "user namespaces",
            OK if allowed else WARN,
            "allowed" if allowed else "forbidden: PostgreSQL runs under an unprivileged account",
            "" if allowed else "allow them, or run the relay as an ordinary user",
        )


def _database(patient: Patient) -> Iterator[Finding]:
    url = patient.database_url
    if url is None:
        yield Finding("database", OK, "embedded; it runs when the relay runs")
        return
    import trio

    from relay import log
    from relay.db.migrate import check

    log.configure("critical", stream=sys.stderr)

    async def inspect() -> Any:
        with trio.fail_after(DATABASE_TIMEOUT):
            return await check(url)

    try:
        status = trio.run(inspect)
    except trio.TooSlowError:
        yield Finding("database", FAIL, "it does not answer", "see whether it hangs, and its load")
        return
    except RelayError as error:
        yield Finding("database", FAIL, output.line(error), "see RELAY_DATABASE__URL")
        return
    yield Finding("database", OK, f"PostgreSQL {status.server_version} answers")
    yield Finding(
        "schema",
        FAIL if status.pending else OK,
        f"{len(status.pending)} migrations are missing" if status.pending else "current",
        "relay db migrate" if status.pending else "",
    )
    yield _skew(url)


def _skew(url: str) -> Finding:
    import psycopg

    with psycopg.connect(url, connect_timeout=5, application_name="relay-doctor") as connection:
        best = None
        for _ in range(3):  # the quickest answer says it best
            before = time.time()
            row = connection.execute(
                "SELECT extract(epoch FROM clock_timestamp())::float8"
            ).fetchone()
            after = time.time()
            assert row is not None
            if best is None or after - before < best[0]:
                best = after - before, row[0] - (before + after) / 2
        assert best is not None
    skew = best[1]
    return Finding(
        "clocks",
        OK if abs(skew) < SKEW else WARN,
        f"the database's is {abs(skew) * 1000:.0f} ms {'ahead' if skew > 0 else 'behind'}",
        "" if abs(skew) < SKEW else "run NTP on both machines",
    )


def _relay(patient: Patient) -> Iterator[Finding]:
    run = patient.run
    if run is None:
        held = patient.data.is_held()
        yield Finding(
            "relay",
            WARN,
            "starting or stopping" if held else "not running",
            "" if held else "relay up",
        )
        return
    if "http" not in run:
        yield Finding("relay", OK, f"running without control, pid {run['pid']}")
        return
    try:
        api = Api.find(patient.data.path)
        try:
            api.call("GET", "/readyz", timeout=10.0)
        except Failure as failure:
            yield Finding(
                "relay", FAIL, output.line(failure), "relay status and relay tail say more"
            )
        else:
            yield Finding("relay", OK, f"ready at {api.base}, pid {run['pid']}")
        version = str(api.get("/openapi.json")["info"]["version"])
    except Failure as failure:
        yield Finding("relay", FAIL, output.line(failure), "relay tail says more")
        return
    yield Finding(
        "version",
        OK if version == __version__ else WARN,
        f"running {version}, this command {__version__}",
        "" if version == __version__ else "restart the relay to run the installed version",
    )


CHECKS: tuple[Callable[[Patient], Iterator[Finding]], ...] = (
    _python,
    _settings,
    _data_directory,
    _disk_space,
    _ports,
    _open_files,
    _embedded,
    _database,
    _relay,
)
