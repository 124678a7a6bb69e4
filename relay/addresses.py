"""Addresses of mail: what they are made of, domains as A-labels, and a mailbox's one spelling.

`ATEXT` and `DOMAIN` are what every pattern of an address is made of: the words of SMTP
(`relay.smtp`), what callers write (`relay.outbound.composing.message`), and a mailbox's spelling,
which whoever creates one and whoever delivers share.

Two spellings of an address are kept, and a third is made where it is looked for:

| spelling           | example             | what for                                             |
|--------------------|---------------------|------------------------------------------------------|
| `canonical`        | grüße@xn--fa-hia.de | stored, unique: what mailboxes are found and told    |
|                    |                     | apart by, whichever way somebody wrote the address   |
| `as_said`          | grüße@faß.de        | shown (`said` of relay.mailboxes): the domain as     |
|                    |                     | who first sent mail wrote it, in letters or A-labels |
| `relay.in_unicode` | grüße@faß.de        | searched beside `canonical`: either spelling, or a   |
|                    |                     | part of it, finds the address however it was said    |

Promises: `canonical` is idempotent, and two spellings of one mailbox come out alike.

- Case never matters: local part and domain are lower-cased.  RFC 5321 lets a domain's owner
  decide that for local parts, and no owner of a throw-away address means two by `Bob` and `bob`.
- A quoted local part is the same as the unquoted one (`"bob"@x` is `bob@x`), as RFC 5321, 4.1.2
  asks.  What needs its quotes (a space, an @) keeps them, with as few backslashes as can be.
- No sub-addressing: `bob+tag` is another mailbox than `bob`.  Were it not, mail for an expired
  `bob+tag` could land in a live `bob`.
- Unicode is brought to NFC; a domain outside ASCII to its A-labels by IDNA 2008 and the mapping of
  UTS #46 (ß and ς are letters of their own), as browsers and registries have it.  That is what
  clients without SMTPUTF8 send for the same domain.

Fails with `ValueError` for what is no address of a mailbox; for a recipient that means
"unknown", for a request to create one "malformed".

Pure.
"""

from __future__ import annotations

import re
import unicodedata

import idna

MAX_LOCAL_BYTES = 64
MAX_BYTES = 254

ATEXT = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~\-"
"""What an atom is made of (RFC 5322, 3.2.3), as it stands in a pattern between brackets."""

DOMAIN = r"[A-Za-z0-9](?:[A-Za-z0-9.\-]*[A-Za-z0-9])?"
"""A domain at first sight: its labels are not looked at one by one."""

_PLAIN = re.compile(rf"[{ATEXT}]+(?:\.[{ATEXT}]+)*@{DOMAIN}")
_LOCAL = re.compile(rf"[{ATEXT}.\u0080-\U0010ffff]+")
_DOMAIN = re.compile(rf"{DOMAIN}|\[[a-z0-9.:]+\]")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)+)"', re.DOTALL)
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
_DOTS = ".\u3002\uff0e\uff61"  # what UTS #46 takes for one
_MAX_DOMAIN = 255  # characters; none that is longer becomes one that is short enough
_MAX_LABEL = 63


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
    return canonical(f"x@{name.rstrip(_DOTS)}").partition("@")[2]


def as_said(address: str) -> str:
    """Return an address that has a canonical spelling in this, but for its domain: in letters or
    in A-labels, as it was said."""
    if address.isascii():
        return canonical(address)
    domain = unicodedata.normalize("NFC", address).rpartition("@")[2]
    return f"{canonical(address).rpartition('@')[0]}@{_mapped(domain)}"


def a_labels(domain: str) -> str:
    """Return a domain outside ASCII as its A-labels; ValueError says, as a clause, why it has none.

    Labels within ASCII stay as they are, whatever they hold.
    """
    try:
        return ".".join(map(_a_label, _mapped(domain).split(".")))
    except UnicodeError as error:
        raise ValueError("is no domain name") from error


def _a_label(label: str) -> str:
    if not label:
        raise UnicodeError("a label is empty")
    if label.isascii():
        return label
    # IDNA 2008 has no symbols, but there are domains with hearts: UTS #46 leaves them as they are.
    plain = "".join(each for each in label if unicodedata.category(each) != "So")
    if plain == label:
        return idna.alabel(label).decode()
    if plain:
        idna.check_label(plain)
    made = f"xn--{label.encode('punycode').decode()}"
    if len(made) > _MAX_LABEL:
        raise UnicodeError("a label is too long")
    return made


def _mapped(domain: str) -> str:
    """A domain in small letters, full-width and other dots made plain (UTS #46, 4)."""
    if len(domain) > _MAX_DOMAIN:
        raise UnicodeError("the domain is too long")
    return idna.uts46_remap(domain, std3_rules=False, transitional=False)


def _unusual(address: str) -> str:
    """Bring quotes, Unicode, dots in odd places and address literals to one form."""
    local, _, domain = unicodedata.normalize("NFC", address).rpartition("@")
    quoted = _QUOTED.fullmatch(local)
    if quoted is not None:
        local = _QUOTED_PAIR.sub(r"\1", quoted[1])
    # lower() can leave a decomposed letter behind (U+0130), so NFC comes after it as well.
    local = unicodedata.normalize("NFC", local.lower())
    if not local.isprintable():
        raise ValueError("the local part is not one of a mailbox")
    if not _LOCAL.fullmatch(local):
        # A careless program takes an angle bracket for the end of the path.
        if quoted is None or "<" in local or ">" in local:
            raise ValueError("the local part is not one of a mailbox")
        local = '"' + local.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if not domain.isascii():
        try:
            domain = a_labels(domain)
        except ValueError as error:
            raise ValueError(f"the domain {error}") from error
    domain = domain.lower()
    if not _DOMAIN.fullmatch(domain):
        raise ValueError("the domain is no domain name")
    return f"{local}@{domain}"
