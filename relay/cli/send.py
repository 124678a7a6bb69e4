"""`relay send`: put a message into the outbound queue."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from relay.cli import options, output
from relay.cli.client import Api
from relay.cli.options import token_from

TIMEOUT = 120.0  # seconds; a large attachment is on its way for a while


class Moment(click.ParamType[datetime]):
    """An RFC 3339 time; without an offset it is local."""

    name = "time"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> datetime:
        """Return the instant, or fail with a sentence."""
        try:
            return datetime.fromisoformat(value).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time like 2026-01-31T12:00:00Z.", param, ctx)


@click.command()
@click.option("--from", "sender", required=True, metavar="A", help="An address, or Name <address>.")
@click.option("--to", required=True, multiple=True, metavar="A", help="Likewise; may be repeated.")
@click.option("--subject", required=True, metavar="S", help="The subject.")
@click.option("--text", metavar="T", help="The body; - reads it from standard input.")
@click.option("--html", metavar="H", help="The body as HTML, alone or besides --text.")
@click.option(
    "--attach",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="F",
    help="A file to go with it; may be repeated.",
)
@click.option(
    "--header", multiple=True, metavar="N:V", help="A further header; may be repeated.", default=()
)
@click.option(
    "--priority",
    type=click.Choice(["high", "normal", "bulk"]),
    default="normal",
    show_default=True,
    help="What goes first; bulk is never starved.",
)
@click.option("--at", type=Moment(), metavar="TIME", help="Not before this time (RFC 3339).")
@click.option(
    "--not-after",
    type=Moment(),
    metavar="TIME",
    help="Cancel it instead of delivering it after this time (RFC 3339).",
)
@click.option(
    "--unknown-outcome",
    type=click.Choice(["retry", "hold"]),
    default="retry",
    show_default=True,
    help="Where it cannot be known whether it went out: send again, or hold it.",
)
@options.idempotency_key
@options.token
@options.data_dir
@options.as_json
def send(
    sender: str,
    to: tuple[str, ...],
    subject: str,
    text: str | None,
    html: str | None,
    attach: tuple[Path, ...],
    header: tuple[str, ...],
    priority: str,
    at: datetime | None,
    not_after: datetime | None,
    unknown_outcome: str,
    idempotency_key: str | None,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Send a message; prints the id of each recipient's, once it is queued durably."""
    if text == "-":
        if token == "-":  # noqa: S105 - not a secret
            raise click.UsageError("--text - and --token - exclude each other.")
        text = sys.stdin.buffer.read().decode("utf-8", "replace")
    if text is None and html is None:
        raise click.UsageError("Give --text or --html.")
    message: dict[str, Any] = {
        "from": sender,
        "to": to,
        "subject": subject,
        "text": text,
        "html": html,
        "headers": dict(_split(line) for line in header),
        "attachments": [_attachment(file) for file in attach],
        "priority": priority,
        "send_at": None if at is None else at.isoformat(),
        "unknown_outcome": unknown_outcome,
    }
    if not_after is not None:
        if not_after <= datetime.now(UTC):
            raise click.UsageError("--not-after has passed already.")
        message["not_after"] = not_after.isoformat()
    api = Api.find(data_dir, token=token_from(token))
    sent = api.call(
        "POST",
        "/api/v1/messages/send",
        json=message,
        timeout=TIMEOUT,
        headers=options.key_header(idempotency_key),
    ).json()
    if as_json:
        output.document(sent)
        return
    for item in sent["messages"]:
        output.say(output.line(item["id"]))


def _split(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise click.UsageError(f"--header {line!r} is not like Reply-To: me@example.org.")
    return name.strip(), value.strip()


def _attachment(file: Path) -> dict[str, str]:
    import mimetypes
    from base64 import b64encode

    kind, encoding = mimetypes.guess_type(file.name)
    return {
        "filename": file.name,
        # A compressed text is no text.
        "content_type": "application/octet-stream" if encoding or kind is None else kind,
        "content": b64encode(file.read_bytes()).decode(),
    }
