"""What a command loads before it answers: the modules are named, not the milliseconds counted.

A command of which one expects an answer at once has 0.1 s of CPU.  Python, click and what they need
take half of that, so each module that takes a millisecond is one too many.
"""

import subprocess
import sys
from pathlib import Path

import click
import pytest

from relay.cli import cli as whole
from relay.cli.db import db
from relay.cli.lazy import LazyGroup
from tests.cli.command import environment
from tests.relay_process import RelayProcess

HEAVY = {"trio", "asyncio", "httpx", "pydantic", "psycopg", "structlog", "rich", "cryptography"}
"""Never for a command that only asks a relay …"""
SLOW = HEAVY | {"ssl", "email", "http.client", "smtplib", "hashlib", "mimetypes", "traceback"}
"""… nor these, of the standard library."""
FRAME = {"relay", "relay.cli", "relay.cli.completion", "relay.cli.exits", "relay.cli.lazy"}
"""What the command line itself is made of, with `relay.errors`."""
LEAVES = {f"relay.{name}" for name in ("datadir", "errors", "files", "unseen")}
"""What a command has of the relay besides."""

_PROGRAM = """\
import atexit, os, sys
before = set(sys.modules)  # what an environment's own start loads
def tell():
    print(*(set(sys.modules) - before), file=open(os.environ["LOADED"], "w"))
atexit.register(tell)
import relay.cli
sys.argv = ["relay", *sys.argv[1:]]
relay.cli.main()
"""


def loaded(folder: Path, *arguments: str | Path, **env: str) -> set[str]:
    """Run a command; the modules that it has loaded when it ends."""
    file = folder / "loaded"
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *map(str, arguments)],
        env=environment(LOADED=str(file), **env),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(file.read_text().split())


def _ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in {"relay", "actors", "supervisor"}}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ()], ids=" ".join)
def test_what_is_said_of_commands_loads_none(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Help, the version, and what a shell completes are known without any command."""
    env = {} if arguments else {"COMP_WORDS": "relay ", "COMP_CWORD": "1"}
    if not arguments:
        env["_RELAY_COMPLETE"] = "bash_complete"
    found = loaded(tmp_path, *arguments, **env)
    assert _ours(found) == FRAME | {"relay.errors"}
    assert not found & SLOW


def test_help_of_a_group_loads_what_is_in_its_file(tmp_path: Path) -> None:
    """Not what its commands do, nor where other commands are."""
    found = loaded(tmp_path, "db", "--help")
    assert "relay.cli.backup" not in found
    assert not found & SLOW
    assert not loaded(tmp_path, "config", "--help") & SLOW


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("messages", "list"),
        ("mailbox", "list"),
        ("send", "--from", "a@b.example", "--to", "c@relay.localhost", "--subject", "x", "--text",
         "x"),
        ("queue", "stats"),
        ("key", "list"),
    ],
    ids=lambda arguments: arguments[0],
)  # fmt: skip
def test_a_command_that_asks_a_relay_loads_nothing_slow(
    arguments: tuple[str, ...], relay: RelayProcess, tmp_path: Path
) -> None:
    """Neither Trio nor HTTP nor TLS, and of the relay only the command line and small leaves."""
    found = loaded(tmp_path, *arguments, "--data-dir", relay.data_dir)
    assert not found & SLOW
    strangers = {
        name
        for name in _ours(found) - {"relay"}
        if not name.startswith("relay.cli") and name not in LEAVES
    }
    assert not strangers


def test_doctor_loads_no_more_than_its_checks_need(tmp_path: Path) -> None:
    """It reads settings, so it needs pydantic and Trio; but neither rich nor the relay itself."""
    # Another program's port is a fault to it.
    ports = ("HTTP__BIND", "SMTP__BIND", "DEVICES__PUSH_BIND", "DEVICES__RECEIVE_BIND")
    free = {f"RELAY_{port}": "127.0.0.1:0" for port in ports}
    found = loaded(tmp_path, "doctor", "--data-dir", tmp_path / "none", **free)
    assert not found & {"rich", "pygments", "httpx", "quart", "hypercorn", "psycopg", "aiosmtpd"}
    assert not [name for name in found if name.partition(".")[0] in {"actors", "supervisor"}]


@pytest.mark.parametrize("group", [whole, db], ids=["relay", "db"])
def test_what_a_group_says_of_a_command_is_what_the_command_says(group: LazyGroup) -> None:
    """A command that is not loaded is shown as its own help begins."""
    context = click.Context(group)
    for name, (_, told) in group.elsewhere.items():
        command = group.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(1000) == told, name
        assert not command.hidden
    assert group.list_commands(context) == [*group.commands, *group.elsewhere]
