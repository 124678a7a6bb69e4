"""Small files that are there whole, or not at all, whenever the process or the machine stops.

`replace` writes beside the file, flushes that to the disk, renames it into place, and flushes the
directory: a rename may otherwise reach the disk before what it names, or not at all.

    killed, or without power           what is there
    ---------------------------------  -----------------------------------------------
    before the rename                  the file as it was; perhaps `NAME.tmp` beside it
    after it, before `replace` returned  the old one or the new one, whole
    after `replace` returned           the new one

Fails with `OSError`, and then the file is as it was, or new.  Blocking.  Of two who replace one
file at once one may fail: let them hold a lock.
"""

from __future__ import annotations

import os
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path` durably, readable and writable by its owner alone (mode 0600)."""
    draft = path.with_name(path.name + ".tmp")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(file, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(file)
    os.replace(draft, path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Have the names in a directory on the disk: what was made, renamed or removed there."""
    directory = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
