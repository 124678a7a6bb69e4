"""`relay domain`: what a domain publishes for its mail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from relay.cli import exits, options, output
from relay.cli.client import Api, segment

_SIGNS = {True: ("ok", "green"), False: ("wrong", "red"), None: ("unknown", "yellow")}
_REQUIRED = frozenset({"MX", "SPF", "DKIM", "DMARC"})
"""What the DNS has to say something about; a PTR is not always asked for."""
_STRING = 255  # characters of one string of a TXT record


@click.group()
def domain() -> None:
    """What a domain publishes for its mail."""


@domain.command()
@click.argument("domain")
@options.data_dir
@options.as_json
def check(domain: str, data_dir: Path, as_json: bool) -> None:
    """Ask the DNS for the records of DOMAIN: MX, SPF, DKIM, DMARC, PTR, MTA-STS, TLS-RPT.

    What is missing or wrong is followed by what to publish, as a line of a zone file. Ends with 1
    if a record is wrong, or missing and not only advised as MTA-STS and TLS-RPT are; with 69 if the
    DNS did not answer about MX, SPF, DKIM or DMARC. Of a name that is not public nothing is asked.
    """
    with output.working(f"asking about {output.line(domain)}"):
        found = Api.find(data_dir).call("GET", f"/api/v1/domains/{segment(domain)}/check").json()
    if as_json:
        output.document(found)
    else:
        _show(found)
    if wrong := _records([one for one in found if not one["optional"]], ok=False):
        raise exits.Failure(f"Missing or wrong at {output.line(domain)}: {wrong}.")
    if unknown := _records([one for one in found if one["record"] in _REQUIRED], ok=None):
        raise exits.Failure(
            f"The DNS did not say all about {output.line(domain)}: {unknown}.", exits.UNAVAILABLE
        )


def _records(found: list[dict[str, Any]], *, ok: bool | None) -> str:
    """The records of which that is said, each once."""
    said = (output.line(one["record"]) for one in found if one["ok"] is ok)
    return ", ".join(dict.fromkeys(said))


def _show(found: list[dict[str, Any]]) -> None:
    output.table(
        ("record", "ok", "name", "why"),
        [
            (output.line(one["record"]), _sign(one), output.line(one["name"]), _why(one))
            for one in found
        ],
    )
    for one in found:
        if one["wanted"] and not one["ok"]:
            output.say()
            output.say(_to_publish(one))


def _sign(one: dict[str, Any]) -> tuple[str, str]:
    """Whether it will do; what mail goes without is advised, and a name for this machine alone is
    no mistake.
    """
    if not one["type"]:
        return "not public", "yellow"
    if one["optional"] and one["ok"] is False:
        return "advised", "yellow"
    return _SIGNS[one["ok"]]


def _why(one: dict[str, Any]) -> str:
    return output.line(one["detail"])


def _to_publish(one: dict[str, Any]) -> str:
    """What to publish: lines of a zone file; of a policy, the file."""
    lines = [output.line(line) for line in one["wanted"].split("\n")]
    name = output.line(one["name"])
    if one["type"] == "HTTPS":
        return "\n".join([f"; {name}", *lines])
    if one["type"] == "TXT":
        lines = [_strings(line) for line in lines]
    return "\n".join(f"{name}. IN {one['type']} {line}" for line in lines)


def _strings(value: str) -> str:
    """A TXT record as a zone file has it: strings of at most 255 characters."""
    parts = [value[at : at + _STRING] for at in range(0, len(value), _STRING)]
    return " ".join('"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts)
