"""The documents say what the program does: their tables cannot rot."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import supervisor
from relay.http.problems.types import TYPES
from relay.outbound.queue.states import Cause
from tests.docs.pages import DOCS, README, ROOT
from tests.docs.tables import PAGES, picture, section, tables
from tests.relay_process import RelayProcess

VERBS = ("restart", "pause", "resume", "sweep", "report")
_LOGS = {"debug", "info", "warning", "error", "critical", "exception", "_complain"}
"""What takes an event as its first argument: a log's levels, and what says less often."""

_EVENT = re.compile(r"[a-z][a-z_]*(?:\.[a-z_]+)+")


def test_the_tables_are_those_of_the_program(relay: RelayProcess) -> None:
    """Commands, exit codes, settings, metrics and calls are as `make docs` writes them."""
    for name, table in tables(relay).items():
        written = section(PAGES[name].read_text(), name)
        assert written.splitlines() == table.splitlines(), f"{name}: run `make docs`"


def test_the_tree_is_drawn_as_it_runs(relay: RelayProcess) -> None:
    """The picture has every group and actor, in the order in which they start."""
    with relay.http() as api:
        tree = api.get("/api/v1/supervision").json()

    def walk(node: dict[str, Any], depth: int) -> Iterator[tuple[int, str]]:
        yield depth, node["name"]
        for child in node["children"]:
            yield from walk(child, depth + 1)

    optional = {"filter", "processes", "ingest-1", "lmtp", "pop3", "tls_reporter", "returns"}
    assert [line for line in picture(README.read_text()) if line[1] not in optional] == list(
        walk(tree, 0)
    )


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
        and node.func.attr in _LOGS
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
    found |= {  # `_note(event, "delivered")` of the webhooks actor
        f"webhook.{argument.value}"
        for module in _sources()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self._note"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    assert issubclass(Cause, enum.Enum)
    found |= {f"outbound.{cause.value}" for cause in Cause}
    found |= {f"supervision.{verb}" for verb in VERBS}
    for name, kind in inspect.getmembers(supervisor, inspect.isclass):
        if issubclass(kind, supervisor.Event):
            found.add("supervisor." + re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    return found


def _tabulated() -> set[str]:
    """Return the events of the table; `.name` takes the prefix of the one before it."""
    found, prefix = set(), ""
    for row in (DOCS / "events.md").read_text().splitlines():
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
    assert sorted(_logged() - table) == [], "these events are not in docs/events.md"
    assert sorted(table - _possible()) == [], "these events of docs/events.md are logged by nobody"


def _told() -> set[str]:
    """Return the events that a simulation tells or whispers, besides those of the log."""
    return {
        argument.value
        for file in ROOT.glob("simulation/**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in {"tell", "whisper"}
        and node.args
        and isinstance(argument := node.args[0], ast.Constant)
        and isinstance(argument.value, str)
    }


def test_every_event_of_a_simulation_is_tabulated() -> None:
    """What a trace has beside the log's events is in docs/simulation.md, and nothing else is."""
    traces = (DOCS / "simulation.md").read_text().partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \| ", traces, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == _told()


def _reasons() -> set[str]:
    """Return why a session of SMTP or POP3 may end, as the sources of both say it."""
    found = {"quit", "broken", "cancelled"}  # what is returned, or said by nobody
    for file in (*ROOT.glob("relay/smtp/*.py"), *ROOT.glob("relay/pop3/*.py")):
        found |= {
            argument.value
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"SessionOver", "Ended", "self._end"}
            and node.args
            and isinstance(argument := node.args[0], ast.Constant)
            and isinstance(argument.value, str)
        }
    return found


def test_every_reason_is_tabulated() -> None:
    """Why a session ended: one word each, and the same for the same thing on every port."""
    text = (DOCS / "events.md").read_text().partition("| reason |")[2]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"`([a-z_]+)`", cell)} == _reasons()


def _text(node: ast.AST | None) -> str:
    """Return what a literal says, an f-string's variable parts as `{}`; "" for anything else."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "{}" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""


def _cases() -> set[tuple[str, str]]:
    """Return status and case of every problem that the sources name, however they do."""
    found = set()
    for node in (node for module in _sources() for node in ast.walk(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Problem":
            found.add((_text(node.args[0]), _text(node.args[1])))
        elif isinstance(node, ast.keyword) and node.arg == "case":  # the 404 of a list's entry
            found.add(("404", _text(node.value)))
        elif isinstance(node, ast.Tuple) and len(node.elts) == 3:  # (507, "inbox-full", "The …")
            found.add((_text(node.elts[0]), _text(node.elts[1])))
        elif isinstance(node, ast.Dict):  # {404: ("not-found", "There is …")}
            found |= {
                (_text(key), _text(value.elts[0]))
                for key, value in zip(node.keys, node.values, strict=True)
                if isinstance(value, ast.Tuple) and value.elts
            }
    # What the sources put together: `f"{error.field}-taken"`, and a status that the caller says.
    assert {("409", "{}-taken"), ("", "insufficient-storage")} <= found
    found |= {("409", "email-taken"), ("409", "login-taken")}
    found |= {("503", "insufficient-storage"), ("507", "insufficient-storage")}
    return {
        (status, case)
        for status, case in found
        if re.fullmatch("[45][0-9][0-9]", status) and re.fullmatch("[a-z]+(-[a-z]+)*", case)
    }


def test_every_problem_is_tabulated() -> None:
    """A client can decide by `type`: each that there is stands in docs/http.md, with its status."""
    rows = re.findall(r"^\| `([a-z-]+)` \| ([0-9, ]+) \|", (DOCS / "http.md").read_text(), re.M)
    table = {(status, case) for case, statuses in rows for status in statuses.split(", ")}
    assert sorted(table ^ _cases()) == []
    assert {case for _, case in table} == TYPES.keys() - {"refused"}
