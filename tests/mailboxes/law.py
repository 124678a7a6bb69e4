"""What Python's `email` package reads of a message: the law that the summary is held to.

`differences` compares them field by field, and `explained` says of a difference why it is meant.
Whatever it cannot explain is a fault of one of the two.  The generator makes mail as programs write
it, some of it well, some of it badly.
"""

from __future__ import annotations

import base64
import email
import email.policy
import email.utils
import quopri
import random
import re
from collections.abc import Callable
from email.errors import HeaderParseError
from email.header import decode_header
from email.message import Message
from typing import Any, NamedTuple

from relay.mailboxes import charsets
from relay.mailboxes.summary import Summary, clean, extract_attachment


class Difference(NamedTuple):
    """A field of which both say something else."""

    field: str
    ours: Any
    theirs: Any


# ------------------------------------------------------------------------------------ the law


def _words(value: str) -> str:
    """A header's value decoded (RFC 2047) and on one line."""
    value = re.sub(r"\r?\n", "", value).strip()
    pieces = []
    try:
        words = decode_header(value)
    except HeaderParseError:
        return clean(value)
    for text, charset in words:
        if isinstance(text, str):
            pieces.append(text)
        elif charset is None:
            pieces.append(text.decode("raw-unicode-escape", "replace"))
        else:
            pieces.append(charsets.decode(text, charset))
    return clean("".join(pieces))


def _headers(message: Message) -> list[tuple[str, str]]:
    found = []
    for name, value in message.raw_items():
        raw = str(value).encode("ascii", "surrogateescape")
        found.append((name, charsets.decode(raw, "") if not raw.isascii() else str(value)))
    return found


def _leaves(message: Message, parent: str = "") -> list[tuple[Message, str]]:
    """The parts that hold no others; a message in the message is one."""
    parts: object = message.get_payload()
    if message.get_content_maintype() == "multipart" and isinstance(parts, list):
        kind = message.get_content_type()
        return [leaf for part in parts for leaf in _leaves(part, kind)]
    return [(message, parent)]


def _content(part: Message) -> bytes:
    found = part.get_payload(decode=True)
    return found if isinstance(found, bytes) else b""  # none of a message in the message


def _read(raw: bytes) -> dict[str, Any]:
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    headers = _headers(message)
    first: dict[str, str] = {}
    for name, value in headers:
        first.setdefault(name.lower(), value)
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    attachments: list[tuple[str, int, str]] = []
    for part, parent in _leaves(message):
        kind = part.get_content_type()
        named = part.get_filename()
        if kind in texts and part.get_content_disposition() != "attachment" and named is None:
            if not (texts[kind] and parent == "multipart/alternative"):
                charset = str(part.get_param("charset") or "")
                text = charsets.decode(_content(part), charset)
                texts[kind].append(clean(text.replace("\r\n", "\n")))
        else:
            size = -1 if isinstance(part.get_payload(), list) else len(_content(part))
            attachments.append((kind, size, _words(named or "")))
    sender = email.utils.getaddresses([re.sub(r"\r?\n", "", first.get("from", ""))])
    text, markup = ("\n".join(texts[kind]) for kind in ("text/plain", "text/html"))
    return {
        "headers": [(name, _words(value)) for name, value in headers],
        "subject": _words(first["subject"]) if "subject" in first else None,
        "from": (sender[0][1] if sender else "") or None,
        # A blank text beside HTML is none.
        "text": text if texts["text/plain"] and (text.strip() or not markup) else None,
        "html": markup if texts["text/html"] else None,
        "attachments": attachments,
    }


def defects(raw: bytes) -> set[str]:
    """What `email` itself finds wrong with a message."""
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    for part, _ in _leaves(message):
        part.get_payload(decode=True)
    return {type(each).__name__ for part in message.walk() for each in part.defects}


