"""Groups of commands whose files are loaded when a command is run, and not before.

All commands together take three times as long to load as the one that runs: mostly HTTP, e-mail and
TLS of the standard library.  So a group knows what each is for without asking it: its help, and
what a shell completes, load no command (a test holds the sentences to the commands').
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A group that knows, besides its commands, where others are and what they are for.

    `elsewhere`: name to "module:attribute" and the first sentence of its help.
    """

    def __init__(self, *args: Any, elsewhere: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which they were declared."""
        return [*self.commands, *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, loading it if it was not; None: there is none."""
        if cmd_name in self.elsewhere:
            module, _, attribute = self.elsewhere[cmd_name][0].partition(":")
            return cast(click.Command, getattr(importlib.import_module(module), attribute))
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is meant; where there is none, say what may be."""
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            if close := get_close_matches(args[0], self.list_commands(ctx), n=1):
                ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names of all commands, each with what it is for."""
        _Outline(commands=self._outlines()).format_commands(ctx, formatter)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the commands, and then the options, whose names begin so."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=command.get_short_help_str())
            for name, command in self._outlines().items()
            if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def _outlines(self) -> dict[str, click.Command]:
        """All commands; those that are elsewhere know their help and nothing more."""
        return {
            **self.commands,
            **{name: click.Command(name, help=told) for name, (_, told) in self.elsewhere.items()},
        }


class _Outline(click.Group):
    """A group that is only shown."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)
