"""The documents of the repository, as text: which there are, their headings, links and code.

Promises: `DOCUMENTS` is every page that a reader is led to; `anchors` are those that a web view of
Markdown makes; nothing inside a fenced block is taken for a heading or a link.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCS = ROOT / "docs"
WIDTH = 100

_FENCE = re.compile(r" *```(\w*)")
_ITEM = re.compile(r" *(?:- |\d+\. )")
_LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")


def documents() -> list[Path]:
    """Return every page, the README first."""
    others = [ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")]
    clients = sorted(ROOT.glob("clients/*/README.md"))
    return [
        README,
        *(page for page in others if page.exists()),
        *clients,
        *sorted(DOCS.rglob("*.md")),
    ]


class Block(NamedTuple):
    """A fenced block: its language ("" for none), the heading above it, and its text."""

    language: str
    heading: str
    text: str


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    heading = language = ""
    lines: list[str] | None = None
    for line in text.splitlines():
        fence = _FENCE.match(line)
        if lines is None:
            if fence:
                language, lines = fence[1], []
            elif line.startswith("#"):
                heading = line.lstrip("# ")
        elif fence:
            yield Block(language, heading, "\n".join(lines) + "\n")
            lines = None
        else:
            lines.append(line)
    assert lines is None, f"a block under {heading!r} is not closed"


def prose(text: str) -> str:
    """Return a page without its fenced blocks."""
    kept, code = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            code = not code
        elif not code:
            kept.append(line)
    return "\n".join(kept)


def anchors(text: str) -> set[str]:
    """Return the names by which a page's headings can be linked to."""
    seen: Counter[str] = Counter()
    found = set()
    for line in prose(text).splitlines():
        if line.startswith("#"):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line.lstrip("#").strip())
            name = re.sub(r"[^\w -]", "", plain.lower()).replace(" ", "-")
            found.add(f"{name}-{seen[name]}" if seen[name] else name)
            seen[name] += 1
    return found


def links(text: str) -> list[str]:
    """Return where a page's links lead, in order."""
    unwrapped = re.sub(r"\s+", " ", re.sub(r"`[^`\n]*`", "`", prose(text)))
    return _LINK.findall(unwrapped)


def wrapped(text: str) -> str:
    """Return a page with every paragraph that has too long a line wrapped anew."""
    done: list[str] = []
    block: list[str] = []
    code = False

    def close() -> None:
        if any(len(line) > WIDTH and "](" not in line for line in block):
            item = _ITEM.match(block[0])
            inset = re.match(r" *", block[0])
            done.extend(
                textwrap.wrap(
                    " ".join(line.strip() for line in block),
                    WIDTH,
                    initial_indent=inset[0] if inset else "",
                    subsequent_indent=" " * len(item[0]) if item else "",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )
        else:
            done.extend(block)
        block.clear()

    for line in text.split("\n"):
        fence = bool(_FENCE.match(line))
        if code or fence or not line.strip() or line.startswith(("|", "<!--", "#")):
            close()
            done.append(line)
            code ^= fence
        else:
            if _ITEM.match(line):
                close()
            block.append(line)
    close()
    return "\n".join(done)
