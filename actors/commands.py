"""What an operator may say to the tree, and by which names.

Promises: names that actors had in earlier versions are understood wherever a name may be said.
A command goes into the mailbox of an actor that lists it (`hears`, beside the actor in
`actors/tree.py`), and is done when the actor reads it: after the resume of one that is paused,
after the next start of one that is down.  Said to a group it goes to all in it that list it.

A pause holds back what can wait: what comes by the mailbox or by a port, and what is done every so
often.  The database's two actors and the control plane have none of it and refuse (`pausable`).

Fails with KeyError for a name nobody has, `NotUnderstood` for a command that nobody of that name
lists and a pause that it refuses, `NotNow` in a shutdown and while the actor has a full mailbox.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import trio

import supervisor
from actors.messages import Report, SweepNow
from relay.http.deps import Node as Shown
from relay.http.deps import NotNow, NotUnderstood
from supervisor import Node, NotRunning, Subscription, Supervisor

FORMER = {"courier": "webhooks", "keeper": "device_store"}
"""Actors by the names that they had."""


def current_name(name: str) -> str:
    """Return the name that an actor has, given that or a former one."""
    return FORMER.get(name, name)


class Commands:
    """An operator's hand in the tree that `boss` runs; `relay.http.deps.Supervision`."""

    def __init__(self, boss: Supervisor) -> None:
        """Nothing happens yet."""
        self._boss = boss

    def tree(self) -> Node:
        """Return the tree as it is now."""
        return self._boss.tree()

    def node(self, name: str) -> Node:
        """Return the actor or group of this name, as it is now, with what is under it."""
        name = current_name(name)
        nodes = [self._boss.tree()]
        for node in nodes:
            if node.name == name:
                return node
            nodes += node.children
        raise KeyError(name)

    def commands(self, node: Shown) -> list[str]:
        """Return what may be said to it as it is now, by the names that calls have."""
        pauses = [] if not node.pausable else ["resume" if str(node.state) == "paused" else "pause"]
        told = {SweepNow: "sweep", Report: "report"}
        return ["restart", *pauses, *(told[kind] for kind in told if kind in node.hears)]

    def subscribe(self, capacity: int = 256) -> AbstractContextManager[Subscription]:
        """Follow what happens, at most `capacity` events behind."""
        return self._boss.subscribe(capacity)

    async def restart(self, name: str) -> None:
        """Begin to drain it and to start it again; of a group that has given up, all of it."""
        name = current_name(name)
        try:
            try:
                await self._boss.restart(name)
            except NotRunning:
                await self._boss.restart(self._group_of(name))
        except NotRunning as error:
            raise NotNow(str(error)) from error

    def pause(self, name: str) -> None:
        """Let it take no more work."""
        try:
            self._boss.pause(current_name(name))
        except supervisor.NotUnderstood as error:
            raise NotUnderstood from error

    def resume(self, name: str) -> None:
        """Let it work again."""
        self._boss.resume(current_name(name))

    def sweep(self, name: str) -> None:
        """Tell it to do now what it does every so often."""
        self._tell(name, SweepNow())

    def report(self, name: str) -> None:
        """Tell it to log its figures."""
        self._tell(name, Report())

    def _group_of(self, name: str) -> str:
        groups = self._boss.tree().children
        return next(
            (group.name for group in groups if name in {one.name for one in group.children}), name
        )

    def _tell(self, name: str, command: object) -> None:
        try:
            self._boss.tell(current_name(name), command)
        except supervisor.NotUnderstood as error:
            raise NotUnderstood from error
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise NotNow(f"{name!r} has a full mailbox, or has ended") from error
