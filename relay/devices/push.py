"""A push session: an anonymous client hands in blobs and hears what became of each.

Promises
  * One Ack or Error a Push, in the order of the Pushes; an Ack only when the blob is durable.
    The session goes on after an Error.
  * What has arrived together is put together, in its order, and shares commits; its answers go
    out in one write.  A client need not wait for an answer before its next Push.
  * A session without a whole frame for `push_idle` seconds ends; not while an answer is owed.
  * Draining: what has arrived is answered, a frame that is arriving may finish, then it ends.

A turn of the session is: receive, put, answer.  The next one is not received before, so a client
is never further ahead than what one read gives, about 64 KiB.
"""

from __future__ import annotations

import math
from functools import partial

import trio

from relay.devices.channel import Channel
from relay.devices.intake import Intake
from relay.devices.limits import DeviceLimits
from relay.devices.noise import Undecryptable
from relay.devices.wire import (
    ACK_FRAME,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    KEY_SIZE,
    PUSH,
    Reason,
    Refused,
    decode,
)
from relay.ports.peers import peer_key

Blob = tuple[bytes, bytes]
"""Recipient and envelope."""


class PushSession:
    """One session, after its handshake.  `run` in a task of its own."""

    __slots__ = (
        "_began", "_busy", "_channel", "_draining", "_intake", "_limits", "_scope", "_source",
    )  # fmt: skip

    def __init__(self, channel: Channel, intake: Intake, limits: DeviceLimits) -> None:
        self._channel = channel
        self._intake = intake
        self._source = peer_key(channel.host)
        self._limits = limits
        self._scope = trio.CancelScope()
        self._busy = self._draining = False
        self._began = trio.current_time()

    def drain(self) -> None:
        """End when nothing is in hand, or half received, any more."""
        self._draining = True
        if self._free:
            self._scope.cancel()

    @property
    def _free(self) -> bool:
        return not self._busy and not self._channel.mid_message

    @property
    def unsent(self) -> int:
        """Bytes for the peer that the kernel has not taken."""
        return self._channel.pending

    @property
    def idle_since(self) -> float | None:
        """Since when nothing has come and nothing is owed; None while something is."""
        if not self._free:
            return None
        return max(self._began, self._scope.deadline - self._limits.push_idle)

    async def run(self) -> None:
        """Serve until the client has gone, is silent for too long, or breaks the protocol.

        Raises `Ended` and `Undecryptable`.
        """
        channel, scope = self._channel, self._scope
        with scope:
            while not (self._draining and self._free):
                scope.deadline = trio.current_time() + self._limits.push_idle
                messages = await channel.receive()
                self._busy = True
                scope.deadline = math.inf  # answers are owed: it is not the client that is slow
                intact = await self._turn(messages)
                scope.deadline = trio.current_time() + self._limits.push_idle
                await channel.drain()
                channel.done()
                self._busy = False
                if not intact:
                    raise Undecryptable
        if self._draining:
            await channel.finish(self._limits.linger)

    async def _turn(self, messages: list[bytes]) -> bool:
        """Deal with what came and post the answers; False if the last was not decryptable."""
        answers: list[bytes] = []
        blobs: list[tuple[int, Blob]] = []  # with the place of the answer
        intact = True
        for message in messages:
            try:
                plain = self._channel.open(message)
            except Undecryptable:
                intact = False  # what came before it was well meant, and is answered
                break
            try:
                blob = self._admitted(plain)
            except Refused as refused:
                answers.append(refused.frame)
                continue
            if blob is None:
                answers.append(HEARTBEAT_FRAME)
            else:
                blobs.append((len(answers), blob))
                answers.append(ACK_FRAME)
        await self._put(blobs, answers)
        self._channel.post(*answers)
        return intact

    def _admitted(self, plain: bytes) -> Blob | None:
        """Return the blob that a frame pushes, None for a Heartbeat; or raise `Refused`."""
        try:
            kind, body = decode(plain)
        except Refused as refused:
            raise self._intake.refused(refused.reason) from refused
        if kind == HEARTBEAT:
            return None  # we never ask on this kind of session, so each one is to be answered
        if kind != PUSH:
            raise self._intake.refused(Reason.MALFORMED)
        blob = body[:KEY_SIZE], body[KEY_SIZE:]
        self._intake.admit(*blob, self._source)
        return blob

    async def _put(self, blobs: list[tuple[int, Blob]], answers: list[bytes]) -> None:
        """Store all of them; correct the answers of those that were refused."""

        async def put(place: int, blob: Blob) -> None:
            try:
                await self._intake.store(*blob)
            except Refused as refused:
                answers[place] = refused.frame

        if len(blobs) == 1:
            await put(*blobs[0])
        elif blobs:
            async with trio.open_nursery() as nursery:
                for place, blob in blobs:
                    nursery.start_soon(partial(put, place, blob))
                    # Tasks that start in one step of the loop run in any order.  This one starts
                    # them in steps of their own, so that the inbox gets them first in, first out.
                    await trio.lowlevel.cancel_shielded_checkpoint()
