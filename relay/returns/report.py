"""What a mail that came back says: delivery status notifications, complaints, and their relatives.

Read are delivery status notifications (RFC 3464; in UTF-8: RFC 6533), complaints (ARF, RFC 5965,
and the form of Outlook.com, which sends the mail itself), and of the forms that are no standard
those in which a mail server writes whom it could not reach: by rules of our own (qmail, Exim,
Exchange and others), which tell a reason and a delay, and by a library (`relay.returns.forms`).

Promises
- What is no such report is left alone (`Report.kind` is empty): vacation notes, challenges, lists,
  mail of people.  A text alone is a report only if it comes from a mail server by its own word.
- A report that somebody's answer returns is what the answer is about, and not what it says: neither
  in an answer by a program (`Auto-Submitted: auto-replied`, RFC 3834) that is no report at its top
  (RFC 3462) and not from a mail server, nor within a receipt or another report.
- Of a text every address that it names is read: what is not the message's own recipient is for the
  caller to leave alone (`relay.returns.law`).
- Linear in the first `READ` bytes; the rest is not looked at.  So many parts, so deep and so many
  recipients are read, and no more.

Fails: never; what is malformed says nothing.

Imports the standard library and pure modules only, as the parser asks; of the library, see there.
Pure.
"""

from __future__ import annotations

import base64
import binascii
import json
import quopri
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from relay.returns.forms import named

READ = 512 * 1024
"""Bytes of a mail that are read."""

_DEPTH = 4
_PARTS = 32
_RECIPIENTS = 100
_HEADER = 64 * 1024  # bytes of one header
_TEXT = 32 * 1024  # characters of a text that are looked through
_FIELD = 2000  # characters of what is kept of a field

DSN, COMPLAINT, TEXT = "dsn", "complaint", "text"
"""What a report is: by RFC 3464, a complaint, a text that a mail server wrote."""


class Recipient(NamedTuple):
    """What a report says of one recipient; empty: it does not say."""

    final: str = ""
    original: str = ""
    action: str = ""
    """Of RFC 3464: failed, delayed, delivered, relayed or expanded."""
    status: str = ""
    diagnostic: str = ""


class Report(NamedTuple):
    """What a mail says.  `kind` is one of the above, or empty: it is no report."""

    kind: str = ""
    recipients: tuple[Recipient, ...] = ()
    feedback: str = ""
    """Of a complaint: its Feedback-Type."""
    paths: tuple[str, ...] = ()
    """Of a complaint: the addresses that may be the return path of what it is about."""

    def as_json(self) -> bytes:
        """Write it, for another process."""
        return json.dumps(self).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Report:
        """Read what `as_json` wrote."""
        kind, recipients, feedback, paths = json.loads(text)
        return cls(kind, tuple(Recipient(*one) for one in recipients), feedback, tuple(paths))


NOTHING = Report()

_NOBODY = b"Return-Path: <>\r\n"


def delivered(reverse_path: str, raw: bytes) -> bytes:
    """A mail as it is kept at its last stop, with the MAIL FROM that it came with in front (RFC
    5321, 4.4).
    """
    return b"Return-Path: <%b>\r\n%b" % (reverse_path.encode("utf-8", "replace"), raw)


def is_from_nobody(raw: bytes) -> bool:
    """Whether a mail of `delivered` came from the null sender, as each report of a delivery must
    (RFC 3464, 2; RFC 5321, 4.5.5).
    """
    return raw.startswith(_NOBODY)


class _Part(NamedTuple):
    """A part of a mail: its fields, by names in small letters, and its body, decoded."""

    fields: dict[str, str]
    kind: str  # of its Content-Type
    body: bytes

    def text(self) -> str:
        return self.body.decode("utf-8", "replace")[:_TEXT]


