"""`relay webhook`: who is told what becomes of outbound mail."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import options, output
from relay.cli.client import Api, segment
from relay.cli.messages import token_from

BASE = "/api/v1/webhooks"
EVENTS = ("message.delivered", "message.failed", "message.bounced")


@click.group()
def webhook() -> None:
    """Who is told what becomes of outbound mail."""


@webhook.command()
@click.argument("url")
@click.option(
    "--event",
    "events",
    type=click.Choice(EVENTS),
    multiple=True,
    default=EVENTS,
    show_default="all three",
    help="Only these; may be repeated.",
)
@options.token
@options.data_dir
@options.as_json
def add(
    url: str, events: tuple[str, ...], token: str | None, data_dir: Path, as_json: bool
) -> None:
    """Post to URL what becomes of one's messages; prints the secret that verifies the posts."""
    api = Api.find(data_dir, token=token_from(token))
    made = api.call("POST", BASE, json={"url": url, "events": events}).json()
    if as_json:
        output.document(made)
        return
    output.say(output.line(made["secret"]))


@webhook.command(name="list")
@options.limit(50)
@options.token
@options.data_dir
@options.as_json
def list_(limit: int, everything: bool, token: str | None, data_dir: Path, as_json: bool) -> None:
    """List the webhooks."""
    api = Api.find(data_dir, token=token_from(token))
    found = list(api.pages(BASE, limit=None if everything else limit))
    if as_json:
        output.document(found)
        return
    output.table(
        ("id", "url", "events"),
        [
            (output.line(item["id"]), output.line(item["url"]), ", ".join(item["events"]))
            for item in found
        ],
    )


@webhook.command()
@click.argument("webhook_id", metavar="ID")
@options.token
@options.data_dir
def remove(webhook_id: str, token: str | None, data_dir: Path) -> None:
    """Tell a webhook nothing more."""
    api = Api.find(data_dir, token=token_from(token))
    api.call("DELETE", f"{BASE}/{segment(webhook_id)}")
