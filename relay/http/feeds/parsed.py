"""Waiting until what was accepted is shown: mail is stored, and parsed some milliseconds later.

Who has just sent, and then lists or searches, would find mail without subject and text, or none.

Promises
  * Returns once all is parsed that was accepted before, of the mailboxes of a `Reach`, whoever
    accepted it, in whatever process: it waits to be parsed in one table.
  * Returns after `Limits.unparsed_timeout` at the latest, and as soon as the relay stops: what a
    caller then sees is what there is.

Fails with `DatabaseUnavailable` from the pool, and as `HeavyCalls.turn`, of which the looks at more
than one mailbox each have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from uuid import UUID

import trio

from relay.db.channels import SUMMARIES
from relay.db.listen import Bell
from relay.http.operations import Call
from relay.http.routing import Api
from relay.http.waiting.waiters import Watch, key_of
from relay.mailboxes.visibility import Reach

_LOOK = 1.0  # s; until the next look for what is not shown yet, which may be deleted meanwhile


async def until_parsed(api: Api, call: Call, reach: Reach) -> None:
    """Return once all within reach is shown that was accepted before; sooner if it takes long."""
    deps, one = api.deps, reach.mailbox_id
    until = trio.current_time() + deps.limits.unparsed_timeout
    waiting: Sequence[UUID] | None = None
    bell = Bell()
    with deps.hub.subscribe(SUMMARIES, key_of(reach), bell=bell):
        watch = Watch(bell)
        while (left := until - trio.current_time()) > 0 and not deps.draining.is_set():
            async with api.heavy_calls.turn(call) if one is None else nullcontext():
                waiting = await deps.mails.unparsed(reach, waiting)
            if not waiting:
                return
            await watch.wait(min(left, _LOOK))
