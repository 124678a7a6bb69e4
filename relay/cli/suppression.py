"""`relay suppression`: addresses that get no mail."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import options, output
from relay.cli.client import Api, segment
from relay.cli.messages import token_from

BASE = "/api/v1/suppressions"


@click.group()
def suppression() -> None:
    """Addresses that get no mail."""


@suppression.command()
@click.argument("address")
@click.option("--reason", default="", metavar="R", help="Why; for the list.")
@options.token
@options.data_dir
@options.as_json
def add(address: str, reason: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Send nothing to ADDRESS from now on; what is queued for it is cancelled in its turn."""
    api = Api.find(data_dir, token=token_from(token))
    made = api.call("POST", BASE, json={"address": address, "reason": reason}).json()
    if as_json:
        output.document(made)
        return
    output.say(output.line(made["address"]))


@suppression.command(name="list")
@options.limit(50)
@options.token
@options.data_dir
@options.as_json
def list_(limit: int, everything: bool, token: str | None, data_dir: Path, as_json: bool) -> None:
    """List the suppressed addresses."""
    api = Api.find(data_dir, token=token_from(token))
    found = list(api.pages(BASE, limit=None if everything else limit))
    if as_json:
        output.document(found)
        return
    output.table(
        ("address", "reason", "since"),
        [
            (
                output.line(item["address"]),
                output.line(item["reason"]),
                output.moment(item["created_at"]),
            )
            for item in found
        ],
    )


@suppression.command()
@click.argument("address")
@options.token
@options.data_dir
def remove(address: str, token: str | None, data_dir: Path) -> None:
    """Let ADDRESS have mail again."""
    api = Api.find(data_dir, token=token_from(token))
    api.call("DELETE", f"{BASE}/{segment(address)}")
