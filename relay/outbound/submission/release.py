"""Release: a message that was received goes out after all, to addresses that the operator allows.

Promises
- Only to recipients that match a pattern of `RELAY_OUTBOUND__RELEASE_TO`; without patterns to
  nobody.  Only by a server: mail that would go round to this relay's own mailboxes is not released.
- The message goes out byte for byte, behind Resent- fields (RFC 5322, 3.6.6) that say when and to
  whom; all of its recipients stand there.  One whose last line has no CRLF (BDAT allows that) gets
  it on the wire, as all mail does: DATA cannot do without.

Fails with `NotAllowed`, and with `MalformedMessage` for what is no address.

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from relay.errors import PermanentFailure
from relay.outbound.composing.compose import address_field, date_of
from relay.outbound.composing.message import (
    Address,
    MalformedMessage,
    Message,
    parse_address,
    parse_recipients,
)
from relay.outbound.submission.submitted import Submitted, has_header

_WILD = re.compile(r"[*?]")
_LEADS_ON = re.compile(r"[%!@]")


class NotAllowed(PermanentFailure):
    """A recipient matches no pattern (403)."""

    def __init__(self) -> None:
        super().__init__("a recipient is not among those to whom mail may be released")


class Patterns:
    """Patterns of addresses: `*` is anything, `?` one character, and case is none.

    Of an address that may lead on from there, `*` and `?` are nothing: some servers pass
    `user%evil.example@example.org`, `evil.example!user@example.org` and
    `"user@evil.example"@example.org` on to evil.example.  A pattern without them is an address.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        lowered = [pattern.lower() for pattern in patterns]
        self._alone = {pattern for pattern in lowered if not _WILD.search(pattern)}
        spelled = ("".join(map(_expression, one)) for one in lowered if one not in self._alone)
        self._any = re.compile("|".join(spelled) or r"(?!)", re.DOTALL)

    def match(self, address: str) -> bool:
        """Whether one of them is an address's."""
        address = address.lower()
        if address in self._alone:
            return True
        local_part = address.rpartition("@")[0]
        return not _LEADS_ON.search(local_part) and self._any.fullmatch(address) is not None


def released(
    raw: bytes,
    *,
    sender: str,
    to: Sequence[str],
    allowed: Patterns,
    owner: UUID,
    id: UUID,
    at: datetime,
    postmaster: str,
) -> Message:
    """Return what is queued when `raw` is released to `to`.

    `sender` is its reverse-path; the null one is resent by `postmaster`.
    """
    named = parse_recipients(to, "to[{}]")
    if not all(map(allowed.match, named)):
        raise NotAllowed
    reverse_path = parse_address(sender, "the reverse-path") if sender else Address("")
    by = reverse_path if sender else Address(postmaster)
    recipients = [Address(one.address) for one in named.values()]
    lines = [
        address_field("Resent-From", [by]),
        address_field("Resent-To", recipients),
        f"Resent-Date: {date_of(at)}",
        f"Resent-Message-ID: <{id}@{by.address.rpartition('@')[2]}>",
    ]
    head = "".join(f"{line}\r\n" for line in lines).encode()
    between = b"" if has_header(raw) else b"\r\n"
    subject, tls_optional = "", False
    with suppress(MalformedMessage):
        header = Submitted(raw)
        subject, tls_optional = header.subject, header.tls_optional
    return Message(
        reverse_path,
        tuple(recipients),
        subject,
        raw=head + between + raw,
        owner=owner,
        tls_optional=tls_optional,
    )


def _expression(character: str) -> str:
    return {"*": ".*", "?": "."}.get(character) or re.escape(character)
