"""One of several SMTP processes: starts it, feeds it, listens to it, and ends it.

With `RELAY_SMTP__PROCESSES` at N above 1 there are N of this actor, `ingest-1` to `ingest-N`.
The process is `actors/ingest_main.py`; which connections it gets is decided by what all of them
share, `relay.smtp.front`.

Promises:
- The process is a fresh interpreter, never a fork of this one.  It gets no secret by arguments or
  environment, and no file of ours but its end of the channel and the board.
- It is gone when this actor is, however that ends, and soon after this relay is.
- What it logs is part of this relay's log, under this actor's name; what it counts is part of this
  relay's metrics.
- Paused: it gets no new connections; those that it has finish.
- Draining: as `ingest` says, for this process's sessions.

Fails with `ProcessEnded` when the process ends by itself, with `ProcessSilent` when nothing was
heard from it for `PATIENCE` seconds: then it is killed.  Either way supervision starts another, and
`relay.smtp.front` has the table of what that costs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from actors.periodic import report_when_told
from relay import log as logging
from relay.child_process import python_environment
from relay.db.hosts import Hosts
from relay.load import cpu_seconds
from relay.log import get_logger
from relay.metrics import registry
from relay.ports.certificate import Certificate
from relay.smtp.channel import Channel, Kind, Packet, Setup, idle, ids, pack, pack_json, unread
from relay.smtp.front import Front, Link
from relay.smtp.refused import Note
from relay.storage import Space
from supervisor import Context, Process

log = get_logger()

PATIENCE = 20.0
"""Seconds without a word of a process before it counts as one that hangs."""

_TELL_EVERY = 1.0  # s
_KILL_TIMEOUT = 4.0  # s; a process that the kernel does not end in this time is left to it


class ProcessEnded(Exception):
    """The process ended, and nobody had told it to."""


class ProcessSilent(Exception):
    """The process does not say any more that it is alive."""


async def run(
    ctx: Context,
    *,
    front: Front,
    setup: Setup,
    hosts: Hosts,
    space: Space,
    wake_summariser: Callable[[], None],
    certificate: Certificate | None = None,
    patience: float = PATIENCE,
    return_keys: Callable[[], Sequence[bytes]] = tuple,
    note_refused: Note | None = None,
) -> None:
    """Run the process at `setup.place` for `front` until drained.

    It is told what `hosts` and `space` know, and when `certificate` is to be read again, whose
    files are those of `setup`.  `wake_summariser` is called after its commits; `patience` in
    seconds; `return_keys`: those that return paths are read by now; `note_refused` remembers the
    recipients that are refused.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process: trio.Process | None = None
    channel = Channel(ours)
    link = Link(channel, lambda: ctx.paused)
    try:
        setup = replace(setup, level=logging.level(), environment=_of_libpq())
        for packet in setup.packets():
            channel.put(packet)
        process = await _start(theirs.fileno(), front.board_file)
        ours_of = _Parent(
            ctx,
            process,
            channel,
            link,
            front,
            hosts,
            space,
            wake_summariser,
            certificate,
            return_keys,
            note_refused,
        )
        await ours_of.run(patience)
    finally:
        front.part(link)
        if process is not None:
            # Its end of the channel is open here, too: what it has not read is not lost with it.
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_TIMEOUT):
                process.kill()
                await process.wait()
        front.board.clear(setup.place)
        front.lost(link, [*unread(theirs), *channel.unsent()])
        ours.close()
        theirs.close()