def differences(raw: bytes, summary: Summary) -> list[Difference]:
    """Where the summary of a message is not what `email` reads."""
    theirs = _read(raw)
    ours: dict[str, Any] = {
        "headers": [(name, value) for name, value in summary.headers],
        "subject": summary.subject,
        "from": summary.from_address,
        "text": summary.body_text,
        "html": summary.body_html,
        "attachments": [
            (one["content_type"], one["size"], one["filename"]) for one in summary.attachments
        ],
    }
    found = [
        Difference(field, ours[field], theirs[field])
        for field in ours
        if ours[field] != theirs[field]
    ]
    for one in summary.attachments:  # what is listed is what is given out
        given = extract_attachment(raw, one["index"])
        assert given is not None
        assert (given[0], given[1], len(given[2])) == (
            one["filename"], one["content_type"], one["size"],
        )  # fmt: skip
    return found


# ------------------------------------------------------------------- what is meant to differ


_ASCII = re.compile("[!-~]+")


def _one_attachment(ours: tuple[str, int, str], theirs: tuple[str, int, str]) -> str | None:
    if ours == theirs:
        return ""
    kind, size, name = ours
    if kind != theirs[0]:
        return None
    if kind.startswith("message/") and theirs[1] <= 0:
        return "a message in a message is an attachment as it is, and not taken apart"
    if size == theirs[1] and not theirs[2] and name.startswith("attachment-"):
        return "an attachment without a name gets one"
    if size == theirs[1] and _ASCII.findall(name) == _ASCII.findall(theirs[2]) != [name]:
        return "bytes of a header that are not ASCII are read by a guess"
    return None


def _attachments(raw: bytes, summary: Summary, found: Difference) -> str | None:
    if len(found.ours) != len(found.theirs):
        return None
    reasons = [_one_attachment(*pair) for pair in zip(found.ours, found.theirs, strict=True)]
    return None if None in reasons else next(filter(None, reasons), None)


def _last_line(raw: bytes, summary: Summary, found: Difference) -> str | None:
    ours, theirs = (str(each or "").rstrip("\n") for each in found[1:])
    if "a multipart without its end" in (summary.error or "") and ours == theirs:
        return "a multipart without its end: the last line break belongs to no boundary"
    return None


def _no_address(raw: bytes, summary: Summary, found: Difference) -> str | None:
    if found.ours is None and "@" not in (found.theirs or "@"):
        return "what has no @ is no address"
    if found.ours and (found.theirs or "").startswith(found.ours):
        return "an address without brackets ends where its word does"
    if found.ours and found.ours.rstrip('"') == found.theirs:
        return "a quotation mark that is never closed belongs to its word"
    return None


_WHOLE_WORD = re.compile(r"=\?[^?\s]+\?[bBqQ]\?[^?\s]*\?=")


def _broken_word(raw: bytes, summary: Summary, found: Difference) -> str | None:
    values = [(found.ours, found.theirs)]
    if isinstance(found.ours, list):
        if len(found.ours) != len(found.theirs):
            return None
        values = list(zip(found.ours, found.theirs, strict=True))
    names = {found.field}
    if isinstance(found.ours, list):
        names = {ours[0].lower() for ours, theirs in values if ours != theirs}
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    for name, value in _headers(message):
        if name.lower() in names:
            left = _WHOLE_WORD.sub("", value)
            if "=?" in left or "?=" in left or re.search(r"=\?\S+\?=\S", value):
                return "an encoded word that is broken, or has no space behind it"
    return None


def _continued(raw: bytes, summary: Summary, found: Difference) -> str | None:
    if raw[:1] in (b" ", b"\t"):
        return "a message that begins with a continuation has no headers"
    return None


_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+", re.ASCII)


def _malformed(raw: bytes, summary: Summary, found: Difference) -> str | None:
    """Of mail that `email` finds something wrong with, or should: what each makes of it."""
    wrong = defects(raw)
    if "FirstHeaderLineIsContinuationDefect" in wrong:
        return "a part that begins with a continuation has no headers"
    if "NoBoundaryInMultipartDefect" in wrong:
        return "a multipart without a boundary is shown as a text"
    if "StartBoundaryNotFoundDefect" in wrong:
        return "a multipart in which its boundary is not found has no parts"
    if any(one.startswith("InvalidBase64") for one in wrong):
        return "what is no digit of base64 is passed over, and the rest is read"
    if re.search(rb"^--([^\r\n]+)\r?\n--\1", raw, re.MULTILINE):
        return "a part without a line is empty, and not left out"
    message = email.message_from_bytes(raw, policy=email.policy.compat32)
    for part in message.walk():
        encoding = str(part.get("content-transfer-encoding", ""))
        if encoding != encoding.strip() or ";" in encoding:
            return "blanks and parameters of a transfer encoding do not count"
        kind = str(part.get("content-type", "text/plain")).partition(";")[0].strip()
        if _TYPE.fullmatch(kind) is None:
            return "a content type that is none is the default"
        for name in ("content-type", "content-disposition"):
            if re.search(r'"[^";]*$|"[^";]*"[^;]*[^;\s]', str(part.get(name, ""))):
                return "what is behind a quoted parameter, or in one without its end"
    return None


