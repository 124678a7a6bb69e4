"""A message as somebody submitted it by SMTP, and what becomes of its header before it is queued.

`Submitted` reads the header of a message; `prepared` returns the bytes that go out, `orders` what
its `X-Relay-` fields ask for.

Promises
- Bytes are kept as they came, but for these: Bcc (and Resent-Bcc) and all fields of ours are taken
  out, a Received field is put in front, and a Date and a Message-ID behind it where there are none.
  A last line without CRLF (BDAT allows that) gets it on the wire (`relay.smtp.client`).
- No Bcc survives, wherever it stands in the header, folded, in any case, before a space or after a
  line that is no field.
- What a field of ours asks for is obeyed or refused, never passed over: unknown names and malformed
  values are `MalformedMessage`, and so is one that is given twice.
- `senders` are all addresses that stand in From, however it is read: whoever may send from some
  only is not let through by a field that two programs read differently, nor by a line that some
  programs take for a field.
- Linear in the header.

Fails with `MalformedMessage`, one sentence that holds nothing of the message.

Why not Python's `email`: it cannot give back the bytes that it was given.

Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from itertools import chain
from uuid import UUID

from relay.outbound.composing.compose import date_of
from relay.outbound.composing.message import EARLIEST, LATEST, MalformedMessage
from relay.outbound.queue.lanes import PRIORITIES

MAX_HEADER = 256 * 1024
"""Bytes of a header."""
MAX_LINES = 5_000
"""Lines of a header, folds among them: each takes as long to read as a hundred letters."""
MAX_FROM = 10_000
"""Characters of a From that is read; more are no address of anybody."""
MAX_SUBJECT = 2000
"""Characters of a subject that are kept for lists."""
MAX_TAG = 100
"""Characters of a tag."""
MAX_KEY = 255
"""Bytes of an idempotency key."""

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
# From where a word begins, and from nowhere else: it would take the square of a word's length.
_ADDRESS = re.compile(
    r"""(?<![^\s<>()\[\],;:"])[^\s<>()\[\],;:"@]+@(?:[^\s<>()\[\],;:"@]+|\[[^\]\s]*\])"""
)
# White space and comments may stand beside the dots of an address (RFC 5322, 4.4), and then it is
# another than `_ADDRESS` sees.
_DOTS = ".\u3002\uff0e\uff61"
_GOES_ON = re.compile(rf"\s*(?:[{_DOTS}]|\((?![^()\\]*\)\s*(?:[,;]|\Z)))")
_GOES_BACK = (*_DOTS, ")")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.\-]{0,253}[A-Za-z0-9])?|\[[0-9A-Fa-f:.IPv]{2,60}\]")

_LIKE_AT = re.compile("[\uff20\ufe6b\ufffd]")
_WORD = re.compile(r"=\?[^?]*\?[^?]*\?[^?]*\?=")  # with spaces in it, too, as readers do

_FROM = (b"from", b"sender", b"resent-from", b"resent-sender")
_DROPPED = (b"bcc", b"resent-bcc")
_JUDGED = (*_DROPPED, *_FROM)
_OURS = b"x-relay-"
_VARIES = (b"date", b"message-id")
"""Fields that a client makes anew when it says the same again."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the fields of ours ask for."""

    priority: str = "normal"
    send_at: datetime | None = None
    not_after: datetime | None = None
    key: str | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """Who submitted a message, and how: what its Received field says.

    `helo` is what the peer called itself, `host` its address; `utf8`: by SMTPUTF8.
    """

    helo: str
    host: str
    by: str
    encrypted: bool = False
    utf8: bool = False

    def field(self, id: UUID, at: datetime) -> bytes:
        """The Received field (RFC 5321, 4.4; RFC 3848 and 6531 for how)."""
        helo = self.helo if _HOST.fullmatch(self.helo) else "unknown"
        address = f"IPv6:{self.host}" if ":" in self.host else self.host
        how = f"{'UTF8SMTP' if self.utf8 else 'ESMTP'}{'S' if self.encrypted else ''}A"
        return (
            f"Received: from {helo} ([{address}])\r\n"
            f"\tby {self.by} with {how} id {id};\r\n"
            f"\t{date_of(at)}\r\n"
        ).encode()


def has_header(raw: bytes) -> bool:
    """Whether a message begins with a field, or with the empty line behind none."""
    return _FIELD.match(raw) is not None or raw.startswith((b"\r\n", b"\n"))


