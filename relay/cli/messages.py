"""`relay messages`: list, read, fetch raw, change and wait for mail in a mailbox, or in all.

Promises: raw mail and attachments are written byte for byte; on a terminal what could drive it is
shown as escapes.  Nothing that is there already is overwritten.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from relay.cli import bulk, completion, entries, exits, options, output
from relay.cli.bulk import EVERYWHERE, Target
from relay.cli.client import Api, path_of
from relay.cli.options import token_from

_CHECK_TIMEOUT = 60.0  # s; the message is read, and the DNS asked, each within limits
_COLOURS = {"pass": "green", "fail": "red", "error": "red", "warning": "yellow"}
_OTHERS = 5  # messages that a wait in vain names
_LOOK_EVERY = 2.0  # seconds at most until a mailbox that was just made is found
WAIT_STEP = 30.0  # seconds one call waits; longer waits are several calls


F = TypeVar("F", bound=Callable[..., Any])


def _anywhere(command: F) -> F:
    """Add an ADDRESS that may be left out."""
    return click.argument(
        "address", required=False, default=None, shell_complete=completion.addresses
    )(command)


def _one(command: F) -> F:
    """Add ADDRESS and an ID that may be left out."""
    command = click.argument("message_id", metavar="[ID]", required=False, default=None)(command)
    return click.argument("address", shell_complete=completion.addresses)(command)


def _query(command: F) -> F:
    """Add `-q`."""
    return click.option(
        "-q", "--query", metavar="Q", help="Only messages that this finds; see `list --help`."
    )(command)


def _one_or_all(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ADDRESS and ID, or `--all -q Q`; the command gets them as its `target`."""

    @functools.wraps(command)
    def called(
        address: str | None,
        message_id: str | None,
        everywhere: bool,
        query: str | None,
        **others: Any,
    ) -> Any:
        return command(target=Target.of(address, message_id, everywhere, query), **others)

    called = click.option(
        "--all", "everywhere", is_flag=True, help="All that -q finds, in all mailboxes."
    )(_query(called))
    return _anywhere(
        click.argument("message_id", metavar="[ID]", required=False, default=None)(called)
    )


@click.group()
def messages() -> None:
    """The mail in a mailbox, or in all of them."""


