"""`relay key`: API keys."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
    help="What it may do: read, send (the password of the submission port, too), accounts, admin; "
    "separated by commas.",
)
@click.option(
    "--plan",
    default="free",
    show_default=True,
    metavar="P",
    help="How long, how many and how large its mailboxes may be, and how often it may call: free, "
    "pro, enterprise.",
)
@click.option(
    "--from",
    "senders",
    multiple=True,
    metavar="ADDRESS",
    help="What it may send from: an address, @domain, or own for the addresses of its mailboxes; "
    "may be given several times.",
)
@options.data_dir
@options.as_json
def create(
    owner: str, scope: str, plan: str, senders: tuple[str, ...], data_dir: Path, as_json: bool
) -> None:
    """Make an API key and print its token, which is shown this once only.

    \b
    Examples:
      relay key create --owner tests
      relay key create --owner shop --scope send --from @shop.example
    """
    scopes = [name.strip() for name in scope.split(",") if name.strip()]
    values: dict[str, Any] = {"owner": owner, "scopes": scopes, "plan": plan}
    if senders:
        values["from"] = list(senders)
    made = entries.add(BASE, values, "token", token=None, data_dir=data_dir, as_json=as_json)
    if not as_json and output.is_terminal(sys.stderr):
        output.note(
            f"key {made['id']}, which may {' and '.join(scopes)}; keep the token, it is not shown "
            "again"
        )


def _state(item: dict[str, Any]) -> output.Cell:
    if item["revoked_at"]:
        return "revoked", "red"
    ended = item["expires_at"] and datetime.fromisoformat(item["expires_at"]) <= datetime.now(UTC)
    return ("ended", "red") if ended else ("valid", "green")


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
        "used": entries.moment("last_used_at"),
        "from": lambda item: output.line(", ".join(item["from"] or ["any"])),
        "state": _state,
    },
    by_token=False,
    spare=("created", "plan", "used", "from"),
)
entries.removes(
    key,
    BASE,
    "Revoke an API key: it opens nothing from now on.",
    "ID",
    name="revoke",
    by_token=False,
)
