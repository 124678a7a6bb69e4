"""`relay queue`: the outbound queue and its messages.

Promises: a command that ends with 0 has changed the queue durably, on all nodes; one that the law
of the queue forbids ends with 1 and says why.  Text of other people's is shown with its control
characters escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from relay.cli import entries, options, output
from relay.cli.bulk import counted
from relay.cli.client import Api, segment
from relay.cli.messages import pour
from relay.cli.options import F, token_from

BASE = "/api/v1/outbound"

_STYLES = {
    "sent": "green",
    "failed": "red",
    "bounced": "red",
    "held": "yellow",
    "scheduled": "bright_black",
    "processing": "cyan",
    "cancelled": "bright_black",
}


def meant(command: F) -> F:
    """Add what says which messages are meant: `GET /api/v1/outbound` and `…/matching` take it."""
    for decorate in (
        click.option("--tag", metavar="T", help="Only mail with this tag."),
        click.option("--priority", metavar="P", help="Only mail of this priority."),
        click.option("--domain", metavar="D", help="Only mail to this domain."),
        click.option("--recipient", metavar="A", help="Only messages to this address."),
        click.option("--status", metavar="S", help="Only messages in this state."),
    ):
        command = decorate(command)
    return command


@click.group()
def queue() -> None:
    """The outbound queue: count it, look at messages, retry, cancel, hold, flush, pause."""


@queue.command()
@options.data_dir
@options.as_json
def stats(data_dir: Path, as_json: bool) -> None:
    """Count the queue: what waits, what is under way, what finished within the hour."""
    _show_stats(Api.find(data_dir).get("/api/v1/queue"), as_json)


@queue.command(name="list")
@meant
@options.limit(50)
@options.token
@options.data_dir
@options.as_json
def list_(
    limit: int,
    everything: bool,
    token: str | None,
    data_dir: Path,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """List messages, newest first; recipient and subject are shown to their owner only."""
    api = Api.find(data_dir, token=token_from(token))
    found = entries.newest(api, BASE, None if everything else limit, quiet=as_json, **wanted)
    if as_json:
        output.document(found)
        return
    output.listing(
        ("id", "status", "attempts", "recipient", "subject", "made", "next"),
        [
            (
                output.line(item["id"]),
                _status(item),
                str(item["attempts"]),
                _theirs(item["recipient"]),
                _theirs(item["subject"]),
                output.moment(item["created_at"]),
                _due(item["next_retry_at"]),
            )
            for item in found
        ],
        spare=("attempts", "made", "next"),
    )


@queue.command()
@click.argument("message_id", metavar="ID")
@click.option("--raw", is_flag=True, help="Write its bytes to stdout, as they are sent.")
@options.token
@options.data_dir
@options.as_json
def show(message_id: str, raw: bool, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Show a message and what happened in each delivery, or its bytes.

    On a terminal, what could drive it is shown as escapes.
    """
    if raw and as_json:
        raise click.UsageError("--raw and --json cannot go together.")
    api = Api.find(data_dir, token=token_from(token))
    path = f"{BASE}/{segment(message_id)}"
    if raw:
        with api.stream(f"{path}/raw", quiet=90.0) as chunks:
            pour(chunks)
        return
    item, events = api.get(path), api.get(f"{path}/events")
    if as_json:
        output.document({**item, "events": events})
        return
    _show(item, events, _held(api, item))
    if events:
        output.say()
        output.table(
            ("attempt", "phase", "code", "at", "took", "said"),
            [
                (
                    str(event["attempt"]),
                    output.line(event["phase"]),
                    _code(event, events),
                    output.moment(event["at"]),
                    "" if event["duration"] is None else output.span(event["duration"]),
                    output.line(event["error"] or event["reply"] or event["enhanced"]),
                )
                for event in events
            ],
        )
    peers = {event["attempt"]: _peer(event) for event in events if _peer(event)}
    if len(set(peers.values())) > 1:  # else what is said of the last is said of all
        output.say()
        output.table(("attempt", "with"), [(str(n), peer) for n, peer in peers.items()])


