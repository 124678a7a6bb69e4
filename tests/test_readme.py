"""The README says what the program does: its tables cannot rot."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re

import supervisor
from relay.outbound.states import Cause
from tests.readme import README, ROOT, scrape, section, tables, wrapped
from tests.relay_process import RelayProcess

_LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
_EVENT = re.compile(r"[a-z]+(?:\.[a-z_]+)+")


def test_the_tables_are_those_of_the_program(relay: RelayProcess) -> None:
    """Commands, exit codes, settings and metrics are as `make readme` writes them."""
    text = README.read_text()
    for name, table in tables(scrape(relay)).items():
        assert section(text, name).splitlines() == table.splitlines(), f"{name}: run `make readme`"


def test_the_tree_is_drawn_as_it_runs(relay: RelayProcess) -> None:
    """The picture has every actor, in the order in which they start."""
    with relay.http() as api:
        tree = api.get("/api/v1/supervision").json()
    drawn = re.findall(r"^[├└]── (\w+) ", README.read_text(), re.MULTILINE)
    drawn = drawn[: drawn.index("control") + 1]
    assert [name for name in drawn if name != "filter"] == [c["name"] for c in tree["children"]]


@functools.cache
def _sources() -> list[ast.Module]:
    files = (*ROOT.glob("relay/**/*.py"), *ROOT.glob("actors/*.py"), ROOT / "supervisor.py")
    return [ast.parse(file.read_text()) for file in files]


def _logged() -> set[str]:
    """Return the events that are named where they are logged."""
    return {
        argument.value
        for module in _sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _LEVELS
        and node.args
        and isinstance(argument := node.args[0], ast.Constant)
        and isinstance(argument.value, str)
        and _EVENT.fullmatch(argument.value)
    }


def _possible() -> set[str]:
    """Return every string that could be an event, those that are put together included."""
    found = {
        node.value
        for module in _sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _EVENT.fullmatch(node.value)
    }
    found |= {  # `_note(event, "delivered")` of the courier
        f"webhook.{argument.value}"
        for module in _sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._note"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    assert issubclass(Cause, enum.Enum)
    found |= {f"outbound.{cause.value}" for cause in Cause}
    found |= {f"supervision.{verb}" for verb in ("restart", "pause", "resume")}
    for name, kind in inspect.getmembers(supervisor, inspect.isclass):
        if issubclass(kind, supervisor.Event):
            found.add("supervisor." + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    return found


def _tabulated() -> set[str]:
    """Return the events of the README; `.name` takes the prefix of the one before it."""
    text = README.read_text().partition("\n## Events\n")[2].partition("\n## Metrics\n")[0]
    found, prefix = set(), ""
    for row in text.splitlines():
        if not row.startswith("| `"):
            continue
        for name in re.findall(r"`([a-z.][a-z._]*)`", row):
            full = prefix + name if name.startswith(".") else name
            if "." in full:
                prefix = full.rpartition(".")[0]
                found.add(full)
    return found


def test_every_event_is_tabulated() -> None:
    """What the program logs is in the table of events, and nothing else is."""
    table = _tabulated()
    assert sorted(_logged() - table) == [], "these events are not in the README"
    assert sorted(table - _possible()) == [], "these events of the README are logged by nobody"


def test_links_within_the_repository_lead_somewhere() -> None:
    """Files and headings that the README points to exist."""
    text = README.read_text()
    headings = {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            assert target[1:] in headings, target
        elif "://" not in target:
            assert (ROOT / target).exists(), target
    for path in re.findall(r"`((?:tests|config|relay|actors)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path


def test_lines_are_short_enough_to_read() -> None:
    """Prose is wrapped at 100 columns; tables, code and links are as long as they must be."""
    text = README.read_text()
    assert wrapped(text) == text, "run `make readme`"
