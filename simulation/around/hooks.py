"""Who is told of mail: the receiver of webhooks."""

from __future__ import annotations

import json

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, Talk
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
    rng = around.world.rng("hooks")
    async with stream:
        talk = Talk(stream)
        try:
            length = 0
            while line := await talk.line():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            told = json.loads(await talk.exactly(length))
            status = b"200 OK"
            if around.peers_fail and rng.random() < 0.5:
                how = rng.choice(("refuse", "hang up", "stall", "slow"))
                around.world.tell("hook.misbehaves", how=how)
                if how == "hang up":
                    return
                if how == "stall":
                    await trio.sleep(rng.uniform(10.0, 60.0))
                if how == "slow":  # and says yes, to whom it may be too late
                    await trio.sleep(rng.uniform(0.1, 20.0))
                else:
                    status = rng.choice(_NOT_TOLD)
            await talk.say(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
            if status[:1] == b"2":
                marker = told["data"]["subject"]
                around.history.told.append(marker)
                around.world.tell("hook.told", marker=marker)
                around.busy(peer)
        except (*BROKEN, ValueError):
            return
