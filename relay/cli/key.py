"""`relay key`: API keys."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from relay.cli import options, output
from relay.cli.client import Api, segment

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
    api = Api.find(data_dir)
    made = api.call("POST", BASE, json={"owner": owner, "scopes": scopes, "plan": plan}).json()
    if as_json:
        output.document(made)
        return
    output.say(output.line(made["token"]))
    if output.is_terminal(sys.stderr):
        output.note(f"key {made['id']}; keep the token, it is not shown again")


@key.command(name="list")
@options.limit(50)
@options.data_dir
@options.as_json
def list_(limit: int, everything: bool, data_dir: Path, as_json: bool) -> None:
    """List the API keys; their tokens are known to nobody but their holders."""
    api = Api.find(data_dir)
    found = list(api.pages(BASE, limit=None if everything else limit))
    if as_json:
        output.document(found)
        return
    output.table(
        ("id", "owner", "scopes", "plan", "created", "state"),
        [
            (
                output.line(item["id"]),
                output.line(item["owner"]),
                output.line(",".join(item["scopes"])),
                output.line(item["plan"]),
                output.moment(item["created_at"]),
                ("revoked", "red") if item.get("revoked_at") else ("valid", "green"),
            )
            for item in found
        ],
    )


@key.command()
@click.argument("key_id", metavar="ID")
@options.data_dir
def revoke(key_id: str, data_dir: Path) -> None:
    """Revoke an API key: it opens nothing from now on."""
    api = Api.find(data_dir)
    api.call("DELETE", f"{BASE}/{segment(key_id)}")
