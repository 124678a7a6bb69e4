"""Sessions that stall in their TLS handshake, at every door that TLS has; and others' mail."""

from __future__ import annotations

import resource
import smtplib
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.relay_process import RelayProcess

DOORS = {
    "smtp": b"STARTTLS",
    "submission": b"STARTTLS",
    "submission_tls": None,
    "pop3": b"STLS",
    "pop3_tls": None,
}
"""By the port's name in relay.json: the command that begins TLS; None: TLS is there at once."""


def settings(certificate: tuple[str, str], connections: int) -> dict[str, str]:
    """The environment of a relay with all these doors, and so much room at each."""
    cert, key = certificate
    return {
        "RELAY_SMTP__TLS_CERT": cert,
        "RELAY_SMTP__TLS_KEY": key,
        "RELAY_SUBMISSION__TLS_BIND": "127.0.0.1:0",
        "RELAY_POP3__BIND": "127.0.0.1:0",
        "RELAY_POP3__TLS_BIND": "127.0.0.1:0",
    } | {
        f"RELAY_{port}__MAX_CONNECTIONS{whose}": str(connections)
        for port in ("SMTP", "POP3")
        for whose in ("", "_PER_PEER")
    }


@contextmanager
def many_files() -> Iterator[None]:
    """Open as many files as we may, in here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def resident(process: int) -> int:
    """Bytes of memory that a process has now."""
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))


def address_of(relay: RelayProcess, door: str) -> tuple[str, int]:
    """Host and port."""
    host, _, port = relay.run[door].rpartition(":")
    return host, int(port)


def stall(relay: RelayProcess, door: str, context: ssl.SSLContext) -> socket.socket:
    """Begin a handshake, hear what the relay says to it, and say no more."""
    command = DOORS[door]
    sock = socket.create_connection(address_of(relay, door), timeout=20)
    if command is not None:
        with sock.makefile("rb") as file:
            assert file.readline()[:3] in (b"220", b"+OK")
            if command == b"STARTTLS":
                sock.sendall(b"EHLO x\r\n")
                while file.readline()[3:4] == b"-":
                    pass
            sock.sendall(command + b"\r\n")
            assert file.readline()[:3] in (b"220", b"+OK")
    out, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(heard, out, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    sock.sendall(out.read())
    assert sock.recv(65536)
    return sock


def timed_mails(smtp: tuple[str, int], address: str, count: int) -> list[float]:
    """Send so many mails over one plain session; return the seconds that each took."""
    took = []
    with smtplib.SMTP(*smtp, timeout=30) as client:
        for _ in range(count):
            began = time.monotonic()
            client.sendmail("a@b.example", [address], b"Subject: x\r\n\r\nx\r\n")
            took.append(time.monotonic() - began)
    return took
