"""Completion in bash, zsh and fish: installing it, and the values that only a relay knows.

Promises: no start-up file of a shell is changed; the script goes where the shell looks for such
scripts by itself, and where it does not, the line to add is said.  A completion that needs the
running relay gives nothing, silently and within a second, where none answers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli import exits
from relay.cli.exits import Failure

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "fish")
_PATIENCE = 1.0  # seconds
_SHOWN = 100


def install(context: click.Context, _: click.Parameter, shell: str | None) -> None:
    """Handle `--install-completion`: write the script of the shell, and end the command."""
    if shell is None or context.resilient_parsing:
        return
    from click.shell_completion import get_completion_class

    if shell == "this":
        shell = Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise Failure(
            f"Which shell? $SHELL does not name one of {', '.join(SHELLS)}: "
            "relay --install-completion bash.",
            exits.USAGE,
        )
    file, hint = _place(shell)
    script = found(context.command, {}, "relay", "_RELAY_COMPLETE").source()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(script, "utf-8")
    except OSError as error:
        raise Failure(f"{file} cannot be written: {error.strerror}.") from error
    click.echo(f"Written to {file}. {hint}")
    context.exit()


def _place(shell: str) -> tuple[Path, str]:
    """Return where the shell looks for completions, and what the user has to do."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    if shell == "bash":
        file = data / "bash-completion/completions/relay"
        return file, f"New shells have it if bash-completion is installed; else: source {file}"
    if shell == "fish":
        return config / "fish/completions/relay.fish", "New shells have it."
    file = home / ".zfunc/_relay"
    return file, "Have `fpath+=~/.zfunc` in ~/.zshrc, before `compinit`."


def addresses(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the address of a mailbox of the running relay."""
    found = _ask(context, "/api/v1/mailboxes", {"limit": 200}) or []
    return [item["address"] for item in found if item["address"].startswith(incomplete)][:_SHOWN]


def actors(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of an actor of the running relay."""

    def names(node: dict[str, Any]) -> Iterator[str]:
        yield node["name"]
        for child in node["children"]:
            yield from names(child)

    tree = _ask(context, "/api/v1/supervision", {})
    return [] if tree is None else [name for name in names(tree) if name.startswith(incomplete)]


def _ask(context: click.Context, path: str, params: dict[str, Any]) -> Any:
    from relay.cli.client import Api

    data_dir = context.params.get("data_dir") or os.environ.get("RELAY_DATA_DIR") or "var"
    try:
        return Api.find(Path(data_dir)).call("GET", path, params=params, timeout=_PATIENCE).json()
    except Failure:
        return None
