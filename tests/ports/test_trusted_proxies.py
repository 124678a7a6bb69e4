"""Submission and POP3 behind a proxy: whoever it names counts, before TLS and before anything."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pytest
import trio

from relay.db.pool import Pool
from relay.pop3.limits import Pop3Limits
from relay.ports.certificate import Certificate
from relay.ports.proxy import networks
from relay.smtp.limits import SmtpLimits
from tests.actors import test_pop3, test_submission
from tests.certificates import write
from tests.ports.test_proxy import version2

PROXY = "127.0.0.9"

Address = tuple[str, int]


def version1(source: str) -> bytes:
    """A header of version 1."""
    return f"PROXY TCP4 {source} 10.0.0.1 1234 25\r\n".encode()


class Kind(NamedTuple):
    """A port: how it is served, how it is asked what it offers, and its offer to sign in."""

    serving: Callable[..., Any]
    limits: Callable[..., Any]
    question: bytes
    last: bytes
    sign_in: bytes
    refused: bytes


KINDS = [
    Kind(test_submission.serving, SmtpLimits, b"EHLO c\r\n", b"250 ", b"250-AUTH ", b"500 "),
    Kind(test_pop3.serving, Pop3Limits, b"CAPA\r\n", b".\r\n", b"USER\r\n", b"-ERR "),
]


@pytest.fixture(params=KINDS, ids=["submission", "pop3"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of port on which passwords are said."""
    found: Kind = request.param
    return found


@asynccontextmanager
async def ports(
    kind: Kind, pool: Pool, folder: Path, **limits: Any
) -> AsyncIterator[tuple[Address, Address]]:
    """A port in clear and one in TLS, which trust the proxy."""
    with socket.socket() as clear, socket.socket() as encrypted:
        for listener in (clear, encrypted):
            listener.bind(("127.0.0.1", 0))
            listener.listen()
        async with kind.serving(
            pool,
            sockets=[clear],
            tls_sockets=[encrypted],
            certificate=Certificate.load(*write(folder)),
            proxies=networks([PROXY]),
            limits=kind.limits(**limits),
        ):
            yield clear.getsockname(), encrypted.getsockname()


@contextmanager
def heard(
    address: Address, first: bytes, *, source: str = PROXY, tls: ssl.SSLContext | None = None
) -> Iterator[tuple[socket.socket, BinaryIO]]:
    """A connection on which this was said, and what is answered there."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(address, 20, (source, 0)))
        sock.sendall(first)
        if tls is not None:
            sock = stack.enter_context(tls.wrap_socket(sock))
        yield sock, stack.enter_context(sock.makefile("rb"))


def offered(kind: Kind, address: Address, first: bytes, **how: Any) -> bool:
    """Whether one may sign in there."""
    with heard(address, first, **how) as (sock, answers):
        assert answers.readline()[:3] in (b"220", b"+OK")
        sock.sendall(kind.question)
        lines: list[bytes] = []
        while not lines or not lines[-1].startswith(kind.last):
            lines.append(answers.readline())
        return any(line.startswith(kind.sign_in) for line in lines)


@pytest.mark.parametrize("header", [version1, version2])
async def test_passwords_are_taken_as_if_whom_the_proxy_names_had_come(
    pool: Pool, tmp_path: Path, kind: Kind, header: Callable[[str], bytes]
):
    """In clear of this machine alone; the header comes before the handshake where TLS is first."""
    async with ports(kind, pool, tmp_path) as (clear, encrypted):

        def ask() -> tuple[bool, bool, bool]:
            stranger, local = header("192.0.2.1"), header("127.0.0.1")
            return (
                offered(kind, clear, stranger),
                offered(kind, clear, local),
                offered(kind, encrypted, stranger, tls=test_submission.TLS),
            )

        assert await trio.to_thread.run_sync(ask) == (False, True, True)


async def test_the_header_is_asked_of_proxies_and_read_from_nobody_else(
    pool: Pool, tmp_path: Path, kind: Kind
):
    """Without it a proxy's connection ends without a word; from another it is no command."""
    async with ports(kind, pool, tmp_path, proxy_timeout=0.2) as (clear, encrypted):

        def without(address: Address, first: bytes) -> bytes:
            with heard(address, first) as (_, answers), contextlib.suppress(ConnectionResetError):
                return answers.read()
            return b""

        def ask() -> tuple[list[bytes], bytes]:
            silent = [
                without(address, first)
                for address in (clear, encrypted)
                for first in (kind.question, b"", b"PROXY TCP4 1.2.3.4\r\n")
            ]
            header = version1("192.0.2.1")
            with heard(clear, header, source="127.0.0.1") as (_, answers):
                assert answers.readline()[:3] in (b"220", b"+OK")
                return silent, answers.readline()

        silent, refused = await trio.to_thread.run_sync(ask)
        assert silent == 6 * [b""]
        assert refused.startswith(kind.refused)


async def test_each_whom_a_proxy_names_has_the_places_of_a_peer(
    pool: Pool, tmp_path: Path, kind: Kind
):
    """On both ports together; who has too many hears it in clear, or nothing where TLS is first."""
    async with ports(kind, pool, tmp_path, max_connections_per_peer=1) as (clear, encrypted):

        def come() -> tuple[bytes, bytes, bytes]:
            one, other = version1("192.0.2.1"), version2("192.0.2.2")
            with heard(clear, one) as (_, first):
                assert first.readline()[:3] in (b"220", b"+OK")
                with heard(clear, other) as (_, second):
                    served = second.readline()
                with heard(clear, one) as (_, third), heard(encrypted, one) as (_, fourth):
                    return served, third.read(), fourth.read()

        served, refused, silent = await trio.to_thread.run_sync(come)
        assert served[:3] in (b"220", b"+OK")
        assert b"Too many connections from your address" in refused
        assert silent == b""
