"""Addresses of mail: what they are made of, domains as A-labels, and a mailbox's one spelling.

`ATEXT` and `DOMAIN` are what every pattern of an address is made of: the words of SMTP
(`relay.smtp`), what callers write (`relay.outbound.message`), and a mailbox's spelling, which
whoever creates one and whoever delivers share.

Promises: `canonical` is idempotent, and two spellings of one mailbox come out alike.

- Case never matters: local part and domain are lower-cased.  RFC 5321 lets a domain's owner
  decide that for local parts, and no owner of a throw-away address means two by `Bob` and `bob`.
- A quoted local part is the same as the unquoted one (`"bob"@x` is `bob@x`), as RFC 5321, 4.1.2
  asks.  What *needs* its quotes (a space, an @, a control) names no mailbox here.
- No sub-addressing: `bob+tag` is another mailbox than `bob`.  Were it not, mail for an expired
  `bob+tag` could land in a live `bob`.
- Unicode is brought to NFC; a domain outside ASCII to its A-label, which is what clients without
  SMTPUTF8 send for the same domain.  One of which that codec makes somebody else's (`a_labels`)
  is none.

Fails with `ValueError` for what is no address of a mailbox; for a recipient that means
"unknown", for a request to create one "malformed".

Pure.
"""

from __future__ import annotations

import re
import unicodedata

MAX_LOCAL_BYTES = 64
MAX_BYTES = 254

ATEXT = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~\-"
"""What an atom is made of (RFC 5322, 3.2.3), as it stands in a pattern between brackets."""

DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?"
"""A domain at first sight: its labels are not looked at one by one."""

_PLAIN = re.compile(rf"[{ATEXT}]+(?:\.[{ATEXT}]+)*@{DOMAIN}")
_LOCAL = re.compile(rf"[{ATEXT}.\u0080-\U0010ffff]+")
_DOMAIN = re.compile(rf"{DOMAIN}|\[[a-z0-9.:]+\]")
_DEVIANT = re.compile("[ßς\u200c\u200d]")
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)


def canonical(address: str) -> str:
    """Return the canonical spelling of `address`, or raise ValueError."""
    lowered = address.lower()
    # Plain ASCII, where a character is a byte: what `_unusual` would make of it
    # (tests/test_addresses.py), for each recipient (`python -m tests.bench ingest`).
    if _PLAIN.fullmatch(lowered):
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


def a_labels(domain: str) -> str:
    """Return a domain outside ASCII as its A-labels; ValueError says, as a clause, why it has none.

    Python's codec knows IDNA 2003, which turns some letters into others and so a domain into
    somebody else's; asking for the xn-- form is better than mail to a stranger.
    """
    if _DEVIANT.search(domain.lower()):
        raise ValueError("must be written in its xn-- form")
    try:
        return domain.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise ValueError("is no domain name") from error


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
            domain = a_labels(domain)
        except ValueError as error:
            raise ValueError(f"the domain {error}") from error
    domain = domain.lower()
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("the domain is no domain name")
    return f"{local}@{domain}"
