"""`relay suppression`: addresses that get no mail."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import entries, options

BASE = "/api/v1/suppressions"
_REPORTS = entries.Flag(
    "reports",
    "Those of the relay's own reports of TLS, which nobody else's mail heeds.",
    {"owner": "reports"},
)


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
    "List the suppressed addresses.",
    {
        "address": entries.cell("address"),
        "cause": entries.cell("cause"),
        "reason": entries.cell("reason"),
        "since": entries.moment("created_at"),
    },
    flag=_REPORTS,
)
entries.removes(suppression, BASE, "Let ADDRESS have mail again.", "ADDRESS", flag=_REPORTS)
