"""`relay key`: API keys."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relay.cli import entries, options, output

BASE = "/api/v1/keys"


@click.group()
def key() -> None:
    """API keys."""


@key.command()
@click.option("--owner", required=True, metavar="NAME", help="Who gets it; for the list.")
@click.option(
    "--scope",
    default="read",
    show_default=True,
    metavar="A,B",
    help="What it may do: read, send, admin; separated by commas.",
)
@click.option(
    "--plan",
    default="free",
    show_default=True,
    metavar="P",
    help="How long its mailboxes may live: free, pro, enterprise.",
)
@options.data_dir
@options.as_json
def create(owner: str, scope: str, plan: str, data_dir: Path, as_json: bool) -> None:
    """Make an API key and print its token, which is shown this once only."""
    scopes = [name.strip() for name in scope.split(",") if name.strip()]
    values = {"owner": owner, "scopes": scopes, "plan": plan}
    made = entries.add(BASE, values, "token", token=None, data_dir=data_dir, as_json=as_json)
    if not as_json and output.is_terminal(sys.stderr):
        output.note(f"key {made['id']}; keep the token, it is not shown again")


entries.lists(
    key,
    BASE,
    "List the API keys; their tokens are known to nobody but their holders.",
    {
        "id": entries.cell("id"),
        "owner": entries.cell("owner"),
        "scopes": entries.joined("scopes"),
        "plan": entries.cell("plan"),
        "created": entries.moment("created_at"),
        "state": lambda item: ("revoked", "red") if item["revoked_at"] else ("valid", "green"),
    },
    by_token=False,
)
entries.removes(
    key,
    BASE,
    "Revoke an API key: it opens nothing from now on.",
    "ID",
    name="revoke",
    by_token=False,
)
