"""The device wire format: frames, their limits, and what is wrong with one.  Pure; no I/O.

    TCP        [length u16 BE][Noise message, at most 65,535 bytes] ...
    message    [type u8][length u32 BE][body], one frame a message

    type  name        body                                             sent by
    01    Push        recipient key [32] ‖ envelope (<= 65,482 bytes)  push client
    02    Deliver     blob id u64 BE ‖ envelope                        relay, on receive
    03    Heartbeat   empty                                            either
    04    Ack         empty: the oldest unanswered Push is durable     relay, on push
    05    Error       reason u8 ‖ retry-after seconds u32 BE           relay
    06    DeliverAck  blob id u64 BE                                   device
    07    Missed      count u64 BE: blobs that expired undelivered     relay, on receive

Promises: `Splitter` holds less than one message; `decode` takes any bytes and gives a frame that
is consistent, or raises `Refused` with the reason that the peer is told: 2 for a Push whose
length field exceeds 65,514, 1 for everything else that is inconsistent or unknown.  Whether a
frame may come from this peer at all is the session's to know.
"""

from __future__ import annotations

import enum
import math
import struct
from typing import Final

MAX_MESSAGE: Final = 65_535
TAG_SIZE: Final = 16
HEADER_SIZE: Final = 5
KEY_SIZE: Final = 32
MAX_BODY: Final = MAX_MESSAGE - TAG_SIZE - HEADER_SIZE  # 65,514
MAX_ENVELOPE: Final = MAX_BODY - KEY_SIZE  # 65,482

PUSH: Final = 1
DELIVER: Final = 2
HEARTBEAT: Final = 3
ACK: Final = 4
ERROR: Final = 5
DELIVER_ACK: Final = 6
MISSED: Final = 7

_SIZES: Final[dict[int, tuple[int, int]]] = {  # type -> (least, most) bytes of the body
    PUSH: (KEY_SIZE, MAX_BODY),
    DELIVER: (8, MAX_BODY),
    HEARTBEAT: (0, 0),
    ACK: (0, 0),
    ERROR: (5, 5),
    DELIVER_ACK: (8, 8),
    MISSED: (8, 8),
}

_header = struct.Struct(">BI")
_prefix = struct.Struct(">H").pack
_u64 = struct.Struct(">Q")
_error = struct.Struct(">BI")


class Reason(enum.IntEnum):
    """Why a frame was refused; the first two for good, the others for now."""

    MALFORMED = 1
    TOO_LARGE = 2
    INBOX_FULL = 3
    RATE_LIMITED = 4
    UNAVAILABLE = 5

    @property
    def temporary(self) -> bool:
        """Whether the same frame may be accepted later."""
        return self >= Reason.INBOX_FULL


class Refused(Exception):
    """A frame that is not accepted; `reason` and `retry_after` (seconds) are told to the peer."""

    def __init__(self, reason: Reason, retry_after: float = 0.0) -> None:
        super().__init__(reason.name)
        self.reason = reason
        self.retry_after = math.ceil(retry_after)

    @property
    def frame(self) -> bytes:
        """The Error that says so."""
        return error(self.reason, self.retry_after)


class Splitter:
    """Cuts a stream of bytes into messages."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    @property
    def held(self) -> int:
        """Bytes of a message that is not complete yet."""
        return len(self._rest)

    @property
    def announced(self) -> int | None:
        """How long the message is to be that is not complete yet; None before that is known."""
        return self._rest[0] << 8 | self._rest[1] if len(self._rest) >= 2 else None

    def feed(self, data: bytes) -> list[bytes]:
        """Take what arrived and return the messages that are complete."""
        if self._rest:
            data = self._rest + data
        messages: list[bytes] = []
        start, end = 0, len(data)
        while end - start >= 2:
            stop = start + 2 + (data[start] << 8 | data[start + 1])
            if stop > end:
                break
            messages.append(data[start + 2 : stop])
            start = stop
        self._rest = data[start:] if start else data
        return messages


def prefixed(message: bytes) -> bytes:
    """Return a Noise message as it goes over TCP."""
    return _prefix(len(message)) + message


def decode(plain: bytes) -> tuple[int, bytes]:
    """Return type and body of a frame, or raise `Refused`.

    A Push's body is at least a key long, and every other body has the size of its type.
    """
    if len(plain) < HEADER_SIZE:
        raise Refused(Reason.MALFORMED)
    kind, length = _header.unpack_from(plain)
    if kind == PUSH and length > MAX_BODY:
        raise Refused(Reason.TOO_LARGE)
    if kind not in _SIZES or length != len(plain) - HEADER_SIZE:
        raise Refused(Reason.MALFORMED)
    least, most = _SIZES[kind]
    if not least <= length <= most:
        raise Refused(Reason.MALFORMED)
    return kind, plain[HEADER_SIZE:]


def encode(kind: int, body: bytes = b"") -> bytes:
    """Return a frame."""
    return _header.pack(kind, len(body)) + body


HEARTBEAT_FRAME: Final = encode(HEARTBEAT)
ACK_FRAME: Final = encode(ACK)


def push(recipient: bytes, envelope: bytes) -> bytes:
    """Return a Push of `envelope` for the 32 bytes `recipient`."""
    return encode(PUSH, recipient + envelope)


def deliver(blob_id: int, envelope: bytes) -> bytes:
    """Return a Deliver."""
    return encode(DELIVER, _u64.pack(blob_id) + envelope)


def deliver_ack(blob_id: int) -> bytes:
    """Return a DeliverAck."""
    return encode(DELIVER_ACK, _u64.pack(blob_id))


def missed(count: int) -> bytes:
    """Return a Missed."""
    return encode(MISSED, _u64.pack(count))


def error(reason: Reason, retry_after: int = 0) -> bytes:
    """Return an Error; `retry_after` in seconds, 0 where trying again is pointless."""
    return encode(ERROR, _error.pack(reason, retry_after))


def number(body: bytes) -> int:
    """Return the u64 that a DeliverAck or Missed consists of, and a Deliver begins with."""
    return int(_u64.unpack_from(body)[0])


def parse_error(body: bytes) -> tuple[int, int]:
    """Return (reason, retry-after seconds) of an Error; the reason may be one not known here."""
    reason, retry_after = _error.unpack(body)
    return reason, retry_after
