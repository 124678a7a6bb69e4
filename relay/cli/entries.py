"""What the commands on lists of one's own entries have in common: list, remove, and what add says.

Senders, suppressions, webhooks and keys are such lists (`relay/http/lists/entries.py` is their
other side); each file says what one is made of, and how it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from relay.cli import options, output
from relay.cli.client import Api, segment
from relay.cli.options import token_from


def add(
    path: str,
    values: Mapping[str, Any],
    shown: str,
    *,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> dict[str, Any]:
    """Post an entry and print the field `shown` of what was made, or all of it as JSON."""
    api = Api.find(data_dir, token=token_from(token))
    made: dict[str, Any] = api.call("POST", path, json=dict(values)).json()
    if as_json:
        output.document(made)
    else:
        output.say(output.line(made[shown]))
    return made


def newest(
    api: Api, path: str, limit: int | None, *, quiet: bool, **params: Any
) -> list[dict[str, Any]]:
    """Return the first `limit` of a list, and note what shows the rest; `quiet`: without a note."""
    found = list(api.pages(path, limit=limit and limit + 1, **params))
    if limit is not None and len(found) > limit:
        del found[limit:]
        if not quiet:
            output.note(f"relay: There are more than these {limit}; --all shows all.")
    return found


class Flag(NamedTuple):
    """An option of a list's commands: its name, what it does, and what it adds to the query."""

    name: str
    help: str
    params: Mapping[str, str]

    def option(self) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """What adds it to a command."""
        return click.option(f"--{self.name}", self.name, is_flag=True, help=self.help)


Choice = tuple[str, str, str]
"""An option with a value, which a parameter of the query has: its name, METAVAR, what it does."""


def _own(flags: Sequence[Flag], choice: Choice | None) -> list[Callable[..., Any]]:
    """What adds these options to a command."""
    own: list[Callable[..., Any]] = [flag.option() for flag in flags]
    if choice is not None:
        name, metavar, text = choice
        own.append(click.option(f"--{name}", f"choice_{name}", metavar=metavar, help=text))
    return own


def _params(
    said: Mapping[str, Any], flags: Sequence[Flag], choice: Choice | None
) -> dict[str, str]:
    """What the options that were given add to the query."""
    given = [dict(flag.params) for flag in flags if said[flag.name]]
    if choice is not None and said[f"choice_{choice[0]}"] is not None:
        given.append({choice[0]: said[f"choice_{choice[0]}"]})
    if len(given) > 1:
        raise click.UsageError("Say once whose are meant.")
    return given[0] if given else {}


def lists(
    group: click.Group,
    path: str,
    text: str,
    columns: Mapping[str, Callable[[dict[str, Any]], output.Cell]],
    *,
    name: str = "list",
    by_token: bool = True,
    spare: Sequence[str] = (),
    flags: Sequence[Flag] = (),
    choice: Choice | None = None,
) -> None:
    """Give `group` a command that lists what is at `path`; `columns` are headings and cells.

    `by_token`: whether others than the administrator may call it; `spare`: the columns that a
    narrow terminal does without, the first first; `flags`, `choice`: which entries are meant.
    """

    def command(
        limit: int,
        everything: bool,
        data_dir: Path,
        as_json: bool,
        token: str | None = None,
        **said: Any,
    ) -> None:
        api = Api.find(data_dir, token=token_from(token))
        params = _params(said, flags, choice)
        found = newest(api, path, None if everything else limit, quiet=as_json, **params)
        if as_json:
            output.document(found)
            return
        rows: list[Sequence[output.Cell]] = [
            [cell(item) for cell in columns.values()] for item in found
        ]
        output.listing(tuple(columns), rows, spare)

    own = _own(flags, choice)
    shared = (options.limit(50), options.data_dir, options.as_json)
    _add(group, command, name, text, by_token, *own, *shared)


def removes(
    group: click.Group,
    path: str,
    text: str,
    metavar: str,
    *,
    name: str = "remove",
    by_token: bool = True,
    flags: Sequence[Flag] = (),
    choice: Choice | None = None,
) -> None:
    """Give `group` a command that removes one entry below `path`."""

    def command(entry: str, data_dir: Path, token: str | None = None, **said: Any) -> None:
        params = _params(said, flags, choice)
        api = Api.find(data_dir, token=token_from(token))
        api.call("DELETE", f"{path}/{segment(entry)}", params=params)

    own = _own(flags, choice)
    argument = click.argument("entry", metavar=metavar)
    _add(group, command, name, text, by_token, argument, *own, options.data_dir)


def _add(
    group: click.Group,
    command: Callable[..., None],
    name: str,
    text: str,
    by_token: bool,
    *decorators: Callable[[Callable[..., None]], Callable[..., None]],
) -> None:
    wrapped = command
    for decorate in reversed(decorators):
        wrapped = decorate(wrapped)
    if by_token:
        wrapped = options.token(wrapped)
    group.command(name, help=text)(wrapped)


def cell(name: str) -> Callable[[dict[str, Any]], output.Cell]:
    """Return what shows a field as one safe line."""
    return lambda item: output.line(item[name])


def moment(name: str) -> Callable[[dict[str, Any]], output.Cell]:
    """Return what shows a field that is an instant."""
    return lambda item: output.moment(item[name])


def joined(name: str) -> Callable[[dict[str, Any]], output.Cell]:
    """Return what shows a field that is a list of words."""
    return lambda item: output.line(", ".join(item[name]))