class Submitted:
    """The header of a message, whose line ends are CRLF."""

    def __init__(self, raw: bytes) -> None:
        """Read it; `MalformedMessage` where it cannot be told what in it is a field."""
        empty_line = 0 if raw.startswith(b"\r\n") else raw.find(b"\r\n\r\n")
        if (len(raw) if empty_line < 0 else empty_line) > MAX_HEADER:
            raise MalformedMessage("the header", f"has over {MAX_HEADER} bytes")
        self._raw = raw
        self._fields: list[tuple[bytes, int, int]] = []  # name in lower case, start and end
        self._bare = not _FIELD.match(raw)
        """Whether there is no header: it begins with what is no field, and is all text."""
        self._has_another_from = False
        """Whether a line that is no field could be a From to some programs."""
        for name, start, end in _lines(raw):
            if name is None:
                self._has_another_from |= _is_like_from(raw[start:end])
                continue
            self._fields.append((name, start, end))
            if self._bare and (name in _JUDGED or name.startswith(_OURS)):
                # Whether that is a header, readers would differ: and so about who sees a Bcc.
                raise MalformedMessage("the message", "begins with a line that is no header field")
        if self._bare:
            self._fields.clear()

    def values(self, name: bytes) -> list[str]:
        """The values of all fields of a name (in lower case), unfolded."""
        found = []
        for each, start, end in self._fields:
            if each == name:
                value = self._raw[start:end].partition(b":")[2].replace(b"\r\n", b"")
                found.append(value.decode("utf-8", "replace").strip(" \t"))
        return found

    @property
    def subject(self) -> str:
        """The subject for lists, decoded, without control characters; empty: there is none."""
        text = next(iter(self.values(b"subject")), "")[: 2 * MAX_SUBJECT]
        with suppress(HeaderParseError, LookupError, ValueError):  # else it is shown as it stands
            text = str(make_header(decode_header(text)))
        return "".join(filter(str.isprintable, text))[:MAX_SUBJECT].strip()

    @property
    def tls_optional(self) -> bool:
        """Whether it is to go whatever TLS its recipients' domains ask for (RFC 8689, 3)."""
        return [value.lower() for value in self.values(b"tls-required")] == ["no"]

    @property
    def senders(self) -> list[str] | None:
        """Every address that says from whom it is; None: something there is, and what is not known.

        That is From, Sender and their Resent twins.
        """
        if self._has_another_from:
            return None
        found: list[str] = []
        for value in chain.from_iterable(map(self.values, _FROM)):
            here = _addresses(value)
            if here is None:
                return None
            found += here
        return found

    @property
    def orders(self) -> Orders:
        """What is asked for; `MalformedMessage` where that cannot be obeyed."""
        said: dict[str, str] = {}
        for name, _, _ in self._fields:
            if not name.startswith(_OURS):
                continue
            text = name.decode()
            if text in said:
                raise MalformedMessage(_shown(text), "is given twice")
            if text not in _ORDERS:
                raise MalformedMessage(text[:80], "is no field that the relay knows")
            said[text] = self.values(name)[0]
            if "\ufffd" in said[text]:
                raise MalformedMessage(_shown(text), "is not UTF-8")
        found = Orders(
            _priority(said.get("x-relay-priority", "normal")),
            _at(said, "x-relay-send-at"),
            _at(said, "x-relay-not-after"),
            _key(said.get("x-relay-idempotency-key")),
            _tag(said.get("x-relay-tag")),
        )
        if found.not_after and found.send_at and found.not_after <= found.send_at:
            raise MalformedMessage("X-Relay-Not-After", "must be later than X-Relay-Send-At")
        return found

    def prepared(self, trace: Trace, id: UUID, at: datetime, domain: str = "") -> bytes:
        """The bytes that go out.

        `id` makes a Message-ID, in `domain` or ours, and `at` a Date, where there is none.
        """
        names = {name for name, _, _ in self._fields}
        pieces = [trace.field(id, at)]
        if b"date" not in names:
            pieces.append(f"Date: {date_of(at)}\r\n".encode())
        if b"message-id" not in names:
            pieces.append(f"Message-ID: <{id}@{domain or trace.by}>\r\n".encode())
        if self._bare:
            if not self._raw.startswith(b"\r\n"):
                pieces.append(b"\r\n")
            return b"".join((*pieces, self._raw))
        raw, kept = memoryview(self._raw), 0
        parts: list[bytes | memoryview] = [*pieces]
        for name, start, end in self._fields:
            if name in _DROPPED or name.startswith(_OURS):
                parts.append(raw[kept:start])
                kept = end
        parts.append(raw[kept:])
        return b"".join(parts)

    def digest(self, sender: str, recipients: list[str]) -> bytes:
        """What an idempotency key recognises it by: all that is not made anew each time."""
        made = hashlib.sha256(repr((sender, sorted(recipients))).encode())
        kept = 0
        for name, start, end in self._fields:
            if name in _VARIES:
                made.update(self._raw[kept:start])
                kept = end
        made.update(memoryview(self._raw)[kept:])
        return made.digest()


