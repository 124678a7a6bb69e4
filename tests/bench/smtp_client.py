"""The SMTP client alone: messages per second to one local sink over 20 connections.

Variants, each in a process of its own: a bare Trio loop that writes MAIL, RCPT and DATA in one
go and knows only replies of one line; ours without and with the next mail announced.  The sink
is Postfix's `smtp-sink` where installed, else `sink` below (also a process of its own).
Messages have 2 kB; rounds are interleaved; medians are reported.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from relay.smtp.client import Following, Mail, Outcome
from relay.smtp.connection import Connection, GoOn, Route, TlsMode

CONNECTIONS = 20
MESSAGES = 20_000
BODY = b"Subject: a message of the usual size\r\n\r\n" + b"x" * 74 + b"\r\n"
BODY += b"The quick brown fox jumps over the lazy dog, once more and again.\r\n" * 29
ROOT = Path(__file__).resolve().parents[2]


def sink() -> None:
    """Accept mail as fast as Python can and forget it; prints its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    listener.setblocking(False)
    print(listener.getsockname()[1], flush=True)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    peers: dict[int, list[Any]] = {}
    end = b"\r\n.\r\n"
    while True:
        for number, _ in poll.poll():
            if number == listener.fileno():
                peer, _ = listener.accept()
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
                peer.send(b"220 sink ESMTP\r\n")
                peers[peer.fileno()] = [peer, b"", False]
                poll.register(peer, select.EPOLLIN)
                continue
            state = peers[number]
            peer, held, in_data = state
            try:
                chunk = peer.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                poll.unregister(number)
                peer.close()
                del peers[number]
                continue
            held += chunk
            answer = b""
            while held:
                if in_data:
                    at = held.find(end)
                    if at < 0:
                        held = held[-4:]
                        break
                    held = held[at + 5 :]
                    in_data = False
                    answer += b"250 2.0.0 Ok\r\n"
                    continue
                line, found, rest = held.partition(b"\r\n")
                if not found:
                    break
                held = rest
                if line[:4] == b"DATA":
                    in_data = True
                    held = b"\r\n" + held if held else held
                    answer += b"354 End data with <CR><LF>.<CR><LF>\r\n"
                elif line[:4] == b"EHLO":
                    answer += b"250-sink\r\n250-PIPELINING\r\n250 8BITMIME\r\n"
                else:
                    answer += b"250 2.1.0 Ok\r\n"
            state[1], state[2] = held, in_data
            if answer:
                peer.send(answer)


async def bare(port: int, count: int) -> None:
    """The loop to compare with: no deadline, no check of anything but the first digits."""
    group = b"MAIL FROM:<a@example.org>\r\nRCPT TO:<b@example.net>\r\nDATA\r\n"
    message = BODY + b".\r\n"
    ok = re.compile(rb"(?:[23]\d\d[ -][^\r\n]*\r\n)+")
    left = count

    async def work() -> None:
        nonlocal left
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.receive_some()
        await stream.send_all(b"EHLO bench\r\n")
        await stream.receive_some()
        while left > 0:
            left -= 1
            await stream.send_all(group)
            got = b""
            while b"354" not in got:
                got += await stream.receive_some()
            assert ok.fullmatch(got), got
            await stream.send_all(message)
            got = await stream.receive_some()
            assert ok.fullmatch(got), got
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(work)


async def ours(port: int, count: int, *, announced: bool) -> None:
    """The client as the sender uses it: a fresh `Mail` each, deadlines, outcomes."""
    route = Route("127.0.0.1", port, TlsMode.NONE)
    left = count

    def take() -> Mail | None:
        nonlocal left
        left -= 1
        return Mail("a@example.org", ("b@example.net",), BODY) if left >= 0 else None

    def goes_on(following: Mail | None) -> GoOn:
        def go_on(
            outcomes: tuple[Outcome, ...], now: float
        ) -> tuple[Mail, Following, float] | None:
            nonlocal following
            assert outcomes[0].verdict == "delivered", outcomes
            if following is None:
                return None
            mail, following = following, take()
            return mail, following, math.inf

        return go_on

    async def work() -> None:
        connection = await Connection.open(route)
        mail = take()
        while mail is not None:
            following = take() if announced else None
            (outcome,) = await connection.deliver(
                mail, following, go_on=goes_on(following) if following else None
            )
            assert outcome.verdict == "delivered", outcome
            mail = None if announced else take()
        await connection.quit()

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(work)


@dataclass(frozen=True)
class Sink:
    """A sink that runs; `counts` is the file that smtp-sink counts in."""

    name: str
    port: int
    pid: int
    counts: int | None

    def taken(self) -> int | None:
        """How many messages it has taken so far; None: this one does not count."""
        if self.counts is None:
            return None
        size = os.fstat(self.counts).st_size
        found = re.findall(rb"mesg=(\d+)\r", os.pread(self.counts, 200, max(size - 200, 0)))
        return int(found[-1]) if found else 0


@contextlib.contextmanager
def running_sink() -> Iterator[Sink]:
    """Start the sink."""
    program = shutil.which("smtp-sink")
    with contextlib.ExitStack() as stack:
        if program is None:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.smtp_client", "sink"],
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            assert process.stdout is not None
            stack.callback(process.stdout.close)
            sink = Sink("own", int(process.stdout.readline()), process.pid, None)
        else:
            with socket.create_server(("127.0.0.1", 0)) as probe:
                port = probe.getsockname()[1]
            file = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [program, "-c", "-u", "nobody", f"127.0.0.1:{port}", "256"], stdout=file, text=True
            )
            sink = Sink("smtp-sink", port, process.pid, file.fileno())
            deadline = time.monotonic() + 10
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.05)
        stack.callback(process.wait)
        stack.callback(process.terminate)
        yield sink


def measure(variant: str, port: int, count: int) -> dict[str, float]:
    """Run one variant in a process of its own; returns messages/s and its CPU."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.bench.smtp_client", variant, str(port), str(count)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=ROOT,
    )
    found: dict[str, float] = json.loads(answer.stdout)
    return found


VARIANTS = ("bare", "ours", "ours, next announced")


def run(rounds: int) -> dict[str, Any]:
    """Measure all variants, interleaved."""
    samples: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    with running_sink() as sink:
        for _ in range(rounds):
            for variant in VARIANTS:
                samples[variant].append(measure(variant, sink.port, MESSAGES))
    results = {
        variant: {
            column: statistics.median(sample[column] for sample in taken)
            for column in ("messages/s", "cpu µs/message")
        }
        for variant, taken in samples.items()
    }
    speed = {variant: figures["messages/s"] for variant, figures in results.items()}
    return {
        "name": f"SMTP client, {CONNECTIONS} connections, 2 kB, sink: {sink.name}",
        "unit": "messages/s",
        "results": results,
        "ratios": {
            "ours, next announced / bare loop": {
                "value": speed["ours, next announced"] / speed["bare"],
                "required": 0.6,
                "aim": 1.0,
            },
            "ours / bare loop": {"value": speed["ours"] / speed["bare"], "required": 0.45},
        },
    }


def _variant(name: str, port: int, count: int) -> None:
    async def work() -> None:
        if name == "bare":
            await bare(port, count)
        else:
            await ours(port, count, announced=name != "ours")

    started, cpu = time.perf_counter(), time.process_time()
    trio.run(work)
    took, cpu = time.perf_counter() - started, time.process_time() - cpu
    print(json.dumps({"messages/s": count / took, "cpu µs/message": cpu / count * 1e6}))


if __name__ == "__main__":
    if sys.argv[1] == "sink":
        sink()
    else:
        _variant(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
