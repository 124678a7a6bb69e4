r"""Characters that nobody sees, and that change how the text around them is read.

Parts of a regular expression's class, to be put in brackets:
- `CONTROLS`: C0 (tab and line feed are of them), DEL and C1, which drive terminals;
- `TURNS`: what turns the direction of a text (UAX #9), so that `fdp.exe` is read as `exe.pdf`;
- `NO_WIDTH`: Unicode's other format characters that take no room, so that two names look alike;
- `UNSEEN`: all three.

Not among them: the joiners U+200C and U+200D, which scripts and emoji are written with, and the
format characters that are signs of a script (U+0600 …).  Line and paragraph separators are blanks,
and belong to whoever breaks lines.

Who differs, and why: a link has what browsers write as `%…` encoded, blanks and joiners too
(`relay.mailboxes.extract`); a name of a file loses every format character (`str.isprintable`), for
there nothing has to be joined.  The clients have a table of their own, as they stand alone.
"""

from __future__ import annotations

from typing import Final

CONTROLS: Final = "\x00-\x1f\x7f-\x9f"
TURNS: Final = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
NO_WIDTH: Final = (
    "\xad\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
UNSEEN: Final = CONTROLS + TURNS + NO_WIDTH
