"""What is in the sockets of the product's connections, without taking it.

The kernel has what the server sent, in as many pieces as it came; whoever reads waits for each.  So
that a piece more or less is no matter of the seed, an answer is waited for until it is whole.  The
waits here are real, with the loop standing still; none is longer than `PATIENCE`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import termios
import time

from simulation.database.patience import PATIENCE, Stuck

PEEK = 65_536
"""Bytes of an answer that are looked at."""
PEEK_ALL = 1 << 20
"""More than a socket holds."""
READY = b"Z\0\0\0\5"
"""ReadyForQuery, but for the transaction's status, its last byte."""


def poll(fileno: int, milliseconds: int) -> bool:
    poller = select.poll()
    poller.register(fileno, select.POLLIN)
    return bool(poller.poll(milliseconds))


def await_hangup(fileno: int) -> None:
    """Wait until the other end is closed: a process that has gone may hold it for a moment more."""
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    if not poller.poll(PATIENCE * 1000):
        raise Stuck("a connection outlives the server")


_libc = ctypes.CDLL(None, use_errno=True)
_peeked = ctypes.create_string_buffer(PEEK_ALL)


def peek(fileno: int, most: int = PEEK) -> bytes:
    """What is in a socket, without taking it; nothing where it has failed."""
    size = _libc.recv(fileno, _peeked, most, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    return ctypes.string_at(_peeked, size) if size > 0 else b""


def take(fileno: int) -> int:
    """Throw away what is in a socket; how much that was."""
    size: int = _libc.recv(fileno, _peeked, PEEK, socket.MSG_DONTWAIT)
    return max(0, size)


def is_part(data: bytes) -> bool:
    """Whether the last message of an answer is an error or a notice (as of a commit that no longer
    waits for its standby): the server sends these at once, and the rest when it has come to it."""
    at, last = 0, b""
    while at + 5 <= len(data):
        last = data[at : at + 1]
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return at == len(data) and last in (b"E", b"N")


def await_rest(fileno: int) -> bytes:
    """Wait for what follows an error or a notice (ReadyForQuery, or the end); what there is then.

    Whoever reads waits for each piece, so it is to be one.
    """
    data = peek(fileno)
    if not is_part(data):
        return data
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + PATIENCE
    while not poller.poll(0) and time.monotonic() < until:
        if not is_part(data := peek(fileno)):
            return data
        time.sleep(0.00005)
    return peek(fileno)


def await_end_of_answer(fileno: int) -> None:
    """Wait for all of the answer that has begun to come to a listener's own question.

    It comes in one piece or in several, and what is there of it is counted as had.
    """
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + PATIENCE
    while not (has_ended(peek(fileno)) or poller.poll(0)) and time.monotonic() < until:
        time.sleep(0.00005)


def has_ended(data: bytes) -> bool:
    """Whether all of an answer is there; notifications may have come behind it."""
    at = 0
    while at + 5 <= len(data):
        if data[at : at + 5] == READY and at + 6 <= len(data):
            return True
        at += 1 + int.from_bytes(data[at + 1 : at + 5], "big")
    return False


def await_greeting(fileno: int) -> None:
    """Wait for all that a server says to who connects: it comes in one piece or in several, and
    whoever reads waits for each."""
    poller = select.poll()
    poller.register(fileno, select.POLLRDHUP)
    until = time.monotonic() + PATIENCE
    while not poller.poll(0) and time.monotonic() < until:
        data = peek(fileno)
        lets_in = data[:1] == b"R" and data[5:9] == b"\0\0\0\0"
        if not (lets_in or data[:1] == b"E") or data[-6:-1] == READY:
            return  # it asks for something, or has said all
        time.sleep(0.00005)


def unread(fileno: int) -> int:
    """How many bytes are in a socket."""
    found: int = struct.unpack("i", fcntl.ioctl(fileno, termios.FIONREAD, b"\0" * 4))[0]
    return found


def shut(fileno: int) -> None:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fileno)) as copy:
        copy.shutdown(socket.SHUT_RDWR)
