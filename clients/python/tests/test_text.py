"""What strangers said, as it is shown."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import pytest
from cases import CASES

from relay_client import (
    AsyncRelay,
    NoSuchLink,
    NotDelivered,
    Refused,
    Relay,
    RelayError,
    UnexpectedMail,
    WaitTimeout,
)
from relay_client._mail_report import attached, readable
from relay_client._records import AttachmentData, Check, Finding, Headers, MessageData
from relay_client._text import in_a_line, quoted, visible

_EVIL = "\x1b[2J\x9b31m\u202e##vso[task.x]\n::error::x"


@pytest.mark.parametrize("case", CASES["texts"], ids=lambda case: ascii(case["text"]))
def test_both_clients_spell_the_same(case: dict[str, Any]) -> None:
    """What drives a terminal or CI, and nothing else; once spelt it stays as it is."""
    assert visible(case["text"]) == case["visible"]
    assert quoted(case["text"]) == case["quoted"]
    assert visible(case["visible"]) == case["visible"]


@pytest.mark.parametrize("case", CASES["long"], ids=lambda case: ascii(case["text"]))
def test_both_clients_show_as_much(case: dict[str, Any]) -> None:
    """So many characters as they are shown, and no half of an escape."""
    text, most = case["text"] * case["times"], case["most"]
    assert visible(text, most) == case["visible"]
    assert in_a_line(text, most) == case["in_a_line"]
    assert quoted(text) == case["quoted"]
    assert len(case["visible"]) <= most


def test_no_more_is_worked_on_than_is_shown() -> None:
    """A page of 32 MiB has room for a link of so many line ends."""
    text = "\n" * 200_000
    tracemalloc.start()
    try:
        assert len(in_a_line(text, 200)) in (199, 200)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("case", CASES["readable"], ids=lambda case: ascii(case["text"]))
def test_both_clients_read_html_alike(case: dict[str, Any]) -> None:
    """As a reader of it sees it, and as it was written where nobody sees anything."""
    assert readable(case["html"]) == case["text"]


_LONG = "\U000e0041" * 100_000


@pytest.mark.parametrize(
    "shown",
    [
        str(RelayError(_LONG)),
        repr(RelayError(_LONG)),
        str(Refused(422, "unprocessable", _LONG, [_LONG])),
        str(WaitTimeout("any mail", 1, "1 other came", [_LONG])),
        str(NotDelivered("failed", "sent", _LONG)),
    ],
    ids=lambda shown: str(shown)[:20],
)
def test_no_error_fills_a_log(shown: str) -> None:
    """However long what is said in it is."""
    assert len(shown) <= 20_000
    assert shown.endswith("\u2026")


def _message() -> MessageData:
    found: dict[str, Any] = {
        **dict.fromkeys(("to", "size", "body_text", "body_html", "otp")),
        "id": "1",
        "from_address": _EVIL,
        "subject": _EVIL,
        "received_at": "2026-01-01T00:00:00Z",
        "links": [],
        "headers": {},
    }
    return MessageData(found)


def _attachment(said: str = _EVIL) -> AttachmentData:
    found = {"index": 0, "filename": said, "content_type": said, "size": 1, "content_id": None}
    return AttachmentData(found)


@pytest.mark.parametrize(
    "shown",
    [
        repr(_message()),
        repr(_attachment()),
        attached(_attachment()),
        repr(Headers({"Subject": _EVIL})),
        repr(Check("none", _EVIL)),
        repr(Finding("x", "bad", _EVIL)),
        str(RelayError(_EVIL)),
        repr(RelayError(_EVIL)),
        str(UnexpectedMail(_EVIL)),
        str(WaitTimeout("any mail", 1, "1 other came", [_EVIL])),
        str(NotDelivered("failed", "sent", _EVIL)),
    ],
    ids=lambda shown: str(shown)[:20],
)
def test_no_error_and_no_repr_drives_anything(shown: str) -> None:
    """Of a message, of what came with it, of what is said about it."""
    assert "vso[task.x]" in shown
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
    assert "##vso[" not in shown
    assert not any(line.lstrip().startswith("::") for line in shown.splitlines())


def test_no_attachment_fills_a_report() -> None:
    """However long its name is, and its type."""
    assert len(attached(_attachment(_LONG))) < 430


def test_many_blank_lines_are_looked_through_once() -> None:
    """A line that begins with blanks is no reason to look at all that follow it."""
    assert visible("\n" * 200_000 + "::x").endswith("\n\\u003a:x")


def test_a_pattern_without_a_link_is_shown_as_one() -> None:
    """As in a wait; where any link would have done, that there is none is said once."""
    with pytest.raises(NoSuchLink) as missed:
        _message().link(re.compile(r"reset\?t=\w+"))
    said = rf"no link like /reset\?t=\w+/ in {quoted(_EVIL)}; its links: none"
    assert str(missed.value) == said
    with pytest.raises(NoSuchLink) as missed:
        _message().link()
    assert str(missed.value) == f"no link in {quoted(_EVIL)}"


def test_a_relay_is_shown_with_its_url_and_without_its_token() -> None:
    """Either client."""
    with Relay("http://127.0.0.1:1/", "rk_secret") as relay:
        assert repr(relay) == "<Relay http://127.0.0.1:1>"
    assert repr(AsyncRelay("http://127.0.0.1:1", "rk_secret")) == "<AsyncRelay http://127.0.0.1:1>"
