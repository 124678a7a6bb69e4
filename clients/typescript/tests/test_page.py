"""The module that the relay's own page has of this client."""

from __future__ import annotations

from conftest import HERE, Run

_PAGE = HERE.parents[1] / "relay" / "http" / "ui" / "client.js"


def test_the_pages_module_is_made_of_these_sources(run: Run, modules: object) -> None:
    """What is committed is what scripts/page.mjs makes."""
    made = run("node", "scripts/page.mjs").stdout
    assert made == _PAGE.read_text("utf-8"), (
        "in clients/typescript: node scripts/page.mjs > ../../relay/http/ui/client.js"
    )
