"""What `/readyz` says of a tree: group, actor, last error, and no personal data."""

import trio
from trio.testing import MockClock

from relay.devices.store import StoreUnavailable
from relay.http.resources.health import troubled, troubles, troubles_of
from supervisor import GaveUp, Node, State


def node(
    name: str,
    state: State = State.RUNNING,
    *children: Node,
    error: BaseException | None = None,
) -> Node:
    """A node of a tree."""
    return Node(name, state, 0, None, 0, None, children, error)


def test_nothing_is_wrong_with_what_runs_or_was_paused():
    """Paused on purpose is no trouble."""
    mail = node("mail", State.RUNNING, node("writer"), node("ticker", State.PAUSED))
    assert list(troubles(node("relay", State.RUNNING, mail))) == []


def test_an_actor_is_named_with_its_group_and_last_error():
    """In the relay's own words, out of whatever group of exceptions they come."""
    error = ExceptionGroup("", [ExceptionGroup("", [StoreUnavailable("no such disk\nat all")])])
    store = node("device_store", State.BACKING_OFF, error=error)
    groups = [
        node("mail", State.RUNNING, node("writer", State.STARTING)),
        node("devices-store", State.STARTING, store),
    ]
    tree = node("relay", State.RUNNING, *groups)
    assert list(troubles(tree)) == [
        "mail: writer is starting",
        "devices-store: device_store is backing_off (no such disk)",
    ]
    assert [actor for actor, _ in troubled(tree)] == ["writer", "device_store"]


def test_of_an_error_that_is_not_the_relays_only_the_kind_is_told():
    """Its text may hold an address, and anybody may ask."""
    sender = node("sender", State.BACKING_OFF, error=ValueError("ada@example.org"))
    outbound = node("outbound", State.RUNNING, sender, node("claimer"))
    assert list(troubles(node("relay", State.RUNNING, outbound))) == [
        "outbound: sender is backing_off (ValueError)"
    ]


def test_a_group_that_gave_up_is_one_clause():
    """With the actor that was the last straw, and not all that stopped with it."""
    sender = node("sender", State.STOPPED)
    claimer = node("claimer", State.FAILED, error=ZeroDivisionError())
    outbound = node(
        "outbound",
        State.BACKING_OFF,
        sender,
        claimer,
        error=GaveUp("outbound", "claimer", "crashed"),
    )
    tree = node("relay", State.RUNNING, outbound)
    assert list(troubles(tree)) == [
        "outbound is backing_off, after failures of claimer (ZeroDivisionError)"
    ]
    assert [actor for actor, _ in troubled(tree)] == ["claimer"]


async def test_all_stores_are_asked_at_once_and_each_is_named(autojump_clock: MockClock):
    """Two that hang take no longer than one, and what a third says is not lost."""

    async def fine() -> str | None:
        return None

    async def broken() -> str | None:
        return "the shelf is full"

    checks = {"a": trio.sleep_forever, "b": broken, "c": fine, "d": trio.sleep_forever}
    assert await troubles_of(checks) == [
        "a does not answer within 2 s",
        "the shelf is full",
        "d does not answer within 2 s",
    ]
    assert trio.current_time() == 2
    assert await troubles_of({"c": fine}) == []
