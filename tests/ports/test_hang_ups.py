"""Peers that hang up while they must wait."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import trio
import trio.lowlevel

from relay.ports.hang_ups import HungUp, unless_hung_up


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours, which does not block, and the peer's."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as theirs,
        listener.accept()[0] as ours,
    ):
        ours.setblocking(False)
        yield ours, theirs


@pytest.mark.parametrize("said", [b"", b"more than is read now"])
@pytest.mark.parametrize("how", ["close", "shutdown", "reset"])
async def test_whoever_hangs_up_ends_it(ends, said: bytes, how: str):
    """By closing one side or both, or by breaking the connection; nothing was read."""
    ours, theirs = ends
    theirs.sendall(said)

    async def wait() -> None:
        if how == "shutdown":
            theirs.shutdown(socket.SHUT_WR)
        else:
            if how == "reset":
                theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            theirs.close()
        await trio.sleep_forever()

    with trio.fail_after(5), pytest.raises(HungUp):
        await unless_hung_up(ours.fileno(), wait)
    if how != "reset":
        assert ours.recv(100) == said


@pytest.mark.parametrize("said", [b"", b"more than is read now"])
async def test_whoever_stays_has_it_done(ends, said: bytes):
    """What it raises comes as it is."""
    ours, theirs = ends
    theirs.sendall(said)
    done = []

    async def work() -> None:
        await trio.lowlevel.checkpoint()
        done.append(True)

    await unless_hung_up(ours.fileno(), work)
    assert done

    async def fail() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await unless_hung_up(ours.fileno(), fail)
    assert ours.recv(100) == said if said else True


async def test_whoever_is_cancelled_is(ends):
    """And no `HungUp` is raised."""
    with trio.move_on_after(0.01) as scope:
        await unless_hung_up(ends[0].fileno(), trio.sleep_forever)
    assert scope.cancelled_caught
