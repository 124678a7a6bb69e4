"""The documents' tables that are written from the program: `make docs` writes them again
(and wraps what grew too long).

Commands, exit codes, settings, metrics, calls and problems stand between `<!-- name -->` and
`<!-- /name -->`; what stands there is what this module makes of the commands, of
`relay.cli.exits`, of `relay.http.problems.types`, of `config/relay.toml`, and of a running relay's
`/metrics` and `/openapi.json`.
`tests/docs/test_tables.py` compares.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx

import actors
import relay
from relay.cli import cli, exits
from relay.http.problems.types import TYPES
from relay.metrics import registry
from relay.settings import as_environment, documented, known_names
from tests.cli.command import leaves
from tests.docs.pages import DOCS, documents, wrapped
from tests.relay_process import RelayProcess

PAGES = {
    "commands": DOCS / "commands.md",
    "exit codes": DOCS / "commands.md",
    "settings": DOCS / "settings.md",
    "metrics": DOCS / "metrics.md",
    "calls": DOCS / "calls.md",
    "problems": DOCS / "http.md",
}
"""Which page holds which table."""

# Options of so many commands that the table would be about them.
EVERYWHERE = {"data_dir", "config", "as_json", "token", "limit", "everything"}
_SAMPLE = re.compile(r"^(\w+)\{([^}]*)\}", re.MULTILINE)


def commands() -> str:
    """Every command, its arguments and options, and what it does."""
    lines = ["| command | does |", "|---|---|"]
    for name, command in leaves(cli):
        words = [f"relay {name}"]
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                words.append(str(parameter.make_metavar(click.Context(command))))
        options = [
            _spelt(parameter, command)
            for parameter in command.params
            if isinstance(parameter, click.Option) and parameter.name not in EVERYWHERE
        ]
        text = _cell(" ".join([*words, *options]))
        lines.append(f"| `{text}` | {_cell(command.get_short_help_str(200))} |")
    return "\n".join(lines)


def _spelt(option: click.Option, command: click.Command) -> str:
    longest = max(option.opts, key=len)
    value = "" if option.is_flag else " " + option.make_metavar(click.Context(command))
    return longest + value if option.required else f"[{longest}{value}]"


def exit_codes() -> str:
    """Every exit code and its meaning."""
    text = " ".join(exits.HELP.removeprefix("Exit codes:").split()).rstrip(".")
    rows = [part.strip().split(" ", 1) for part in text.split(";")]
    return "\n".join(
        ["| code | means |", "|---|---|", *(f"| {code} | {means} |" for code, means in rows)]
    )


def settings() -> str:
    """Every setting as a variable, with the default and the comment of `config/relay.toml`."""
    written = documented()
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for name in known_names():
        default, remark = written[name]
        shown = f"`{default}`" if default else ""
        lines.append(f"| `{as_environment(name)}` | {_cell(shown)} | {_cell(remark)} |")
    return "\n".join(lines)


def metrics(page: str) -> str:
    """Every metric of the relay, its kind and labels, and what it counts."""
    for package in (actors, relay):  # what is counted must have been defined
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    labels = {
        getattr(collector, "_name", ""): list(getattr(collector, "_labelnames", ()))
        for collector in list(registry._collector_to_names)
    }
    for name, pairs in _SAMPLE.findall(page):
        labels.setdefault(name, [pair.split("=")[0] for pair in pairs.split(",")])
    lines = ["| metric | kind | what |", "|---|---|---|"]
    for name, kind, text in sorted(_families(page)):
        of = labels.get(name.removesuffix("_total"), labels.get(name, []))
        braces = f"`{{{','.join(of)}}}`" if of else ""
        lines.append(f"| `{name}` {braces} | {kind} | {_cell(text)} |".replace("  ", " "))
    return "\n".join(lines)


def _families(page: str) -> Iterator[tuple[str, str, str]]:
    texts = dict(re.findall(r"^# HELP (relay_\w+) (.*)$", page, re.MULTILINE))
    for name, kind in re.findall(r"^# TYPE (relay_\w+) (\w+)$", page, re.MULTILINE):
        yield name, kind, texts[name]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def calls(described: dict[str, Any]) -> str:
    """Every call of the control plane, who may make it, and what it does."""
    lines = ["| call | needs | does |", "|---|---|---|"]
    for path, methods in described["paths"].items():
        for method, call in methods.items():
            needs = _needs(call["security"], call.get("description", ""))
            lines.append(f"| `{method.upper()} {path}` | {needs} | {_cell(call['summary'])} |")
    return "\n".join(lines)


def _needs(security: list[dict[str, Any]], text: str) -> str:
    scope = re.search(r"A key needs the scope (`\w+`)", text)
    key = f"a key with {scope[1]}" if scope else "a key"
    if not security:
        return "nothing"
    if {} in security:
        return f"nothing, or {key}"
    if any("session" in way for way in security):
        return f"the mailbox's token, or {key}"
    return key


def problems() -> str:
    """Every problem, its statuses, and when it comes."""
    lines = ["| `/problems/` … | status | when |", "|---|---|---|"]
    for case, kind in sorted(TYPES.items()):
        # What has no case of its own may have any status.
        statuses = "any" if case == "refused" else ", ".join(map(str, kind.statuses))
        lines.append(f"| `{case}` | {statuses} | {_cell(kind.when)} |")
    return "\n".join(lines)


def scrape(relay: RelayProcess) -> str:
    """Return the metrics page of a running relay."""
    answer = httpx.get(f"{relay.run['http']}/metrics", timeout=30, trust_env=False)
    return answer.raise_for_status().text


def tables(relay: RelayProcess) -> dict[str, str]:
    """Return every table by its name; some of them a running relay has to say."""
    described = httpx.get(f"{relay.run['http']}/openapi.json", timeout=30, trust_env=False)
    return {
        "commands": commands(),
        "exit codes": exit_codes(),
        "settings": settings(),
        "metrics": metrics(scrape(relay)),
        "calls": calls(described.raise_for_status().json()),
        "problems": problems(),
    }


def picture(text: str) -> list[tuple[int, str]]:
    """Return the nodes of the tree that is drawn in `text` (there is one), each with its depth."""
    lines = text.splitlines()
    root = next(n for n, line in enumerate(lines) if re.match(r"\s*├── core ", line)) - 1
    indent = len(lines[root]) - len(lines[root].lstrip())
    found = [(0, lines[root].split()[0])]
    for line in lines[root + 1 :]:
        branch = re.match(r"((?:│   |    )*)[├└]── ([\w-]+) ", line[indent:])
        if branch is None:
            break
        found.append((1 + len(branch[1]) // 4, branch[2]))
    return found


def section(text: str, name: str) -> str:
    """Return what stands in a page between the marks of `name`."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")[0]


def replaced(text: str, name: str, table: str) -> str:
    """Return a page with another table between the marks of `name`."""
    head, mark, rest = text.partition(f"<!-- {name} -->\n")
    assert mark, f"there is no <!-- {name} -->"
    return head + mark + table + "\n" + rest[rest.index(f"<!-- /{name} -->") :]


def main() -> None:
    """Write the tables, and wrap what is too long."""
    with (
        tempfile.TemporaryDirectory(prefix="relay-docs-") as folder,
        RelayProcess(Path(folder) / "data") as process,
    ):
        found = tables(process)
    for name, table in found.items():
        page = PAGES[name]
        page.write_text(replaced(page.read_text(), name, table))
    for page in documents():
        page.write_text(wrapped(page.read_text()))
