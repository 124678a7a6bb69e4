"""Pictures that a message brings: told by how they begin.

Promises: only what begins as a PNG, JPEG, GIF, WebP, AVIF, BMP or icon does is a picture, whatever
it is called: nothing that a browser would run or frame.  SVG is a document, and none.  Pure.
"""

from __future__ import annotations

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"\0\0\1\0", "image/x-icon"),
)


def kind_of(content: bytes) -> str | None:
    """The media type of a picture, by its first bytes; None if it is none."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:12] in (b"ftypavif", b"ftypavis"):
        return "image/avif"
    return next((kind for begin, kind in _KINDS if content.startswith(begin)), None)
