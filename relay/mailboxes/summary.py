"""The summary of a message: what a list and a reader need, taken from its raw bytes.  Pure.

Promises
- `summarise` never raises for any bytes (MemoryError and the like aside) and takes time linear
  in their number: no recursion, and caps on headers, parts, depth and text.  What a cap cuts
  off, or what is malformed, is said in `error`; the rest is still there.
- Every string can be stored in PostgreSQL: no NUL, no lone surrogate.
- An attachment's name is a bare file name: no directory, no control character.
- `extract_attachment` finds by index what `summarise` listed under it.

Why our own reader rather than `email`: on 3.11 a kilobyte of brackets in From, a thousand nested
parts or a malformed Message-ID raise out of it, 100,000 parts take 8.5 s, and an ordinary message
costs several times as much.  Nothing here is ever serialised again; the raw bytes stay the truth.

Formats: RFC 5322 (headers), 2045 and 2046 (MIME), 2047 (encoded words), 2231 (parameters).
"""

from __future__ import annotations

import binascii
import json
import quopri
import re
import struct
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import unquote, unquote_to_bytes

from relay.mailboxes.charsets import decode, gives_halves
from relay.mailboxes.extract import find_code, find_links, in_ascii, unescape
from relay.unseen import UNSEEN

MAX_HEADERS = 500
MAX_HEADER_BYTES = 256 * 1024  # all of them
MAX_VALUE = 16 * 1024  # characters of one header
MAX_PARTS = 1000
MAX_DEPTH = 20
MAX_TEXT = 1024 * 1024  # characters of body_text, and of body_html
MAX_ATTACHMENTS = 500
_MAX_NAME = 150  # characters of a file name
_MAX_ADDRESS = 320
_MAX_FROM = 4096  # characters of From that are looked at
_MAX_FROM_NAME = 200
_MAX_TAGS = 4096  # characters of X-Tags
_MARKUP_LOOKED_AT = 200_000  # characters of HTML searched for a code
_REGULAR = 16 * 1024  # bytes of headers that may be read at one go


COLUMNS = (
    *("from_address", "subject", "has_attachments", "body_text", "body_html", "details", "otp"),
    *("error", "tags", "from_name"),
)
"""The columns of `relay.summaries` that parsing fills, in the order of a row."""
ENDS = struct.Struct(f">{len(COLUMNS)}I")
"""What a row begins with: where each of its values ends.  A value is its length as an int32 (-1:
NULL) and its bytes: text in UTF-8, a boolean as one byte."""

_LENGTH = struct.Struct(">i").pack
_NULL, _TRUE, _FALSE = _LENGTH(-1), _LENGTH(1) + b"\1", _LENGTH(1) + b"\0"
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))


def _value(text: str | None) -> bytes:
    if text is None:
        return _NULL
    raw = text.encode()
    return _LENGTH(len(raw)) + raw


@dataclass
class Summary:
    """What was found in a message.

    `headers`: [name, decoded value] in order; `attachments`: {index, filename, content_type,
    size, content_id}, size in bytes once decoded; `has_attachments`: whether there is one that the
    HTML does not show; `otp`: a verification code; `links`: see
    `extract.find_links`; `error`: why the summary is partial, or None; `tags`: what X-Tags says,
    with commas between, as `summaries.store` takes it; `from_name`: what the sender is called
    beside the address.
    """

    from_address: str | None = None
    subject: str | None = None
    has_attachments: bool = False
    body_text: str | None = None
    body_html: str | None = None
    headers: list[list[str]] = field(default_factory=list)
    attachments: list[dict[str, Any]] = field(default_factory=list)
    otp: str | None = None
    links: list[str] = field(default_factory=list)
    error: str | None = None
    tags: str | None = None
    from_name: str | None = None

    def as_row(self) -> bytes:
        """The summary as a row: `ENDS`, then the values of `COLUMNS` in PostgreSQL's binary form.

        What only the whole message shows is in `details`, a JSON object that PostgreSQL never
        reads: headers, attachments, links.
        """
        details = {"headers": self.headers, "attachments": self.attachments, "links": self.links}
        values = (
            _value(self.from_address),
            _value(self.subject),
            _TRUE if self.has_attachments else _FALSE,
            _value(self.body_text),
            _value(self.body_html),
            _value(_JSON.encode(details)),
            _value(self.otp),
            _value(self.error),
            _value(self.tags),
            _value(self.from_name),
        )
        ends = list(accumulate(map(len, values), initial=ENDS.size))
        return ENDS.pack(*ends[1:]) + b"".join(values)


