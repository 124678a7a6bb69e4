"""What is said of mail in the report of a failed test: what came to its inboxes, as a text.

Of an inbox that a test has made itself that is read before the inbox ends, where its block fails;
of one that is there still, when the report is made.

Promises: no more is read, and for no longer, than is said here, nothing fails for it, and what
strangers wrote drives nobody who reads it (`relay_client._text`).
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterable
from datetime import timezone

from relay_client._current_test import CURRENT_TEST
from relay_client._exchange import Flow
from relay_client._listing import messages
from relay_client._mailboxes import InboxHandle
from relay_client._records import JSON, AttachmentData, MessageData
from relay_client._text import MAX_NAME, in_a_line, visible
from relay_client.errors import RelayError, Unreachable

__tracebackhide__ = True  # a test that fails shows the test

READS_WITHIN = 5.0
"""Seconds within which all inboxes of a test are read, or it says that more could not be."""

_EARLY = 0.01  # s by which a clock may end a read before its time
_BYTES = 4 << 20  # of an inbox's list, after which no more is asked for

_SHOWN = 20  # messages of an inbox
_LISTED = 10  # links of a message, and attachments
_MAX_LENGTH = 4000  # of a message's text, and of its code and links
_MARKUP = 200_000  # characters of HTML in which that text is looked for

_NOT_READ = re.compile(
    r"<!--.*?(?:-->|\Z)|<(style|script|title)\b.*?(?:</\1[^<>]{0,99}>?|\Z)", re.A | re.I | re.S
)
_LINE_END = re.compile(
    r" ?</?(?:br|p|div|tr|li|[uo]l|table|h[1-6r]|blockquote|section)\b[^<>]*> ?", re.A | re.I
)
_CELL = re.compile(r"<t[dh]\b[^<>]*>", re.A | re.I)
_TAG = re.compile(r"<[/!a-z][^<>]*>", re.A | re.I)
_BLANKS = re.compile("[\t\n\f\r ]+")
_BLANK = "[\t\n\f\r \xa0\xad\u034f\u2000-\u200c\ufeff]"
_FILLING = re.compile(f"{_BLANK}{{2,}}|\xa0")  # invisible characters, too, by which previews end
_LONG_NUMBER = re.compile("&#(?:[0-9]{8,}|x[0-9a-f]{8,});?", re.I)  # of no character


def wants(handle: InboxHandle, error: BaseException | None) -> bool:
    """Whether an inbox is to be read whose block ends so, for the report of the test that runs."""
    ends = (KeyboardInterrupt, SystemExit, GeneratorExit, Unreachable)
    failed = error is not None and not isinstance(error, ends)
    return failed and not handle.closed and handle in (CURRENT_TEST.inboxes or ())


def report(handle: InboxHandle) -> Flow[str]:
    """Read what an inbox has, and say it, the oldest first; and if that was not all."""
    began = time.monotonic()
    until = began + max(0.0, CURRENT_TEST.reads_within)
    found: list[JSON] = []
    shown: list[str] = []
    missing = None
    try:
        yield from messages(handle, None, _SHOWN, until - began, max_bytes=_BYTES, found=found)
    except RelayError as error:
        is_late = isinstance(error, Unreachable) and time.monotonic() >= until - _EARLY
        missing = (
            f"could not be read within {READS_WITHIN:g} s"
            if is_late
            else f"cannot be read: {error}"
        )
    except Exception as error:  # it would hide the test's, or end the whole run
        missing = f"cannot be read: {visible(repr(error))}"
    finally:
        CURRENT_TEST.reads_within -= time.monotonic() - began
    try:
        shown += map(_described, reversed(found))
    except Exception as error:
        missing = f"cannot be read: {visible(repr(error))}"
    if missing is not None:
        shown.append(f"and more {missing}" if shown else f"what came {missing}")
    return "\n\n----\n\n".join(shown) or "nothing came"


def _described(found: JSON) -> str:
    message = MessageData(found)
    subject = "(no subject)" if message.subject is None else in_a_line(message.subject, MAX_NAME)
    sender = in_a_line(message.sender or "<>", MAX_NAME)
    code = f"\ncode: {message.code}" if message.code else ""
    links = "".join(f"\nlink: {link}" for link in message.links[:_LISTED])
    at = message.received_at.astimezone(timezone.utc)
    head = visible(f"{at:%H:%M:%SZ} from {sender}: {subject}{code}{links}", _MAX_LENGTH)
    for one in found["attachments"][:_LISTED]:
        head += f"\n{attached(AttachmentData(one))}"
    if message.text is None and message.html is not None:
        head += "\nHTML only: .text is None"
    body = (message.text or "").strip() or readable(message.html or "")
    return f"{head}\n\n{visible(body, _MAX_LENGTH)}"


def attached(one: AttachmentData) -> str:
    """Return the line that names an attachment."""
    name = "(no name)" if one.filename is None else in_a_line(one.filename, MAX_NAME)
    return f"attachment: {name} ({in_a_line(one.content_type, MAX_NAME)}, {one.size} B)"


def readable(markup: str) -> str:
    """Return roughly what a reader of HTML sees; the HTML, where that is nothing.

    In time that is linear in its length.  The TypeScript client does the same (readable.ts), with
    fewer names of characters; clients/cases.json holds both to it.
    """
    text = _BLANKS.sub(" ", _NOT_READ.sub("", markup[:_MARKUP]))
    text = _TAG.sub("", _CELL.sub(" ", _LINE_END.sub("\n", text)))
    text = html.unescape(_LONG_NUMBER.sub("\ufffd", text))
    return "\n".join(_lines(_FILLING.sub(_filled, text).split("\n"))) or markup.strip()


def _filled(found: re.Match[str]) -> str:
    return "\n" if "\n" in found[0] else " "


def _lines(lines: Iterable[str]) -> Iterable[str]:
    return filter(None, (line.strip(" ") for line in lines))
