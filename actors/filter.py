"""The filter: runs the operator's own aiosmtpd handler, which is asyncio code.

Only there when `smtp.filter` is set.  relay/smtp/filtering.py says which hooks are called.

Promises:
- The handler is built anew with every start of this actor and lives in an asyncio loop of its own
  (trio-asyncio), which ends with it.
- What a hook raises, sys.exit included, fails its own question only: the session answers 451.
- A hook that takes longer than `timeout` seconds is cancelled and answered for; if it will not be
  cancelled, and `stuck` others neither, this actor ends and supervision starts another.

Fails with `ConfigError` when the handler cannot be built at the first start.  When this actor
fails later, questions in hand are settled without an answer (451), and those asked until it is
back wait for it as long as their session does.

Why trio-asyncio is imported in `run`: the import changes asyncio's loop policy for the whole
process, and every call through it costs several times as much, so only those pay who use it.
A hook that blocks (a long computation, a synchronous look-up) blocks the relay; the watch-dog
names it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio

from actors.messages import Consult
from relay.errors import ConfigError
from relay.log import get_logger
from relay.smtp.filtering import FilterClass
from supervisor import Context, Drained, Held

log = get_logger()

CONCURRENT = 100
"""Hooks that may be under way at once; further questions wait in the mailbox."""

STUCK = 10
"""The number of hooks that ignore their cancellation at which this actor ends, by default."""

_LAST_WORDS = 1.0  # s; a hook that was cancelled and still runs then ignores it


async def run(
    ctx: Context,
    *,
    filter_: FilterClass,
    hostname: str,
    max_message_bytes: int,
    timeout: float = 30.0,  # noqa: ASYNC109 - of each hook, in seconds
    stuck: int = STUCK,
) -> None:
    """Answer `Consult` messages with the operator's handler until drained.

    `stuck`: so many hooks that ignore their cancellation end this actor.
    """
    import trio_asyncio  # see the header

    async with trio_asyncio.open_loop() as loop:
        loop.set_exception_handler(_report)
        server = SimpleNamespace(hostname=hostname, data_size_limit=max_message_bytes, loop=loop)
        try:
            handler = await trio_asyncio.aio_as_trio(_build)(filter_.build)
        except Exception as error:
            if ctx.incarnation > 1:
                raise
            raise ConfigError(
                f"smtp.filter: {filter_.name} cannot be built without arguments "
                f"({type(error).__name__}: {error})"
            ) from error
        ctx.ready()
        hooks = _Hooks(handler, server, loop, timeout, stuck)
        with hooks.scope:
            while True:
                await hooks.wait_for_room()
                try:
                    held = await ctx.inbox.take(1)
                except Drained:
                    break
                hooks.start(held[0])
                ctx.beat()
            await hooks.wait_for_all()
        if hooks.scope.cancelled_caught:
            raise RuntimeError(f"{stuck} hooks of the filter ignore their cancellation")


def dead(message: Consult, attempts: int) -> None:
    """Settle a question whose actor failed (`on_dead`): the session answers 451."""
    log.error("filter.dead_letter", hook=message.hook, attempts=attempts)
    message.reply.settle(None)


async def _build(build: Callable[[], Any]) -> Any:
    """Build the handler where asyncio runs, as its constructor may use the loop."""
    return build()


def _report(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Without a handler of ours trio-asyncio raises, and one lost file descriptor ends everything.
    log.error(
        "filter.asyncio_error",
        message=context.get("message"),
        exc_info=context.get("exception"),
    )


class _Hooks:
    """The hooks under way, each an asyncio task."""

    def __init__(
        self,
        handler: Any,
        server: SimpleNamespace,
        loop: asyncio.AbstractEventLoop,
        timeout: float,
        most_stuck: int,
    ) -> None:
        self._most_stuck = most_stuck
        self._handler = handler
        self._server = server
        self._loop = loop
        self._timeout = timeout
        ehlo = getattr(handler, "handle_EHLO", None)
        # Before aiosmtpd 1.3 the hook had no list of responses.
        self._ehlo_arguments = 0 if ehlo is None else len(inspect.signature(ehlo).parameters) - 3
        self._tasks: set[asyncio.Task[None]] = set()
        self._stuck = 0
        self._changed = trio.Event()
        self.scope = trio.CancelScope()
        """Cancelled when too many hooks are stuck."""

    def start(self, held: Held[Consult]) -> None:
        """Begin to answer one question."""
        task = self._loop.create_task(self._answer(held))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def wait_for_room(self) -> None:
        """Wait until another hook may be started."""
        while len(self._tasks) >= CONCURRENT:
            await self._wait()

    async def wait_for_all(self) -> None:
        """Wait for the hooks under way."""
        while self._tasks:
            await self._wait()

    async def _wait(self) -> None:
        self._changed = trio.Event()
        await self._changed.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()

    async def _answer(self, held: Held[Consult]) -> None:
        message = held.message
        message.session.loop = self._loop
        call = self._loop.create_task(self._call(message))
        done, _ = await asyncio.wait({call}, timeout=self._timeout)
        if not done:
            log.error("filter.timed_out", hook=message.hook, seconds=self._timeout)
            call.cancel()
        # Settled before the cancelled hook has ended: it may take its time over that.
        message.reply.settle(call.result() if done else None)
        held.done()
        if not done:
            ended, _ = await asyncio.wait({call}, timeout=_LAST_WORDS)
            if not ended:
                self._stuck += 1
                if self._stuck >= self._most_stuck:
                    self.scope.cancel()
                await asyncio.wait({call})
                self._stuck -= 1

    async def _call(self, message: Consult) -> object:
        """Run the hook; None when it failed, whatever it raised."""
        hook = getattr(self._handler, f"handle_{message.hook}")
        arguments = message.arguments
        if message.hook == "EHLO":
            arguments = arguments[: self._ehlo_arguments]
        try:
            answer = await hook(self._server, message.session, message.envelope, *arguments)
        except asyncio.CancelledError:
            return None
        except BaseException:
            # SystemExit too: in an asyncio task it would end the whole process.
            log.exception("filter.hook_failed", hook=message.hook)
            return None
        if message.hook == "EHLO" and isinstance(answer, list | tuple):
            refusals = [line for line in answer if not str(line).startswith("250")]
            return str(refusals[0]) if refusals else "250 OK"
        return answer
