"""Addresses that are raced: which is tried when, and how many sockets that takes."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest
import trio

from relay import net
from relay.smtp import racing
from tests.black_hole import black_hole
from tests.outbound.sink import running_sink

EIGHT = [f"127.0.6.{number}" for number in range(1, 9)]


async def test_addresses_are_raced():
    """One that does not answer costs a quarter of a second, one that refuses nothing."""
    with trio.socket.socket() as full:
        await full.bind(("127.0.0.4", 0))
        full.listen(0)
        port = full.getsockname()[1]
        fillers = [trio.socket.socket() for _ in range(4)]
        async with trio.open_nursery() as nursery:
            for filler in fillers:  # no room is left in its queue
                nursery.start_soon(filler.connect, ("127.0.0.4", port))
            async with running_sink(host="127.0.0.5", port=port) as sink:
                await trio.sleep(0.05)
                for addresses in (["127.0.0.4", "127.0.0.5"], ["127.0.0.6", "127.0.0.5"]):
                    began = trio.current_time()
                    async with await racing.race(addresses, port) as stream:
                        assert stream.socket.getpeername()[0] == "127.0.0.5"
                    took = trio.current_time() - began
                    assert took < (2.0 if addresses[0] == "127.0.0.4" else racing.DELAY)
                with pytest.raises(OSError, match="all attempts"):
                    await racing.race(["127.0.0.6", "127.0.0.7"], port)
                assert len(sink.sessions) == 2
            nursery.cancel_scope.cancel()
        for filler in fillers:
            filler.close()


class Log:
    """When each address was tried and given up, and how many files that took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tried: list[float] = []
        self.given_up: list[float] = []
        self.most_files = 0
        self._connect = net.open_tcp_stream
        self._began = trio.current_time()
        self._files = _open_files()
        monkeypatch.setattr(racing, "open_tcp_stream", self.connect)

    async def connect(self, host: str, port: int) -> trio.SocketStream:
        self.tried.append(trio.current_time() - self._began)
        try:
            return await self._connect(host, port)
        except OSError:
            raise
        except BaseException:  # Trio's own nursery may have made a group of it
            self.given_up.append(trio.current_time() - self._began)
            raise

    async def watch(self) -> None:
        while True:
            self.most_files = max(self.most_files, _open_files() - self._files)
            await trio.sleep(0.05)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("within", "given"), [(15.0, racing.GIVEN), (4.0, 1.0)], ids=["in time", "in a hurry"]
)
async def test_dead_addresses_take_two_sockets_however_many_they_are(
    autojump_clock, monkeypatch, nursery, within, given
):
    """The one that is open for longest makes room for the next; each has its share of the time."""
    with ExitStack() as stack:
        port = 0
        for address in EIGHT:
            port = stack.enter_context(black_hole(address, port))
        log = Log(monkeypatch)
        nursery.start_soon(log.watch)
        with trio.move_on_after(within) as scope:
            await racing.race(EIGHT, port)
        assert scope.cancelled_caught
        starts = [after + pair * given for pair in range(4) for after in (0, racing.DELAY)]
        assert log.tried == starts
        assert log.given_up == [*starts[2:], within, within]
        assert log.most_files == 2
        nursery.cancel_scope.cancel()


async def test_the_only_address_that_answers_is_found_wherever_it_stands(
    autojump_clock, monkeypatch
):
    """The last of eight, and one that is slow: it keeps its socket while nobody else has any."""
    with ExitStack() as stack:
        port = 0
        for address in EIGHT[:-1]:
            port = stack.enter_context(black_hole(address, port))
        async with running_sink(host=EIGHT[-1], port=port):
            for order in (EIGHT, EIGHT[::-1]):
                log = Log(monkeypatch)
                with trio.fail_after(15):
                    async with await racing.race(order, port) as stream:
                        assert stream.socket.getpeername()[0] == EIGHT[-1]
                assert len(log.tried) == (8 if order is EIGHT else 1)


async def test_who_has_failed_makes_room_at_once(autojump_clock, monkeypatch):
    """Beside one that is silent those that refuse cost nothing, and it is not given up for them."""
    with black_hole(EIGHT[0], 0) as port:
        log = Log(monkeypatch)
        with trio.move_on_after(15):
            await racing.race(EIGHT[:4], port)
        assert log.tried == [0.0] + 3 * [racing.DELAY]
        assert log.given_up == [15.0]
