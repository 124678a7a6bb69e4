"""The child process that parses: `python -m relay.mailboxes.worker`.

It reads requests from stdin and writes one reply each to stdout, in order, until stdin ends; so
it is gone soon after its parent is, however that died.  `relay.mailboxes.parser` is the parent's
side.  It gives way to everybody else (nice 10) but in short turns, which come soon
(`relay.cpu_turns`), and limits itself in memory, and in CPU seconds a
request: whatever a message does to it, the relay loses one child that it starts again.

Wire, big-endian:
    request   kind u8 (1 summarise, 2 attachment, 3 headers, 4 filter, 5 examine, 6 report; +128:
              the reply may wait for the next), argument u32, length u32, payload
    reply     status u8 (0 done, 1 nothing there, 2 failed, 3 left, 4 started), microseconds of
              CPU u32, length u32, payload
The first reply is to no request: it says that the child has started.
The argument of the first summary of a batch is what the batch may take in milliseconds of CPU (0:
no limit), or `STRETCH` times that where the machine is busy; that of the others is `FOLLOWS`: those
that have not begun when the time is over are left, each answered at once.  The argument of an
attachment is its index; of headers (the fallback), how much of the payload's front is the reason
that goes into the summary.
The payload of a summary is the row of `Summary.as_row`; of an attachment, the length u32
of a JSON array [file name, content type], that array, and the bytes; of a failure, its reason.
Replies that may wait are written together: each write wakes the parent up, which takes a quarter of
what parsing a small message does.
A filter is made of text in UTF-8, the front of the payload as long as the argument says, and of the
senders in the details behind it (`filter_of`).  To examine a message is to read what a
check of it takes: the answer is that of `Examined.as_json` (`relay.mailboxes.examination`).  What a
mail that came back reports is answered as `Report.as_json` (`relay.returns.report`) writes it.

Imports the standard library and pure modules only, so that it starts in a moment.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
import time
from collections.abc import Sequence

from relay.cpu_turns import ask_for_short_turns
from relay.mailboxes.grams import make_filter, runs
from relay.mailboxes.summary import extract_attachment, fallback, senders, summarise

REQUEST = struct.Struct(">BII")
REPLY = struct.Struct(">BII")
LENGTH = struct.Struct(">I")
SUMMARISE, ATTACHMENT, HEADERS, FILTER, EXAMINE, REPORT = 1, 2, 3, 4, 5, 6
HOLD = 128
DONE, NOTHING, FAILED, LEFT, STARTED = 0, 1, 2, 3, 4
FOLLOWS = 0xFFFFFFFF
STRETCH = 4
"""How much longer a batch may take than its CPU time: one cut into single messages costs more."""

_NICE = 10
_TURN = 0.0001  # s; or a mail that somebody waits for waits for all that runs without nice


def main() -> None:
    """Serve until stdin ends.  Arguments: bytes of memory, CPU seconds for one request."""
    memory, seconds = int(sys.argv[1]), int(sys.argv[2])
    os.nice(_NICE)
    ask_for_short_turns(_TURN)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests = os.fdopen(0, "rb", buffering=1 << 18)
    cpu_until = until = math.inf
    limited = -1
    held: list[bytes] = []
    _write([_reply(STARTED, 0, b"")])
    ended = time.process_time_ns()
    while True:
        head = requests.read(REQUEST.size)
        if len(head) < REQUEST.size:
            return
        kind, argument, length = REQUEST.unpack(head)
        began = ended
        if limited != (spent := began // 10**9):
            limited = spent
            resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds + 1, resource.RLIM_INFINITY))
        try:
            payload = requests.read(length)
            if kind & ~HOLD == SUMMARISE and argument != FOLLOWS:
                budget = argument / 1000 if argument else math.inf
                cpu_until, until = began / 1e9 + budget, time.monotonic() + STRETCH * budget
            over = began / 1e9 >= cpu_until or time.monotonic() >= until
            if kind & ~HOLD == SUMMARISE and argument == FOLLOWS and over:
                status, answer = LEFT, b""
            else:
                status, answer = _answer(kind & ~HOLD, argument, payload)
            del payload
        except MemoryError:
            # The message may not have been read to its end, so the next request is out of reach.
            _write((*held, _reply(FAILED, 0, b"too large to parse")))
            return
        ended = time.process_time_ns()
        held.append(_reply(status, (ended - began) // 1000, answer))
        if not kind & HOLD:
            _write(held)
            held.clear()


def _answer(kind: int, argument: int, payload: bytes) -> tuple[int, bytes]:
    if kind == SUMMARISE:
        return DONE, summarise(payload).as_row()
    if kind == HEADERS:
        return DONE, fallback(payload[argument:], payload[:argument].decode()).as_row()
    if kind == FILTER:
        return DONE, filter_of(payload[:argument], payload[argument:])
    if kind == EXAMINE:
        # Here, for few of these processes are ever asked, and all are to start in a moment.
        from relay.mailboxes.examination import examine

        return DONE, examine(payload).as_json()
    if kind == REPORT:
        from relay.returns.report import read

        return DONE, read(payload).as_json()
    found = extract_attachment(payload, argument)
    if found is None:
        return NOTHING, b""
    name, content_type, content = found
    described = json.dumps([name, content_type]).encode()
    return DONE, LENGTH.pack(len(described)) + described + content


def filter_of(text: bytes, details: bytes) -> bytes:
    """Return the filter (`relay.mailboxes.grams`) of some text, and of the senders in some rows'
    details; both in UTF-8."""
    return make_filter(runs("\n".join((text.decode(), *senders(details.decode())))))


def _reply(status: int, microseconds: int, payload: bytes) -> bytes:
    return REPLY.pack(status, min(microseconds, 0xFFFFFFFF), len(payload)) + payload


def _write(replies: Sequence[bytes]) -> None:
    view = memoryview(b"".join(replies))
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)  # the parent is gone
