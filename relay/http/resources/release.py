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

from collections.abc import Sequence
from typing import Annotated
from uuid import UUID

from pydantic import Field
from quart import Response

from relay.chance import utc_now
from relay.http.credentials.callers import Caller
from relay.http.operations import Access, Answer, Call, Form, Operation
from relay.http.problems.details import Problem, message_not_found, missing_scope
from relay.http.resources.messages import BASE, GONE
from relay.http.resources.send import Sent, answer_queued, idempotency_key
from relay.http.routing import Api
from relay.ids import new_id
from relay.outbound.composing.message import MalformedMessage
from relay.outbound.queue.enqueue import Enqueued, body_hash
from relay.outbound.routing.senders import LOOP
from relay.outbound.submission.release import NotAllowed, Patterns, released
from relay.outbound.submission.sending import Sending
from relay.outbound.submission.submitted import Submitted

MOST_RECIPIENTS, LONGEST = 100, 1000
"""Recipients of a release, and characters of each."""
_BODY = 256 * 1024  # bytes: a hundred of the longest, with their escapes mostly


class Release(Form):
    """To whom a message goes."""

    to: Annotated[
        tuple[Annotated[str, Field(max_length=LONGEST)], ...],
        Field(
            min_length=1,
            max_length=MOST_RECIPIENTS,
            description="addresses; all of them stand in Resent-To, which each recipient sees",
        ),
    ]


def register(api: Api) -> None:
    """Declare the call."""
    releasing = Releasing(api)

    @api.add(
        "POST",
        f"{BASE}/<message_id>/release",
        Operation(
            "releaseMessage",
            "Send a message that was received on, byte for byte",
            "sending",
            Access.MAILBOX,
            (
                Answer(202, "queued, durably, behind Resent- fields", Sent),
                Answer(
                    403,
                    "a recipient matches no pattern of RELAY_OUTBOUND__RELEASE_TO; or the caller "
                    "may not send, or not from the message's reverse-path or From",
                    cases=("release-not-allowed", "foreign-sender", "reserved-name"),
                ),
                GONE,
                Answer(
                    409,
                    "there is no upstream that leads to others: mail would stay here; or the "
                    "Idempotency-Key was used for another call within 24 hours",
                    cases=("no-upstream", "idempotency-key-reused"),
                ),
                Answer(
                    422,
                    "malformed, or a recipient is on the suppression list: nothing queued",
                    cases=("suppressed",),
                ),
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
        if call.caller is None:
            raise missing_scope("send")
        queued = await releasing.queue(call.caller, call.mailbox.id, message_id, call.body.to)
        return answer_queued(queued)


class Releasing:
    """Has messages that were received sent on, as the operator allows."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._deps = deps = api.deps
        self._allowed = Patterns(deps.release_to)
        self._sending = Sending(deps.keys, deps.store.names, deps.enqueue, deps.wake_outbound)
        self._memory = api.released

    async def queue(
        self, caller: Caller, mailbox_id: UUID, message_id: str, to: Sequence[str]
    ) -> Enqueued:
        """Queue a message for these recipients, durably, under the call's Idempotency-Key.

        The caller may see the mailbox.  A `Problem` says why it is not queued.
        """
        deps, owner = self._deps, caller.owner_id
        key = idempotency_key()
        said = {"release": message_id.lower(), "from": str(mailbox_id), "to": to}
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
                "Mail does not leave this relay: its upstream is loop:, so nothing is released. "
                "RELAY_OUTBOUND__UPSTREAM names the server to hand it to.",
            )
        await self._sending.check_senders(caller.key, [sender] if sender else [])
        held = self._memory.hold(owner, 3 * size)
        try:
            raw = await deps.messages.raw(mailbox_id, message_id)
            if raw is None:
                raise message_not_found()
            # Whoever may mail to the mailbox has written it: a key sends no other's From by it.
            await self._sending.check_header(caller.key, _senders(raw))
            ready = released(
                raw,
                sender=sender,
                to=to,
                allowed=self._allowed,
                owner=owner,
                id=new_id(),
                at=utc_now(),
                postmaster=f"postmaster@{deps.store.domains[0]}",
            )
            del raw
            return await self._api.committed(
                lambda: self._sending.queue(ready, key=key, key_hash=digest)
            )
        except NotAllowed as error:
            raise Problem(
                403,
                "release-not-allowed",
                "to: mail is released to addresses of RELAY_OUTBOUND__RELEASE_TO only."
                if deps.release_to
                else "to: RELAY_OUTBOUND__RELEASE_TO names nobody yet to release mail to.",
            ) from error
        finally:
            held.release()


def _senders(raw: bytes) -> list[str] | None:
    """Everybody from whom a message says that it is; None: that is not clear."""
    try:
        return Submitted(raw).senders
    except MalformedMessage:
        return None
