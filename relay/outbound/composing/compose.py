"""Composing: the bytes of a message (RFC 5322, MIME) from what its author asked for.

Text and HTML become multipart/alternative; attachments make it multipart/mixed.  Names and
subjects are encoded by RFC 2047, file names by RFC 2231.

Promises:
- No CR or LF of any field ever reaches a header: fields are refused that hold one (or any other
  control), and what is encoded is encoded before it is folded.
- The result is 7-bit (but for addresses that need SMTPUTF8, which the `Mail` says), its line
  ends are CRLF, no line has over 998 bytes, and no encoded line over 76.
- The same message gives the same bytes: Message-ID and boundaries come from its id, so a retry
  repeats it exactly.  No boundary occurs in a part.
- There is no Bcc, and an author cannot replace the headers that are made here.

Fails with `MalformedMessage`, one sentence that names the field.

Why by hand: Python's `email` package turns an encoded newline into a real header (3.11.7), and
costs ten times as much.  Nothing here is ever parsed again.

Pure.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import quote

from relay.chance import utc_now
from relay.outbound.composing.message import (
    Address,
    Attachment,
    MalformedMessage,
    Message,
    check_text,
    checked_address,
    parse_address,
)
from relay.smtp.client import Mail

MAX_LINE = 998
FOLD_AT = 76

_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._\-]{0,126}[A-Za-z0-9])?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-]{0,74}[A-Za-z0-9])?")
_TYPE = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+\-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+\-]{0,126}"
)
_PARAMETER = re.compile(r';\s*(charset|method|format|delsp)=("?)([A-Za-z0-9._\-]{1,60})\2\s*', re.I)
_ATOMS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+(?: [A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+)*")
SEVEN_BIT = bytes((9, 10, *range(32, 127)))
"""What a text may hold, a line feed for each line end, that needs no encoding."""
_MESSAGE_ID_LIST = re.compile(r"<[!-;=?-~]{1,500}>(?: <[!-;=?-~]{1,500}>)*")

_OURS = frozenset(
    {"from", "to", "bcc", "subject", "date", "message-id", "sender", "mime-version"}
    | {"return-path", "received", "delivered-to", "apparently-to"}
    | {"dkim-signature", "authentication-results"}
)
_OUR_FAMILIES = ("content-", "resent-", "arc-", "x-relay-")
_ADDRESSES = frozenset({"reply-to", "cc"})
_IDENTIFIERS = frozenset({"in-reply-to", "references"})
_VERBATIM = ("list-",)
"""Structured headers, in which an encoded word would mean nothing."""


def compose(message: Message, *, id: str, date: datetime) -> Mail:
    """Return the mail that `message` is, to all its recipients, or raise MalformedMessage.

    `id`: unique and stable, as the Message-ID and the boundaries are made from it; `date`: with a
    time zone.
    """
    sender = checked_address(message.sender, "from")
    if not message.recipients:
        raise MalformedMessage("to", "names nobody")
    to = [checked_address(each, f"to[{index}]") for index, each in enumerate(message.recipients)]
    if not _ID.fullmatch(id):
        raise MalformedMessage("id", "holds what a Message-ID cannot hold")
    if date.tzinfo is None:
        raise MalformedMessage("date", "has no time zone")
    lines = [
        address_field("From", [sender]),
        address_field("To", to),
        _unstructured("Subject", check_text(message.subject, "subject")),
        f"Date: {date_of(date)}",
        f"Message-ID: <{id}@{sender.address.rpartition('@')[2]}>",
        *_user_headers(message),
        "MIME-Version: 1.0",
    ]
    body = _body(message, id)
    head = "\r\n".join(lines).encode()
    data = b"\r\n".join((head, body))
    recipients = tuple(dict.fromkeys(each.address for each in to))
    return Mail(sender.address, recipients, data, smtputf8=not head.isascii(), crlf=True)


def check(message: Message) -> None:
    """Raise `MalformedMessage` for whatever `compose` would refuse.

    It is composed and thrown away, to one recipient and with empty files: the others' addresses
    were parsed, and of a file only what is said about it can be wrong.
    """
    files = [replace(file, content=b"") for file in message.attachments]
    first = message.recipients[:1]
    compose(replace(message, recipients=first, attachments=files), id="check", date=utc_now())


def date_of(date: datetime) -> str:
    """Return a date (with a time zone) as a Date header has it."""
    return format_datetime(date.replace(microsecond=0))


# --- headers -------------------------------------------------------------------------------


def _user_headers(message: Message) -> list[str]:
    lines: list[str] = []
    seen: set[str] = set()
    for name, value in message.headers.items():
        where = f"headers[{name!a}]" if len(name) <= 80 else "headers"
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            raise MalformedMessage(where, "is not the name of a header")
        if lower in _OURS or lower.startswith(_OUR_FAMILIES):
            raise MalformedMessage(where, "is made by the relay and cannot be given")
        if lower in seen:
            raise MalformedMessage(where, "is given twice")
        seen.add(lower)
        check_text(value, where)
        if lower in _ADDRESSES:
            boxes = [parse_address(part, where) for part in _split_addresses(value)]
            lines.append(address_field(name, boxes))
        elif lower in _IDENTIFIERS:
            value = " ".join(value.split())
            if not _MESSAGE_ID_LIST.fullmatch(value):
                raise MalformedMessage(where, "is not a list of message identifiers")
            lines.append(_fold(name, value.split(" ")))
        elif lower.startswith(_VERBATIM):
            words = value.split()
            if not value.isascii() or any(len(word) > MAX_LINE - 80 for word in words):
                raise MalformedMessage(where, "may hold ASCII only, in words of at most 918 bytes")
            lines.append(_fold(name, words))
        else:
            lines.append(_unstructured(name, value))
    return lines


def _split_addresses(value: str) -> list[str]:
    """Split at the commas that stand outside quotes and angle brackets."""
    parts: list[str] = [""]
    quoted = escaped = angled = False
    for character in value:
        if character == "," and not quoted and not angled:
            parts.append("")
            continue
        if escaped:
            escaped = False
        elif character == "\\" and quoted:
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif not quoted:
            angled = character == "<" or (angled and character != ">")
        parts[-1] += character
    return parts


def address_field(name: str, boxes: Sequence[Address]) -> str:
    """Return a header field of addresses that were checked, folded, without its line end."""
    words: list[str] = []
    for index, box in enumerate(boxes):
        comma = "," if index < len(boxes) - 1 else ""
        if box.name.strip():
            words += _phrase(box.name, lead=len(name) + 2 if index == 0 else 1)
            words.append(f"<{box.address}>{comma}")
        else:
            words.append(box.address + comma)
    return _fold(name, words)


def _phrase(text: str, *, lead: int) -> list[str]:
    """Return a display name as words of a structured header, `lead` characters into a line."""
    text = " ".join(text.split())
    if text.isascii() and "=?" not in text and len(text) <= 200:
        if _ATOMS.fullmatch(text):
            return text.split(" ")
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        return [f'"{escaped}"']
    return _encoded_words(text, lead=lead)


def _unstructured(name: str, text: str) -> str:
    words = text.split(" ")
    plain = not text or (
        text.isascii()
        and text.isprintable()
        and "=?" not in text
        and all(words)  # runs of spaces, or spaces at an end, would not survive folding
        and all(len(word) <= MAX_LINE - 100 for word in words)
    )
    return _fold(name, words if plain else _encoded_words(text, lead=len(name) + 2))


def _encoded_words(text: str, *, lead: int) -> list[str]:
    """Return RFC 2047 words that fit their lines, each a whole number of characters.

    `lead`: how many characters stand before the first of them.
    """
    words: list[str] = []
    chunk = b""
    room = (FOLD_AT - lead - 12) // 4 * 3  # 12: the frame of a word; base64 makes 4 of 3
    if room < 12:
        room = 45  # it starts on a line of its own
    for character in text:
        encoded = character.encode()
        if len(chunk) + len(encoded) > min(room, 45):
            words.append(_word(chunk))
            chunk = b""
            room = 45
        chunk += encoded
    words.append(_word(chunk))
    return words


def _word(chunk: bytes) -> str:
    return f"=?utf-8?b?{b64encode(chunk).decode()}?="


def _fold(name: str, words: list[str]) -> str:
    """Join with spaces, and with folds where a line would grow over `FOLD_AT`."""
    whole = f"{name}: {' '.join(words)}"
    if len(whole) <= FOLD_AT and whole.isascii():
        return whole
    lines = [f"{name}:"]
    for index, word in enumerate(words):
        # A plain first word stays behind its name, however long: some readers want it there.
        stays = index == 0 and not word.startswith("=?")
        if stays or len(lines[-1].encode()) + 1 + len(word.encode()) <= FOLD_AT:
            lines[-1] += f" {word}"
        else:
            lines.append(f" {word}")
    return "\r\n".join(lines)


# --- bodies --------------------------------------------------------------------------------


def _body(message: Message, id: str) -> bytes:
    """Return the content headers, an empty line and the content."""
    parts: list[bytes] = []
    if message.text is not None or message.html is None:
        parts.append(_text_part("plain", message.text or "", "text"))
    if message.html is not None:
        parts.append(_text_part("html", message.html, "html"))
    content = parts[0] if len(parts) == 1 else _multipart("alternative", parts, id)
    if not message.attachments:
        return content
    files = [_attachment(each, index) for index, each in enumerate(message.attachments)]
    return _multipart("mixed", [content, *files], id)


def _text_part(subtype: str, text: str, field: str) -> bytes:
    if "\0" in text:
        raise MalformedMessage(field, "holds a NUL")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.endswith("\n"):
        text += "\n"
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise MalformedMessage(field, "holds half of a surrogate pair") from error
    if not raw.translate(None, SEVEN_BIT) and max(map(len, raw.split(b"\n"))) <= MAX_LINE:
        encoding, content = "7bit", raw.replace(b"\n", b"\r\n")
    else:
        printable = binascii.b2a_qp(raw, istext=True)
        encoding, content = "quoted-printable", printable.replace(b"\n", b"\r\n")
        if len(content) > len(raw) * 4 // 3 + len(raw) // 28:
            encoding, content = "base64", _base64(raw.replace(b"\n", b"\r\n"))
    head = (
        f"Content-Type: text/{subtype}; charset=utf-8\r\n"
        f"Content-Transfer-Encoding: {encoding}\r\n\r\n"
    )
    return head.encode() + content


def _base64(raw: bytes) -> bytes:
    encoded = binascii.b2a_base64(raw, newline=False)
    lines = [encoded[start : start + 76] for start in range(0, len(encoded), 76)]
    return b"\r\n".join([*lines, b""])


def _attachment(attachment: Attachment, index: int) -> bytes:
    where = f"attachments[{index}]"
    name = check_text(attachment.filename, f"{where}.filename", limit=255)
    if not name or "/" in name or "\\" in name or "\t" in name:
        raise MalformedMessage(f"{where}.filename", "is not the name of a file")
    lines = [
        _content_type(attachment.content_type, f"{where}.content_type"),
        "Content-Transfer-Encoding: base64",
        "Content-Disposition: attachment;\r\n" + _filename(name),
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + _base64(attachment.content)


def _content_type(text: str, where: str) -> str:
    found = _TYPE.match(text)
    if found is None:
        raise MalformedMessage(where, "is not a media type (type/subtype)")
    kind = found[0].lower()
    if kind.startswith(("multipart/", "message/")):
        # RFC 2046, 5.2.1: these must not be base64, and so could carry anything
        raise MalformedMessage(where, "cannot be attached; give it as application/octet-stream")
    position = found.end()
    parameters: list[str] = []
    while position < len(text):
        parameter = _PARAMETER.match(text, position)
        if parameter is None or len(parameters) == 4:
            raise MalformedMessage(where, "has a parameter that is not known or not well formed")
        parameters.append(f'{parameter[1].lower()}="{parameter[3]}"')
        position = parameter.end()
    return "".join([f"Content-Type: {kind}", *(f";\r\n {each}" for each in parameters)])


def _filename(name: str) -> str:
    """Return the parameter: quoted, or by RFC 2231 in pieces that fit a line."""
    if name.isascii() and len(name) <= 60:
        escaped = name.replace('"', '\\"')
        return f' filename="{escaped}"'
    pieces: list[str] = []
    piece = "utf-8''"
    for character in name:
        encoded = quote(character, safe="!#$&+-.^_`{}~")
        if len(piece) + len(encoded) > 55:
            pieces.append(piece)
            piece = ""
        piece += encoded
    pieces.append(piece)
    if len(pieces) == 1:
        return f" filename*={pieces[0]}"
    return ";\r\n".join(f" filename*{number}*={piece}" for number, piece in enumerate(pieces))


def _multipart(subtype: str, parts: list[bytes], seed: str) -> bytes:
    whole = b"".join(parts)
    attempt = 0
    while True:
        # "=_" occurs in neither base64 nor quoted-printable; 7-bit text may hold anything.
        digest = hashlib.sha256(f"{seed}/{subtype}/{attempt}".encode()).hexdigest()[:24]
        boundary = f"=_{subtype}_{digest}".encode()
        if boundary not in whole:
            break
        attempt += 1
    head = f'Content-Type: multipart/{subtype};\r\n boundary="{boundary.decode()}"\r\n\r\n'
    pieces = [head.encode()]
    for part in parts:
        pieces += (b"--", boundary, b"\r\n", part, b"\r\n")
    pieces += (b"--", boundary, b"--\r\n")
    return b"".join(pieces)
