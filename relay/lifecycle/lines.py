"""The batch line of `relay collect`: one line of comma-separated rows on a pipe.

`action,email,login,token,code`, the rows joined by commas, one batch a line, ended by `\\n`;
action 1 is an activation, 2 a password recovery; the code is written for both.

Promises: a line has five fields a row, whatever is stored.  A row with a value that would break
that (a comma, CR, LF, NUL) is left out and named: the format has no quoting, and inventing one
would shift the fields of everybody's parser.

Why bytes, and a batch at once: at a hundred thousand rows a second, decoding what is only copied,
keying HMAC for each token and encoding base64 row by row took longer than the database (2.0 µs a
row instead of 3.9).  `tests/lifecycle/test_lines.py` holds it to `tokens.sign`; `python -m
tests.bench collector` is where it pays.

Pure.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import NamedTuple

from relay.lifecycle.tokens import TOKEN_LENGTH, Action, Signer

FIELDS = 5

_BREAKS = re.compile(rb"[,\r\n\0]")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_PADDING = b"\0\0"  # 64 bytes and 2 are a multiple of three, so that tokens can be encoded together
_STRIDE = 88  # characters that those are in base64
_NUMBERS = {action: b"%d" % action for action in Action}


class RawToken(NamedTuple):
    """A token that was taken, its texts in UTF-8 as the server sent them."""

    action: int
    email: bytes
    login: bytes
    secret: bytes
    code: bytes


class Printer:
    """Makes lines whose tokens `key` (32 bytes) signs."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._sign = Signer(key).raw

    def line(self, rows: Sequence[RawToken]) -> bytes:
        """Return the line of a batch; without rows it is empty.  See `faults` first."""
        if not rows:
            return b""
        fields: list[bytes] = []
        tokens = self._tokens(rows)
        for place, row in enumerate(rows):
            at = place * _STRIDE
            fields += (
                _NUMBERS[row.action],  # type: ignore[index]  # an IntEnum equals its number
                row.email,
                row.login,
                tokens[at : at + TOKEN_LENGTH],
                row.code,
            )
        return b",".join(fields) + b"\n"

    def _tokens(self, rows: Sequence[RawToken]) -> bytes:
        """The tokens of a batch, one every `_STRIDE` characters."""
        sign = self._sign
        raw = [sign(action, secret, code) for action, _, _, secret, code in rows]
        together = _PADDING.join(raw) + _PADDING
        return binascii.b2a_base64(together, newline=False).translate(_URL_SAFE)


def faults(rows: Sequence[RawToken]) -> dict[int, str]:
    """Return which rows (by position) would break a line, and why; never a value."""
    # Nearly always nothing is wrong, and one search over all finds that out.
    if not _BREAKS.search(b"".join([row.email + row.login for row in rows])):
        return {}
    found = {}
    for place, row in enumerate(rows):
        for name in ("email", "login"):
            if _BREAKS.search(getattr(row, name)):
                found[place] = f"its {name} holds a comma, a line break or NUL"
    return found