async def _start(channel: int, board: int) -> trio.Process:
    return await trio.lowlevel.open_process(
        [sys.executable, "-m", "actors.ingest_main", str(channel), str(board)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=python_environment(),
        pass_fds=(channel, board),
        start_new_session=True,  # the terminal's signals are for the parent
    )


def _of_libpq() -> dict[str, str]:
    """What our connections to the database go by, besides their URL; there may be a password."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(("PG", "SSL_CERT_", "KRB5"))
    }


class _Parent:
    """What this side does while the process runs."""

    def __init__(
        self,
        ctx: Context,
        process: trio.Process,
        channel: Channel,
        link: Link,
        front: Front,
        hosts: Hosts,
        space: Space,
        wake_summariser: Callable[[], None],
        certificate: Certificate | None,
        return_keys: Callable[[], Sequence[bytes]],
        note_refused: Note | None,
    ) -> None:
        self._return_keys = return_keys
        self._note_refused = note_refused
        self._ctx = ctx
        self._process = process
        self._channel = channel
        self._link = link
        self._front = front
        self._hosts = hosts
        self._space = space
        self._wake_summariser = wake_summariser
        self._certificate = certificate
        self._began = trio.current_time()
        self._heard = True
        self._last_word = ""
        ctx.processes = self._processes

    async def run(self, patience: float) -> None:
        """Until the process has ended, as it was told to."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._channel.run)
            nursery.start_soon(self._listen)
            nursery.start_soon(self._tell)
            nursery.start_soon(self._watch, patience)
            nursery.start_soon(report_when_told, self._ctx, self._figures)
            nursery.start_soon(self._drain)
            if self._certificate is not None:
                nursery.start_soon(self._pass_on_reloads, self._certificate)
            status = await self._process.wait()
            nursery.cancel_scope.cancel()
        while packets := self._channel.receive_nowait():
            for packet in packets:
                self._obey(packet)
        if status or not self._ctx.draining.is_set():
            raise ProcessEnded(_how(status) + (self._last_word and f": {self._last_word}"))

    def _processes(self) -> tuple[Process, ...]:
        pid = self._process.pid
        return (Process("process", pid, self._ctx.incarnation - 1, cpu_seconds(pid)),)

    def _figures(self) -> Mapping[str, object]:
        return {"pid": self._process.pid, "sessions": len(self._link.guests)}

    async def _drain(self) -> None:
        await self._ctx.draining.wait()
        self._front.part(self._link)
        self._channel.put(pack(Kind.DRAIN))

    async def _pass_on_reloads(self, certificate: Certificate) -> None:
        while True:
            await certificate.reload_asked()
            self._channel.put(pack(Kind.RELOAD))

    async def _tell(self) -> None:
        """Say every second what the process cannot see for itself."""
        while True:
            if not self._channel.backlog:
                keys = [key.hex() for key in self._return_keys()]
                state = (self._space.state, self._hosts.known, logging.level(), keys)
                self._channel.put(pack_json(Kind.TICK, state))
            await trio.sleep(_TELL_EVERY)

    async def _watch(self, patience: float) -> None:
        """End this actor when the process is silent for so long.

        Counted in looks, not by the clock: if it was this process that stood still, the other has
        had no chance to be heard.
        """
        looks = 4
        silent = 0
        while silent < looks:
            await trio.sleep(patience / looks)
            silent = 0 if self._heard else silent + 1
            self._heard = False
        raise ProcessSilent(f"process {self._process.pid} was silent for {patience:g} s")

    async def _listen(self) -> None:
        while True:
            for packet in await self._channel.receive():
                self._obey(packet)
            await trio.lowlevel.checkpoint()

    def _obey(self, packet: Packet) -> None:
        kind, payload = packet.kind, packet.payload
        self._heard = True
        if kind == Kind.ENDED:
            self._front.ended(self._link, ids(payload))
        elif kind == Kind.WAKE:
            self._wake_summariser()
        elif kind == Kind.IDLE:
            self._front.idle(self._link, idle(payload))
        elif kind == Kind.BUSY:
            self._front.busy(self._link, ids(payload))
        elif kind == Kind.LOG:
            for line in json.loads(payload):
                logging.repeat({**line, "actor": self._ctx.name})
        elif kind == Kind.METRICS:
            registry.add(json.loads(payload))
        elif kind == Kind.BEAT:
            known, self._link.lacking = json.loads(payload)
            if known is not None:
                self._hosts.learn(*known)
        elif kind == Kind.REFUSED:
            if self._note_refused is not None:
                self._note_refused(*json.loads(payload))
        elif kind == Kind.READY:
            self._serve()
        elif kind == Kind.FAILED:
            self._last_word = payload.decode(errors="replace")  # it may have been cut

    def _serve(self) -> None:
        if not self._ctx.draining.is_set():
            took = round(trio.current_time() - self._began, 3)
            log.info("ingest.process_ready", pid=self._process.pid, seconds=took)
            self._front.join(self._link)
        self._ctx.ready()


def _how(status: int) -> str:
    if status < 0:
        return f"the process was ended by {signal.Signals(-status).name}"
    return f"the process ended with status {status}"