_Explain = Callable[[bytes, Summary, Difference], str | None]
_EXPLANATIONS: dict[str, tuple[_Explain, ...]] = {
    "attachments": (_attachments, _malformed),
    "text": (_last_line, _malformed),
    "html": (_last_line, _malformed),
    "from": (_continued, _no_address),
    "subject": (_continued, _broken_word),
    "headers": (_continued, _broken_word),
}


def explained(raw: bytes, summary: Summary, found: Difference) -> str | None:
    """Why a difference is meant; None: it is not."""
    for explain in _EXPLANATIONS[found.field]:
        reason = explain(raw, summary, found)
        if reason is not None:
            return reason
    return None


# ------------------------------------------------------------------------------ the generator

_NAMES = ("Shop", "Jürgen Groß", "Ünal, Ayşe", "Служба", "山田 太郎", 'O"Neil', "a (b)", "")
_SUBJECTS = (
    *("Your code is 123456", "Grüße ✓ aus Köln", "Привет, мир", "こんにちは", "", "=?= odd ?="),
    "long " * 40,
    "ä" * 90,
)
_TEXTS = (
    *("Hello\n", "Your code: 482913\nhttps://shop.example/a?b=1\n", "Grüße,\nJürgen\n", "\n", ""),
    *("Привет\n" * 40, "=20 not quoted =\n", "From here\n.\n..\n", "x" * 1200 + "\n"),
)
_CHARSETS = ("utf-8", "iso-8859-1", "windows-1252", "koi8-r", "iso-2022-jp", "gb2312", "x-none", "")
_CODECS = {"x-none": "utf-8", "": "utf-8", "iso-8859-1": "cp1252"}


def _word(chosen: random.Random, text: str) -> str:
    """A text as encoded words, or as it is."""
    if text.isascii() and chosen.random() < 0.7:
        return text
    charset = chosen.choice(_CHARSETS[:6])
    words = []
    for begin in range(0, len(text), 12):
        data = text[begin : begin + 12].encode(_CODECS.get(charset, charset), "replace")
        if chosen.random() < 0.5:
            words.append(f"=?{charset}?B?{base64.b64encode(data).decode()}?=")
        else:
            quoted = "".join(chr(c) if chr(c).isalnum() and c < 128 else f"={c:02X}" for c in data)
            words.append(f"=?{charset}?q?{quoted}?=")
    return chosen.choice((" ", "\n ", "\n\t")).join(words)


def _sender(chosen: random.Random) -> str:
    name, address = chosen.choice(_NAMES), chosen.choice(("a@b.example", "x+y@sub.z.example"))
    style = chosen.randrange(5)
    if style == 0 or not name:
        return chosen.choice((address, f"<{address}>"))
    if style == 1 and "(" not in name and name.isascii():
        return f"{address} ({name})"
    if name.isascii():
        quoted = name.replace('"', '\\"')
        return f'"{quoted}" <{address}>' + chosen.choice(("", ", other@c.example"))
    return f"{_word(chosen, name)} <{address}>"


