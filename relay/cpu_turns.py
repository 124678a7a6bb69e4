"""Short turns on the CPU: `ask_for_short_turns` has this thread run soon after it wakes up.

A relay sleeps most of the time, and whoever waits for it waits for each of its wake-ups.  Where
other programs use the cores meanwhile (eight processes of tests, say), Linux lets a thread that
wakes up run by its deadline, which is the later the longer its turns are, and the later yet for
one with a high nice value: with nice 10 a median of 33 ms, where it is 2 ms with turns of a tenth
of a millisecond (six busy processes on two cores).  Its share of the CPU stays what it was.

Promises: no privilege is needed, and nothing else of how the thread is scheduled changes.  Programs
that it starts later inherit it.

Fails: never; where Linux is older than 6.12, another processor or a sandbox that forbids it, things
stay as they are.

By `sched_setattr(2)`, for which Python has no name; the length of a turn is `sched_runtime`
(Documentation/scheduler/sched-eevdf.rst).
"""

from __future__ import annotations

import ctypes
import platform
import struct

_GET, _SET = {"x86_64": (315, 314), "aarch64": (275, 274)}.get(platform.machine(), (0, 0))
_ATTR = struct.Struct("=IIQiIQQQ")  # size, policy, flags, nice, priority, runtime, deadline, period
_ORDINARY = {0, 3}  # SCHED_OTHER and SCHED_BATCH
_RUNTIME = 5


def ask_for_short_turns(seconds: float) -> bool:
    """Have this thread's turns be so long, 0.1 ms at least; whether Linux took it."""
    if not _GET:
        return False
    try:
        libc = ctypes.CDLL(None)
    except OSError:
        return False
    buffer = ctypes.create_string_buffer(_ATTR.size)
    if libc.syscall(_GET, 0, buffer, _ATTR.size, 0):
        return False
    fields = [*_ATTR.unpack(buffer.raw)]
    if fields[1] not in _ORDINARY:
        return False
    fields[_RUNTIME] = round(seconds * 1e9)
    return not libc.syscall(_SET, 0, _ATTR.pack(*fields), 0)
