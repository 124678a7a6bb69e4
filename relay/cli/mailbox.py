"""`relay mailbox`: make, list, show and delete expiring addresses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from relay.cli import completion, entries, options, output
from relay.cli.client import Api, segment
from relay.cli.options import token_from

BASE = "/api/v1/mailboxes"
_SLACK = 60.0  # s; the way here, and clocks that differ


@click.group()
def mailbox() -> None:
    """Expiring addresses."""


@mailbox.command()
@click.option(
    "--ttl",
    type=click.FloatRange(0, min_open=True),
    metavar="MIN",
    help="Minutes to live, at most the plan's; else as many as the plan gives.",
)
@click.option("--local-part", metavar="X", help="The part before the @; else a random one.")
@click.option("--domain", metavar="D", help="One of the relay's domains; else the first.")
@click.option("--webhook-url", metavar="U", help="Where new messages are announced.")
@click.option(
    "--anonymous",
    is_flag=True,
    help="Without credentials, plan free: prints the session token in a second line.",
)
@options.token
@options.data_dir
@options.as_json
def create(
    ttl: float | None,
    local_part: str | None,
    domain: str | None,
    webhook_url: str | None,
    anonymous: bool,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Make a mailbox and print its address."""
    if anonymous and token:
        raise click.UsageError("--anonymous and --token exclude each other.")
    asked = {
        "ttl_minutes": ttl,
        "local_part": local_part,
        "domain": domain,
        "webhook_url": webhook_url,
    }
    api = Api.find(data_dir, token=token_from(token), anonymous=anonymous)
    made = api.call(
        "POST", BASE, json={name: value for name, value in asked.items() if value is not None}
    ).json()
    if as_json:
        output.document(made)
        return
    output.say(output.line(made["address"]))
    if made.get("session_token"):
        output.say(output.line(made["session_token"]))
    if ttl is not None and (lives := _cut(made, ttl)) is not None:
        output.note(f"expires in {output.span(lives)}, the most that plan {made['plan']} allows")
    elif output.is_terminal(sys.stderr):
        output.note(f"expires {output.until(made['expires_at'])}, plan {made['plan']}")


def _cut(made: Mapping[str, Any], asked: float) -> float | None:
    """Return the seconds that a mailbox lives, where they are fewer than the `asked` minutes."""
    lives = (datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)).total_seconds()
    return round(lives / 60) * 60.0 if lives < asked * 60 - _SLACK else None


@mailbox.command(name="list")
@options.limit(50)
@options.token
@options.data_dir
@options.as_json
def list_(limit: int, everything: bool, token: str | None, data_dir: Path, as_json: bool) -> None:
    """List the live mailboxes, newest first."""
    api = Api.find(data_dir, token=token_from(token))
    found = entries.newest(api, BASE, None if everything else limit, quiet=as_json)
    if as_json:
        output.document(found)
        return
    output.listing(
        ("address", "state", "expires", "owner", "messages", "size"),
        [
            (
                output.line(item["address"]),
                state(item),
                output.until(item["expires_at"]),
                output.line(item["owner_type"]),
                str(item["message_count"]),
                output.size(item["bytes"]),
            )
            for item in found
        ],
        spare=("owner", "size", "messages"),
    )


@mailbox.command()
@click.argument("address", shell_complete=completion.addresses)
@options.token
@options.data_dir
@options.as_json
def show(address: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Show one mailbox."""
    api = Api.find(data_dir, token=token_from(token))
    item = api.get(f"{BASE}/{segment(address)}")
    if as_json:
        output.document(item)
        return
    output.fields(
        [
            ("address", output.line(item["address"])),
            ("state", state(item)),
            (
                "expires",
                f"{output.moment(item['expires_at'])} ({output.until(item['expires_at'])})",
            ),
            ("owner", output.line(item["owner_type"])),
            ("plan", output.line(item["plan"])),
            ("messages", of(str(item["message_count"]), item["max_messages"], str)),
            ("size", of(output.size(item["bytes"]), item["max_bytes"], output.size)),
        ]
    )


@mailbox.command()
@options.token
@options.data_dir
@options.as_json
def quota(token: str | None, data_dir: Path, as_json: bool) -> None:
    """Show how many mailboxes there may be, and what each may hold."""
    item = Api.find(data_dir, token=token_from(token)).get("/api/v1/quota")
    if as_json:
        output.document(item)
        return
    output.fields(
        [
            ("plan", output.line(item["plan"])),
            ("mailboxes", of(str(item["mailboxes"]), item["max_mailboxes"], str)),
            ("messages in each", allowed(item["max_messages"], str)),
            ("size of each", allowed(item["max_bytes"], output.size)),
            ("life of each", lives(item["default_ttl_minutes"], item["max_ttl_minutes"])),
        ]
    )


@mailbox.command()
@click.argument("address", shell_complete=completion.addresses)
@click.option("--purge", is_flag=True, help="Delete its mail at once, not after the retention.")
@options.token
@options.data_dir
def delete(address: str, purge: bool, token: str | None, data_dir: Path) -> None:
    """Delete a mailbox: it accepts and shows nothing from now on."""
    api = Api.find(data_dir, token=token_from(token))
    thorough = {"purge": "true"} if purge else None
    api.call("DELETE", f"{BASE}/{segment(address)}", params=thorough, timeout=60.0)


def of(used: str, most: int | None, shown: Callable[[int], str]) -> str:
    """Return what is used, and of how much."""
    return used if most is None else f"{used} of {shown(most)}"


def allowed(most: int | None, shown: Callable[[int], str]) -> str:
    """Return a limit."""
    return "no limit" if most is None else f"at most {shown(most)}"


def lives(default: float | None, most: float | None) -> str:
    """Return how long a mailbox lives, in minutes: where nobody says it, and at most."""
    if default is None or most is None:
        return ""
    shown = output.span(default * 60)
    return shown if default == most else f"{shown}, at most {output.span(most * 60)}"


def state(item: dict[str, Any]) -> tuple[str, str]:
    """Return the state of a listed mailbox as a cell."""
    return ("active", "green") if item["is_active"] else ("expired", "bright_black")
