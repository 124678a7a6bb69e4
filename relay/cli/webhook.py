"""`relay webhook`: who is told what becomes of outbound mail."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import entries, options
from relay.cli.client import Api, segment
from relay.cli.options import token_from
from relay.webhooks.kinds import KINDS

BASE = "/api/v1/webhooks"


@click.group()
def webhook() -> None:
    """Who is told what becomes of outbound mail and of accounts."""


@webhook.command()
@click.argument("url")
@click.option(
    "--event",
    "events",
    type=click.Choice(KINDS),
    multiple=True,
    default=KINDS,
    show_default="all of them",
    help="Only these; may be repeated.",
)
@options.token
@options.data_dir
@options.as_json
def add(
    url: str, events: tuple[str, ...], token: str | None, data_dir: Path, as_json: bool
) -> None:
    """Post to URL what becomes of one's messages and accounts; prints the verifying secret."""
    values = {"url": url, "events": events}
    entries.add(BASE, values, "secret", token=token, data_dir=data_dir, as_json=as_json)


@webhook.command()
@click.argument("event_id", metavar="ID")
@options.token
@options.data_dir
def retry(event_id: str, token: str | None, data_dir: Path) -> None:
    """Post the event ID again, which was given up."""
    api = Api.find(data_dir, token=token_from(token))
    api.call("POST", f"{BASE}/events/{segment(event_id)}/retry")


entries.lists(
    webhook,
    BASE,
    "List the webhooks.",
    {"id": entries.cell("id"), "url": entries.cell("url"), "events": entries.joined("events")},
)
entries.removes(webhook, BASE, "Tell a webhook nothing more.", "ID")
entries.lists(
    webhook,
    f"{BASE}/events",
    "List the events that were given up, within the last week.",
    {
        "id": entries.cell("id"),
        "event": entries.cell("type"),
        "message": entries.cell("message_id"),
        "url": entries.cell("url"),
        "attempts": entries.cell("attempts"),
        "given up": entries.moment("given_up_at"),
        "error": entries.cell("error"),
    },
    name="events",
    spare=("url", "message", "attempts", "given up"),
)
