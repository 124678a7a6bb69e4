"""`POST /api/v1/devices/{key}/blobs`: a push without a session; `GET /api/v1/devices`: who waits.

A blob is durable before the 201.  Nobody needs a credential to put one, as on the push port; the
same caps hold, and refusals say which it was and, where they are temporary, when to try again.

Promises: a snapshot is a consistent copy, made while blobs come and go.  Whoever reads the lists
learns keys and counts, never what is in a blob.

Fails with 503 where the store does not answer, or this process has none; the blob may be stored
then, and put again it is there twice.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field
from quart import Response, request

from relay.devices.inbox import DeviceInbox
from relay.devices.intake import Short, Shortage
from relay.devices.store import StoreUnavailable
from relay.devices.wire import MAX_ENVELOPE, Reason, Refused
from relay.http.credentials.callers import address_of
from relay.http.operations import (
    Access,
    Answer,
    Call,
    Operation,
    Query,
    View,
    json_response,
    read_body,
)
from relay.http.problems.details import Problem, no_space, unavailable
from relay.http.routing import Api
from relay.settings import duration

_KEY = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_TEMPORARY = {
    Reason.INBOX_FULL: (507, "inbox-full", "The device's inbox holds all it may."),
    Reason.RATE_LIMITED: (429, "device-rate", "This device takes no more blobs for now."),
    Reason.UNAVAILABLE: (503, "unavailable", "The device store does not answer; try again."),
}
_SHORT = {
    Shortage.SOURCE_RATE: (429, "source-rate", "This address has pushed all it may for now."),
    Shortage.STORE_FULL: (507, "store-full", "All inboxes together hold all they may."),
}
_TTL = r"^(0\.\d*[1-9]\d*|[1-9]\d{0,8}(\.\d{1,9})?)(ms|s|m|h|d)?$"


class BlobQuery(Query):
    """How a blob is kept."""

    ttl: Annotated[
        str | None,
        Field(
            pattern=_TTL,
            description="what nobody fetched within this time is removed: seconds, or a number with"
            " ms, s, m, h or d; cut to the relay's own (RELAY_DEVICES__TTL), which is the default",
        ),
    ] = None


class StoredBlob(View):
    """A blob that is durable."""

    id: str
    expires_at: datetime


class FullInbox(View):
    """One device's inbox: its key (64 hex digits), what waits, its sessions on this node."""

    key: str
    blobs: int
    bytes: int
    sessions: int


class DevicesState(View):
    """What waits for devices, a few seconds old, and the sessions of this node, as of now.

    `oldest_age` is in seconds; `waiting` are the calls that wait for the store.
    """

    blobs: int
    bytes: int
    inboxes: int
    oldest_age: float
    waiting: int
    push_sessions: int
    receive_sessions: int
    fullest: list[FullInbox]


def _problem(refused: Short) -> Problem:
    """Return what a refusal is over HTTP."""
    if refused.what is Shortage.LOW_DISK:
        return no_space(507)
    status, case, detail = _SHORT[refused.what]
    return Problem(status, case, detail, headers={"Retry-After": str(refused.retry_after)})


class Snapshot(View):
    """A copy of the device store's file."""

    path: str


def register(api: Api) -> None:
    """Declare the calls."""
    deps = api.deps

    def device_inbox() -> DeviceInbox:
        if deps.devices is None:
            raise unavailable("This process has no device inbox (it runs without devices).")
        return deps.devices

    operation = Operation(
        "pushBlob",
        "Put a blob into a device's inbox",
        "devices",
        Access.OPEN,
        (
            Answer(201, "the blob is durable", StoredBlob),
            Answer(404, "the key is not 64 hexadecimal digits", cases=("not-found",)),
            Answer(413, f"over {MAX_ENVELOPE} bytes"),
            Answer(
                429,
                "too many blobs for this device, or bytes from this address",
                cases=("device-rate", "source-rate"),
            ),
            Answer(503, "the store does not answer", cases=("unavailable",)),
            Answer(
                507,
                "the device's inbox, all of them, or the disk is full",
                cases=("inbox-full", "store-full", "insufficient-storage"),
            ),
        ),
        query=BlobQuery,
        raw_body="application/octet-stream",
        max_body=MAX_ENVELOPE,
        limited=False,  # as on the push port, by recipient and source alone
        details="The key is the device's X25519 public key. The same blob put twice is two blobs.",
    )

    @api.add("POST", "/api/v1/devices/<key>/blobs", operation)
    async def put(call: Call, key: str) -> Response:
        if _KEY.fullmatch(key) is None:
            raise Problem(404, "not-found", "A device's key is 64 hexadecimal digits.")
        inbox, envelope = device_inbox(), await read_body(operation)
        source = address_of(request, deps.trusted_proxies)
        ttl = None if call.query.ttl is None else duration(call.query.ttl)
        try:
            stored = await api.committed(
                lambda: inbox.intake.put(bytes.fromhex(key), envelope, source, ttl)
            )
        except Short as refused:
            raise _problem(refused) from refused
        except Refused as refused:
            status, case, detail = _TEMPORARY[refused.reason]  # its size was seen to already
            raise Problem(
                status, case, detail, headers={"Retry-After": str(refused.retry_after)}
            ) from refused
        blob = StoredBlob(
            id=str(stored.id), expires_at=datetime.fromtimestamp(stored.expires_at, UTC)
        )
        return json_response(blob.model_dump(mode="json"), 201)

    @api.add(
        "GET",
        "/api/v1/devices",
        Operation(
            "getDevices",
            "See what waits for devices, and the sessions that are open",
            "devices",
            Access.SCOPE,
            (
                Answer(200, "the fullest inboxes, the totals, the sessions", DevicesState),
                Answer(503, "the store does not answer"),
            ),
            scope="admin",
        ),
    )
    async def overview(call: Call) -> Response:
        inbox = device_inbox()
        try:
            waiting = await inbox.overview()
        except StoreUnavailable as error:
            raise unavailable("The device store does not answer; try again.") from error
        sessions = inbox.sessions()
        return json_response(
            DevicesState(
                blobs=waiting.blobs,
                bytes=waiting.bytes,
                inboxes=waiting.inboxes,
                oldest_age=waiting.oldest_age,
                waiting=waiting.waiting,
                push_sessions=sessions.push,
                receive_sessions=sessions.receive,
                fullest=[
                    FullInbox(
                        key=one.recipient.hex(),
                        blobs=one.blobs,
                        bytes=one.bytes,
                        sessions=inbox.sessions_of(one.recipient),
                    )
                    for one in waiting.fullest
                ],
            ).model_dump(mode="json")
        )

    @api.add(
        "POST",
        "/api/v1/devices/snapshot",
        Operation(
            "snapshotDevices",
            "Copy what waits for devices into a file, for a backup",
            "devices",
            Access.SCOPE,
            (
                Answer(201, "where the file is, in the relay's data directory", Snapshot),
                Answer(409, "PostgreSQL keeps it: back that up", cases=("kept-in-postgresql",)),
                Answer(503, "the store does not answer"),
            ),
            scope="admin",
            stores=True,
            details="A consistent copy, made while blobs come and go; the next one replaces it. "
            "`relay db backup` asks for it.",
        ),
    )
    async def snapshot(call: Call) -> Response:
        try:
            path = await device_inbox().snapshot()
        except StoreUnavailable as error:
            raise unavailable("The device store does not answer; try again.") from error
        if path is None:
            raise Problem(409, "kept-in-postgresql", "PostgreSQL keeps what waits for devices.")
        return json_response({"path": str(path)}, 201)
