"""Peers that connect and say nothing, on a relay that may open 1,024 files: nobody is kept out."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import trio

from tests.devices.peer import ACK, Peer, key_pair
from tests.eventually import eventually
from tests.relay_process import RelayProcess

SILENT = 1000
PORTS = ("http", "smtp", "devices_push", "devices_receive")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    """A relay with few file descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # ours: the silent ones are here, too
    data = tmp_path_factory.mktemp("crowds") / "data"
    with RelayProcess(data, open_files=1024) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address(relay: RelayProcess, port: str) -> tuple[str, int]:
    """Where a port is."""
    host, _, number = str(relay.run[port]).removeprefix("http://").rpartition(":")
    return host, int(number)


def silent(stack: ExitStack, where: tuple[str, int], source: str, count: int, say: bytes) -> None:
    """Open connections from `source` that say `say` and no more; some may be refused or closed."""
    for _ in range(count):
        with suppress(OSError):
            sock = socket.create_connection(where, timeout=5, source_address=(source, 0))
            stack.enter_context(sock)
            if say:
                sock.sendall(say)


async def quit_smtp(relay: RelayProcess) -> bytes:
    """Say EHLO and QUIT; return what the relay says."""
    async with await trio.open_tcp_stream(*address(relay, "smtp")) as stream:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"EHLO x\r\nQUIT\r\n")
            return b"".join([bytes(chunk) async for chunk in stream])
    return b"421 "


async def served(relay: RelayProcess) -> None:
    """Every port serves this machine's other programs."""
    with trio.fail_after(30):
        async with httpx.AsyncClient(base_url=relay.run["http"], timeout=10) as client:
            assert (await client.get("/readyz")).status_code == 200

        async def is_served() -> bool:
            said = await quit_smtp(relay)
            # A 421 is temporary: who began a mail has two seconds to go on.
            assert b"\r\n221 " in said or said.startswith(b"421 "), said
            return b"\r\n221 " in said

        await eventually(is_served, "SMTP serves")
        private, public = key_pair()
        key = bytes.fromhex(relay.run["devices_key"])
        async with (
            await Peer.device(relay.run["devices_receive"], private),
            await Peer.pusher(relay.run["devices_push"], key) as pusher,
        ):
            assert (await pusher.push(public, b"x")).kind == ACK


@pytest.mark.parametrize(
    ("port", "source"),
    [
        *((port, "127.0.0.2") for port in PORTS),
        # In SMTP one address has a cap of its own, whose 421 says so.
        *((port, "127.0.0.1") for port in PORTS if port != "smtp"),
    ],
)
def test_silent_connections_keep_nobody_out(relay: RelayProcess, port: str, source: str):
    """A thousand on one port: that port and all others still serve, this machine's own and, where
    the silent ones look like everybody else (as behind a proxy), their own address too."""
    with ExitStack() as stack:
        silent(stack, address(relay, port), source, SILENT, b"")
        trio.run(served, relay)


@pytest.mark.parametrize(
    ("port", "say"),
    [
        ("http", b"GET /readyz HTTP/1.1\r\nHost: local"),
        ("http", b"POST /activate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"),
        ("smtp", b"EHLO x\r\nMAIL FROM:<a@b.example>\r\n"),
        ("devices_push", b"\x00\x20"),
    ],
    ids=["half a head", "half a body", "MAIL", "half a handshake"],
)
def test_nor_do_those_that_begin_and_stop(relay: RelayProcess, port: str, say: bytes):
    """From many addresses at once, as if each were another stranger."""
    with ExitStack() as stack:
        for number in range(10):
            silent(stack, address(relay, port), f"127.0.0.{number + 2}", SILENT // 10, say)
        trio.run(served, relay)


def test_the_log_and_the_metrics_tell_of_it(relay: RelayProcess):
    """How many were turned away, by port; no line for each of them."""
    metrics = httpx.get(f"{relay.run['http']}/metrics").text
    away = {
        line.split('port="')[1].split('"')[0]
        for line in metrics.splitlines()
        if line.startswith("relay_connections_turned_away_total{") and not line.endswith(" 0.0")
    }
    assert {"http", "smtp", "push", "receive"} <= away
    lines = [json.loads(line) for line in Path(relay.log_file).read_text().splitlines()]
    assert sum(line["event"] in {"http.refused", "smtp.refused"} for line in lines) < 60
    assert not any("exception" in line for line in lines)
