"""`relay messages`: list, read, fetch raw, and wait for mail in a mailbox.

Promises: raw mail and attachments are written byte for byte; on a terminal what could drive it is
shown as escapes.  Nothing that is there already is overwritten.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from relay.cli import completion, exits, options, output
from relay.cli.client import Api, segment

_CHECK_TIMEOUT = 60.0  # s; the message is read, and the DNS asked, each within limits
_COLOURS = {"pass": "green", "fail": "red", "error": "red", "warning": "yellow"}
WAIT_STEP = 30.0  # seconds one call waits; longer waits are several calls


@click.group()
def messages() -> None:
    """The mail in a mailbox."""


@messages.command(name="list")
@click.argument("address", shell_complete=completion.addresses)
@click.option("--query", metavar="Q", help="Only messages that contain this.")
@options.limit(20)
@options.token
@options.data_dir
@options.as_json
def list_(
    address: str,
    query: str | None,
    limit: int,
    everything: bool,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """List the messages of ADDRESS, newest first."""
    api = Api.find(data_dir, token=token_from(token))
    found = list(api.pages(path_of(address), limit=None if everything else limit, q=query))
    if as_json:
        output.document(found)
        return
    output.table(
        ("id", "received", "from", "subject", "size", ""),
        [
            (
                output.line(item["id"]),
                output.moment(item["received_at"]),
                output.line(item["from_address"]),
                output.line(item["subject"]),
                output.size(item["size"]),
                ("", "") if item["is_read"] else ("new", "green"),
            )
            for item in found
        ],
    )


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@options.token
@options.data_dir
@options.as_json
def show(address: str, message_id: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Show a message of ADDRESS, and mark it read."""
    api = Api.find(data_dir, token=token_from(token))
    message = api.get(f"{path_of(address)}/{segment(message_id)}")
    present(message, as_json)


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@options.token
@options.data_dir
def raw(address: str, message_id: str, token: str | None, data_dir: Path) -> None:
    """Write a message of ADDRESS to stdout, byte for byte as it was accepted.

    On a terminal, what could drive it is shown as escapes.
    """
    api = Api.find(data_dir, token=token_from(token))
    with api.stream(f"{path_of(address)}/{segment(message_id)}/raw", quiet=30.0) as chunks:
        pour(chunks)


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@click.option(
    "--to",
    multiple=True,
    required=True,
    metavar="ADDRESS",
    help="To whom; may be given several times.",
)
@options.token
@options.data_dir
@options.as_json
def release(
    address: str,
    message_id: str,
    to: tuple[str, ...],
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Send a message of ADDRESS on, byte for byte, to those whom RELAY_OUTBOUND__RELEASE_TO allows.

    Prints the ids that it has in the queue.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{path_of(address)}/{segment(message_id)}/release"
    answer = api.call("POST", path, json={"to": list(to)}).json()
    if as_json:
        output.document(answer)
        return
    for queued in answer["messages"]:
        output.say(queued["id"])


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@options.token
@options.data_dir
@options.as_json
def check(address: str, message_id: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Say whether the world would take a message of ADDRESS: SPF, DKIM, DMARC, what readers miss.

    Asks the DNS.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{path_of(address)}/{segment(message_id)}/checks"
    with output.working("Checking the message"):
        answer = api.call("GET", path, timeout=_CHECK_TIMEOUT).json()
    if as_json:
        output.document(answer)
        return
    output.table(
        ("check", "result", "why"),
        [
            *(_checked(name, answer[name]) for name in ("spf", "dkim", "dmarc")),
            *(
                (
                    output.line(finding["id"]),
                    (output.line(finding["severity"]), _COLOURS.get(finding["severity"], "")),
                    output.line(finding["text"]),
                )
                for finding in answer["findings"]
            ),
        ],
    )
    output.say()
    output.say(f"score: {answer['score']:g} of 10")


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@click.argument("index", type=click.IntRange(0), metavar="INDEX")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write it there, which must not exist yet.",
)
@options.token
@options.data_dir
def attachment(
    address: str, message_id: str, index: int, out: Path | None, token: str | None, data_dir: Path
) -> None:
    """Write an attachment of a message of ADDRESS to stdout, or to a file; `show` has the indexes.

    On a terminal, what could drive it is shown as escapes.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{path_of(address)}/{segment(message_id)}/attachments/{index}"
    with api.stream(path, quiet=30.0) as chunks:
        if out is None:
            pour(chunks)
            return
        try:
            with out.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
        except OSError as error:
            raise exits.Failure(
                f"{out} cannot be written: {error.strerror}.", exits.REFUSED
            ) from error


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.argument("message_id", metavar="ID")
@options.token
@options.data_dir
def delete(address: str, message_id: str, token: str | None, data_dir: Path) -> None:
    """Delete a message of ADDRESS for good, at once."""
    api = Api.find(data_dir, token=token_from(token))
    api.call("DELETE", f"{path_of(address)}/{segment(message_id)}", params={"purge": "true"})


@messages.command()
@click.argument("address", shell_complete=completion.addresses)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
@click.option("--from", "sender", metavar="X", help="Only from an address that contains this.")
@click.option("--subject", metavar="X", help="Only with a subject that contains this.")
@click.option("--after", metavar="ID|TIME", help="Only after this message or time.")
@options.token
@options.data_dir
@options.as_json
def wait(
    address: str,
    timeout: float,
    sender: str | None,
    subject: str | None,
    after: str | None,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> int:
    """Wait for a message in ADDRESS and show it; one that is already there counts.

    Exit code 0 with the message, 1 when none came in time or the mailbox expired.
    """
    api = Api.find(data_dir, token=token_from(token))
    with output.working(f"Waiting for mail to {output.line(address)}"):
        message = await_message(
            api, address, timeout, **{"from": sender, "subject": subject, "after": after}
        )
    if message is None:
        output.note(f"relay: No message came to {output.line(address)} within {timeout:g} s.")
        return exits.REFUSED
    present(message, as_json)
    return exits.OK


def await_message(
    api: Api, address: str, timeout: float, **filters: str | None
) -> dict[str, Any] | None:
    """Return the oldest match within `timeout` seconds, else None; a dead mailbox is a Failure."""
    end = time.monotonic() + timeout
    while True:
        step = min(WAIT_STEP, max(0.0, end - time.monotonic()))
        response = api.call(
            "GET",
            f"{path_of(address)}/wait",
            params={"timeout": f"{step:g}", **filters},
            timeout=step + 15.0,
        )
        if response.status == 200:
            message: dict[str, Any] = response.json()
            return message
        if time.monotonic() >= end:
            return None


def path_of(address: str) -> str:
    """Return the path of the messages of a mailbox."""
    return f"/api/v1/mailboxes/{segment(address)}/messages"


def token_from(token: str | None) -> str | None:
    """Return the value of `--token`, read from standard input where it is `-`."""
    return sys.stdin.readline().strip() if token == "-" else token  # noqa: S105 - not a secret


def pour(chunks: Iterator[bytes]) -> None:
    """Write a body to standard output; to a terminal, with escapes for what could drive it."""
    if output.is_terminal(sys.stdout):
        for text in output.safe_chunks(chunks):
            sys.stdout.write(text)
        sys.stdout.flush()
        return
    for chunk in chunks:
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()


def present(message: dict[str, Any], as_json: bool) -> None:
    """Write a whole message: as the API gives it, or as a person reads one."""
    if as_json:
        output.document(message)
        return
    output.fields(
        [
            ("id", output.line(message["id"])),
            ("from", output.line(message["from_address"])),
            ("to", output.line(_listed(message.get("to")))),
            ("subject", (output.line(message["subject"]), "bright_white")),
            ("received", output.moment(message["received_at"])),
            ("size", output.size(message["size"])),
            ("code", (output.line(message.get("otp")), "green")),
            *(("link", (output.line(link), "cyan")) for link in message.get("links") or []),
            *(("attachment", _attachment(a)) for a in message.get("attachments") or []),
        ]
    )
    body = message.get("body_text")
    if body is None and message.get("body_html"):
        body = "(only HTML; see it with --json, or in the browser)"
    if body:
        output.say()
        output.say(output.safe(body).rstrip("\n"))


def _checked(name: str, check: dict[str, str]) -> tuple[output.Cell, ...]:
    result = output.line(check["result"])
    return name, (result, _COLOURS.get(result, "")), output.line(check["detail"])


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _attachment(item: dict[str, Any]) -> str:
    name = output.line(item.get("filename")) or "(unnamed)"
    return f"{name} ({output.line(item.get('content_type'))}, {output.size(item.get('size'))})"
