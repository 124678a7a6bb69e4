"""`/api/v1/dkim`: the keys that sign what leaves, and the records that their domains publish.

Promises: this node's sender knows of a change before it is answered, those of other nodes as soon
as the database's news reaches them.  Private keys are in no answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.db.text import storable
from relay.errors import DatabaseUnavailable
from relay.http.lists.entries import Column, listed
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Form,
    Instant,
    Operation,
    Query,
    View,
    json_response,
    no_content,
)
from relay.http.problems.details import Problem
from relay.http.routing import Api
from relay.outbound.signing.dkim_keys import (
    DkimDomain,
    DkimKey,
    NoKeys,
    SelectorTaken,
    StandbyWaits,
)
from relay.times import rfc3339

T = TypeVar("T")

_SELECTOR = "of the RSA key; the Ed25519 key's has -ed25519 behind it. By the time if left out"
_BY_DOMAIN = Column("domain", storable, str)


class NewDkimKeys(Form):
    """A domain whose mail is to be signed."""

    domain: Annotated[str, Field(max_length=1000, description="of From, without the subdomains")]
    selector: Annotated[str | None, Field(max_length=253, description=_SELECTOR)] = None


class DkimRotation(Query):
    """What new keys are called."""

    selector: Annotated[str | None, Field(max_length=253, description=_SELECTOR)] = None


class DkimRemoval(Query):
    """Which keys go."""

    selector: Annotated[
        str | None, Field(max_length=253, description="of the keys that go; all if left out")
    ] = None


class DnsRecord(View):
    """A record that the domain is to publish; `value` is the strings of a TXT record joined."""

    name: str
    type: Literal["TXT"]
    value: str


class DkimRecords(View):
    """The records of the keys that were made, or that sign from now on."""

    domain: str
    records: list[DnsRecord]


class DkimKeyEntry(DnsRecord):
    """A key whose record is to be published: a `standby` one signs from the next rotation on, an
    `active` one signs, and what a `retired` one signed may still be verified.
    """

    selector: str
    algorithm: Literal["rsa-sha256", "ed25519-sha256"]
    state: Literal["standby", "active", "retired"]
    created_at: Instant
    activated_at: Instant | None
    retired_at: Instant | None


class DkimDomainEntry(View):
    """A domain and its keys, those that sign first."""

    domain: str
    keys: list[DkimKeyEntry]


def register(api: Api) -> None:
    """Declare the calls."""
    keys, signer = api.deps.dkim_keys, api.deps.signer

    async def changed(change: Callable[[], Awaitable[T]]) -> T:
        async def commit() -> T:
            done = await change()
            with suppress(DatabaseUnavailable):  # it is done; the news of it tells the sender
                await signer.refresh()
            return done

        try:
            return await api.committed(commit)
        except NoKeys as error:
            raise _missing() from error
        except SelectorTaken as error:
            raise Problem(
                409, "dkim-selector-taken", "A key of the domain has this selector."
            ) from error
        except StandbyWaits as error:
            raise Problem(409, "dkim-standby", "The domain has standby keys.") from error

    @api.add(
        "POST",
        "/api/v1/dkim",
        Operation(
            "createDkimKeys",
            "Make DKIM keys of a domain",
            "sending",
            Access.SCOPE,
            (
                Answer(201, "publish these records", DkimRecords),
                Answer(
                    409,
                    "the selector is taken, or the domain has standby keys",
                    cases=("dkim-selector-taken", "dkim-standby"),
                ),
            ),
            scope="admin",
            body=NewDkimKeys,
            details="An RSA key of 2048 bits and an Ed25519 key. Mail whose From is in the domain "
            "itself is signed with both from now on; where the domain has active keys, the new "
            "ones stand by, for their records to be published before the next rotation uses them. "
            "Private keys are stored encrypted and never shown.",
        ),
    )
    async def create(call: Call) -> Response:
        wanted: NewDkimKeys = call.body
        made = await changed(lambda: keys.create(wanted.domain, wanted.selector))
        return json_response(_records(made), 201)

    async def find(_: UUID, limit: int, after: str | None) -> list[DkimDomain]:
        return await keys.list(limit, after)

    listed(
        api,
        "/api/v1/dkim",
        DkimDomainEntry,
        find,
        lambda entry, _: _shown(entry),
        name="listDkimKeys",
        summary="List the domains that have DKIM keys",
        scope="admin",
        column=_BY_DOMAIN,
    )

    @api.add(
        "GET",
        "/api/v1/dkim/<domain>",
        Operation(
            "getDkimKeys",
            "Show the DKIM keys of a domain",
            "sending",
            Access.SCOPE,
            (
                Answer(200, "every key that may still verify", DkimDomainEntry),
                Answer(404, "the domain has no keys", cases=("dkim-not-found",)),
            ),
            scope="admin",
        ),
    )
    async def show(call: Call, domain: str) -> Response:
        found = await keys.show(domain)
        if found is None:
            raise _missing()
        return json_response(_shown(found))

    @api.add(
        "POST",
        "/api/v1/dkim/<domain>/rotate",
        Operation(
            "rotateDkimKeys",
            "Sign with other DKIM keys",
            "sending",
            Access.SCOPE,
            (
                Answer(200, "the records of the keys that sign now", DkimRecords),
                Answer(404, "the domain has no keys that sign", cases=("dkim-not-found",)),
                Answer(
                    409,
                    "the selector is taken, or there are standby keys, which have theirs",
                    cases=("dkim-selector-taken", "dkim-standby"),
                ),
            ),
            scope="admin",
            query=DkimRotation,
            details="Standby keys sign from now on, or new ones where there are none, which no "
            "receiver finds until their records are published. The former keys are retired: their "
            "private halves are deleted, and their records must stay published until what they "
            "signed has arrived everywhere.",
        ),
    )
    async def rotate(call: Call, domain: str) -> Response:
        made = await changed(lambda: keys.rotate(domain, call.query.selector))
        return json_response(_records(made))

    @api.add(
        "DELETE",
        "/api/v1/dkim/<domain>",
        Operation(
            "deleteDkimKeys",
            "Remove DKIM keys",
            "sending",
            Access.SCOPE,
            (
                Answer(204, "they sign nothing from now on"),
                Answer(404, "the domain has no such keys", cases=("dkim-not-found",)),
            ),
            scope="admin",
            query=DkimRemoval,
        ),
    )
    async def delete(call: Call, domain: str) -> Response:
        if not await changed(lambda: keys.remove(domain, call.query.selector)):
            raise _missing()
        return no_content()


def _missing() -> Problem:
    return Problem(404, "dkim-not-found", "This domain has no DKIM keys.")


def _record(key: DkimKey) -> dict[str, Any]:
    return {"name": key.name, "type": "TXT", "value": key.record}


def _records(made: DkimDomain) -> dict[str, Any]:
    return {"domain": made.domain, "records": [_record(key) for key in made.keys]}


def _shown(entry: DkimDomain) -> dict[str, Any]:
    return {
        "domain": entry.domain,
        "keys": [
            {
                **_record(key),
                "selector": key.selector,
                "algorithm": key.algorithm,
                "state": key.state,
                "created_at": rfc3339(key.created_at),
                "activated_at": key.activated_at and rfc3339(key.activated_at),
                "retired_at": key.retired_at and rfc3339(key.retired_at),
            }
            for key in entry.keys
        ],
    }
