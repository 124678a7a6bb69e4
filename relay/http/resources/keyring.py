"""`POST /api/v1/keyring/rotate`: new signing and encryption keys, while everything runs."""

from __future__ import annotations

import trio
from quart import Response

from relay.http.operations import Access, Answer, Call, Operation, View, json_response
from relay.http.routing import Api
from relay.log import get_logger
from relay.outbound.sealed import Resealed

log = get_logger()


class Rotated(View):
    """What a rotation did.

    `new_signing_key` and `new_encryption_key` are false where the settings give the keys, or an
    unfinished rotation was completed instead; `resealed` counts passwords and private keys moved to
    the newest key, `unreadable` those that no key opens; `old_keys_dropped`: nothing needs them any
    more.
    """

    new_signing_key: bool
    new_encryption_key: bool
    resealed: int
    unreadable: int
    old_keys_dropped: bool


def register(api: Api) -> None:
    """Declare the call."""
    keyring = api.deps.keyring
    stores = (api.deps.senders.sealed, api.deps.dkim_keys.sealed)
    one_at_a_time = trio.Lock()

    async def rotate() -> Rotated:
        async with one_at_a_time:
            # What a rotation that was cut off left behind is finished, not begun once more.
            unfinished = any([await store.stale() for store in stores])
            signing = keyring.signing_is_ours and not unfinished
            encryption = keyring.encryption_is_ours and not unfinished
            if signing:
                await trio.to_thread.run_sync(keyring.renew_signing)
            if encryption:
                await trio.to_thread.run_sync(keyring.renew_encryption)
            sealed = Resealed(0, 0)
            for store in stores:
                sealed += await store.reseal()
            drop = (
                keyring.encryption_is_ours
                and keyring.encryption_count > 1
                and not sealed.unreadable
            )
            if drop:
                await trio.to_thread.run_sync(keyring.drop_old_encryption)
        done = Rotated(
            new_signing_key=signing,
            new_encryption_key=encryption,
            resealed=sealed.moved,
            unreadable=sealed.unreadable,
            old_keys_dropped=drop,
        )
        log.info("keys.rotated", **done.model_dump())
        return done

    @api.add(
        "POST",
        "/api/v1/keyring/rotate",
        Operation(
            "rotateKeyring",
            "Rotate the signing and encryption keys",
            "operations",
            Access.SCOPE,
            (Answer(200, "what was done", Rotated),),
            scope="admin",
            details="What was signed before still verifies; stored passwords and private keys "
            "(DKIM) are sealed with the newest key while mail flows. Cut off anywhere, the next "
            "call finishes it. Keys that the settings give are not replaced; what is stored moves "
            "to the first of them.",
        ),
    )
    async def rotate_keys(call: Call) -> Response:
        return json_response((await api.committed(rotate)).model_dump())
