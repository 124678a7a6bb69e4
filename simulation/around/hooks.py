"""Who is told of mail: the receiver of webhooks."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Iterable

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, Talk
from simulation.history import Post
from simulation.places import HOOKS
from simulation.world import NODE


async def hooks(
    around: Around, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be the program that is told of mail that arrived."""
    NODE.set("hooks")
    (listener,) = around.network.listen(HOOKS, 80)
    async with trio.open_nursery() as nursery:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, peer = around.network.accept(listener)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            nursery.start_soon(_be_told, around, stream, peer[0])


_NOT_TOLD = (b"503 Later", b"500 Oops", b"429 Too often", b"404 Not here", b"302 Elsewhere")


async def _be_told(around: Around, stream: trio.SocketStream, peer: str) -> None:
    post: Post | None = None
    async with stream:
        talk = Talk(stream)
        try:
            head: dict[bytes, bytes] = {}
            while line := await talk.line():
                name, _, value = line.partition(b":")
                head[name.lower()] = value.strip()
            body = await talk.exactly(int(head.get(b"content-length", b"0")))
            post = _read(head, body, around.world.now(), peer)
            around.history.posts.append(post)
            status = await _status(around)
            await talk.say(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
            if status[:1] == b"2":
                post.told_at = around.world.now()
                around.history.told.append(f"{post.marker}/{post.mailbox}")
                around.world.tell("hook.told", marker=post.marker, id=post.event)
                around.busy(peer)
        except (*BROKEN, ValueError):
            return
        finally:
            if post is not None:
                post.ended_at = around.world.now()


def _read(head: dict[bytes, bytes], body: bytes, now: float, peer: str) -> Post:
    said = json.loads(body)
    event, at = head.get(b"webhook-id", b""), head.get(b"webhook-timestamp", b"")
    return Post(
        event.decode(),
        said["data"]["subject"] or "",
        said["data"]["mailbox"],
        now,
        peer,
        named=said["id"] == event.decode(),
        content=b"%b.%b.%b" % (event, at, body),
        signatures=head.get(b"webhook-signature", b"").decode(),
    )


async def _status(around: Around) -> bytes:
    """Return what to answer, when it is time; raises where it hangs up."""
    rng = around.world.rng("hooks")
    if not around.peers_fail or rng.random() >= 0.5:
        return b"200 OK"
    how = rng.choice(("refuse", "hang up", "stall", "slow"))
    around.world.tell("hook.misbehaves", how=how)
    if how == "hang up":
        raise trio.BrokenResourceError("hung up")
    if how == "slow":  # and says yes, to whom it may be too late
        await trio.sleep(rng.uniform(0.1, 20.0))
        return b"200 OK"
    if how == "stall":
        await trio.sleep(rng.uniform(10.0, 60.0))
    status: bytes = rng.choice(_NOT_TOLD)
    return status


def verify(posts: Iterable[Post], secret: str) -> None:
    """Look at the signatures of posts, by the secret that the relay shows their receiver: as
    Standard Webhooks have it."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    for post in posts:
        made = base64.b64encode(hmac.digest(key, post.content, "sha256")).decode()
        post.signed = f"v1,{made}" in post.signatures.split(" ")
