"""What a process that runs for long says to malloc and to the garbage collector.

glibc's malloc takes large blocks from the system one by one, but moves its idea of large up to
32 MiB with each that is freed.  A few messages of 25 MB later they come from the heap, where small
objects that stay keep them from being returned: measured, 20 such messages at once left a relay
135 MB larger; with `return_large_blocks`, 0.

Loading the program makes a hundred thousand objects that stay: collected meanwhile and once more
when all has started, they cost a start 0.2 s, for a few thousand that went (`loading`).

A session or a claim makes thousands of short-lived objects and hardly a cycle; walking the whole
heap for them again and again cost several microseconds a message (`settle_garbage`; `python -m
tests.bench ingest`; it changes no result, so no test holds it to anything).

Fails: never; without effect where malloc is not glibc's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterator

_M_MMAP_THRESHOLD = -3  # malloc.h
_LARGE = 256 * 1024


def return_large_blocks() -> None:
    """Have every block of 256 KiB or more returned to the system when it is freed, from now on."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE)


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Collect nothing in the block, and never walk over what it has made.

    structlog and httpx load rich where it is installed, for tracebacks and a command line that a
    relay has no use for: 90 modules, 3 MB.  In the block it is not found; the commands that draw
    with it load it afterwards.
    """
    gc.disable()
    hidden = "rich" not in sys.modules
    if hidden:
        sys.modules["rich"] = None  # type: ignore[assignment]  # as the import system documents it
    try:
        yield
    finally:
        if hidden:
            del sys.modules["rich"]
        gc.freeze()
        gc.enable()


def settle_garbage() -> None:
    """Leave what the start has made out of every later collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