def summarise(raw: bytes) -> Summary:
    """Parse a message.  Never raises for what the bytes are."""
    reader = _Reader(raw)
    summary = reader.summary
    _head(summary, reader)
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    room = dict.fromkeys(texts, MAX_TEXT)
    for part in reader.leaves():
        if part.is_body:
            known = texts[part.content_type]
            if known and part.alternative:
                continue
            if room[part.content_type] >= 0:
                known.append(part.text())
                room[part.content_type] -= len(known[-1])
        elif len(summary.attachments) < MAX_ATTACHMENTS:
            summary.attachments.append(part.describe(len(summary.attachments)))
        else:
            reader.fault(f"more than {MAX_ATTACHMENTS} attachments")
    text, markup = "\n".join(texts["text/plain"]), "\n".join(texts["text/html"])
    if len(text) > MAX_TEXT or len(markup) > MAX_TEXT:
        reader.fault(f"the text was cut at {MAX_TEXT} characters")
        text, markup = text[:MAX_TEXT], markup[:MAX_TEXT]
    summary.body_html = markup if texts["text/html"] else None
    # Programs that write HTML alone often send a text beside it in which nothing is.
    is_blank = not texts["text/plain"] or (bool(markup) and not text.strip())
    summary.body_text = None if is_blank else text
    if summary.attachments:  # pictures that the HTML shows are a part of it
        shown = {unquote(content_id) for content_id in _SHOWN.findall(markup)}
        summary.has_attachments = any(one["content_id"] not in shown for one in summary.attachments)
    readable = summary.body_text or text_of(markup[:_MARKUP_LOOKED_AT])
    summary.otp = find_code(summary.subject or "", readable)
    summary.links = find_links(text, markup)
    summary.error = "; ".join(reader.faults) or None
    return summary


def fallback(raw: bytes, error: str) -> Summary:
    """From, Subject and the headers alone, for a message whose parsing was given up."""
    reader = _Reader(raw[:MAX_HEADER_BYTES])
    _head(reader.summary, reader)
    reader.summary.error = clean(error)
    return reader.summary


def extract_attachment(raw: bytes, index: int) -> tuple[str, str, bytes] | None:
    """File name, content type and decoded bytes of the attachment `index`, or None."""
    count = 0
    for part in _Reader(raw).leaves():
        if part.is_body:
            continue
        if count == index:
            described = part.describe(index)
            return described["filename"], described["content_type"], part.content()
        count += 1
        if count > MAX_ATTACHMENTS:
            break
    return None


_SHOWN = re.compile(r"""\bcid:([^\s"'<>()]+)""", re.IGNORECASE)
_SENDER = re.compile(r'"from"\s*,\s*("[^"\\]*(?:\\.[^"\\]*)*")', re.IGNORECASE)


def senders(details: str) -> list[str]:
    """What is said in From, in the `details` of any number of rows, one behind the other.

    `relay.sender_of` gives the first of one row in SQL, and costs many times as much.
    """
    return [json.loads(value, strict=False) for value in _SENDER.findall(details)]


def clean(text: str) -> str:
    """`text` as PostgreSQL stores it: NULs dropped, lone surrogates replaced."""
    if "\x00" in text:
        text = text.replace("\x00", "")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _head(summary: Summary, reader: _Reader) -> None:
    clean_already = reader.regular
    summary.headers = headers = [
        [name, value if clean_already and "=?" not in value else _decoded(value)]
        for name, value in reader.headers
    ]
    for name, value in headers:
        if len(name) == 7 and name.lower() == "subject":
            summary.subject = value
            break
    tags = [value for name, value in headers if len(name) == 6 and name.lower() == "x-tags"]
    if tags:
        summary.tags = ",".join(tags)[:_MAX_TAGS]
    undecoded = _first(reader.headers, "from")
    if undecoded is not None:
        summary.from_address, summary.from_name = _sender(undecoded)


# Parts ------------------------------------------------------------------------------------------