_BLANK = re.compile(rb"(?:\A|\n)\r?\n")
_KIND = re.compile(r"\s*([\w.+-]+/[\w.+-]+)")
_BOUNDARY = re.compile(r'boundary\s*=\s*(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_ADDRESS = r"[^\s<>()\[\]\",;:@]{1,64}@[\w.-]{1,255}"
_FOUND_ADDRESS = re.compile(_ADDRESS)
_ENHANCED = re.compile(r"(?<![\d.])([245]\.\d{1,3}\.\d{1,3})(?![\d.])")
_XTEXT = re.compile(r"\\x\{([0-9A-Fa-f]{2,6})\}")


def read(raw: bytes) -> Report:
    """Read a mail."""
    budget = [_PARTS]
    parts = list(_parts(raw[:READ], _DEPTH, budget))
    if not parts:
        return NOTHING
    top = parts[0].fields
    is_report = parts[0].kind == "multipart/report"
    answers = not is_report and _ANSWERS.match(top.get("auto-submitted", ""))
    if answers and not _SERVERS.search(_author(top)):
        return _and_by_library(_from_text(top, parts), top, raw)
    found = _standard(parts)
    if not found.kind and not is_report:
        wrapped = next((part for part in parts if part.kind == "message/rfc822"), None)
        if wrapped is not None and _REPORT.search(wrapped.body[:_HEADER]):
            # A gateway, or whoever passed it on, has put the report into a mail of its own.
            found = _standard(list(_parts(wrapped.body, _DEPTH, budget)))
            if found.kind == COMPLAINT and answers:
                return NOTHING  # a receipt for a complaint that we sent, with a copy of it
    if found.kind:
        return found
    for part in parts[1:]:
        if "x-hmxmroriginalrecipient" in part.fields:
            return Report(COMPLAINT, (), "abuse", tuple(_return_paths(parts)))
    return _and_by_library(_from_text(top, parts), top, raw)


def _standard(parts: Sequence[_Part]) -> Report:
    """Read a report by RFC 5965 or RFC 3464."""
    feedback = next((part for part in parts if part.kind == "message/feedback-report"), None)
    if feedback is not None:
        return _complaint(_block(feedback.text()), parts)
    notices = [part for part in parts if part.kind in _NOTICES]
    recipients = [one for part in notices for one in _recipients(part.text())]
    return Report(DSN, tuple(recipients[:_RECIPIENTS])) if recipients else NOTHING


_REPORT = re.compile(rb"^content-type:\s*multipart/report\b", re.IGNORECASE | re.MULTILINE)
_ANSWERS = re.compile(r"\s*auto-replied\b", re.IGNORECASE)
_NOTICES = {"message/delivery-status", "message/global-delivery-status"}
_EMBEDDED = {"message/rfc822", "message/global", "text/rfc822-headers", "message/global-headers"}


# Parts -------------------------------------------------------------------------------------------


def _parts(raw: bytes, depth: int, budget: list[int]) -> Iterator[_Part]:
    """The parts of a mail, the outermost first; of what is no multipart there is one."""
    if budget[0] <= 0:
        return
    budget[0] -= 1
    blank = _BLANK.search(raw, 0, _HEADER)
    header, body = raw[:_HEADER], b""
    if blank is not None:
        header, body = raw[: blank.start()], raw[blank.end() :]
    fields = _fields(header.decode("utf-8", "replace"))
    content = fields.get("content-type", "")
    named = _KIND.match(content)
    kind = named[1].lower() if named else "text/plain"
    if kind.startswith("multipart/"):
        yield _Part(fields, kind, b"")
        boundary = _BOUNDARY.search(content)
        if boundary is None or not depth:
            return
        for inner in _cut(body, (boundary[1] or boundary[2]).encode()):
            yield from _parts(inner, depth - 1, budget)
        return
    decoded = _decoded(body, fields.get("content-transfer-encoding", "").strip().lower())
    yield _Part(fields, kind, decoded)
    if kind in _EMBEDDED and depth and budget[0] > 0:
        # Its header alone: what it carried is no report.
        budget[0] -= 1
        end = _BLANK.search(decoded, 1, _HEADER)
        head = decoded[: _HEADER if end is None else end.start()]
        yield _Part(_fields(head.decode("utf-8", "replace")), "embedded", b"")


def _cut(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """The parts between the lines of a boundary."""
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\n" + mark) + 1
    if not at and not body.startswith(mark):
        return
    for _ in range(_PARTS):
        begin = body.find(b"\n", at + len(mark)) + 1
        if not begin or body[at + len(mark) : at + len(mark) + 2] == b"--":
            return
        end = body.find(b"\n" + mark, begin - 1)
        if end < 0:
            yield body[begin:]
            return
        yield body[begin : max(end, begin)]
        at = end + 1


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding == "quoted-printable":
        return quopri.decodestring(body)
    if encoding == "base64":
        letters = re.sub(rb"[^A-Za-z0-9+/]", b"", body)
        try:
            return base64.b64decode(letters[: len(letters) // 4 * 4] + _padded(letters))
        except (binascii.Error, ValueError):
            return b""
    return body


def _padded(letters: bytes) -> bytes:
    rest = letters[len(letters) // 4 * 4 :]
    return rest + b"=" * (4 - len(rest)) if len(rest) > 1 else b""


def _fields(header: str) -> dict[str, str]:
    """The fields of a header, unfolded; of several of a name the first."""
    found: dict[str, str] = {}
    name, lines = "", list[str]()
    for line in [*header.split("\n"), "x:"]:
        line = line.rstrip("\r")
        if line[:1] in {" ", "\t"} and name:
            lines.append(line.strip())
            continue
        if name:
            found.setdefault(name, " ".join(lines).strip()[:_FIELD])
        before, colon, value = line.partition(":")
        name = before.strip().lower() if colon and " " not in before.strip() else ""
        lines = [value.strip()]
    return found


# RFC 3464 ----------------------------------------------------------------------------------------


def _block(text: str) -> dict[str, str]:
    return _fields(text.strip("\r\n"))


def _recipients(text: str) -> Iterator[Recipient]:
    """The recipients of a delivery status: a block of fields each, behind that of the message."""
    for block in re.split(r"\r?\n[ \t]*\r?\n", text.strip("\r\n"))[: _RECIPIENTS + 2]:
        fields = _fields(block.lstrip("\r\n"))
        action = fields.get("action", "").partition("(")[0].strip().lower()
        final = _typed(fields.get("final-recipient", ""))
        original = _typed(fields.get("original-recipient", ""))
        if not (final or original) or not (action or fields.get("status")):
            continue
        status = _ENHANCED.search(fields.get("status", ""))
        diagnostic = fields.get("diagnostic-code", "")
        kind, semicolon, words = diagnostic.partition(";")
        if semicolon and " " not in kind.strip():
            diagnostic = words.strip()
        yield Recipient(final, original, action, status[1] if status else "", diagnostic)


def _typed(value: str) -> str:
    """The address in `rfc822; a@b` or `utf-8; a@b`; of another type nothing."""
    kind, semicolon, address = value.partition(";")
    if not semicolon:
        kind, address = "rfc822", value
    kind = kind.strip().lower()
    if kind not in {"rfc822", "utf-8", "smtp", "internet", "rfc2822"}:
        return ""
    address = address.strip().removeprefix("<").removesuffix(">").strip()
    if kind == "utf-8":
        address = _XTEXT.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF)), address)
        address = address.encode("utf-8", "replace").decode()
    return address[:320]


# RFC 5965 ----------------------------------------------------------------------------------------


def _complaint(fields: dict[str, str], parts: Sequence[_Part]) -> Report:
    kind = fields.get("feedback-type", "").strip().lower()
    if not kind:
        return NOTHING
    named = fields.get("original-mail-from", "")
    return Report(COMPLAINT, (), kind, tuple(_return_paths(parts, named)))


def _return_paths(parts: Sequence[_Part], *more: str) -> list[str]:
    """Addresses that may be the return path of what a complaint is about."""
    texts = list(more)
    for part in parts:
        if part.kind == "embedded":
            texts += [part.fields.get(name, "") for name in _PATHS]
    found = [each for text in texts for each in _FOUND_ADDRESS.findall(text)]
    return list(dict.fromkeys(found))[:10]


_PATHS = (
    *("return-path", "x-return-path", "x-original-return-path", "x-original-mail-from"),
    *("x-envelope-from", "x-envelope-sender", "x-mailfrom", "sender", "errors-to"),
)


# Texts -------------------------------------------------------------------------------------------

_SERVERS = re.compile(
    r"mailer[-_ ]?daemon|post-?master|mail delivery (sub)?system|mail administrator"
    r"|microsoft ?exchange|^<>$|delivery subsystem|system administrator",
    re.IGNORECASE,
)
_WRITES = re.compile(
    _SERVERS.pattern + r"|mdaemon|smtp[-_ ](mail|gateway)|_for_smtp", re.IGNORECASE
)
_GAVE_UP = re.compile(
    r"permanent(ly)? (fatal )?(error|fail)|i'?ve given up|giv(ing|en) up|not going to try again"
    r"|message (has )?been returned|could ?n(o|')t (be )?deliver|not delivered|not be delivered"
    r"|undeliver|(delivery|mail) (has )?(failed|failure)|failed permanently"
    r"|fail(ed|ure) (to|of) deliver|unable to (be )?deliver|(not|wasn'?t) able to deliver"
    r"|did not reach|fatal errors|delivery to the following|returned mail|cannot be delivered"
    r"|failure (notice|delivery|to deliver)|failed mail|not (be )?(accepted|recogni[sz]ed)"
    r"|unknown (user|address|recipient|local)|no such (user|address|mailbox)|failed address"
    r"|delivery error|doesn'?t have an? .{0,60}account",
    re.IGNORECASE,
)
_WAITS = re.compile(
    r"\bwarning\b|delayed|still (be )?(try|tried|retry)|will (be )?(try|tried|retr|continue)"
    r"|not yet been delivered|has not been delivered yet|no action is required"
    r"|do not need to resend|keep trying|will be (re-?)?attempted",
    re.IGNORECASE,
)
_FINAL = re.compile(
    r"permanent (fatal )?error|i'?ve given up|not going to try again|giving up", re.IGNORECASE
)
_ORIGINAL = re.compile(
    r"^\W*(this is a copy of|below (this line )?is (a copy|the)"
    r"|--.{0,9}(original|returned|begin|start of ret)|original message follows"
    r"|return-path:|received:|the header of"
    r"|unsent message below|message (header|text) follows|here is a copy of)",
    re.IGNORECASE,
)
_NEAR = 6  # lines behind an address in which its reason stands


def _from_text(top: dict[str, str], parts: Sequence[_Part]) -> Report:
    """Read a report that is no standard: of a mail server, of what it could not deliver."""
    failed = _FOUND_ADDRESS.findall(top.get("x-failed-recipients", ""))
    if not failed and not _SERVERS.search(_author(top)):
        return NOTHING
    body = next((part for part in parts if part.kind in _TEXTS and part.body.strip()), None)
    text = "" if body is None else _without_original(body.text())
    if body is not None and body.kind == "text/html":
        text = re.sub(r"<[^>]{0,500}>", " ", re.sub(r"<br[^>]{0,20}>|</p>", "\n", text))
    said = f"{top.get('subject', '')}\n{text}"
    action = "failed"
    if not failed and _WAITS.search(said) and not _FINAL.search(said):
        action = "delayed"
    elif not failed and not _GAVE_UP.search(said):
        return NOTHING
    found: dict[str, Recipient] = {}
    lines = said.splitlines()[:_LINES]
    for number, line in enumerate(lines):
        for address in _FOUND_ADDRESS.findall(line):
            address = address.strip(".'`")
            if address.lower() in found or len(found) >= _RECIPIENTS:
                continue
            near = _reason(line, lines[number + 1 : number + 1 + _NEAR])
            status = _ENHANCED.search(near)
            said_so = status is not None and status[1][0] == ("5" if action == "failed" else "4")
            found[address.lower()] = Recipient(
                address, "", action, status[1] if status and said_so else "", near[:_FIELD]
            )
    for address in failed:
        found.setdefault(address.lower(), Recipient(address, "", "failed"))
    return Report(TEXT, tuple(found.values())[:_RECIPIENTS]) if found else NOTHING


def _and_by_library(report: Report, top: dict[str, str], raw: bytes) -> Report:
    """The same with whom the library finds besides, of whom nothing more is known."""
    if not _WRITES.search(_author(top)):
        return report
    known = {one.final.lower() for one in report.recipients}
    delayed, failed = named(raw)
    more = [
        Recipient(address[:320], "", action)
        for action, addresses in (("failed", failed), ("delayed", delayed))
        for address in sorted(addresses)
        if _FOUND_ADDRESS.fullmatch(address) and address.lower() not in known
    ]
    if not more:
        return report
    return Report(TEXT, (*report.recipients, *more)[:_RECIPIENTS])


def _author(top: dict[str, str]) -> str:
    return " ".join(top.get(name, "") for name in ("from", "sender", "return-path"))


_TEXTS = {"text/plain", "text/html"}
_LINES = 600


def _reason(first: str, lines: Sequence[str]) -> str:
    """What stands beside and behind an address, up to the next one that begins a line."""
    words = [first.strip()]
    for line in lines:
        if not line.strip() and len(words) > 1:
            break
        if _BEGINS.match(line):
            break
        words.append(line.strip())
    return " ".join(filter(None, words))


_BEGINS = re.compile(rf"\W{{0,12}}{_ADDRESS}")


def _without_original(text: str) -> str:
    """A text up to the mail that it returns."""
    kept: list[str] = []
    for line in text.splitlines():
        if _ORIGINAL.match(line):
            break
        kept.append(line)
    return "\n".join(kept)
