"""`/api/v1/accounts`: the lifecycle system for those who do not write SQL.

An account is its maker's: the holder of the key, and nobody else but the administrator, finds it.
What SQL made has no owner, and is the administrator's to see.

Promises: the token of a letter is made in the transaction of the change that asks for it.  So what
was answered is mailed, and what did not happen is not.

Fails with 409 where the account's status does not fit (`wrong-status`) or somebody has the address
or the name (`email-taken`, `login-taken`), with 429 where it was mailed too often lately.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.http.credentials.callers import Caller
from relay.http.lists.paging import NEXT, PageQuery, next_link
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    View,
    json_response,
)
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.lifecycle.accounts import MAX_ID, Account, Status, Taken, TooManyMails, WrongStatus
from relay.lifecycle.tokens import Action
from relay.times import rfc3339


class NewAccount(Form):
    """The account that is to be made, by its holder's address and name."""

    email: Annotated[
        str, Field(max_length=1000, description="where its mail goes: an address, no display name")
    ]
    login: Annotated[
        str, Field(max_length=1000, description="its name: up to 254 characters, no comma")
    ]


class AccountEntry(View):
    """One account.  Instants are whole seconds."""

    id: str
    email: str
    login: str
    status: Status
    created_at: Instant
    status_changed_at: Instant | None
    activated_at: Instant | None
    suspended_at: Instant | None
    unsuspended_at: Instant | None


class LetterEntry(View):
    """A mail to an account; `message_id` is that of /api/v1/outbound, `at` when it was queued."""

    action: str
    message_id: str
    status: str
    at: Instant


class AccountWithLetters(AccountEntry):
    """One account, and the mails to it whose tokens are kept still, newest first."""

    letters: list[LetterEntry]


_NONE = Answer(
    404, "there is no such account, or it is not the caller's", cases=("account-not-found",)
)
_MAILED = Answer(
    429,
    "it was mailed five times within 15 minutes, or the caller calls too often",
    cases=("too-many-mails",),
)