def _lines(raw: bytes) -> Iterator[tuple[bytes | None, int, int]]:
    """The fields of a header with their folds: name (None: no field), start and end."""
    name: bytes | None = None
    start = at = lines = 0
    begun = False
    while at < len(raw) and not raw.startswith(b"\r\n", at):
        lines += 1
        if lines > MAX_LINES:
            raise MalformedMessage("the header", f"has over {MAX_LINES} lines")
        line = raw.find(b"\r\n", at)
        end = len(raw) if line < 0 else line + 2
        if begun and raw[at] in b" \t":
            at = end
            continue
        if begun:
            yield name, start, at
        found = _FIELD.match(raw, at, end)
        name = None if found is None else found[1].lower()
        start, at, begun = at, end, True
    if begun:
        yield name, start, at


def _is_like_from(line: bytes) -> bool:
    """Whether the name before a colon would be From's, were it rid of all that is no letter."""
    text = line[:MAX_FROM].decode("utf-8", "replace")
    before, colon, _ = unicodedata.normalize("NFKC", text).lower().partition(":")
    return bool(colon) and re.sub("[^a-z-]", "", before).encode() in _FROM


def _addresses(value: str) -> list[str] | None:
    """Every address in a field's value; None: there may be more, or others."""
    value = value.replace("\t", " ")
    # What readers decode, or take for something else, could be another address.
    if (
        len(value) > MAX_FROM
        or not value.isprintable()
        or _LIKE_AT.search(value)
        or _hides_an_address(value)
    ):
        return None
    found = []
    for match in _ADDRESS.finditer(value):
        if _GOES_ON.match(value, match.end()) or value[: match.start()].rstrip().endswith(
            _GOES_BACK
        ):
            return None
        found.append(match[0])
    return found if value.count("@") == len(found) else None


def _hides_an_address(value: str) -> bool:
    """Whether an encoded word is part of an address, or holds one."""
    if "=?" in _WORD.sub("", value):
        return True
    for word in _WORD.finditer(value):
        if value.endswith("@", 0, word.start()) or value.startswith("@", word.end()):
            return True
        try:
            text = str(make_header(decode_header(word[0])))
        except (HeaderParseError, LookupError, ValueError):
            return True
        if "@" in text or _LIKE_AT.search(text):
            return True
    return False


def _priority(text: str) -> str:
    if text.lower() not in PRIORITIES:
        raise MalformedMessage("X-Relay-Priority", "is high, normal or bulk")
    return text.lower()


def _at(said: dict[str, str], name: str) -> datetime | None:
    if name not in said:
        return None
    try:
        at = datetime.fromisoformat(said[name])
        moved = None if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        moved = None
    if moved is None or not EARLIEST <= moved < LATEST:
        form = "is no instant like 2026-01-31T12:00:00Z, between the years 1970 and 9998"
        raise MalformedMessage(_shown(name), form)
    return moved


def _key(text: str | None) -> str | None:
    if text is not None and not (text.isprintable() and 1 <= len(text.encode()) <= MAX_KEY):
        raise MalformedMessage("X-Relay-Idempotency-Key", f"has 1 to {MAX_KEY} printable bytes")
    return text


def _tag(text: str | None) -> str | None:
    if text is not None and not (text.isprintable() and 1 <= len(text) <= MAX_TAG):
        raise MalformedMessage("X-Relay-Tag", f"has 1 to {MAX_TAG} printable characters")
    return text


_ORDERS = {
    "x-relay-priority": "X-Relay-Priority",
    "x-relay-send-at": "X-Relay-Send-At",
    "x-relay-not-after": "X-Relay-Not-After",
    "x-relay-idempotency-key": "X-Relay-Idempotency-Key",
    "x-relay-tag": "X-Relay-Tag",
}


def _shown(name: str) -> str:
    return _ORDERS.get(name, name[:80])
