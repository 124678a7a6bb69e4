"""The text of messages, taken apart by its boundaries."""

from __future__ import annotations

from relay.http.compat.mime_text import DEEPEST, MOST_PARTS, content_of, fields_of

MIXED = (
    "Subject: hello\r\nX-Tags: a\r\nX-Tags: b\r\n"
    'Content-Type: multipart/mixed;\r\n boundary="b"\r\n'
    "\r\nignored\r\n--b\r\nContent-Type: text/plain\r\n\r\none\r\n--b\r\n\r\ntwo\r\n--b--\r\n"
)


def test_a_message_is_its_head_its_body_and_its_parts() -> None:
    """Fields that repeat are kept, a folded line is one, parts are what is between boundaries."""
    content = content_of(MIXED)
    assert content.headers["X-Tags"] == ["a", "b"]
    assert content.headers["Content-Type"] == ['multipart/mixed; boundary="b"']
    assert content.body.startswith("ignored\r\n--b\r\n")
    assert content.parts is not None
    assert [part.body for part in content.parts] == ["one", "two"]
    assert content.parts[0].headers == {"Content-Type": ["text/plain"]}
    assert content_of("Subject: x\n\ntext\n").parts is None
    assert content_of("just text").body == "just text"


def test_a_folded_line_is_joined_as_it_is_asked_for() -> None:
    """As it stands, or by one blank."""
    assert fields_of("A: b\r\n\tc") == [("A", "b\tc")]
    assert fields_of("A: b\r\n  c", " ") == [("A", "b c")]


def test_parts_are_bounded() -> None:
    """In their number and in their depth."""
    many = "Content-Type: multipart/mixed; boundary=b\r\n\r\n" + "--b\r\n\r\nx\r\n" * 2000 + "--b--"
    parts = content_of(many).parts
    assert parts is not None
    assert len(parts) <= MOST_PARTS
    deep = "x"
    for level in range(2 * DEEPEST):
        head = f"Content-Type: multipart/mixed; boundary=b{level}x\r\n\r\n"
        deep = f"{head}--b{level}x\r\n{deep}\r\n--b{level}x--"
    content, depth = content_of(deep), 0
    while content.parts:
        content, depth = content.parts[0], depth + 1
    assert depth == DEEPEST
