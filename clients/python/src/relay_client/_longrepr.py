"""What pytest says of a failed test, with nothing in it that drives its reader.

pytest shows both sides of a comparison, line by line and as they are: of a test that has read mail
that is what a stranger has written.  Its colours are among these lines where it has a terminal, so
there colours of letters stay, a stranger's, too.

A report is objects of pytest's own in one another, with texts in them: each text is replaced.  What
`record_property` was given is shown as its `str`, and a warning as its message.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

from relay_client._text import visible


def tamed(said: object, *, colours: bool) -> Any:
    """Return a `longrepr`, sections, or a part of them with the texts spelt.

    Objects of pytest's are changed.  `colours`: whether pytest gives letters theirs.
    """
    if isinstance(said, str):
        return visible(said, colours=colours)
    if isinstance(said, list):
        return [tamed(one, colours=colours) for one in cast("list[object]", said)]
    if isinstance(said, tuple):
        return tuple(tamed(one, colours=colours) for one in cast("tuple[object, ...]", said))
    if type(said).__module__.startswith("_pytest."):
        parts: dict[str, object] = vars(said)
        for name, part in parts.items():
            setattr(said, name, tamed(part, colours=colours))
    return said


def tamed_properties(said: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """Return what was recorded of a test, with what drives as a text with that spelt."""
    return [(visible(name), _tamed_value(value)) for name, value in said]


def _tamed_value(value: object) -> object:
    try:
        text = str(value)
    except Exception:  # a stranger's mail is to end no run
        return value
    shown = visible(text)
    return value if shown == text else shown


def tame_warning(said: warnings.WarningMessage) -> None:
    """Spell the message of a warning that was recorded; its category stays."""
    text = str(said.message)
    shown = visible(text)
    if shown != text:
        said.message = Warning(shown)
