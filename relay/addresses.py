"""The one spelling of a mailbox's address, shared by whoever creates one and whoever delivers.

Promises: `canonical` is idempotent, and two spellings of one mailbox come out alike.

- Case never matters: local part and domain are lower-cased.  RFC 5321 lets a domain's owner
  decide that for local parts, and no owner of a throw-away address means two by `Bob` and `bob`.
- A quoted local part is the same as the unquoted one (`"bob"@x` is `bob@x`), as RFC 5321, 4.1.2
  asks.  What *needs* its quotes (a space, an @, a control) names no mailbox here.
- No sub-addressing: `bob+tag` is another mailbox than `bob`.  Were it not, mail for an expired
  `bob+tag` could land in a live `bob`.
- Unicode is brought to NFC; a domain outside ASCII to its A-label, which is what clients without
  SMTPUTF8 send for the same domain.

Fails with `ValueError` for what is no address of a mailbox; for a recipient that means
"unknown", for a request to create one "malformed".

Pure.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LOCAL_BYTES = 64
MAX_BYTES = 254

_ATEXT = r"a-z0-9!#$%&'*+/=?^_`{|}~\-"
_PLAIN = re.compile(rf"[{_ATEXT}]+(?:\.[{_ATEXT}]+)*@[a-z0-9](?:[a-z0-9.\-]*[a-z0-9])?")
_LOCAL = re.compile(rf"[{_ATEXT}.\u0080-\U0010ffff]+")
_DOMAIN = re.compile(r"[a-z0-9](?:[a-z0-9.\-]*[a-z0-9])?|\[[a-z0-9.:]+\]")
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)


def canonical(address: str) -> str:
    """Return the canonical spelling of `address`, or raise ValueError."""
    lowered = address.lower()
    if _PLAIN.fullmatch(lowered):  # ASCII: a character is a byte
        if len(lowered) <= MAX_BYTES and lowered.index("@") <= MAX_LOCAL_BYTES:
            return lowered
        raise ValueError("the address is too long")
    lowered = _unusual(address)
    if len(lowered.encode()) > MAX_BYTES or len(lowered.rpartition("@")[0].encode()) > (
        MAX_LOCAL_BYTES
    ):
        raise ValueError("the address is too long")
    return lowered


def canonical_domain(name: str) -> str:
    """Return the canonical spelling of a domain, without a last dot, or raise ValueError."""
    return canonical(f"x@{name.rstrip('.')}").partition("@")[2]


def _unusual(address: str) -> str:
    """Bring quotes, Unicode, dots in odd places and address literals to one form."""
    local, _, domain = unicodedata.normalize("NFC", address).rpartition("@")
    if len(local) >= 2 and local[0] == local[-1] == '"':
        local = _QUOTED_PAIR.sub(r"\1", local[1:-1])
    # lower() can leave a decomposed letter behind (U+0130), so NFC comes after it as well.
    local = unicodedata.normalize("NFC", local.lower())
    if not _LOCAL.fullmatch(local) or not local.isprintable():
        raise ValueError("the local part is not one of a mailbox")
    if not domain.isascii():
        try:
            domain = domain.encode("idna").decode("ascii")
        except UnicodeError as error:
            raise ValueError("the domain is not a domain name") from error
    domain = domain.lower()
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("the domain is not a domain name")
    return f"{local}@{domain}"
