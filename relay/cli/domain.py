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
_OF_A_DOMAIN = frozenset({"MX", "SPF"})
"""What stands at the domain itself, and at that of its return paths."""
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

    Where mail leaves with return paths of its own (RELAY_OUTBOUND__BOUNCE_DOMAIN) MX and SPF of
    their domain, too. What is missing or wrong is followed by what to publish, as lines of a zone
    file: what is required, then what is advised. Ends with 1 if a record is wrong, or missing and
    not only advised as MTA-STS and TLS-RPT are; with 69 if nobody can say it of MX, SPF, DKIM or
    DMARC. Of a name that is not public nothing is asked.
    """
    with output.working(f"asking about {output.line(domain)}"):
        found = Api.find(data_dir).call("GET", f"/api/v1/domains/{segment(domain)}/check").json()
    if as_json:
        output.document(found)
    else:
        _show(found)
    asked = found[0]["name"] if found else domain
    required = [one for one in found if not one["optional"]]
    if wrong := _records([one for one in required if one["ok"] is False], asked):
        raise exits.Failure(f"Missing or wrong at {output.line(domain)}: {wrong}.")
    required = [one for one in required if one["record"] in _REQUIRED]
    if unknown := _records([one for one in required if one["ok"] is None], asked):
        said = f"Nobody can say all about {output.line(domain)}: {unknown}."
        raise exits.Failure(said, exits.UNAVAILABLE)


def _records(found: list[dict[str, Any]], asked: str) -> str:
    """These records, each once; those of return paths with their domain."""
    said = (
        one["record"]
        if one["name"] == asked or one["record"] not in _OF_A_DOMAIN
        else f"{one['record']} of {one['name']}"
        for one in found
    )
    return ", ".join(dict.fromkeys(map(output.line, said)))


def _show(found: list[dict[str, Any]]) -> None:
    output.table(
        ("record", "ok", "name", "why"),
        [
            (output.line(one["record"]), _sign(one), output.line(one["name"]), _why(one))
            for one in found
        ],
    )
    wanted = [one for one in found if one["wanted"] and one["ok"] is False]
    zone = [one for one in wanted if one["type"] != "HTTPS"]
    for part, optional in (("required", False), ("advised", True)):
        if records := [one for one in zone if one["optional"] is optional]:
            output.say()
            output.say(f"; {part}")
            for one in records:
                if one["found"]:
                    output.say("; instead of what is there")
                output.say(_to_publish(one))
    for one in wanted:
        if one["type"] == "HTTPS":  # no part of the zone
            part = "advised" if one["optional"] else "required"
            output.say()
            output.say(f"{part}, as the file {output.line(one['name'])}:")
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
        return "\n".join(lines)
    if one["type"] == "TXT":
        lines = [_strings(line) for line in lines]
    return "\n".join(f"{name}. IN {one['type']} {line}" for line in lines)


def _strings(value: str) -> str:
    """A TXT record as a zone file has it: strings of at most 255 characters."""
    parts = [value[at : at + _STRING] for at in range(0, len(value), _STRING)]
    return " ".join('"' + part.replace("\\", "\\\\").replace('"', '\\"') + '"' for part in parts)
