"""`POST …/{address}/messages/{id}/release`: a message that was received goes out after all.

Promises
  * The 202 comes after the commit that queued it for each recipient; after a refusal (4xx) nothing
    is queued.
  * With an Idempotency-Key the same call is queued once, however often it is made in 24 hours.
  * It goes by a server, to recipients whom the operator allows, by somebody who may send.

Fails with `DatabaseUnavailable`, a 503, after which the mail may have been queued: the
Idempotency-Key is for that.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field
from quart import Response

from relay.http.operations import Access, Answer, Call, Form, Operation
from relay.http.problems import Problem, message_not_found, missing_scope
from relay.http.resources.messages import BASE, GONE, Downloads
from relay.http.resources.send import Sent, answer_queued, idempotency_key
from relay.http.routing import Api
from relay.ids import new_id
from relay.outbound.enqueue import body_hash
from relay.outbound.release import LOOP, NotAllowed, Patterns, released
from relay.outbound.sending import Sending

_BODY = 256 * 1024  # bytes: a hundred of the longest, with their escapes mostly


class Release(Form):
    """To whom a message goes."""

    to: Annotated[
        tuple[Annotated[str, Field(max_length=1000)], ...],
        Field(
            min_length=1,
            max_length=100,
            description="addresses; all of them stand in Resent-To, which each recipient sees",
        ),
    ]


def register(api: Api) -> None:
    """Declare the call."""
    deps = api.deps
    allowed = Patterns(deps.release_to)
    sending = Sending(deps.keys, deps.store.names, deps.enqueue, deps.wake_outbound)
    memory = Downloads(deps.limits.download_bytes // 4)

    @api.add(
        "POST",
        f"{BASE}/<message_id>/release",
        Operation(
            "Send a message that was received on, byte for byte",
            "messages",
            Access.MAILBOX,
            (
                Answer(202, "queued, durably, behind Resent- fields", Sent),
                Answer(
                    403,
                    "a recipient matches no pattern of RELAY_OUTBOUND__RELEASE_TO; or the caller "
                    "may not send, or not from the message's reverse-path",
                ),
                GONE,
                Answer(
                    409,
                    "there is no upstream that leads to others: mail would stay here; or the "
                    "Idempotency-Key was used for another call within 24 hours",
                ),
                Answer(422, "malformed, or a recipient is on the suppression list: nothing queued"),
                Answer(503, "too many large messages are being read; try again"),
            ),
            scope="send",
            body=Release,
            max_body=_BODY,
            stores=True,
            details="The reverse-path stays what it was. A mailbox's own session token is not "
            "enough. With an Idempotency-Key header (1 to 255 bytes) the same call again within 24 "
            "hours gives the same answer and sends nothing; keys belong to the credential.",
        ),
    )
    async def release(call: Call, message_id: str) -> Response:
        wanted: Release = call.body
        if call.caller is None:
            raise missing_scope("send")
        mailbox_id, owner = call.mailbox.id, call.caller.owner_id
        key = idempotency_key()
        said = {"release": message_id.lower(), "from": str(mailbox_id), "to": wanted.to}
        digest = None if key is None else body_hash(said)
        envelope = await deps.messages.envelope(mailbox_id, message_id)
        if envelope is None:
            raise message_not_found()
        sender, size = envelope
        upstream = await deps.senders.upstream(owner, sender) or deps.upstream
        if upstream == LOOP:
            raise Problem(
                409,
                "no-upstream",
                "Mail does not leave this relay: its upstream is loop:, so nothing is released.",
            )
        await sending.check_senders(call.caller.key, [sender] if sender else [])
        held = memory.hold(owner, 3 * size)
        try:
            raw = await deps.messages.raw(mailbox_id, message_id)
            if raw is None:
                raise message_not_found()
            ready = released(
                raw,
                sender=sender,
                to=wanted.to,
                allowed=allowed,
                owner=owner,
                id=new_id(),
                at=datetime.now(UTC),
                postmaster=f"postmaster@{deps.store.domains[0]}",
            )
            del raw
            queued = await api.committed(lambda: sending.queue(ready, key=key, key_hash=digest))
        except NotAllowed as error:
            raise Problem(
                403,
                "release-not-allowed",
                "to: mail is released to addresses of RELAY_OUTBOUND__RELEASE_TO only.",
            ) from error
        finally:
            held.release()
        return answer_queued(queued)
