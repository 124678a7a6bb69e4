"""`relay suppression`: addresses that get no mail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import click

from relay.cli import entries, options, output

BASE = "/api/v1/suppressions"
_REPORTS = entries.Flag(
    "reports",
    "Those of the relay's own reports of TLS, which nobody else's mail heeds.",
    {"owner": "reports"},
)
_ALL = entries.Flag("everybody", "Those of all keys and the administrator's.", {"owner": "all"})
_OWNER = "owner", "ID", "Those of this key (relay key list has the ids), not one's own."


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
    values = {"address": address, "reason": reason}
    entries.add(BASE, values, "address", token=token, data_dir=data_dir, as_json=as_json)


entries.lists(
    suppression,
    BASE,
    "List the addresses that one has suppressed oneself: the administrator, or --token's key.",
    {
        "address": entries.cell("address"),
        "cause": entries.cell("cause"),
        "reason": entries.cell("reason"),
        "since": entries.moment("created_at"),
        "whose": lambda item: output.line(_whose(item)),
    },
    spare=("whose",),
    flags=(_ALL, _REPORTS),
    choice=_OWNER,
)
entries.removes(
    suppression,
    BASE,
    "Let ADDRESS have mail again. Without --owner one's own suppression of it is lifted.",
    "ADDRESS",
    flags=(_REPORTS,),
    choice=_OWNER,
)


def _whose(item: Mapping[str, Any]) -> str:
    """Whose mail an address does not get: a key's, by what it is called and its id."""
    if item["owner"] == str(UUID(int=0)):
        return "administrator"
    name = item["owner_name"]
    return item["owner"] if name is None else f"{name} ({item['owner']})"
