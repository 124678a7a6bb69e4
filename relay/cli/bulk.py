"""What one command does to one message, or to all that a query finds in all mailboxes.

Promises
  * All messages are meant only where `--all` says so, and with a query: `-q '*'` is everything.
  * Nothing is deleted without a yes: on a terminal that is asked for, elsewhere it is `--yes`.
  * Many are changed by one call, which says how many it made a difference to; cut short, it leaves
    the rest as it was, and the command may be given again.

Fails with a `Failure` of one sentence.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import click

from relay.cli import output
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


def change(api: Api, target: Target, body: dict[str, Any], done: str, as_json: bool) -> None:
    """Change the one message, or all that the query finds, as PATCH has it; say how many were."""
    if target.query is None:
        api.call("PATCH", target.path, json=body)
        return
    report(all_of(api, "PATCH", target.query, body), done, as_json)


def all_of(api: Api, method: str, query: str, body: dict[str, Any] | None = None) -> int:
    """Have the relay change all that a query finds; return how many it made a difference to."""
    # It goes through all messages of all mailboxes, where the query leaves no other way.
    answer = api.call(method, EVERYWHERE, params={"q": query}, json=body, timeout=300.0)
    count: int = answer.json()["count"]
    return count


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
