"""Runs `relay` as people do: a process of its own, piped or on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from relay.cli.lazy import LazyGroup

TIMEOUT = 60.0
RELAY = [sys.executable, "-m", "relay"]


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment without settings of Relay, and with `changes`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RELAY_") and name not in {"NO_COLOR", "TERM"}
    }
    return {**kept, "TERM": "xterm-256color", **changes}


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yield each command under a group as they are declared, with its name as it is typed."""
    context = click.Context(group)
    for name in group.list_commands(context) if isinstance(group, LazyGroup) else group.commands:
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, click.Group):
            yield from leaves(command, f"{path}{name} ")
        else:
            yield path + name, command


def cli(
    *arguments: str | Path,
    cwd: Path | None = None,
    input: bytes | None = None,
    timeout: float = TIMEOUT,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run `relay` with its output piped; `env` goes into its environment."""
    return subprocess.run(
        [*RELAY, *map(str, arguments)],
        cwd=cwd,
        env=environment(**(env or {})),
        input=input if input is not None else b"",
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def on_terminal(*arguments: str | Path, typed: bytes = b"", **changes: str) -> tuple[int, str]:
    """Run `relay` on a terminal where `typed` is typed; return its exit code and what it wrote."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*RELAY, *map(str, arguments)],
        env=environment(COLUMNS="150", **changes),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        close_fds=True,
    )
    os.close(theirs)
    os.write(ours, typed)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:
        pass  # EIO: the last process on the terminal has gone
    finally:
        os.close(ours)
    return process.wait(TIMEOUT), written.decode("utf-8", "replace")
