"""What one command does to one message, or to all that a query finds in all mailboxes.

Promises
  * All messages are meant only where `--all` says so, and with a query: `-q '*'` is everything.
  * Nothing is deleted without a yes: on a terminal that is asked for, elsewhere it is `--yes`.
  * What has no call of its own for many (unread, tags) is done message by message, newest first: a
    break leaves the rest as it was, and the command may be given again.

Fails with a `Failure` of one sentence; a message that went away meanwhile is passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from relay.cli import exits, output
from relay.cli.client import Api, path_of

EVERYWHERE = "/api/v1/messages"

_COUNTED = 1000  # messages that are counted before somebody is asked about them


@dataclass(frozen=True)
class Target:
    """One message of a mailbox, or where `query` is not None all that it finds."""

    address: str = ""
    message_id: str = ""
    query: str | None = None

    @classmethod
    def of(
        cls, address: str | None, message_id: str | None, everywhere: bool, query: str | None
    ) -> Target:
        """Read what was typed; what is not clear is wrong usage."""
        if everywhere:
            if address is not None:
                raise click.UsageError("Give ADDRESS and ID, or --all with -q, not both.")
            if not (query or "").strip():
                raise click.UsageError(
                    "Say with -q which of all messages are meant; -q '*' is every one."
                )
            return cls(query=query)
        if query is not None:
            raise click.UsageError("-q needs --all: what it finds in all mailboxes is meant.")
        if address is None or message_id is None:
            raise click.UsageError("Give ADDRESS and ID of a message, or --all with -q.")
        return cls(address, message_id)

    @property
    def path(self) -> str:
        """The one message's path."""
        return path_of(self.address, self.message_id)


def narrowed(query: str, condition: str) -> str:
    """Return a query for those that it finds and that fulfil `condition` too."""
    return condition if query.strip() == "*" else f"{query} {condition}"


def each(api: Api, query: str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> int:
    """Change each message that is found as `change` says (None: not at all); return how many were.

    `change` gets the list's entry and gives the body of a PATCH.
    """
    # All are found before the first is changed: the query may be about what is changed.
    found = list(api.pages(EVERYWHERE, limit=None, q=query))
    count = 0
    for entry in found:
        body = change(entry)
        if body is not None:
            count += patched(api, path_of(entry["mailbox"], entry["id"]), body)
    return count


def patched(api: Api, path: str, body: dict[str, Any]) -> bool:
    """Change one message of many; False if it is not there any more."""
    try:
        api.call("PATCH", path, json=body)
    except exits.Failure as failure:
        if failure.status in {404, 410}:
            return False
        raise
    return True


def confirmed(api: Api, query: str, yes: bool) -> bool:
    """Ask whether all that `query` finds is to be deleted; `yes`: it was said already."""
    if yes:
        return True
    if not output.is_terminal(sys.stdin):
        raise click.UsageError("This deletes messages for good; say --yes where nobody is asked.")
    count = sum(1 for _ in api.pages(EVERYWHERE, limit=_COUNTED, q=query))
    if count == 0:
        return True
    many = f"{count} or more messages" if count == _COUNTED else counted(count)
    return click.confirm(
        f"Delete {many} of all mailboxes for good, all that {output.line(query)} finds?",
        err=True,
    )


def counted(count: int) -> str:
    """Return a number of messages in words."""
    return f"{count} message{'' if count == 1 else 's'}"


def report(count: int, done: str, as_json: bool) -> None:
    """Say how many messages a command has changed."""
    if as_json:
        output.document({"count": count})
    else:
        output.say(f"{counted(count)} {done}")