def _by_hand(verb: str, help_text: str) -> None:
    """Declare what may be done with one message, or with all that a filter means."""

    @queue.command(name=verb, help=help_text)
    @click.argument("message_id", metavar="[ID]", required=False)
    @click.option(
        "--all",
        "everywhere",
        is_flag=True,
        help="All that are meant, as far as it may be.",
    )
    @meant
    @click.option("--yes", is_flag=True, help="Do not ask whether that many are meant.")
    @options.token
    @options.data_dir
    @options.as_json
    def act(
        message_id: str | None,
        everywhere: bool,
        yes: bool,
        token: str | None,
        data_dir: Path,
        as_json: bool,
        **wanted: str | None,
    ) -> None:
        if everywhere == (message_id is not None) or (not everywhere and any(wanted.values())):
            raise click.UsageError("Give the ID of a message, or --all with what is meant.")
        api = Api.find(data_dir, token=token_from(token))
        if message_id is None:
            _act_on_all(api, verb, wanted, yes, as_json)
            return
        item = api.call("POST", f"{BASE}/{segment(message_id)}/{verb}").json()
        if as_json:
            output.document(item)
        else:
            _show(item)


_by_hand(
    "retry", "Queue a held, failed, bounced or deferred message, due now, with fresh attempts."
)
_by_hand(
    "cancel", "Cancel a queued or held message; one that is being delivered cannot be called back."
)
_by_hand("hold", "Set a queued message aside until it is retried.")


def _act_on_all(
    api: Api, verb: str, wanted: dict[str, str | None], yes: bool, as_json: bool
) -> None:
    """Do it to all that are meant; how many these are is asked first."""
    if not yes:
        if not output.is_terminal(sys.stdin):
            raise click.UsageError("This changes many messages; say --yes where nobody is asked.")
        count = api.call("GET", f"{BASE}/matching", params=wanted).json()[verb]
        if count and not click.confirm(f"{verb.capitalize()} {counted(count)}?", err=True):
            return
    answer = api.call("POST", f"{BASE}/matching/{verb}", params=wanted, timeout=300.0).json()
    if as_json:
        output.document(answer)
    else:
        output.say(f"{counted(answer['count'])} changed")


@queue.command()
@click.option("--domain", metavar="D", help="Only what holds back mail to this domain.")
@options.token
@options.data_dir
@options.as_json
def destinations(domain: str | None, token: str | None, data_dir: Path, as_json: bool) -> None:
    """List what this node holds back, and why: routes, destinations, receivers, owners' mail."""
    api = Api.find(data_dir, token=token_from(token))
    found = api.get("/api/v1/queue/destinations", domain=domain)
    if as_json:
        output.document(found)
        return
    output.table(
        ("route", "domain", "at once", "since", "until", "why", "said last"),
        [
            (
                output.line(one["route"]),
                output.line(one["domain"] or ", ".join(one["domains"])),
                "0" if one["opens_in"] else output.line(one["window"]),
                output.moment(one["since"]),
                (output.until(one["until"]), "yellow" if one["opens_in"] else ""),
                output.line(_why(one)),
                output.line(one["reason"]),
            )
            for one in found
        ],
    )


def _held_back(one: dict[str, Any]) -> str:
    since, until = one["since"], one["until"]
    parts = (
        *(_why(one), one["reason"]),
        since and f"since {output.moment(since)}",
        until and f"until {output.moment(until)}",
    )
    return "; ".join(filter(None, parts))


def _why(one: dict[str, Any]) -> str:
    rule = f" ({one['rule']})" if one["rule"] else ""
    return f"{one['why']}{rule}: {one['says']}" + (f"; of {one['owner']}" if one["owner"] else "")


@queue.command()
@click.option("--domain", metavar="D", help="Only mail to this domain.")
@click.option(
    "--route", metavar="R", help="Only mail that leaves by this upstream; default: the relay's own."
)
@click.option("--recipient", metavar="ADDRESS", help="Only mail to this address.")
@click.option("--tag", metavar="T", help="Only mail with this tag.")
@click.option(
    "--priority", type=click.Choice(["high", "normal", "bulk"]), help="Only of this priority."
)
@options.data_dir
@options.as_json
def flush(data_dir: Path, as_json: bool, **wanted: str | None) -> None:
    """Try deferred mail now; pauses of routes and destinations end."""
    answer = Api.find(data_dir).call("POST", "/api/v1/queue/flush", params=wanted)
    if as_json:
        output.document(answer.json())
    else:
        output.say(f"{answer.json()['count']} deferred messages are due now")


