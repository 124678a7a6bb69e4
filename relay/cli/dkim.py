"""`relay dkim`: keys that sign what leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from relay.cli import entries, options, output
from relay.cli.client import Api, segment

BASE = "/api/v1/dkim"
_STYLES = {"active": "green", "standby": "yellow", "retired": "bright_black"}

_selector = click.option(
    "--selector",
    metavar="S",
    help="Of the RSA key; the Ed25519 key's has -ed25519 behind it. By the time if not given.",
)


@click.group()
def dkim() -> None:
    """Keys that sign what leaves (DKIM)."""


@dkim.command()
@click.argument("domain")
@_selector
@options.data_dir
@options.as_json
def create(domain: str, selector: str | None, data_dir: Path, as_json: bool) -> None:
    """Make keys of DOMAIN and print the records that it has to publish, as JSON.

    Mail from DOMAIN is signed with both keys, RSA and Ed25519, from now on. Where it has active
    keys, the new ones stand by: publish their records, wait until those are known, then rotate.
    """
    values = {"domain": domain} | ({"selector": selector} if selector else {})
    _records(Api.find(data_dir).call("POST", BASE, json=values).json())


@dkim.command()
@click.argument("domain")
@_selector
@options.data_dir
@options.as_json
def rotate(domain: str, selector: str | None, data_dir: Path, as_json: bool) -> None:
    """Sign with the standby keys of DOMAIN, or with new ones; prints their records, as JSON.

    The former keys are retired: leave their records published for a week, then remove the keys.
    """
    api = Api.find(data_dir)
    path = f"{BASE}/{segment(domain)}/rotate"
    _records(api.call("POST", path, params={"selector": selector}).json())


def _records(made: dict[str, Any]) -> None:
    output.document(made)
    if output.is_terminal(sys.stderr):
        output.note(
            "publish these; most zone files want a value of over 255 characters in several strings"
        )


entries.lists(
    dkim,
    BASE,
    "List the domains that have keys.",
    {
        "domain": entries.cell("domain"),
        "selectors": lambda item: output.line(
            ", ".join(f"{key['selector']} ({key['state']})" for key in item["keys"])
        ),
    },
    by_token=False,
)


@dkim.command()
@click.argument("domain")
@options.data_dir
@options.as_json
def show(domain: str, data_dir: Path, as_json: bool) -> None:
    """Show every key of DOMAIN that may still verify, with its state.

    A standby key signs from the next rotation on, an active one signs; what a retired one signed
    may still be verified.
    """
    found = Api.find(data_dir).call("GET", f"{BASE}/{segment(domain)}").json()
    if as_json:
        output.document(found)
        return
    for key in found["keys"]:
        output.fields(
            [
                ("selector", output.line(key["selector"])),
                ("state", (output.line(key["state"]), _STYLES.get(key["state"], ""))),
                ("algorithm", output.line(key["algorithm"])),
                ("made", output.moment(key["created_at"])),
                ("retired", output.moment(key["retired_at"])),
                ("name", output.line(key["name"])),
                ("TXT", output.line(key["value"])),
            ]
        )
        output.say()


@dkim.command()
@click.argument("domain")
@click.option("--selector", metavar="S", help="These keys alone: what create was given, or one's.")
@options.data_dir
def remove(domain: str, selector: str | None, data_dir: Path) -> None:
    """Remove the keys of DOMAIN: they sign nothing from now on."""
    api = Api.find(data_dir)
    api.call("DELETE", f"{BASE}/{segment(domain)}", params={"selector": selector})
