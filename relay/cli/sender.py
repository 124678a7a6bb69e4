"""`relay sender`: upstream identities."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relay.cli import entries, options

BASE = "/api/v1/senders"


@click.group()
def sender() -> None:
    """Upstream identities: whose mail goes through which server."""


@sender.command()
@click.argument("address")
@click.argument("upstream")
@options.token
@options.data_dir
@options.as_json
def add(address: str, upstream: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Send mail from ADDRESS through UPSTREAM; replaces what was there.

    UPSTREAM is loop:, mx:, smtp+starttls:// or smtps://user:password@host:port; a - reads it from
    standard input, where other users of this machine cannot see the password.
    """
    if upstream == "-":
        if token == "-":  # noqa: S105 - not a secret
            raise click.UsageError("UPSTREAM and --token cannot both be read from standard input.")
        upstream = sys.stdin.readline().strip()
    values = {"address": address, "upstream": upstream}
    entries.add(BASE, values, "address", token=token, data_dir=data_dir, as_json=as_json)


entries.lists(
    sender,
    BASE,
    "List the senders; passwords are not shown.",
    {
        "address": entries.cell("address"),
        "upstream": entries.cell("upstream"),
        "user": entries.cell("username"),
        "made": entries.moment("created_at"),
    },
    spare=("made",),
)
entries.removes(
    sender,
    BASE,
    "Remove the sender of ADDRESS: its mail takes the relay's own upstream from now on.",
    "ADDRESS",
)
