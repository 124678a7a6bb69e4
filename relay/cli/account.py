"""`relay account`: accounts and the mails that they get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from relay.cli import entries, options, output
from relay.cli.client import Api, segment
from relay.cli.options import token_from

BASE = "/api/v1/accounts"

_STYLES = {"active": "green", "suspended": "yellow", "provisioned": "cyan"}


@click.group()
def account() -> None:
    """Accounts: make, look at, suspend, mail again."""


@account.command()
@click.argument("email")
@click.option("--login", required=True, metavar="LOGIN", help="Its name; no comma.")
@options.token
@options.data_dir
@options.as_json
def create(email: str, login: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Make an account and mail EMAIL its activation; prints the account's id."""
    values = {"email": email, "login": login}
    entries.add(BASE, values, "id", token=token, data_dir=data_dir, as_json=as_json)


entries.lists(
    account,
    BASE,
    "List the accounts, newest first.",
    {
        "id": entries.cell("id"),
        "status": lambda item: _status(item),
        "email": entries.cell("email"),
        "login": entries.cell("login"),
        "made": entries.moment("created_at"),
    },
    spare=("made",),
)


@account.command()
@click.argument("account_id", metavar="ID")
@options.token
@options.data_dir
@options.as_json
def show(account_id: str, token: str | None, data_dir: Path, as_json: bool) -> None:
    """Show an account and the mails that it got."""
    api = Api.find(data_dir, token=token_from(token))
    found = api.get(f"{BASE}/{segment(account_id)}")
    if as_json:
        output.document(found)
        return
    _show(found)
    if found["letters"]:
        output.say()
        output.table(
            ("mail", "status", "queued", "message"),
            [
                (
                    output.line(letter["action"]),
                    output.line(letter["status"]),
                    output.moment(letter["at"]),
                    output.line(letter["message_id"]),
                )
                for letter in found["letters"]
            ],
        )


def _declare(name: str, text: str, mailed: str) -> Callable[..., None]:
    """Give the group a command that does `name` to one account and shows it afterwards.

    `mailed`: the mail that goes out by it, or nothing.
    """

    @account.command(name, help=text)
    @click.argument("account_id", metavar="ID")
    @options.token
    @options.data_dir
    @options.as_json
    def command(account_id: str, token: str | None, data_dir: Path, as_json: bool) -> None:
        api = Api.find(data_dir, token=token_from(token))
        changed = api.call("POST", f"{BASE}/{segment(account_id)}/{name}").json()
        if as_json:
            output.document(changed)
            return
        if mailed:
            output.say(f"{mailed} mailed to {output.line(changed['email'])}")
        _show(changed)

    return command


for _name, _text, _mailed in (
    ("suspend", "Suspend an account: its mail waits, its links open nothing.", ""),
    ("unsuspend", "End a suspension: active again, or provisioned if it never was.", ""),
    ("recover", "Mail an active account a password recovery.", "Recovery"),
    ("resend", "Mail a provisioned account another activation.", "Activation"),
):
    _declare(_name, _text, _mailed)


def _show(item: dict[str, Any]) -> None:
    output.fields(
        [
            ("id", output.line(item["id"])),
            ("status", _status(item)),
            ("email", output.line(item["email"])),
            ("login", output.line(item["login"])),
            ("made", output.moment(item["created_at"])),
            ("activated", output.moment(item["activated_at"])),
            ("suspended", output.moment(item["suspended_at"])),
        ]
    )


def _status(item: dict[str, Any]) -> tuple[str, str]:
    return output.line(item["status"]), _STYLES.get(item["status"], "")