# A header line: a name of printable ASCII without a colon.
_HEADER = re.compile(rb"([!-9;-~]{1,200})[ \t]*:(.*)", re.DOTALL)
_HEADERS = re.compile(r"^([!-9;-~]{1,200})[ \t]*:(.*(?:\n[ \t].*)*)$", re.MULTILINE)
_BLANK_LINE = re.compile(rb"\n\r?\n")
_TYPE = re.compile(r"[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}")
_BODIES = ("text/plain", "text/html")


@dataclass(slots=True)
class _Part:
    """A leaf of the tree of parts: the slice [start, end) of the raw bytes is its body."""

    raw: bytes
    start: int
    end: int
    content_type: str
    parameters: dict[str, str]
    disposition: str
    filename: str | None
    content_id: str | None
    encoding: str
    alternative: bool

    @property
    def is_body(self) -> bool:
        return (
            self.content_type in _BODIES
            and self.disposition != "attachment"
            and self.filename is None
        )

    def content(self) -> bytes:
        """The body with its transfer encoding undone; as it is where that cannot be."""
        body = self.raw[self.start : self.end]
        if self.encoding == "base64":
            return _base64(body)
        if self.encoding == "quoted-printable":
            return quopri.decodestring(body)
        return body

    def size(self) -> int:
        """How long `content` is.  Of base64 it is counted: decoding takes many times as long."""
        if self.encoding == "base64":
            body = self.raw[self.start : self.end]
            return _base64_size(len(body) - len(body.translate(None, _BASE64)))
        if self.encoding == "quoted-printable":
            return len(self.content())
        return self.end - self.start

    def text(self) -> str:
        # Four bytes a character is the longest there is; the rest would be cut off anyway.
        content = self.content()[: 4 * MAX_TEXT + 4]
        charset = self.parameters.get("charset", "")
        text = decode(content, charset).replace("\r\n", "\n")
        if text.isascii():
            return clean(text) if "\x00" in text else text
        return clean(text) if "\x00" in text or gives_halves(charset) else text

    def describe(self, index: int) -> dict[str, Any]:
        return {
            "index": index,
            "filename": _bare_name(self.filename) or _invented_name(self.content_type, index),
            "content_type": self.content_type,
            "size": self.size(),
            "content_id": self.content_id,
        }


_Headers = list[tuple[str, str]]
"""Names and values, each value in one line, its encoded words as they came."""


