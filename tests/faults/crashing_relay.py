"""`relay up` with actors that crash on demand, at a pace for tests.

`python -m tests.faults.crashing_relay up --data-dir DIR`.  The actor NAME fails while the file
$CRASHES/NAME exists: at each start, and soon when it appears.  All back-offs and periods of the
tree are $PACE times as long as they are (1: as they are).
"""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import trio

from actors.tree import Pace, Parts, Run, build_tree
from relay.app import up
from relay.datadir import DataDir
from relay.settings import load
from supervisor import Backoff, Context, SupervisorSpec

_LOOK_EVERY = 0.05  # s


class Injected(Exception):
    """What it crashes with."""


def crashing(run: Run, flag: Path) -> Run:
    """Return an actor that does as `run` does while there is no file `flag`."""

    def is_due() -> bool:
        return flag.exists()

    async def watch() -> None:
        while not is_due():
            await trio.sleep(_LOOK_EVERY)
        raise Injected(flag.name)

    async def crashes(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            if is_due():
                raise Injected(flag.name)
            nursery.start_soon(watch)
            await run(ctx)
            nursery.cancel_scope.cancel()

    return crashes


def paced(pace: Pace, times: float) -> Pace:
    """Return a pace with every time so many times as long."""

    def scaled(one: Backoff) -> Backoff:
        return replace(
            one,
            base=one.base * times,
            cap=one.cap * times,
            stable_after=one.stable_after * times,
        )

    return replace(
        pace,
        actor=scaled(pace.actor),
        urgent=scaled(pace.urgent),
        patient=scaled(pace.patient),
        within=pace.within * times,
        root_within=pace.root_within * times,
    )


def build(parts: Parts) -> SupervisorSpec:
    """Place the parts, each so that it can be made to crash."""
    flags = Path(os.environ["CRASHES"])
    actors: dict[str, Any] = {
        field.name: crashing(run, flags / field.name)
        for field in fields(parts)
        if field.name in parts.wanted and (run := getattr(parts, field.name)) is not None
    }
    return build_tree(replace(parts, **actors), paced(Pace(), float(os.environ["PACE"])))


if __name__ == "__main__":
    data = DataDir(Path(sys.argv[sys.argv.index("--data-dir") + 1]))
    settings = load()
    data.prepare()
    sys.exit(up(settings, data, build=build))
