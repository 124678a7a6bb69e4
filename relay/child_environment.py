"""The environment of the processes that Relay starts: no more than a program needs to run.

A child inherits its parent's environment, and anybody of the same account, a crash report, or a
fault in the child itself (the parser reads what strangers write) can read it there.  So children
get the variables below and no others: not Relay's keys and URLs, not those of other programs.
"""

from __future__ import annotations

import os

_NEEDED = {
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "TMPDIR",
    "LANG",
    "LANGUAGE",
    "TZ",
    "VIRTUAL_ENV",
    "XDG_RUNTIME_DIR",
}
_NEEDED_FAMILIES = ("LC_", "LD_", "MALLOC_", "PYTHON")


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a child: what it needs of ours, and `more`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _NEEDED or name.startswith(_NEEDED_FAMILIES)
    }
    return {**kept, **more}
