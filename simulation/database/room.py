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
_REMOUNT, _DETACH = 32, 2
_SIZE = 4 << 30  # bytes; used are those that are written

_libc = ctypes.CDLL(None, use_errno=True)


def enter(directory: Path) -> bool:
    """Go into a namespace where file systems may be mounted; whether that was possible.

    A child tries it first, with a directory that is there: there is no way back.  Call it before
    there is a second thread.
    """
    child = os.fork()
    if not child:
        try:
            _unshare()
            Room(directory).take()
        except OSError:
            os._exit(1)
        os._exit(0)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        return False
    _unshare()
    return True


def _unshare() -> None:
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(_NEW_USER | _NEW_MOUNTS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def leave(directory: Path) -> None:
    """Unmount what is mounted there, if anything is."""
    _libc.umount2(os.fsencode(directory), _DETACH)


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

    def close(self) -> None:
        """Give it up, with all that is in it: a directory that is one cannot be removed."""
        leave(self._directory)

    def _mount(self, flags: int, size: int) -> None:
        path = os.fsencode(self._directory)
        if _libc.mount(b"none", path, b"tmpfs", flags, b"size=%d,mode=700" % size):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(self._directory))