def register(api: Api) -> None:
    """Declare the calls."""
    accounts = api.deps.accounts

    @api.add(
        "POST",
        "/api/v1/accounts",
        Operation(
            "createAccount",
            "Make an account, and mail its activation",
            "accounts",
            Access.SCOPE,
            (
                Answer(201, "it is provisioned, and its mail is on its way", AccountEntry),
                Answer(
                    409,
                    "another account, whoever made it, has this email or this login",
                    cases=("email-taken", "login-taken"),
                ),
            ),
            scope="accounts",
            body=NewAccount,
            details="The link in the mail is good once, for 15 minutes.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewAccount = call.body
        try:
            made = await api.committed(
                lambda: accounts.create(wanted.email, wanted.login, call.caller.owner_id)
            )
        except Taken as error:
            raise Problem(
                409, f"{error.field}-taken", f"Another account has this {error.field}."
            ) from error
        return json_response(_shown(made), 201)

    @api.add(
        "GET",
        "/api/v1/accounts",
        Operation(
            "listAccounts",
            "List the caller's accounts, newest first",
            "accounts",
            Access.SCOPE,
            (Answer(200, "a page of them", list[AccountEntry], headers=NEXT),),
            scope="accounts",
            query=PageQuery,
            details="The administrator sees everybody's.",
        ),
    )
    async def list_(call: Call) -> Response:
        rows = call.query.rows
        before = None
        if call.query.cursor is not None and (before := _number(call.query.cursor)) is None:
            raise Problem(422, "invalid", "cursor: it is not one of ours.")
        found = await accounts.list(_owner(call.caller), limit=rows + 1, before=before)
        cursor = str(found[rows - 1].id) if len(found) > rows else None
        return json_response([_shown(each) for each in found[:rows]], headers=next_link(cursor))

    @api.add(
        "GET",
        "/api/v1/accounts/<account_id>",
        Operation(
            "getAccount",
            "Show an account",
            "accounts",
            Access.SCOPE,
            (Answer(200, "the account, and what it was mailed", AccountWithLetters), _NONE),
            scope="accounts",
        ),
    )
    async def show(call: Call, account_id: str) -> Response:
        number = _number(account_id)
        found = None if number is None else await accounts.get(number, _owner(call.caller))
        if found is None:
            raise _not_found()
        letters = [
            {
                "action": letter.action.label,
                "message_id": str(letter.message),
                "status": letter.status,
                "at": rfc3339(letter.at),
            }
            for letter in await accounts.letters(found.id)
        ]
        return json_response({**_shown(found), "letters": letters})

    @api.add(
        "POST",
        "/api/v1/accounts/<account_id>/suspend",
        Operation(
            "suspendAccount",
            "Suspend an account",
            "accounts",
            Access.SCOPE,
            (Answer(200, "it is suspended; its mail waits, its links open nothing", AccountEntry),
             _NONE),
            scope="accounts",
        ),
    )  # fmt: skip
    async def suspend(call: Call, account_id: str) -> Response:
        return await _answer(accounts.suspend, call.caller, account_id)

    @api.add(
        "POST",
        "/api/v1/accounts/<account_id>/unsuspend",
        Operation(
            "unsuspendAccount",
            "End an account's suspension",
            "accounts",
            Access.SCOPE,
            (Answer(200, "it is what it was before: active, or provisioned", AccountEntry), _NONE),
            scope="accounts",
            details="Mail that waited is sent, if it has not expired.",
        ),
    )
    async def unsuspend(call: Call, account_id: str) -> Response:
        return await _answer(accounts.unsuspend, call.caller, account_id)

    @api.add(
        "POST",
        "/api/v1/accounts/<account_id>/recover",
        Operation(
            "recoverAccount",
            "Mail an active account a password recovery",
            "accounts",
            Access.SCOPE,
            (
                Answer(202, "the mail is on its way", AccountEntry),
                _NONE,
                Answer(409, "the account is not active", cases=("wrong-status",)),
                _MAILED,
            ),
            scope="accounts",
            details="Its link is good once, for 15 minutes, together with the code beside it.",
        ),
    )
    async def recover(call: Call, account_id: str) -> Response:
        return await mail(call, account_id, Action.PASSWORD_RECOVERY)

    @api.add(
        "POST",
        "/api/v1/accounts/<account_id>/resend",
        Operation(
            "resendActivation",
            "Mail a provisioned account another activation",
            "accounts",
            Access.SCOPE,
            (
                Answer(202, "the mail is on its way", AccountEntry),
                _NONE,
                Answer(409, "the account is not provisioned", cases=("wrong-status",)),
                _MAILED,
            ),
            scope="accounts",
        ),
    )
    async def resend(call: Call, account_id: str) -> Response:
        return await mail(call, account_id, Action.ACTIVATION)

    async def mail(call: Call, account_id: str, action: Action) -> Response:
        async def change(number: int, owner: UUID | None) -> Account | None:
            return await accounts.mail(number, owner, action)

        try:
            return await _answer(change, call.caller, account_id, status=202)
        except WrongStatus as error:
            raise Problem(409, "wrong-status", f"{error}.".capitalize()) from error
        except TooManyMails as error:
            raise Problem(
                429, "too-many-mails", f"{error}.".capitalize(), headers={"Retry-After": "180"}
            ) from error

    async def _answer(
        what: Callable[[int, UUID | None], Awaitable[Account | None]],
        caller: Caller,
        account_id: str,
        *,
        status: int = 200,
    ) -> Response:
        number, owner = _number(account_id), _owner(caller)
        found = None
        if number is not None:
            found = await api.committed(lambda: what(number, owner))
        if found is None:
            raise _not_found()
        return json_response(_shown(found), status)


def _not_found() -> Problem:
    return Problem(404, "account-not-found", "There is no such account, or not of yours.")


def _owner(caller: Caller) -> UUID | None:
    """The owner whose accounts the caller sees; None: everybody's."""
    return None if caller.key is None else caller.owner_id


def _number(text: str) -> int | None:
    """An id of ours as it is stored, or None for what cannot be one."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        return None
    return number if 0 < (number := int(text)) <= MAX_ID else None


def _shown(account: Account) -> dict[str, Any]:
    def instant(value: datetime | None) -> str | None:
        return None if value is None else rfc3339(value)

    return {
        "id": str(account.id),
        "email": account.email,
        "login": account.login,
        "status": account.status.value,
        "created_at": instant(account.created_at),
        "status_changed_at": instant(account.status_changed_at),
        "activated_at": instant(account.activated_at),
        "suspended_at": instant(account.suspended_at),
        "unsuspended_at": instant(account.unsuspended_at),
    }
