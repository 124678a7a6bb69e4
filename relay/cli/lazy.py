"""Groups of commands whose files are loaded when a command is asked for.

All commands together take three times as long to load as the one that runs: mostly HTTP, e-mail and
TLS of the standard library.  A group that shows its help loads all that it has.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, cast

import click


class LazyGroup(click.Group):
    """A group that knows, besides its commands, where others are: name to "module:attribute"."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.elsewhere = elsewhere

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order in which they were declared."""
        return [*self.commands, *self.elsewhere]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of this name, loading it if it was not; None: there is none."""
        if cmd_name in self.elsewhere:
            module, _, attribute = self.elsewhere[cmd_name].partition(":")
            return cast(click.Command, getattr(importlib.import_module(module), attribute))
        return super().get_command(ctx, cmd_name)
