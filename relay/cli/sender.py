"""`relay sender`: upstream identities."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relay.cli import options, output
from relay.cli.client import Api, segment
from relay.cli.messages import token_from

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

    UPSTREAM is loop:, smtp+starttls:// or smtps://user:password@host:port; a - reads it from
    standard input, where other users of this machine cannot see the password.
    """
    if upstream == "-":
        if token == "-":  # noqa: S105 - not a secret
            raise click.UsageError("UPSTREAM and --token cannot both be read from standard input.")
        upstream = sys.stdin.readline().strip()
    api = Api.find(data_dir, token=token_from(token))
    made = api.call("POST", BASE, json={"address": address, "upstream": upstream}).json()
    if as_json:
        output.document(made)
        return
    output.say(output.line(made["address"]))


@sender.command(name="list")
@options.limit(50)
@options.token
@options.data_dir
@options.as_json
def list_(limit: int, everything: bool, token: str | None, data_dir: Path, as_json: bool) -> None:
    """List the senders; passwords are not shown."""
    api = Api.find(data_dir, token=token_from(token))
    found = list(api.pages(BASE, limit=None if everything else limit))
    if as_json:
        output.document(found)
        return
    output.table(
        ("address", "upstream", "user", "made"),
        [
            (
                output.line(item["address"]),
                output.line(item["upstream"]),
                output.line(item["username"]),
                output.moment(item["created_at"]),
            )
            for item in found
        ],
    )


@sender.command()
@click.argument("address")
@options.token
@options.data_dir
def remove(address: str, token: str | None, data_dir: Path) -> None:
    """Remove the sender of ADDRESS: its mail takes the relay's own upstream from now on."""
    api = Api.find(data_dir, token=token_from(token))
    api.call("DELETE", f"{BASE}/{segment(address)}")