class _Reader:
    """Reads one message: its headers at once, its parts as they are asked for."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.summary = Summary()
        self.faults: list[str] = []
        found = self._regular_headers(0, len(raw))
        self.regular = found is not None
        self.headers, self.body = found or self._any_headers(0, len(raw))

    def fault(self, text: str) -> None:
        if text not in self.faults:
            self.faults.append(text)

    def leaves(self) -> Iterator[_Part]:
        """The parts that contain no others, in order."""
        parts = 0
        # What is still to be read, the next on top: (headers, body start, end, depth, siblings).
        stack: list[tuple[_Headers | None, int, int, int, str]]
        stack = [(self.headers, self.body, len(self.raw), 0, "")]
        while stack:
            headers, start, end, depth, parent = stack.pop()
            parts += 1
            if parts > MAX_PARTS:
                self.fault(f"more than {MAX_PARTS} parts")
                return
            if headers is None:
                headers, start = self._headers_at(start, end)
            default = "message/rfc822" if parent == "multipart/digest" else "text/plain"
            content_type, parameters = _parameters(_first(headers, "content-type"))
            if content_type not in _BODIES and _TYPE.fullmatch(content_type) is None:
                content_type = default
            boundary = parameters.get("boundary", "")
            if content_type.startswith("multipart/") and boundary:
                if depth >= MAX_DEPTH:
                    self.fault(f"parts nested deeper than {MAX_DEPTH}")
                    continue
                children = self._split(start, end, boundary, MAX_PARTS - parts)
                if not children:
                    self.fault("a multipart without parts")
                stack += [(None, s, e, depth + 1, content_type) for s, e in reversed(children)]
                continue
            if content_type.startswith("multipart/"):
                self.fault("a multipart without a boundary")
                content_type = "text/plain"
            yield _leaf(self.raw, start, end, headers, content_type, parameters, parent)

    def _headers_at(self, start: int, end: int) -> tuple[_Headers, int]:
        """The headers of the part that begins at `start`, and where its body begins."""
        return self._regular_headers(start, end) or self._any_headers(start, end)

    def _regular_headers(self, start: int, end: int) -> tuple[_Headers, int] | None:
        """The same, for headers as they should be, read by one pattern; None: they are not.

        In ASCII, each line a header or the continuation of one, then a blank line, all within
        `_REGULAR` bytes, so that nothing has to be cut off.  `TestRegularHeaders` holds it to the
        other way.
        """
        raw = self.raw
        last = raw.find(b"\n\r\n", start, min(end, start + _REGULAR))
        bare = raw.find(b"\n\n", start, min(end, start + _REGULAR) if last < 0 else last + 1)
        if bare >= 0:
            last, body = bare, bare + 2
        elif last >= 0:
            body = last + 3
        else:
            return None
        block = raw[start : last + 1]
        if not block.isascii() or b"\0" in block:
            return None
        text = block.decode("ascii")
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        found = _HEADERS.findall(text)
        lines = text.count("\n") - text.count("\n ") - text.count("\n\t")
        if len(found) != lines or lines > MAX_HEADERS:
            return None
        return [(name, value.replace("\n", "").strip()) for name, value in found], body

    def _any_headers(self, start: int, end: int) -> tuple[_Headers, int]:
        """The same, whatever is there, line by line."""
        raw = self.raw
        headers: _Headers = []
        name: str | None = None
        lines: list[bytes] = []
        position, limit = start, min(end, start + MAX_HEADER_BYTES)

        def finish() -> None:
            if name is not None:
                value = b"".join(lines)[: 4 * MAX_VALUE]
                headers.append((name, _wire_text(value).strip()[:MAX_VALUE]))

        while position < end:
            line_end = raw.find(b"\n", position, limit)
            if line_end < 0:
                if limit < end:
                    self.fault("the headers were cut off")
                    match = _HEADER.fullmatch(raw[position:limit])
                    finish()
                    if match is not None:
                        name, lines = match[1].decode("ascii"), [match[2]]
                        finish()
                    blank = _BLANK_LINE.search(raw, position, end)
                    return headers, blank.end() if blank else end
                line_end = end
            line = raw[position:line_end]
            if line.endswith(b"\r"):
                line = line[:-1]
            following = min(line_end + 1, end)
            if not line:
                finish()
                return headers, following
            if line[0] in b" \t" and (name is not None or headers):
                if name is not None:
                    lines.append(line)
                position = following
                continue
            match = _HEADER.fullmatch(line)
            if match is None:
                if position == start and line.startswith(b"From "):  # an mbox separator
                    position = following
                    continue
                # Not a header: the body begins here, without its blank line.
                finish()
                return headers, position
            finish()
            name, lines = None, []
            if len(headers) < MAX_HEADERS:
                name, lines = match[1].decode("ascii"), [match[2]]
            else:
                self.fault(f"more than {MAX_HEADERS} headers")
            position = following
        finish()
        return headers, end

    def _split(self, start: int, end: int, boundary: str, most: int) -> list[tuple[int, int]]:
        """The slices between the boundary lines in [start, end)."""
        raw = self.raw
        # With the line break before it: then a line of nothing but boundaries is one hit.
        delimiter = b"\n--" + boundary.encode("utf-8", "replace")[:200]
        children: list[tuple[int, int]] = []
        begin: int | None = None
        position = start
        while True:
            if position == start and raw.startswith(delimiter[1:], start, end):
                found = start - 1
            else:
                found = raw.find(delimiter, max(start, position - 1), end)
                if found < 0:
                    break
            position = found + len(delimiter)
            line_end = raw.find(b"\n", position, min(end, position + 200))
            if line_end < 0:
                line_end = min(end, position + 200)
            tail = raw[position:line_end].strip()
            if tail not in (b"", b"--"):
                continue  # a longer boundary that begins like this one
            if begin is not None:
                # The line break before a boundary belongs to the boundary.
                close = found - 1 if found > begin and raw[found - 1] == 13 else found
                children.append((begin, max(begin, close)))
                if len(children) > most:
                    return children
            if tail == b"--":
                return children
            begin = position = min(line_end + 1, end)
        if begin is not None:
            children.append((begin, end))
            self.fault("a multipart without its end")
        return children


def _leaf(
    raw: bytes,
    start: int,
    end: int,
    headers: _Headers,
    content_type: str,
    parameters: dict[str, str],
    parent: str,
) -> _Part:
    disposition, details = _parameters(_first(headers, "content-disposition"))
    filename = details.get("filename") or parameters.get("name")
    content_id = _first(headers, "content-id")
    encoding = (_first(headers, "content-transfer-encoding") or "").partition(";")[0]
    return _Part(
        raw,
        start,
        end,
        content_type,
        parameters,
        disposition,
        filename,
        clean(content_id.strip("<> \t"))[:_MAX_ADDRESS] if content_id else None,
        encoding.strip().lower(),
        parent == "multipart/alternative",
    )


def _first(headers: _Headers, name: str) -> str | None:
    length = len(name)
    for known, value in headers:
        if len(known) == length and known.lower() == name:
            return value
    return None


# Transfer encodings and character sets -----------------------------------------------------------

_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64 = bytes(c for c in range(256) if c not in _BASE64)


def _base64(body: bytes) -> bytes:
    """Decode leniently: whatever is not of the alphabet, padding too, is passed over."""
    body = body.translate(None, _NOT_BASE64)
    if len(body) % 4 == 1:
        body = body[:-1]
    return binascii.a2b_base64(body + b"=" * (-len(body) % 4))


def _base64_size(digits: int) -> int:
    """How many bytes `_base64` makes of so many digits."""
    return digits // 4 * 3 + (0, 0, 1, 2)[digits % 4]


def _wire_text(value: bytes) -> str:
    if value.isascii():
        return value.decode("ascii")
    return decode(value, "")


# Headers -----------------------------------------------------------------------------------------

_ENCODED_WORD = re.compile(r"=\?([^?\s*]{1,60})(?:\*[^?\s]{0,40})?\?([bBqQ])\?([^?\s]*)\?=")


def _decoded(value: str) -> str:
    """A header's value with its encoded words decoded (RFC 2047), on one line.

    Neighbours in one character set are decoded together: some senders cut characters in two.
    """
    if "=?" not in value:
        return clean(value)
    pieces: list[str] = []
    pending: list[bytes] = []
    pending_charset = ""
    position = 0

    def flush() -> None:
        if pending:
            pieces.append(decode(b"".join(pending), pending_charset))
            pending.clear()

    for match in _ENCODED_WORD.finditer(value):
        gap = value[position : match.start()]
        # White space between two encoded words is part of the encoding.
        if gap.strip(" \t") or not pending:
            flush()
            pieces.append(gap)
        charset, kind, payload = match[1].lower(), match[2], match[3].encode("utf-8", "replace")
        if charset != pending_charset:
            flush()
        pending_charset = charset
        if kind in "bB":
            pending.append(_base64(payload))
        else:
            pending.append(binascii.a2b_qp(payload, header=True))
        position = match.end()
    flush()
    pieces.append(value[position:])
    # A decoded line break would look like another header to a careless reader.
    return clean("".join(pieces).replace("\r", " ").replace("\n", " "))


_BRACKETED = re.compile(r"<([^<>]*)>")
_WORD = re.compile(r"[^\s,;:<>]+")
_QUOTED = re.compile(r'"[^"]*"?')
_UNSEEN_IN_NAMES = re.compile(f"[{UNSEEN}]+")
_MAX_LOCAL, _MAX_DOMAIN = 200, 255


def _sender(value: str) -> tuple[str | None, str | None]:
    """The address of the first mailbox in a From header, and the name before it in brackets; None
    for what is not there.

    Quoted strings and comments are blanked out first (in one pass, however deep), so that what
    merely looks like an address inside them is not taken for one.
    """
    value = value[:_MAX_FROM]
    masked = value if '"' not in value and "(" not in value else _mask(value)
    match = _BRACKETED.search(masked)
    name = None
    if match is not None and match[1].strip():
        found = value[match.start(1) : match.end(1)]
        # Behind an address a comma ends it; else it belongs to a name, which forgot its quotes.
        at = masked.rfind("@", 0, match.start())
        begin = masked.find(",", at, match.start()) + 1 if at >= 0 else 0
        name = _display_name(value[begin : match.start()])
    else:
        found = _bare_address(value, masked)
    found = clean(_UNSEEN_IN_NAMES.sub("", found).strip())
    return found[:_MAX_ADDRESS] or None, name


def _display_name(phrase: str) -> str | None:
    """What a phrase before an address says, without its quotes, its encoded words decoded."""
    phrase = phrase.strip()
    if len(phrase) > 1 and phrase[0] == phrase[-1] == '"':
        phrase = phrase[1:-1]
        if "\\" in phrase:
            phrase = _ESCAPED.sub(r"\1", phrase)
    if not phrase:
        return None
    name = _UNSEEN_IN_NAMES.sub("", " ".join(_decoded(phrase).split()))
    return name[:_MAX_FROM_NAME].strip() or None


def _mask(value: str) -> str:
    """`value` with blanks for comments and "_" for what is quoted."""
    if "(" not in value and "\\" not in value:
        return _QUOTED.sub(lambda quoted: "_" * len(quoted[0]), value)
    mask: list[str] = []
    depth, quoted, escaped = 0, False, False
    for character in value:
        hidden = depth > 0 or quoted or character in '"('
        if escaped:
            escaped = False
        elif character == "\\" and (quoted or depth):
            escaped = True
        elif character == '"' and not depth:
            quoted = not quoted
        elif character == "(" and not quoted:
            depth += 1
        elif character == ")" and depth:
            depth -= 1
        mask.append(("_" if quoted or character == '"' else " ") if hidden else character)
    return "".join(mask)


def _bare_address(value: str, masked: str) -> str:
    """The first `local@domain` without brackets, "" if there is none."""
    for word in _WORD.finditer(masked):
        pieces = word[0].split("@")
        at = word.start() - 1  # of each @ in turn
        for local, domain in pairwise(pieces):
            at += len(local) + 1
            if local and domain:
                begin = at - min(len(local), _MAX_LOCAL)
                return value[begin : at + 1 + min(len(domain), _MAX_DOMAIN)]
    return ""


_PARAMETER = re.compile(
    r"""\s*([^\s=;"]{1,100})\s*=\s*(?:"((?:[^"\\]|\\.)*)"?|([^;]*))[^;]*""", re.DOTALL
)


_ESCAPED = re.compile(r"\\(.)")
_REMEMBERED = 80  # characters of a structured header, if it has no boundary


def _parameters(value: str | None) -> tuple[str, dict[str, str]]:
    """`_parse_parameters`, of which most mail has the same few values."""
    if not value:
        return "", {}
    if len(value) <= _REMEMBERED and "boundary" not in value:
        return _remembered_parameters(value)
    return _parse_parameters(value)


@lru_cache(maxsize=256)
def _remembered_parameters(value: str) -> tuple[str, dict[str, str]]:
    return _parse_parameters(value)


def _parse_parameters(value: str) -> tuple[str, dict[str, str]]:
    """A structured header: its value in lower case, and its parameters (RFC 2231 decoded).

    What is no parameter is passed over; of two with one name the first counts.
    """
    main, _, rest = value.partition(";")
    plain: dict[str, str] = {}
    split: dict[str, dict[int, tuple[str, bool]]] = {}
    position = 0
    while position < len(rest) and len(plain) + len(split) < 100:
        match = _PARAMETER.match(rest, position)
        if match is None:
            following = rest.find(";", position)
            if following < 0:
                break
            position = following + 1
            continue
        position = match.end() + 1
        name = match[1].lower()
        text = _ESCAPED.sub(r"\1", match[2]) if match[2] is not None else match[3].strip()
        base, star, section = name.partition("*")
        if not star:
            plain.setdefault(name, text)
            continue
        extended = name.endswith("*")
        number = section.rstrip("*")
        split.setdefault(base, {}).setdefault(
            int(number) if number.isdecimal() and len(number) < 4 else 0, (text, extended)
        )
    for base, sections in split.items():
        plain[base] = _joined(sections)
    for name, text in plain.items():
        plain[name] = _decoded(text) if name in ("filename", "name") else text
    return main.strip().lower(), plain


def _joined(sections: dict[int, tuple[str, bool]]) -> str:
    """The value of a parameter that RFC 2231 cut into pieces, escaped, or both."""
    charset = ""
    data: list[bytes] = []
    for order, number in enumerate(sorted(sections)):
        text, extended = sections[number]
        if extended and order == 0 and text.count("'") >= 2:
            charset, _, text = text.split("'", 2)
        raw = text.encode("utf-8", "surrogateescape")
        data.append(unquote_to_bytes(raw) if extended else raw)
    return decode(b"".join(data), charset)


# Names and text ----------------------------------------------------------------------------------

_EXTENSIONS = {
    "text/plain": ".txt",
    "text/html": ".html",
    "text/calendar": ".ics",
    "text/csv": ".csv",
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/svg+xml": ".svg",
    "application/pdf": ".pdf",
    "application/zip": ".zip",
    "application/json": ".json",
    "message/rfc822": ".eml",
}


_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def _bare_name(name: str | None) -> str:
    """The last component of a file name, without anything that could lead elsewhere."""
    if not name:
        return ""
    kept = clean(name[-4096:]).replace("\\", "/").rpartition("/")[2]
    if not (kept.isascii() and kept.isprintable()):
        # Controls, and the format characters that turn "gpj.exe" round.
        kept = "".join(c for c in kept if unicodedata.category(c) not in _UNSEEN)
    kept = kept.strip(" .") if kept.strip(" .") else ""
    if len(kept) <= _MAX_NAME:
        return kept
    stem, dot, extension = kept.rpartition(".")
    if dot and len(extension) <= 10:
        return stem[: _MAX_NAME - len(extension) - 1] + dot + extension
    return kept[:_MAX_NAME]


def _invented_name(content_type: str, index: int) -> str:
    return f"attachment-{index}{_EXTENSIONS.get(content_type, '.bin')}"


_TAG = re.compile(r"<(/?\w*)(?!\w)[^<>]*>")
_LINE_ENDS = ("br", "/p", "/div", "/tr", "/li", "/table", *(f"/h{digit}" for digit in range(10)))
_INLINE = ("b", "i", "u", "a", "em", "strong", "span", "font", "mark", "code", "small", "big")
_SHOWN_AS = (
    dict.fromkeys(_LINE_ENDS, "\n")
    | dict.fromkeys(_INLINE, "")
    | dict.fromkeys((f"/{name}" for name in _INLINE), "")
)
"""What a reader sees of a tag, by its name; of all others a space."""
_LINE_END_TAG = re.compile(rf"<(?:{'|'.join(_LINE_ENDS)})\b[^<>]*>", re.IGNORECASE)
_INLINE_TAG = re.compile(rf"</?(?:{'|'.join(_INLINE)})\b[^<>]*>", re.IGNORECASE)


def text_of(markup: str) -> str:
    """Roughly what a reader of `markup` sees: enough to look for a code in it."""
    lowered = in_ascii(markup)
    for tag in (b"<style", b"<script", b"<head"):
        if tag in lowered:
            markup = _without(markup, lowered, tag)
            lowered = in_ascii(markup)
    pieces = _TAG.split(markup)  # text, name, text, name, …
    if "<" in "".join(pieces[::2]):
        # An open tag before others (a comment about tags): it may end where they have gone.
        text = _TAG.sub(" ", _INLINE_TAG.sub("", _LINE_END_TAG.sub("\n", markup)))
    else:
        pieces[1::2] = [_SHOWN_AS.get(name.lower(), " ") for name in pieces[1::2]]
        text = "".join(pieces)
    text = unescape(text).replace("\t", " ").replace("\xa0", " ")
    while "  " in text:  # halved each time
        text = text.replace("  ", " ")
    return "\n".join(line for line in map(str.strip, text.split("\n")) if line)


def _without(markup: str, lowered: bytes, tag: bytes) -> str:
    """`markup` less each element that begins with `tag`; one without an end reaches to the end.

    `lowered`: `in_ascii` of it.
    """
    kept: list[str] = []
    position = 0
    opening = lowered.find(tag)
    while opening >= 0:
        end = opening + len(tag)
        if markup[end : end + 1].isalnum() or markup[end : end + 1] == "_":  # of another name
            opening = lowered.find(tag, end)
            continue
        kept.append(markup[position:opening])
        closing = lowered.find(b"</" + tag[1:], end)
        if closing < 0:
            return "".join(kept)
        position = lowered.find(b">", closing) + 1
        if not position:
            return "".join(kept)
        opening = lowered.find(tag, position)
    kept.append(markup[position:])
    return "".join(kept)
