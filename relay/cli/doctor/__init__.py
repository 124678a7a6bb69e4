"""`relay doctor`: what a person would forget to check, each with what to do about it.

Promises: a relay that runs is judged by its own settings, which it publishes, and not by those of
this shell; changes nothing, starts nothing; each check stands alone (one that cannot be made
because another failed says so); every call has a deadline.  Exit code 1 when one FAILs.

The checks are by what they look at: `machine` (settings, files, ports), `database` and
`replication`, `running` (the relay that runs, its queue, where its mail goes).  What a check looks
at and what it says is in `findings`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from relay.cli import exits, options, output
from relay.cli.doctor import database, machine, running
from relay.cli.doctor.findings import FAIL, OK, WARN, Check, Finding, Patient
from relay.datadir import DataDir
from relay.errors import ConfigError
from relay.memory import loading

STYLES = {OK: "green", WARN: "yellow", FAIL: "red"}
CHECKS: tuple[Check, ...] = (*machine.CHECKS, *database.CHECKS, *running.CHECKS)


@click.command()
@options.config
@options.data_dir
@options.as_json
def doctor(config: Path | None, data_dir: Path, as_json: bool) -> int:
    """Check the machine, the settings, the data directory, the database and the relay."""
    with loading():  # else structlog loads rich, for tracebacks that are not drawn here
        from relay import log

    log.configure("critical", stream=sys.stderr)
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
    from relay.settings import Settings, as_chosen, load

    data = DataDir(data_dir)
    run, here, fault = None, None, ""
    with contextlib.suppress(ConfigError):  # of a directory that is not ours: a finding of its own
        run = data.read_run()
    try:
        here = load(config=config)
    except ConfigError as error:
        fault = str(error)
    values = (run or {}).get("settings")
    if values is None:
        return Patient(data, here, fault, run)
    with contextlib.suppress(ConfigError):  # of another version, which has its own finding
        return Patient(data, as_chosen(values, here or Settings()), fault, run, here)
    return Patient(data, here, fault, run)


def examine(patient: Patient, checks: tuple[Check, ...] = CHECKS) -> Iterator[Finding]:
    """Make every check; one that breaks is itself a FAIL."""
    for check in checks:
        try:
            yield from check(patient)
        except Exception as error:  # a check that cannot be made is a finding, not an end
            name = check.__name__.removeprefix("_").replace("_", " ")
            yield Finding(name, FAIL, f"the check itself failed: {output.line(error)}")