def _text_part(chosen: random.Random, kind: str) -> tuple[str, bytes]:
    charset = chosen.choice(_CHARSETS)
    text = chosen.choice(_TEXTS)
    if kind == "html":
        text = f"<p>{text}</p><a href='https://x.example/?a=1&amp;b=2'>x</a>\n"
    data = text.encode(_CODECS.get(charset, charset), "replace")
    encoding = chosen.choice(("7bit", "8bit", "base64", "quoted-printable", "", "x-odd"))
    if encoding == "base64":
        data = base64.encodebytes(data)
    elif encoding == "quoted-printable":
        data = quopri.encodestring(data)
    head = f"Content-Type: text/{kind}"
    if charset:
        head += chosen.choice((f"; charset={charset}", f';\n charset="{charset}"'))
    if encoding:
        head += f"\nContent-Transfer-Encoding: {chosen.choice((encoding, encoding.upper()))}"
    return head + "\n", data


def _file_part(chosen: random.Random) -> tuple[str, bytes]:
    data = chosen.randbytes(chosen.choice((0, 1, 10, 3000)))
    name = chosen.choice(
        (
            *('filename="a.pdf"', "filename=b.png", "filename*=utf-8''%C3%BC%20x.pdf", ""),
            *("filename*0=long-; filename*1=name.txt", 'filename="=?utf-8?q?=C3=BC.pdf?="'),
            "filename*0*=utf-8''%C3%BC; filename*1=.bin",
        )
    )
    kind = chosen.choice(("application/pdf", "image/png", "text/plain", "application/octet-stream"))
    head = f"Content-Type: {kind}\nContent-Transfer-Encoding: base64\n"
    head += "Content-Disposition: " + "; ".join(filter(None, ("attachment", name))) + "\n"
    return head, base64.encodebytes(data)


def _parts(chosen: random.Random, depth: int = 0) -> tuple[str, bytes]:
    """A part: its headers, each line with its end, and its body."""
    kind = chosen.choice(("plain", "plain", "html", "file", "many", "many", "message"))
    if kind == "message" and depth:
        head, body = _parts(chosen, depth + 1)
        inner = f"Subject: {_word(chosen, chosen.choice(_SUBJECTS))}\n{head}\n"
        return "Content-Type: message/rfc822\n", inner.encode() + body
    if kind == "file":
        return _file_part(chosen)
    if kind != "many" or depth > 2:
        return _text_part(chosen, "html" if kind == "html" else "plain")
    boundary = f"=_{chosen.getrandbits(64):x}"
    subtype = chosen.choice(("mixed", "alternative", "related", "digest", "report"))
    pieces = [chosen.choice((b"", b"preamble\n"))]
    for _ in range(chosen.randint(1, 3)):
        head, body = _parts(chosen, depth + 1)
        pieces.append(b"--%b\n%b\n%b\n" % (boundary.encode(), head.encode(), body))
    if chosen.random() < 0.9:
        pieces.append(b"--%b--\n" % boundary.encode() + chosen.choice((b"", b"epilogue\n")))
    quoted = chosen.choice((f'"{boundary}"', f'"{boundary}"; x=y'))
    return f"Content-Type: multipart/{subtype}; boundary={quoted}\n", b"".join(pieces)


def _damage(chosen: random.Random, raw: bytes) -> bytes:
    """Take a line away, put one in twice, or break one."""
    lines = raw.split(b"\n")
    at = chosen.randrange(len(lines))
    match chosen.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case 2:
            lines[at] = lines[at][: len(lines[at]) // 2]
        case _:
            lines[at] += chosen.choice((b"\xe4\xf6", b"\0", b" =?utf-8?q?=C3?=", b'"', b";", b" "))
    return b"\n".join(lines)


def generated(number: int, *, damaged: float = 0.0) -> bytes:
    """A message; the same number gives the same bytes.  `damaged`: how likely a line is broken."""
    chosen = random.Random(number)
    head, body = _parts(chosen)
    lines = [f"From: {_sender(chosen)}", f"Subject: {_word(chosen, chosen.choice(_SUBJECTS))}"]
    lines += [f"X-Thing: {_word(chosen, chosen.choice(_SUBJECTS))}", "MIME-Version: 1.0"]
    chosen.shuffle(lines)
    raw = "\n".join(lines).encode() + b"\n" + head.encode() + b"\n" + body
    if chosen.random() < damaged:
        raw = _damage(chosen, raw)
    return raw.replace(b"\n", b"\r\n") if chosen.random() < 0.8 else raw
