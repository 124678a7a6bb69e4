"""The child process that parses: `python -m relay.mailboxes.worker`.

It reads requests from stdin and writes one reply each to stdout, in order, until stdin ends; so
it is gone soon after its parent is, however that died.  `relay.mailboxes.parser` is the parent's
side.  It gives way to everybody else (nice 10), and limits itself in memory, and in CPU seconds a
request: whatever a message does to it, the relay loses one child that it starts again.

Wire, big-endian:
    request   kind u8 (1 summarise, 2 attachment), index u32, length u32, raw message
    reply     status u8 (0 done, 1 nothing there, 2 failed), length u32, payload
The payload of a summary is the JSON object of `Summary.as_json`; of an attachment, the length u32
of a JSON array [file name, content type], that array, and the bytes; of a failure, its reason.

Imports the standard library and two pure modules only, so that it starts in a moment.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from typing import BinaryIO

from relay.mailboxes.summary import extract_attachment, summarise

REQUEST = struct.Struct(">BII")
REPLY = struct.Struct(">BI")
LENGTH = struct.Struct(">I")
SUMMARISE, ATTACHMENT = 1, 2
DONE, NOTHING, FAILED = 0, 1, 2

_NICE = 10


def main() -> None:
    """Serve until stdin ends.  Arguments: bytes of memory, CPU seconds for one request."""
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    # A terminal's Ctrl-C goes to the whole group; the parent decides when this ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = os.fdopen(0, "rb", buffering=1 << 18)
    while True:
        head = requests.read(REQUEST.size)
        if len(head) < REQUEST.size:
            return
        kind, index, length = REQUEST.unpack(head)
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds + 1, resource.RLIM_INFINITY))
        try:
            status, payload = _answer(requests, kind, index, length)
        except MemoryError:
            # The message may not have been read to its end, so the next request is out of reach.
            _write(FAILED, b"too large to parse")
            return
        _write(status, payload)


def _answer(requests: BinaryIO, kind: int, index: int, length: int) -> tuple[int, bytes]:
    raw = requests.read(length)
    if kind == SUMMARISE:
        return DONE, summarise(raw).as_json()
    found = extract_attachment(raw, index)
    if found is None:
        return NOTHING, b""
    name, content_type, content = found
    described = json.dumps([name, content_type]).encode()
    return DONE, LENGTH.pack(len(described)) + described + content


def _write(status: int, payload: bytes) -> None:
    view = memoryview(REPLY.pack(status, len(payload)) + payload)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone
