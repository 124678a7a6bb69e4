"""One HTTP/1.1 exchange on a connection of its own: a request, and its answer as it comes.

Promises
  * A body is given whole or ends with `BrokenExchange`: one that stops before its length, or before
    its last chunk, is never taken for a whole one.
  * Each wait on the peer lasts `timeout` seconds at most (`TimeoutError`).
  * What is asked for cannot become another request: a path or a header that would is refused before
    anything is sent.

Fails with `OSError`, of which `TimeoutError` is one, and with `BrokenExchange` where what came is
no HTTP.

Why not `http.client`: the e-mail parser and TLS come with it, and take a fifth of the time of a
command that asks a relay something (tests/cli/test_imports.py).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

LINE = 1 << 16  # bytes that a line of the head may have
HEADERS = 100

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: ([^\r\n]*))?\r?\n")
_SIZE = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")
_TARGET = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[^\x00\r\n]*")


class BrokenExchange(Exception):
    """What came is no answer, or not all of one."""


class Exchange:
    """A connection, and what it is used for once."""

    def __init__(self, host: str, port: int, *, connect_timeout: float) -> None:
        """Connect; `connect_timeout`: seconds for each address of the host."""
        self._socket = socket.create_connection((host, port), connect_timeout)
        self._file = self._socket.makefile("rb")
        self.status = 0
        self.reason = ""
        self.headers: dict[str, str] = {}
        """The answer's, by their names in small letters."""
        self._left: int | None = 0  # bytes of the body, or of the chunk; None: up to the end
        self._chunked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; what has not come is not waited for."""
        self._file.close()
        self._socket.close()

    def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float | None,
    ) -> None:
        """Send a request and read the head of its answer; `timeout`: seconds without a byte."""
        if not _TARGET.fullmatch(target) or not all(map(_HEADER.fullmatch, headers.values())):
            raise BrokenExchange("not a request")
        self._socket.settimeout(timeout)
        lines = [f"{method} {target} HTTP/1.1", "Accept-Encoding: identity"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body is not None or method in {"POST", "PUT", "PATCH"}:
            lines.append(f"Content-Length: {len(body or b'')}")
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        while not self._head():
            pass

    def _head(self) -> bool:
        """Read the head of an answer; whether it is the final one."""
        found = _STATUS.fullmatch(self._line())
        if found is None:
            raise BrokenExchange("no status")
        self.status = int(found[1])
        self.reason = (found[2] or b"").decode("latin-1").strip()
        self.headers = dict(self._fields())
        if self.status < 200:
            return False
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length")
        if self._chunked or self.status in {204, 304}:
            self._left = 0
        elif length is None:
            self._left = None
        elif length.isascii() and length.isdigit():
            self._left = int(length)
        else:
            raise BrokenExchange("no length")
        return True

    def _fields(self) -> Iterator[tuple[str, str]]:
        for _ in range(HEADERS):
            line = self._line()
            if line in {b"\r\n", b"\n"}:
                return
            name, colon, value = line.decode("latin-1").partition(":")
            if not colon:
                raise BrokenExchange("no header")
            yield name.lower(), value.strip()
        raise BrokenExchange("headers without end")

    def _line(self) -> bytes:
        line = self._file.readline(LINE)
        if not line.endswith(b"\n"):
            raise BrokenExchange("cut off" if len(line) < LINE else "line without end")
        return line

    def read(self) -> bytes:
        """Return what has not been read of the body, to its end."""
        return b"".join(iter(lambda: self.read_some(LINE), b""))

    def read_some(self, most: int) -> bytes:
        """Return the next bytes as soon as there are some, `most` at most; empty: it is over."""
        if self._chunked and self._left == 0:
            self._begin_chunk()
        if self._left is None:
            return self._file.read1(most)
        if self._left == 0:
            return b""
        data = self._file.read1(min(most, self._left))
        if not data:
            raise BrokenExchange("cut off")
        self._left -= len(data)
        if self._chunked and self._left == 0 and self._line() not in {b"\r\n", b"\n"}:
            raise BrokenExchange("chunk without end")
        return data

    def _begin_chunk(self) -> None:
        found = _SIZE.fullmatch(self._line())
        if found is None:
            raise BrokenExchange("no chunk")
        self._left = int(found[1], 16)
        if self._left == 0:
            self._chunked = False
            dict(self._fields())  # trailers