@queue.command()
@options.data_dir
@options.as_json
def pause(data_dir: Path, as_json: bool) -> None:
    """Pause all deliveries, on all nodes, until resumed; what is under way ends."""
    answer = Api.find(data_dir).call("POST", "/api/v1/queue/pause").json()
    _show_stats(answer, as_json)


@queue.command()
@options.data_dir
@options.as_json
def resume(data_dir: Path, as_json: bool) -> None:
    """End a pause."""
    answer = Api.find(data_dir).call("POST", "/api/v1/queue/resume").json()
    _show_stats(answer, as_json)


def _held(api: Api, item: dict[str, Any]) -> dict[str, Any] | None:
    """What holds back the mail to where a message goes, if it waits; the worst of it."""
    if item["recipient"] is None or item["status"] not in {"queued", "processing"}:
        return None
    domain = item["recipient"].rpartition("@")[2]
    held: list[dict[str, Any]] = api.get("/api/v1/queue/destinations", domain=domain)
    return held[0] if held else None


def _show(
    item: dict[str, Any],
    events: Sequence[dict[str, Any]] = (),
    held: dict[str, Any] | None = None,
) -> None:
    sent_at = item["sent_at"]
    for one in events:  # what bounced later was sent all the same
        if one["phase"] == "dot" and one["attempt"] == item["attempts"] and one["code"] == 250:
            sent_at = one["at"]
    next_at = item["next_retry_at"]
    if held is not None and held["opens_in"] and (next_at is None or held["until"] > next_at):
        next_at = held["until"]
    output.fields(
        [
            ("id", output.line(item["id"])),
            ("status", _status(item)),
            ("sender", _theirs(item["sender"])),
            ("recipient", _theirs(item["recipient"])),
            ("subject", _theirs(item["subject"])),
            ("priority", output.line(item["priority"])),
            ("attempts", str(item["attempts"])),
            ("made", output.moment(item["created_at"])),
            ("next", output.moment(next_at)),
            ("held back", "" if held is None else output.line(_held_back(held))),
            ("not after", output.moment(item["not_after"])),
            ("sent", output.moment(sent_at)),
            ("peer", _peer(item)),
            ("error", (output.line(item["error"]), "red")),
        ]
    )


def _peer(of: dict[str, Any]) -> str:
    """Whom an attempt spoke to, and how that was secured."""
    return " ".join(output.line(part) for part in (of["peer"], of["tls"]) if part)


def _show_stats(now: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.document(now)
        return
    oldest = now["oldest_due_seconds"]
    output.fields(
        [
            ("state", ("paused", "yellow") if now["paused"] else ("running", "green")),
            ("queued", f"{now['queued']} ({now['due']} due now)"),
            ("oldest due", "" if oldest is None else f"since {output.span(oldest)}"),
            ("processing", str(now["processing"])),
            ("held", str(now["held"])),
            ("lost leases", str(now["lost"])),
            (
                "last hour",
                ", ".join(f"{count} {name}" for name, count in sorted(now["last_hour"].items())),
            ),
        ]
    )


def _theirs(value: str | None) -> output.Cell:
    """What a list shows to its owner only; `--raw` opens anybody's to the administrator."""
    return ("another owner's", "bright_black") if value is None else output.line(value)


def _code(event: dict[str, Any], events: list[dict[str, Any]]) -> output.Cell:
    """The reply's code, pale where it says nothing new: DATA after each recipient was refused."""
    code = output.line(event["code"])
    refused = any(
        one["phase"] == "rcpt" and one["attempt"] == event["attempt"] and (one["code"] or 0) >= 400
        for one in events
    )
    return (code, "bright_black") if refused and event["phase"] == "data" else code


def _due(at: str | None) -> str:
    """When what waits is tried; what is due may yet be held back by its destination."""
    if at is None or datetime.fromisoformat(at) > datetime.now(UTC):
        return output.until(at)
    return "due"


def _status(item: dict[str, Any]) -> tuple[str, str]:
    status, until = item["status"], item["next_retry_at"]
    untried = status == "queued" and not item["attempts"]
    if untried and until and datetime.fromisoformat(until) > datetime.now(UTC):
        status = "scheduled"  # nothing is wrong with it: it waits for its send_at
    return output.line(status), _STYLES.get(status, "")
