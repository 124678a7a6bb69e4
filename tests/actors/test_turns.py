"""Turns of the actors that mostly sleep: a pause, a message, the drain."""

import structlog
import trio
import trio.testing

from actors.turns import next_turn
from supervisor import Drained
from tests.actors.running import running


async def test_paused_it_waits_and_drained_meanwhile_it_ends():
    """However long the pause, one turn waits it out; a shutdown in it is an ordinary end."""
    turns = []
    ended = trio.Event()

    async def actor(ctx) -> None:
        ctx.ready()
        try:
            while True:
                turns.append(await next_turn(ctx, 0.01))
        except Drained:
            ended.set()

    with structlog.testing.capture_logs():
        async with running(actor) as (supervisor, mailbox):
            while not turns:
                await trio.sleep(0.001)
            supervisor.pause("actor")
            mailbox.send_nowait("hint")
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert not any(turns), "a paused actor's inbox hands nothing out"
            supervisor.resume("actor")
            while ["hint"] not in turns:
                await trio.sleep(0.001)
            supervisor.pause("actor")
            await trio.testing.wait_all_tasks_blocked(0.05)
        assert ended.is_set()
