"""The documents lead somewhere: every link, every path, every heading that is linked to."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.docs.pages import README, ROOT, anchors, blocks, documents, links, prose, wrapped

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in documents()]

_PATH = re.compile(r"(?:relay|actors|tests|config|docs)/[\w./*{},-]*[\w*}]|supervisor\.py")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    """A file that is linked to exists, and so does the heading; links elsewhere are well made."""
    text = page.read_text()
    for target in links(text):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https", target
            assert re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)+", parts.netloc), target
            continue
        file = (page.parent / parts.path).resolve() if parts.path else page
        assert file.is_relative_to(ROOT), target
        assert file.exists(), target
        if parts.fragment:
            assert parts.fragment in anchors(file.read_text()), target


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_are_named_exist(page: Path) -> None:
    """Code that a page names by its path is there: `relay/db/pool.py`, and in blocks, too."""
    text = page.read_text()
    named = re.findall(r"`([^`\n]+)`", prose(text))
    named += [word for block in blocks(text) for word in block.text.split()]
    for name in named:
        path = name.partition("::")[0].strip("()[],;:\"'")
        if _PATH.fullmatch(path) and not path.startswith("relay/relay"):
            assert list(ROOT.glob(path)), f"{page.name} names {path}, which is not there"


def test_every_page_is_linked_to_from_the_readme() -> None:
    """The README's map has every page of docs, so that none is found by chance only."""
    linked = {
        (README.parent / target.partition("#")[0]).resolve() for target in links(README.read_text())
    }
    assert [page for page in documents()[1:] if page not in linked] == []


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_short_enough_to_read(page: Path) -> None:
    """Prose is wrapped at 100 columns; tables, code and links are as long as they must be."""
    text = page.read_text()
    assert wrapped(text) == text, "run `make docs`"


def test_the_code_cites_no_document_that_is_not_here() -> None:
    """What a comment or a docstring refers a reader to is in the repository."""
    missing = re.compile(
        r"\b(DESIGN|CONTRACT|PITFALLS|HOUSE|STYLE)(\.md\b|\b(?=[ ,;)]))|source documents?\b"
    )
    page = re.compile(r"\b(?:docs/[\w-]+\.md|[A-Z]{4,}\.md)\b")
    files = [
        *ROOT.glob("relay/**/*.py"), *ROOT.glob("relay/**/*.sql"), *ROOT.glob("actors/*.py"),
        *ROOT.glob("tests/**/*.py"), *ROOT.glob("config/*"), ROOT / "supervisor.py",
    ]  # fmt: skip
    for file in files:
        if file == Path(__file__) or "node_modules" in file.parts or not file.is_file():
            continue
        text = file.read_text()
        cited = missing.search(text)
        assert cited is None, f"{file.relative_to(ROOT)} cites {cited and cited[0]!r}"
        for name in page.findall(text):
            assert (ROOT / name).exists(), f"{file.relative_to(ROOT)} cites {name}"


def test_the_code_names_no_file_that_is_not_here() -> None:
    """A path in a docstring, a comment or a string is there: `relay/db/pool.py`.

    Migrations are left out: what was released is never edited, whatever it names.
    """
    path = re.compile(
        r"(?<![\w./{}-])(?:relay|actors|tests|config)/[\w/.-]+\.(?:py|sql|toml|json)\b"
    )
    for folder in ("relay", "actors", "simulation", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            if file == Path(__file__) or "node_modules" in file.parts:
                continue
            for name in path.findall(file.read_text()):
                assert (ROOT / name).exists(), f"{file.relative_to(ROOT)} names {name}"
