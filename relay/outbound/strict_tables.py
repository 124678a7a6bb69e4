"""What settings that are tables of TOML share: nothing in them is passed over in silence.

Promises: a key that is not known is `Wrong`, and the nearest that is known is named.

Fails: `check_keys` with `Wrong`, which says which key it is; whoever reads the table makes a
`ConfigError` of it, with the place.  Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}", re.ASCII)


class Wrong(ValueError):
    """What is wrong with the value of a key, as a clause; `key`: empty for the table itself."""

    def __init__(self, key: str, says: str) -> None:
        super().__init__(says)
        self.key = key


def is_name(text: str) -> bool:
    """Whether a table may be called so: a-z, 0-9, - and _, 40 characters at most."""
    return _NAME.fullmatch(text) is not None


def check_keys(said: Iterable[str], known: Sequence[str], prefix: str = "") -> None:
    """Raise `Wrong` for a key that is not known; `prefix`: of the table, for who reads of it."""
    for key in said:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Wrong(f"{prefix}{key}", f"there is no such key{hint}")


def sentence(clause: str) -> str:
    """A clause with its end, unless it is a question."""
    return clause if clause.endswith("?") else f"{clause}."
