"""`relay dkim`: keys that sign what leaves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from relay.cli import entries, exits, options, output
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
@click.option(
    "--published",
    is_flag=True,
    help="Rotate only if the DNS has the records of the keys that are to sign.",
)
@click.option("--yes", is_flag=True, help="Do not ask, whatever the DNS has.")
@options.data_dir
@options.as_json
def rotate(
    domain: str, selector: str | None, published: bool, yes: bool, data_dir: Path, as_json: bool
) -> None:
    """Sign with the standby keys of DOMAIN, or with new ones; prints their records, as JSON.

    Keys whose records the DNS does not have sign nothing that a receiver believes, and there is no
    way back: on a terminal that is asked about first, elsewhere it is said, or refused with
    --published. The former keys are retired: leave their records published for a week, then remove
    the keys.
    """
    api = Api.find(data_dir)
    name = segment(domain)
    doubt = "" if yes else _unpublished(api, domain)
    if doubt and published:
        raise exits.Failure(f"{doubt}; nothing was rotated.")
    if doubt and output.is_terminal(sys.stdin):
        output.note(doubt)
        if not click.confirm("Sign with these keys all the same?", err=True):
            raise exits.Failure("Nothing was rotated.")
    elif doubt:
        output.note(f"{doubt}: mail counts as unsigned until they are there")
    _records(api.call("POST", f"{BASE}/{name}/rotate", params={"selector": selector}).json())


def _unpublished(api: Api, domain: str) -> str:
    """Say which keys that are to sign now nobody can verify, if there are any."""
    name = segment(domain)
    keys = api.call("GET", f"{BASE}/{name}").json()["keys"]
    standby = {key["name"] for key in keys if key["state"] == "standby"}
    if not standby:
        return "there are no standby keys: new ones sign, whose records nobody has published"
    with output.working(f"asking about {output.line(domain)}"):
        path = f"/api/v1/domains/{name}/check"
        found = api.call("GET", path, params={"record": "DKIM"}).json()
    doubtful = [one for one in found if one["name"] in standby and not one["ok"]]
    return output.line("; ".join(f"{one['name']}: {one['detail']}" for one in doubtful))


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