@messages.command(name="list")
@_anywhere
@_query
@options.limit(20)
@options.token
@options.data_dir
@options.as_json
def list_(
    address: str | None,
    query: str | None,
    limit: int,
    everything: bool,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """List the messages of ADDRESS, or without one of all mailboxes, newest first.

    \b
    Examples:
      relay messages list ada@customer.example
      relay messages list -q 'from:shop is:unread'
      relay messages list --all -q 'tag:billing after:2026-11-01' --json

    A query has words, "phrases", -not, from: to: subject: tag: has:attachment is:unread is:read
    before: after: larger: smaller:, all of which must hold.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = EVERYWHERE if address is None else path_of(address)
    found = entries.newest(api, path, None if everything else limit, quiet=as_json, q=query)
    if as_json:
        output.document(found)
        return
    columns: dict[str, Callable[[dict[str, Any]], output.Cell]] = {
        "id": entries.cell("id"),
        "received": entries.moment("received_at"),
        **(
            {"mailbox": entries.cell("mailbox"), "tags": entries.joined("tags")}
            if address is None
            else {}
        ),
        "from": entries.cell("from_address"),
        "subject": entries.cell("subject"),
        "size": lambda item: output.size(item["size"]),
        "state": lambda item: "read" if item["is_read"] else ("new", "green"),
    }
    rows = [[cell(item) for cell in columns.values()] for item in found]
    spare = ("size", "tags", "mailbox") if address is None else ("size",)
    output.listing(tuple(columns), rows, spare)


@messages.command()
@_one
@options.token
@options.data_dir
@options.as_json
def show(
    address: str, message_id: str | None, token: str | None, data_dir: Path, as_json: bool
) -> None:
    """Show a message of ADDRESS, without an ID the newest, and mark it read.

    \b
    Examples:
      relay messages show ada@customer.example
      relay messages show ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d --json
    """
    api = Api.find(data_dir, token=token_from(token))
    message = api.get(_path_of_one(api, address, message_id))
    present(message, as_json)


@messages.command()
@_one
@options.token
@options.data_dir
def raw(address: str, message_id: str | None, token: str | None, data_dir: Path) -> None:
    """Write a message of ADDRESS to stdout, byte for byte as it was accepted.

    \b
    Example:
      relay messages raw ada@customer.example > newest.eml

    Without an ID the newest. On a terminal, what could drive it is shown as escapes.
    """
    api = Api.find(data_dir, token=token_from(token))
    with api.stream(f"{_path_of_one(api, address, message_id)}/raw", quiet=30.0) as chunks:
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
@options.idempotency_key
@options.token
@options.data_dir
@options.as_json
def release(
    address: str,
    message_id: str,
    to: tuple[str, ...],
    idempotency_key: str | None,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Send a message of ADDRESS on, byte for byte, to those whom RELAY_OUTBOUND__RELEASE_TO allows.

    Prints the ids that it has in the queue.

    \b
    Example:
      relay messages release ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d \\
        --to me@example.org
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{path_of(address, message_id)}/release"
    headers = options.key_header(idempotency_key)
    answer = api.call("POST", path, json={"to": list(to)}, headers=headers).json()
    if as_json:
        output.document(answer)
        return
    for queued in answer["messages"]:
        output.say(queued["id"])


@messages.command()
@_one
@click.option("--links", is_flag=True, help="Ask whether its links answer, too.")
@options.token
@options.data_dir
@options.as_json
def check(
    address: str,
    message_id: str | None,
    links: bool,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Say whether the world would take a message of ADDRESS: SPF, DKIM, DMARC, what readers miss.

    \b
    Examples:
      relay messages check ada@customer.example
      relay messages check ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d --links

    Without an ID the newest. Asks the DNS.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{_path_of_one(api, address, message_id)}/checks"
    with output.working("Checking the message"):
        params = {"links": "true" if links else None}
        answer = api.call("GET", path, params=params, timeout=_CHECK_TIMEOUT).json()
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
    lost = f" ({', '.join(map(output.line, answer['reasons']))})" if answer["reasons"] else ""
    output.say(f"score: {answer['score']:g} of 10{lost}")


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

    \b
    Example:
      relay messages attachment ada@customer.example \\
        01a1fe77-f8c8-7278-8db0-bae5d604828d 0 --out invoice.pdf

    On a terminal, what could drive it is shown as escapes.
    """
    api = Api.find(data_dir, token=token_from(token))
    path = f"{path_of(address, message_id)}/attachments/{index}"
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
@_one_or_all
@click.option("--yes", is_flag=True, help="Delete all that -q finds without asking.")
@options.token
@options.data_dir
@options.as_json
def delete(target: Target, yes: bool, token: str | None, data_dir: Path, as_json: bool) -> int:
    """Delete a message of ADDRESS for good, at once; or with --all what -q finds anywhere.

    \b
    Examples:
      relay messages delete ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d
      relay messages delete --all -q 'tag:nightly before:2026-11-01'
      relay messages delete --all -q '*' --yes

    On a terminal it asks before it deletes many; elsewhere --yes must be said.
    """
    api = Api.find(data_dir, token=token_from(token))
    if target.query is None:
        api.call("DELETE", target.path, params={"purge": "true"})
        return exits.OK
    if not bulk.confirmed(api, target.query, yes):
        output.note("relay: Nothing was deleted.")
        return exits.REFUSED
    bulk.report(bulk.all_of(api, "DELETE", target.query), "deleted", as_json)
    return exits.OK


@messages.command()
@_one_or_all
@options.token
@options.data_dir
@options.as_json
def read(target: Target, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Mark a message of ADDRESS read; or with --all what -q finds anywhere.

    \b
    Examples:
      relay messages read ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d
      relay messages read --all -q 'from:newsletter'
    """
    api = Api.find(data_dir, token=token_from(token))
    bulk.change(api, target, {"is_read": True}, "marked read", as_json)


@messages.command()
@_one_or_all
@options.token
@options.data_dir
@options.as_json
def unread(target: Target, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Mark a message of ADDRESS unread; or with --all what -q finds anywhere.

    \b
    Example:
      relay messages unread --all -q 'from:shop after:2026-11-20'
    """
    api = Api.find(data_dir, token=token_from(token))
    bulk.change(api, target, {"is_read": False}, "marked unread", as_json)


@messages.command()
@click.argument("tag", metavar="TAG")
@_one_or_all
@options.token
@options.data_dir
@options.as_json
def tag(tag: str, target: Target, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Add TAG to a message of ADDRESS; or with --all to what -q finds anywhere.

    \b
    Examples:
      relay messages tag checked ada@customer.example 01a1fe77-f8c8-7278-8db0-bae5d604828d
      relay messages tag release-7 --all -q 'from:shop after:2026-11-20'
    """
    api = Api.find(data_dir, token=token_from(token))
    bulk.change(api, target, {"add_tags": [tag]}, "tagged", as_json)


@messages.command()
@click.argument("tag", metavar="TAG")
@_one_or_all
@options.token
@options.data_dir
@options.as_json
def untag(tag: str, target: Target, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Take TAG from a message of ADDRESS; or with --all from what -q finds anywhere.

    \b
    Example:
      relay messages untag checked --all -q '*'
    """
    api = Api.find(data_dir, token=token_from(token))
    bulk.change(api, target, {"remove_tags": [tag]}, "untagged", as_json)


@messages.command()
@_anywhere
@click.option("--all", "everywhere", is_flag=True, help="In any mailbox, instead of ADDRESS.")
@_query
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
    address: str | None,
    everywhere: bool,
    query: str | None,
    timeout: float,
    sender: str | None,
    subject: str | None,
    after: str | None,
    token: str | None,
    data_dir: Path,
    as_json: bool,
) -> int:
    """Wait for a message in ADDRESS and show it; one that is already there counts.

    With --all it may come to any mailbox, and -q says which one is meant.

    \b
    Examples:
      relay messages wait ada@customer.example --subject Welcome
      relay messages wait --all -q 'to:customer.example tag:shop' --timeout 60

    An address that is captured has no mailbox before its first mail; that is waited for, too.

    Exit code 0 with the message, 1 when none came in time or the mailbox expired.
    """
    if (address is None) != everywhere:
        raise click.UsageError("Give ADDRESS, or --all for any mailbox.")
    if query is not None and not everywhere:
        raise click.UsageError("-q needs --all; for one mailbox there are --from and --subject.")
    api = Api.find(data_dir, token=token_from(token))
    where = "any mailbox" if address is None else output.line(address)
    filters = {"from": sender, "subject": subject, "after": after, "q": query}
    with output.working(f"Waiting for mail to {where}"):
        # Mailboxes that are captured are the administrator's.
        message = await_message(api, address, timeout, captured=token is None, **filters)
    if message is None:
        others = "" if address is None else _others(api, address)
        output.note(f"relay: No message came to {where} within {timeout:g} s{others or '.'}")
        return exits.REFUSED
    present(message, as_json)
    return exits.OK


def _others(api: Api, address: str) -> str:
    """Say which messages a mailbox has, where none of them was waited for."""
    found = list(api.pages(path_of(address), limit=_OTHERS + 1))
    if not found:
        return ""
    some = "1 other is there" if len(found) == 1 else f"{len(found)} others are there"
    many = f"others are there, the newest {_OTHERS}"
    lines = [
        f"\n  {output.moment(one['received_at'])} from {output.line(one['from_address']) or '<>'}: "
        f"{output.line(one['subject']) or '(no subject)'}"
        for one in found[:_OTHERS]
    ]
    return f"; {many if len(found) > _OTHERS else some}:{''.join(lines)}"


def await_message(
    api: Api,
    address: str | None,
    timeout: float,
    *,
    captured: bool = False,
    **filters: str | None,
) -> dict[str, Any] | None:
    """Return the oldest match within `timeout` seconds, else None; a dead mailbox is a Failure.

    `address` None: in any mailbox.  `captured`: a mailbox that is not there is waited for where
    capture would make it with the next mail.
    """
    path = EVERYWHERE if address is None else path_of(address)
    end = time.monotonic() + timeout
    own, seen = "", None
    while True:
        left = max(0.0, end - time.monotonic())
        try:
            found = _await_one(api, path, min(WAIT_STEP, left), filters)
        except exits.Failure as failure:
            if failure.status != 404 or address is None or not captured:
                raise
            own = own or _domains_beside(api, address, failure)
            if not left:
                raise exits.Failure(
                    f"Nothing has come to {output.line(address)} within {timeout:g} s, and it has "
                    f"no mailbox. The relay's own mailboxes are at {own}.",
                    status=404,
                ) from failure
            # The newest mail to it anywhere is a sign, and no more than that: look again.
            query = None if '"' in address or "\\" in address else f'to:"{address}"'
            sign = {"q": query, "after": seen}
            come = _await_one(api, EVERYWHERE, min(_LOOK_EVERY, left), sign)
            seen = seen if come is None else come["id"]
            continue
        if found is not None or time.monotonic() >= end:
            return found


def _await_one(
    api: Api, path: str, seconds: float, filters: Mapping[str, str | None]
) -> dict[str, Any] | None:
    """Make one call that waits."""
    response = api.call(
        "GET",
        f"{path}/wait",
        params={"timeout": f"{seconds:g}", **filters},
        timeout=seconds + 15.0,
    )
    return response.json() if response.status == 200 else None


def _domains_beside(api: Api, address: str, failure: exits.Failure) -> str:
    """Return the relay's own domains if mail to `address` would be captured; else say why not."""
    from relay.addresses import canonical  # brings idna, which nearly nobody needs

    try:
        domain = canonical(address).rpartition("@")[2]
    except ValueError as error:
        raise exits.Failure(
            f"{output.line(address)} is no address: {error}.", status=404
        ) from error
    info = api.get("/api/v1/info")
    own = ", ".join(map(output.line, info["domains"]))
    if domain in info["domains"]:
        raise exits.Failure(
            f"{failure} `relay mailbox create` makes mailboxes at {output.line(domain)}.",
            status=404,
        ) from failure
    if not info["capture"]:
        raise exits.Failure(
            f"{failure} None will be made by mail to it, for this relay captures nothing: it takes "
            f"mail for {own} only.",
            status=404,
        ) from failure
    return own


def _path_of_one(api: Api, address: str, message_id: str | None) -> str:
    """The path of a message, without an id of the newest."""
    if message_id is not None:
        return path_of(address, message_id)
    newest = next(api.pages(path_of(address), limit=1), None)
    if newest is None:
        raise exits.Failure(f"There is no message in {output.line(address)} yet.", exits.REFUSED)
    return path_of(address, newest["id"])


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
            ("mailbox", output.line(message.get("mailbox"))),
            ("tags", output.line(_listed(message.get("tags")))),
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
