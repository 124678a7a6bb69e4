"""A file system of its own for a server, in memory, whose room can be taken away and given back.

`enter` puts this process into a namespace where it may mount (no privileges are needed, but the
kernel must allow namespaces of users); `Room` is one such file system.  Taking the room away is to
make it as large as what is in it: the next block that a file needs is refused with ENOSPC, by the
kernel, to whoever asks.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_REMOUNT = 32
_SIZE = 4 << 30  # bytes; used are those that are written

_libc = ctypes.CDLL(None, use_errno=True)


def enter() -> bool:
    """Go into a namespace where file systems may be mounted; whether that was possible.

    Call it before there is a second thread.
    """
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_USER | _NEW_MOUNTS):
        return False
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    except OSError:
        return False
    return True


class Room:
    """A file system in memory at a directory that is there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._mount(0, _SIZE)

    def take(self) -> None:
        """Leave no room for another block."""
        found = os.statvfs(self._directory)
        self._mount(_REMOUNT, (found.f_blocks - found.f_bfree) * found.f_frsize)

    def give_back(self) -> None:
        """Let there be room again."""
        self._mount(_REMOUNT, _SIZE)

    def _mount(self, flags: int, size: int) -> None:
        path = os.fsencode(self._directory)
        if _libc.mount(b"none", path, b"tmpfs", flags, b"size=%d,mode=700" % size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._directory))
